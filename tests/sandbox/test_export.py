"""What is exported comes back equal on another host: another folder, other ids, nothing there."""

import asyncio
import fcntl
import os
import random

import pytest

from perdure.errors import (
    KeyMissing,
    NotFound,
    SandboxUnstoppable,
    SettingInvalid,
    SnapshotNotDurable,
    UsageError,
)
from perdure.sandbox import FolderObjects, IsolatedSandboxes, _layers, folder_name
from perdure.sandbox.export import Base
from tests.sandbox.courses import MORE
from tests.sandbox.long import LONG
from tests.sandbox.trees import KEY, layer_of, told
from tests.sandbox.workload import seen, turns

pytestmark = pytest.mark.timeout(300)

TURNS = 20

MUCH = """
import os, socket
os.makedirs("deep/" + "/".join(str(n) for n in range(40)))
for n in range(200):
    with open(f"small{n}", "wb") as file:
        file.write(os.urandom(n * 50))
with open("big", "wb") as file:
    file.write(os.urandom(5_000_000))
with open("repeated", "wb") as file:
    file.write(b"the same line\\n" * 1_000_000)
with open("holes", "wb") as file:
    for at in (100_000, 9_000_000, 50_000_000):
        file.seek(at)
        file.write(b"x" * 70_000)
    file.truncate(1 << 27)
with open("hole", "wb") as file:
    file.truncate(1_000_000)
os.link("big", "deep/other name")
os.link("small7", "small7 again")
os.symlink("/etc/passwd", "link")
os.symlink("x" * 4_000, "nowhere")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.setxattr("big", "user.note", b"\\x00\\xff")
os.setxattr("deep", "user.name", b"value")
os.mkdir("group")
os.chmod("group", 0o2775)
os.chmod("small3", 0o4711)
os.utime("small4", ns=(1, -5_000_000_001))
os.mkdir(b"no utf-8 \\xff")
open(b"no utf-8 \\xff/\\xfe", "w").close()
open("n" * 255, "w").close()
"""


async def copied(backend, other, snapshot, *, thread="t"):
    """Export a snapshot, restore it on the other host, and see that both are equal."""
    sandbox = backend.open("acme", thread)
    await sandbox.make_durable(snapshot)
    assert sandbox.is_durable(snapshot)
    there = other.open("acme", f"{thread}-there")
    await there.restore(snapshot)
    assert there.is_durable(snapshot)
    await sandbox.restore(snapshot)
    here = without_set_ids(await seen(sandbox))
    assert without_set_ids(await seen(there)) == here
    return there


def without_set_ids(files):
    """Of files, set-id bits are not kept, as no sandbox honours them."""
    for line in files.values():
        mode = int(line[0], 8)
        line[0] = oct(mode & ~(0o4000 if mode & 0o40000 else 0o6000))
    return files


def first_id(backend, tenant="acme"):
    return backend.open(tenant, "t")._tenant.driver.first  # by which ids differ


