"""Layers that nothing needs go; whatever is needed comes back equal, also while others work."""

import asyncio
import json
import os
import random
import signal
from pathlib import Path

import pytest

from perdure.errors import NotFound, StoreCorrupt, StoreLocked, UsageError
from perdure.sandbox import IsolatedSandboxes, _standing, folder_name
from tests.sandbox.courses import MORE
from tests.sandbox.long import LONG
from tests.sandbox.workload import seen, turns

pytestmark = pytest.mark.timeout(300)

KNOWN = {folder_name(f"t-{n}") for n in range(1, 4)}


def collect(backend, named, threads=KNOWN, **kwargs):
    with backend.collection("acme") as collection:
        return collection.finish(named, set(threads), **kwargs)


def layers_of(backend):
    return {path.name for path in backend.root.glob("tenants/*/layers/*")}


def size_of(backend):
    found = {}
    for path in backend.root.glob("tenants/*/layers/**/*"):
        status = path.lstat()
        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


async def chain_of(sandbox, count, first=0):
    """Take snapshots, each with a file of its own; return them, oldest first."""
    taken = []
    for n in range(first, first + count):
        await sandbox.run(f"echo {n} > n; head -c 50000 /dev/urandom > f{n}; rm -f f{n - 3}")
        taken.append(await sandbox.take())
    return taken


async def test_what_nothing_stands_on_goes_and_its_bytes_with_it(backend, sandbox):
    taken = await chain_of(sandbox, 5)
    await sandbox.restore(taken[1])
    await sandbox.run("echo other > other")
    branch = await sandbox.take()
    before = size_of(backend)
    told = collect(backend, [], is_dry=True)
    assert (told.layers, told.kept, layers_of(backend)) == (3, 3, {*taken, branch})
    done = collect(backend, [])
    assert (done.layers, done.kept) == (3, 3)
    assert layers_of(backend) == {*taken[:2], branch}
    freed = before - size_of(backend)
    # A dry run leaves out the folders of the layers themselves.
    assert abs(done.bytes - freed) <= 4096
    assert freed - 3 * 4096 <= told.bytes <= freed
    assert freed > 3 * 50_000
    with pytest.raises(NotFound):
        await sandbox.restore(taken[4])
    await sandbox.restore(branch)
    assert (await sandbox.run("cat n other; ls")).output == "1\nother\nf0\nf1\nn\nother\n"
    assert not [*backend.root.glob("tenants/*/going")]


async def test_what_journals_name_stays(backend, sandbox):
    taken = await chain_of(sandbox, 5)
    await sandbox.restore(None)
    assert collect(backend, [taken[2], "l_gone", "base"]).layers == 2
    assert layers_of(backend) == {*taken[:3]}
    assert collect(backend, [taken[2]]).layers == 0
    await sandbox.restore(taken[2])
    assert (await sandbox.run("cat n")).output == "2\n"


async def test_layers_below_one_that_is_kept_as_one_go(backend, sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 3)
    taken = await chain_of(sandbox, 8)
    expected = await seen(sandbox)
    squashed = [path.parent.name for path in backend.root.glob("tenants/*/layers/*/squashed")]
    assert len(squashed) >= 2
    lowest = max(taken.index(name) for name in squashed)
    await sandbox.restore(None)
    assert collect(backend, [taken[-1]]).layers == lowest
    assert layers_of(backend) == {*taken[lowest:]}
    other = backend.open("acme", "t-2")
    await other.restore(taken[-1])
    assert await seen(other) == expected
    changes = await other.changes("base")
    assert {change.path for change in changes.paths if change.kind == "added"} >= {
        "/workspace/f7", "/workspace/n"
    }  # fmt: skip
    with pytest.raises(UsageError, match="collected"):
        await other.changes(taken[0])
    found = await other.snapshot(taken[lowest])
    assert (found.is_squashed, found.layers) == (True, 1)
    assert await chain_of(other, 5, first=8)
    assert (await other.run("ls f*")).output.split() == ["f10", "f11", "f12"]