async def test_everything_that_files_can_be_comes_back(hosts):
    a, b = hosts("a"), hosts("b")
    b.open("another", "first")  # so that the tenant has other ids there
    sandbox = a.open("acme", "t")
    ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", MUCH])
    assert ran.code == 0, ran.errors
    await sandbox.run("rm -rf /opt /var/cache /etc/hosts; mkdir /opt; touch /opt/new /usr/local/x")
    snapshot = await sandbox.take()
    await copied(a, b, snapshot)
    firsts = first_id(a), first_id(b)
    assert (firsts[0] != firsts[1]) == (os.geteuid() == 0)
    first, second = (
        told(layer_of(each, "acme", snapshot), first)
        for each, first in zip((a, b), firsts, strict=True)
    )
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize("seed", [1, MORE(2)])
async def test_every_snapshot_of_random_turns_comes_back_elsewhere(
    hosts, is_able, seed, monkeypatch, record_property
):
    monkeypatch.setattr(_layers, "SQUASH_AT", 4)
    a, b = hosts("a"), hosts("b")
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    commands = (each for each in turns(chance) if is_able == "ns" or "chmod 000" not in each)
    threads = [a.open("acme", f"t-{n}") for n in range(2)]
    known = {}
    for _ in range(TURNS):
        sandbox = chance.choice(threads)
        if known and chance.random() < 0.2:
            await sandbox.restore(chance.choice([*known]))
        await sandbox.run(next(commands))
        snapshot = await sandbox.take()
        known[snapshot] = without_set_ids(await seen(sandbox))
    await a.settle(60.0)
    for snapshot in chance.sample([*known], min(len(known), 8)):
        assert threads[0].is_durable(snapshot)
        there = b.open("acme", f"u-{chance.randrange(3)}")
        await there.restore(snapshot)
        assert without_set_ids(await seen(there)) == known[snapshot]
    record_property("figure", f"export: {TURNS} random turns, {len(known)} snapshots, all equal")


async def test_what_stands_on_an_import_is_exported_and_goes_back(hosts):
    a, b, c = hosts("a"), hosts("b"), hosts("c")
    sandbox = a.open("acme", "t")
    await sandbox.run("echo 1 > one")
    first = await sandbox.take()
    there = await copied(a, b, first)
    await there.run("echo 2 > two; rm one")
    second = await there.take()
    await there.make_durable(second)
    for host in (a, c):
        back = host.open("acme", "t")
        await back.restore(second)
        assert (await back.run("ls; cat two")).output == "two\n2\n"


async def test_known_content_is_there_once(hosts, tmp_path):
    backend = hosts("a")
    sandbox = backend.open("acme", "t")
    await sandbox.run("head -c 9M /dev/urandom > big")
    first = await sandbox.make_durable(await sandbox.take())
    assert (first.pieces, first.new) == (3, 3)
    # A byte more: the layer has the whole file, the place one piece more.
    await sandbox.run("echo more >> big; cp big copy")
    second = await sandbox.make_durable(await sandbox.take())
    assert second.pieces == 6
    assert second.new == 1
    other = backend.open("other", "t")
    await other.run("true")
    fork = backend.open("acme", "fork")
    await fork.restore(await sandbox.take())
    assert await fork.make_durable(await fork.take()) == await sandbox.make_durable("base")


async def test_tenants_share_no_names_and_cannot_read_each_other(hosts):
    a, b = hosts("a"), hosts("b")
    for tenant in ("acme", "other"):
        sandbox = a.open(tenant, "t")
        await sandbox.run("yes | head -c 200000 > same")
        snapshot = await sandbox.take()
        await sandbox.make_durable(snapshot)
    names = a.exports.objects.list("", limit=1_000)
    pieces = [name.rpartition("/")[2] for name in names if "/pieces/" in name]
    assert len(pieces) == len(set(pieces)) == 2
    with pytest.raises(NotFound):
        await b.open("acme", "t").restore(snapshot)


async def test_names_and_content_are_not_readable_where_they_are_exported_to(hosts, tmp_path):
    sandbox = hosts("a").open("acme", "customer-ada")
    await sandbox.run("echo secret-word > secret-file; head -c 100000 /dev/zero > big")
    await sandbox.make_durable(await sandbox.take())
    for path in (tmp_path / "objects").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for word in ("secret-word", "secret-file", "customer-ada", "workspace"):
            assert word not in str(path.relative_to(tmp_path))
            assert word.encode() not in content


async def test_plain_exports_must_be_asked_for(hosts, tmp_path):
    url = (tmp_path / "plain").as_uri()
    for settings in ({"export": url}, {"keys": "env:EXPORT_KEY"}, {"plain": True}):
        with pytest.raises(SettingInvalid):
            IsolatedSandboxes(tmp_path / "x", **settings)
    a = hosts("a", export=url, keys=None, plain=True)
    b = hosts("b", export=url, keys=None, plain=True)
    sandbox = a.open("acme", "t")
    await sandbox.run("echo 1 > one; head -c 300000 /dev/urandom > big")
    snapshot = await sandbox.take()
    await copied(a, b, snapshot)
    sealed = hosts("c", export=url)
    with pytest.raises(NotFound, match="nothing of this tenant that is encrypted"):
        await sealed.open("acme", "t").restore(snapshot)


async def test_without_the_key_nothing_can_be_restored(hosts, tmp_path, monkeypatch):
    sandbox = hosts("a").open("acme", "t")
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    monkeypatch.setenv("OTHER_KEY", "B" * 43 + "=")
    with pytest.raises(KeyMissing):
        await hosts("b", keys="env:OTHER_KEY").open("acme", "t").restore(snapshot)
    with pytest.raises(KeyMissing):
        await hosts("c", keys=None, plain=True).open("acme", "t").restore(snapshot)


async def test_a_key_is_replaced_without_another_export(hosts, monkeypatch):
    sandbox = hosts("a").open("acme", "t")
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    monkeypatch.setenv("BOTH", f"{KEY},new:{'B' * 43}=")
    await hosts("both", keys="env:BOTH").open("acme", "t").restore(snapshot)
    monkeypatch.setenv("NEW", f"new:{'B' * 43}=")
    there = hosts("new", keys="env:NEW").open("acme", "t")
    await there.restore(snapshot)
    assert (await there.run("cat one")).output == "1\n"


async def test_of_two_first_hosts_one_makes_the_key(hosts):
    backends = [hosts(f"h{n}") for n in range(4)]
    snapshots = []

    async def export(backend):
        sandbox = backend.open("acme", "t")
        await sandbox.run(f"echo {backend.root.name} > name")
        snapshot = await sandbox.take()
        await sandbox.make_durable(snapshot)
        snapshots.append((backend.root.name, snapshot))

    await asyncio.gather(*map(export, backends))
    there = hosts("last").open("acme", "t")
    for name, snapshot in snapshots:
        await there.restore(snapshot)
        assert (await there.run("cat name")).output == f"{name}\n"


async def test_another_base_is_refused_and_nothing_is_there(hosts, tmp_path):
    a, b = hosts("a"), hosts("b", show={"/shown": str(tmp_path)})
    sandbox = a.open("acme", "t")
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    there = b.open("acme", "t")
    with pytest.raises(UsageError, match="over the base"):
        await there.restore(snapshot)
    assert list(b.root.glob("tenants/acme.*/layers/*")) == []


def test_a_base_is_what_a_sandbox_sees_of_it(tmp_path):
    for name in ("small", "usr"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "tool").write_text("one")

    def digest(shown=()):
        parts = [("", str(tmp_path / "small")), ("usr", str(tmp_path / "usr"))]
        return Base(parts, shown).digest()

    seen = {digest()}
    assert digest() in seen
    (tmp_path / "usr/bin/__pycache__").mkdir()
    os.utime(tmp_path / "usr/bin/tool", (1, 1))
    assert digest() in seen
    for change in (
        lambda: (tmp_path / "usr/bin/tool").write_text("longer"),
        lambda: (tmp_path / "usr/bin/tool").chmod(0o755),
        lambda: (tmp_path / "usr/bin/more").write_text(""),
        lambda: (tmp_path / "usr/bin/more").rename(tmp_path / "usr/bin/named"),
        lambda: (tmp_path / "usr/bin/link").symlink_to("tool"),
        lambda: (tmp_path / "small/bin/tool").write_text("two"),
    ):
        change()
        assert digest() not in seen
        seen.add(digest())
    assert digest(["/shown"]) not in seen


async def test_what_is_nowhere_is_not_found_and_the_files_stay(hosts):
    sandbox = hosts("a").open("acme", "t")
    await sandbox.write("/workspace/kept", b"1")
    for name in ("l_" + "0" * 26, "x", "l_../../x"):
        with pytest.raises(NotFound):
            await sandbox.restore(name)
    assert await sandbox.read("/workspace/kept") == b"1"