READER = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
open("up", "w").close()
signal.pause()
print(open("n").read(), len(open("f0", "rb").read()))
"""


def pid_of(marker):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"python3") and marker.encode() in words:
            return int(path.parent.name)
    return 0


async def test_layers_below_a_command_stay_until_it_ends(backend, monkeypatch, is_root):
    """Another thread makes one layer of many: a mount of before goes on reading the many."""
    first, second = backend.open("acme", "t-1"), backend.open("acme", "t-2")
    await first.run("echo 0 > n; head -c 50000 /dev/urandom > f0")
    taken = [await first.take()]
    await first.run("echo 1 > n")
    taken.append(await first.take())
    marker = f"reader-{LONG}"
    running = asyncio.create_task(first.run(["/usr/bin/python3", "-c", READER, marker]))
    while not (pid := pid_of(marker)) or not [*backend.root.glob("tenants/*/threads/*/top/*/*/up")]:  # noqa: ASYNC110  # of a process
        await asyncio.sleep(0.01)
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 2)
    await second.restore(taken[1])
    await second.run("echo 2 > n")
    await second.take()
    if is_root:
        assert [*backend.root.glob(f"tenants/*/layers/{taken[1]}/squashed")]
    assert collect(backend, [taken[1]]).layers == 0
    os.kill(pid, signal.SIGUSR1)
    assert (await running).output == "1\n 50000\n"
    await first.restore(taken[1])
    await second.restore(taken[1])  # what it took is garbage, and what its command stood on
    assert collect(backend, [taken[1]]).layers == 2
    assert layers_of(backend) == {taken[1]}
    assert (await first.run("cat n; wc -c < f0")).output == "1\n50000\n"


async def test_what_is_taken_meanwhile_stays(backend, sandbox):
    taken = await chain_of(sandbox, 3)
    await sandbox.restore(None)
    with backend.collection("acme") as collection:
        await sandbox.restore(taken[1])
        await sandbox.run("echo new > new")
        new = await sandbox.take()
        await sandbox.restore(None)  # so that no head names it either
        assert collection.finish([], KNOWN).layers == 1
    assert layers_of(backend) == {*taken[:2], new}
    await sandbox.restore(new)
    assert (await sandbox.run("cat n new")).output == "1\nnew\n"


async def test_a_snapshot_whose_record_is_on_its_way_stays(backend, sandbox):
    """Taken before, named by no journal yet; when journals were read, it is not the head either."""
    taken = await chain_of(sandbox, 2)
    with backend.collection("acme") as collection:
        await sandbox.restore(None)
        assert collection.finish([], KNOWN).layers == 0
    assert layers_of(backend) == {*taken}
    assert collect(backend, []).layers == 2


async def test_a_snapshot_that_is_a_copy_stays_until_the_thread_goes_back(backend, sandbox):
    """The thread does not stand on it, and no journal names it yet."""
    taken = await chain_of(sandbox, 2)
    await sandbox.restore(taken[0])
    sandbox._ground.layers.announce(sandbox._ground.folder, taken[1])
    await chain_of(sandbox, 1, first=7)
    assert collect(backend, []).layers == 0
    [listed] = backend.root.glob("tenants/*/threads/*/taken")
    assert listed.read_text() == taken[1]
    for _ in range(100):
        sandbox._ground.layers.announce(sandbox._ground.folder, taken[1])
    assert len(listed.read_text().split()) == 64
    await sandbox.restore(taken[0])
    assert not listed.exists()
    assert collect(backend, []).layers == 2


async def test_layers_of_threads_that_nobody_knows_stay(backend, sandbox):
    taken = await chain_of(sandbox, 2)
    stranger = backend.open("acme", "by-hand")
    await stranger.run("echo 1 > n")
    theirs = await stranger.take()
    for each in (sandbox, stranger):
        await each.restore(None)
    done = collect(backend, [])
    assert (done.layers, done.unknown) == (2, 1)
    assert layers_of(backend) == {theirs}
    assert not {*taken} & layers_of(backend)


def make_old(backend, name):
    """Make a layer one of format 1: it says nothing of who took it."""
    [path] = backend.root.glob(f"tenants/*/layers/{name}/layer.json")
    said = json.loads(path.read_text())
    kept = {key: said[key] for key in ("parent", "parts", "base")}
    path.write_text(json.dumps({"format": 1, **kept}))


async def test_old_layers_go_only_where_all_threads_are_known(backend, sandbox):
    taken = await chain_of(sandbox, 3)
    for name in taken:
        make_old(backend, name)
    await sandbox.restore(taken[2])
    assert (await sandbox.run("cat n")).output == "2\n"
    found = await sandbox.snapshot()
    assert (found.format, found.at, found.made.driver) == (1, None, "")
    assert found.bytes > 50_000
    await sandbox.restore(taken[0])
    backend.open("acme", "by-hand")
    done = collect(backend, [])
    assert (done.layers, done.unknown) == (0, 2)
    done = collect(backend, [], {*KNOWN, folder_name("by-hand")})
    assert (done.layers, done.unknown) == (2, 0)
    assert layers_of(backend) == {taken[0]}


async def test_a_needed_layer_that_can_not_be_read_ends_it(backend, sandbox):
    taken = await chain_of(sandbox, 3)
    [path] = backend.root.glob(f"tenants/*/layers/{taken[1]}/layer.json")
    path.write_bytes(b"{")
    with pytest.raises(StoreCorrupt, match="nothing was removed"):
        collect(backend, [])
    assert layers_of(backend) == {*taken}


async def test_one_collection_at_a_time_and_none_beside_a_user_at_the_gate(
    backend, sandbox, monkeypatch
):
    await chain_of(sandbox, 1)
    monkeypatch.setattr("perdure.sandbox._disk.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("perdure.sandbox._standing.GATE_WAIT_S", 0.05)
    [tenant] = backend.root.glob("tenants/acme.*")
    with backend.collection("acme") as collection:
        with pytest.raises(StoreLocked), backend.collection("acme"):
            pass
        with _standing.gate(tenant, is_shared=True):
            assert collection.finish([], KNOWN, is_dry=True).layers == 0
            with pytest.raises(StoreLocked):
                collection.finish([], KNOWN)
    with _standing.gate(tenant, is_shared=False), pytest.raises(StoreLocked):
        await sandbox.run("true")


async def test_what_a_worker_that_is_gone_stood_on_counts_no_more(backend, sandbox, is_able):
    taken = await chain_of(sandbox, 2)
    other = IsolatedSandboxes(backend.root, prepared=0)  # else it mounts what the head says below
    theirs = other.open("acme", "t-2")
    await theirs.restore(taken[1])
    await theirs.run("true")
    [head] = backend.root.glob(f"tenants/*/threads/{folder_name('t-2')}/head")
    head.write_text("base")
    await sandbox.restore(None)
    assert collect(backend, []).layers == 0
    other.close()
    assert collect(backend, []).layers == 2


async def test_a_snapshot_of_another_driver_is_refused(backend, sandbox):
    [taken] = await chain_of(sandbox, 1)
    [path] = backend.root.glob(f"tenants/*/layers/{taken}/layer.json")
    said = json.loads(path.read_text())
    other = "userns" if said["made"]["driver"] == "ns" else "ns"
    path.write_text(json.dumps(said | {"made": said["made"] | {"driver": other}}))
    with pytest.raises(UsageError, match=f"driver '{other}'"):
        await sandbox.restore(taken)
    with pytest.raises(UsageError, match="misread"):
        await sandbox.run("true")
    assert (await sandbox.snapshot(taken)).made.driver == other


@pytest.mark.parametrize("seed", [1, MORE(2), MORE(3)])
async def test_random_turns_takes_forks_restores_and_collections(backend, seed, monkeypatch):
    """Journals are played by a set of names; all that is in it comes back equal, always."""
    monkeypatch.setattr("perdure.sandbox._layers.SQUASH_AT", 3)
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    commands = turns(chance)
    threads = [backend.open("acme", f"t-{n}") for n in (1, 2, 3)]
    known = {}
    named = set()
    collected = 0
    for _ in range(32):
        sandbox = chance.choice(threads)
        act = chance.random()
        if act < 0.6:
            await sandbox.run(next(commands))
            snapshot = await sandbox.take()
            if snapshot != "base":
                now = await seen(sandbox)
                assert known.setdefault(snapshot, now) == now
                named.add(snapshot)
        elif act < 0.75 and named:
            await sandbox.restore(chance.choice(sorted(named)))
        elif act < 0.9 and named:
            named -= set(chance.sample(sorted(named), len(named) // 3))  # a prune
        else:
            collected += collect(backend, named).layers
            for snapshot in chance.sample(sorted(named), min(3, len(named))):
                other = backend.open("acme", "t-3")
                await other.restore(snapshot)
                assert await seen(other) == known[snapshot]
    for sandbox in threads:
        await sandbox.restore(None)
    collected += collect(backend, named).layers
    for snapshot in sorted(named):
        await threads[0].restore(snapshot)
        assert await seen(threads[0]) == known[snapshot]
    await threads[0].restore(None)
    assert collected > 0
    assert collect(backend, []).kept == 0
    assert layers_of(backend) == set()


async def test_what_a_cut_off_import_left_goes_with_an_erasure_and_a_collection(backend, sandbox):
    await sandbox.run("echo 1 > n")
    await sandbox.take()
    tenant = backend.folder("acme")
    left = tenant / "importing" / "l_x" / "root" / "secret"
    for act in ("search", "collect", "erase"):
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(b"what was somebody's")
        if act == "search":
            found, elsewhere, _count = backend.searched("acme", ["t-2"], [b"was somebody"])
            assert (found, elsewhere) == ({b"was somebody"}, set())
            continue
        if act == "collect":
            collect(backend, set())
        else:
            (tenant / "exporting").mkdir(exist_ok=True)
            (tenant / "exporting" / "l_x-note").write_bytes(b"{}")
            assert backend.forget("acme", "t-2", 1).bytes > 0
            assert [*(tenant / "exporting").iterdir()] == []
        assert [*(tenant / "importing").iterdir()] == []