async def test_a_place_that_is_full_of_trouble_takes_nothing_from_the_snapshot(hosts, tmp_path):
    (tmp_path / "objects").write_text("no folder")
    sandbox = hosts("a").open("acme", "t")
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    assert not sandbox.is_durable(snapshot)
    with pytest.raises(SnapshotNotDurable):
        await sandbox.make_durable(snapshot)
    await sandbox.restore(snapshot)
    (tmp_path / "objects").unlink()
    await sandbox.make_durable(snapshot)
    assert sandbox.is_durable(snapshot)


async def test_a_closed_backend_exports_no_more(hosts):
    backend = hosts("a")
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    await backend.settle()
    await sandbox.run("echo 2 > one")
    other = await sandbox.take()
    backend.close()
    assert sandbox.is_durable(snapshot)
    if not sandbox.is_durable(other):
        with pytest.raises(SnapshotNotDurable):
            await sandbox.make_durable(other)


async def test_without_a_place_nothing_is_durable(backend, sandbox):
    await sandbox.run("echo 1 > one")
    snapshot = await sandbox.take()
    assert not sandbox.is_durable(snapshot)
    with pytest.raises(SettingInvalid, match="export"):
        await sandbox.make_durable(snapshot)
    assert sandbox.is_durable("base")


async def test_a_thread_numbers_its_layers_upwards_from_host_to_host(hosts):
    a, b = hosts("a"), hosts("b")
    numbers = []
    snapshot = None
    for n, host in enumerate((a, b, a, b)):
        sandbox = host.open("acme", "t")
        await sandbox.restore(snapshot)
        await sandbox.run(f"echo {n} > n")
        snapshot = await sandbox.take()
        await sandbox.make_durable(snapshot)
        numbers.append(sandbox._layers.read(snapshot).generation)  # what is exported
    assert numbers == sorted(set(numbers))


async def test_what_is_too_deep_is_refused_and_stays(hosts):
    sandbox = hosts("a").open("acme", "t")
    await sandbox.run("i=0; while [ $i -lt 140 ]; do mkdir d; cd d; i=$((i+1)); done; echo 1 > f")
    snapshot = await sandbox.take()
    with pytest.raises(UsageError, match="deeper"):
        await sandbox.make_durable(snapshot)
    await sandbox.restore(snapshot)


def test_objects_are_for_their_owner_only(tmp_path):
    FolderObjects(tmp_path / "o").put("a/b", b"1")
    for path in (tmp_path / "o", tmp_path / "o/a", tmp_path / "o/a/b"):
        assert path.stat().st_mode & 0o077 == 0


def test_this_host_can_do_what_is_compared(tmp_path):
    """The file system of these tests keeps holes and attributes, or they would compare nothing."""
    path = tmp_path / "f"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    os.setxattr(path, "user.x", b"1")
    assert path.stat().st_blocks == 0


async def three_taken(backend):
    """Return a sandbox and three snapshots, none of which stands on another one."""
    sandbox = backend.open("acme", "t")
    snapshots = []
    for n in range(3):
        await sandbox.restore(None)
        await sandbox.run(f"echo {n} > n")
        snapshots.append(await sandbox.take())
    return sandbox, snapshots


async def test_who_waits_is_exported_before_who_does_not(hosts, monkeypatch):
    backend = hosts("a")
    backend.open("acme", "t")
    order = []
    export = backend.exports._export

    def noted(job, *more):
        order.append(job.snapshot)
        return export(job, *more)

    monkeypatch.setattr(backend.exports, "_export", noted)
    with (backend.root / "export.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as another process of the host that exports
        sandbox, (first, second, third) = await three_taken(backend)
        waiting = asyncio.ensure_future(sandbox.make_durable(third))
        await asyncio.sleep(0)
        assert not any(map(sandbox.is_durable, (first, second, third)))
    await waiting
    await backend.settle(60.0)
    assert order == [first, third, second]
    assert all(map(sandbox.is_durable, (first, second, third)))


async def test_other_processes_of_a_host_let_an_urgent_one_go_first(hosts, tmp_path):
    backend = hosts("a")
    other = IsolatedSandboxes(
        backend.root, export=(tmp_path / "objects").as_uri(), keys="env:EXPORT_KEY"
    )
    backend.open("acme", "t")
    with (backend.root / "export.urgent").open("w") as urgent:
        fcntl.flock(urgent, fcntl.LOCK_SH)  # as a process that waits for its turn
        sandbox, (first, second, third) = await three_taken(backend)
        await other.open("acme", "u").make_durable(third)
        assert not sandbox.is_durable(first)
        assert not sandbox.is_durable(second)
    await backend.settle(60.0)
    assert sandbox.is_durable(first)
    assert sandbox.is_durable(second)
    other.close()


async def test_a_layer_that_is_kept_as_one_is_exported_as_one(hosts, monkeypatch, tmp_path):
    """So that an import reads no more manifests than commands stand on layers."""
    monkeypatch.setattr(_layers, "SQUASH_AT", 3)
    a, b = hosts("a"), hosts("b")
    sandbox = a.open("acme", "t")
    for n in range(8):
        await sandbox.run(f"echo {n} > f{n}; rm -f f{n - 2}")
        snapshot = await sandbox.take()
        await sandbox.make_durable(snapshot)
    there = await copied(a, b, snapshot)
    assert (await there.run("cat f*")).output == "6\n7\n"
    assert len(list(b.root.glob("tenants/acme.*/layers/l_*"))) <= 3


async def test_what_was_imported_is_not_collected_before_it_is_used(hosts):
    a, b = hosts("a"), hosts("b")
    sandbox = a.open("acme", "t")
    for n in range(3):
        await sandbox.run(f"echo {n} > f{n}")
        snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    there = b.open("acme", "t")

    def collected(collection):
        return collection.finish([], {folder_name("t")}).layers

    with b.collection("acme") as collection:  # begun before the import
        assert (await there.fetch(snapshot)).snapshot == snapshot
        assert collected(collection) == 0
    with b.collection("acme") as collection:
        assert collected(collection) == 0
    await there.restore(snapshot)
    with b.collection("acme") as collection:
        assert collected(collection) == 0
    await there.restore(None)
    with b.collection("acme") as collection:
        assert collected(collection) == 3
    await there.restore(snapshot)  # fetched once more
    assert (await there.run("cat f*")).output == "0\n1\n2\n"


async def test_an_import_says_what_made_it_and_is_measured(hosts):
    a, b = hosts("a"), hosts("b")
    sandbox = a.open("acme", "t")
    await sandbox.run("head -c 1000000 /dev/urandom > big")
    snapshot = await sandbox.take()
    await sandbox.make_durable(snapshot)
    there = b.open("acme", "u")
    await there.restore(snapshot)
    first, second = await sandbox.snapshot(snapshot), await there.snapshot(snapshot)
    assert (second.made, second.at, second.thread) == (first.made, first.at, first.thread)
    assert second.bytes >= 1_000_000


async def test_what_was_alive_is_told_elsewhere(hosts):
    try:
        a, b = hosts("a", live=True), hosts("b")
    except SandboxUnstoppable as error:
        pytest.skip(f"NOT TESTED: {error}")
    sandbox = a.open("acme", "t")
    await sandbox.run(f"sleep {LONG} & echo 1 > f")
    taken = await sandbox.take()
    await sandbox.make_durable(taken)
    there = b.open("acme", "there")
    await there.restore(taken)
    ran = await there.run("cat f")
    assert ran.output == "1\n"
    [said] = ran.lost
    assert f"sleep {LONG}" in said
