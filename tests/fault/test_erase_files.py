"""Files of erased threads go, whoever had them open; who is killed is finished by the next call."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from perdure import START, Context, Graph, Runtime, effect
from perdure.errors import LeaseLost, NotFound, UsageError
from perdure.governance import (
    check_receipt,
    collect_snapshots,
    erase,
    preview_erasure,
    verify,
    write_receipt,
)
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes
from tests import warm
from tests.engine.one_node import State
from tests.fault.conftest import ROOT
from tests.sandbox.long import LONG, alive

pytestmark = [pytest.mark.fault, pytest.mark.timeout(200)]

CANARY = "CANARY-kQ7zW-of-the-person"
POINTS = ["erase.sandbox.before", "erase.sandbox.forgotten", "erase.sandbox.after"]


@effect(kind="contained")
async def shell(command: str, *, sandbox) -> str:
    ran = await sandbox.run(command)
    return ran.output + ran.errors


@effect(kind="contained")
async def put(name: str, text: str, *, sandbox) -> str:
    (sandbox.path / name).write_text(text)
    return name


def graph_of(does, *arguments):
    graph = Graph(State, name="files")

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(does, *arguments)]}

    graph.edge(START, act)
    return graph


# The name of the person is put together inside, so that no journal holds it.
WRITE = f"printf '%s%s' CANARY- kQ7zW-of-the-person >> secret; echo {LONG} > n; mkdir -p d; ls"
assert CANARY not in WRITE


@pytest.fixture
async def isolated(tmp_path):
    backend = IsolatedSandboxes(tmp_path / "boxes")
    try:
        await backend.capabilities()
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    yield backend
    backend.close()


def holding(folder, text=CANARY):
    """Return the files below a folder that hold a text."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]


async def fill(url, backend, threads=("t", "t", "other")):
    graph = graph_of(shell, WRITE)
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(backend.root)) as runtime:
        for thread in threads:
            run = await runtime.start(graph, {}, thread=thread)
            await run.result(timeout=60)


def layers_of(backend):
    return {path.name for path in backend.root.glob("tenants/default.*/layers/*")}


async def test_live_files_layers_and_forks_go_and_others_stay(isolated, tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url, isolated)
    graph = graph_of(shell, WRITE)
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(isolated.root)) as runtime:
        await (await runtime.fork("t", at=2, to="f")).result(timeout=60)
        await (await runtime.start(graph, {}, thread="f")).result(timeout=60)
    live = isolated.open("default", "t")
    await live.run("cp secret again")  # no snapshot holds it
    assert len(holding(isolated.root)) >= 5
    pieces = [CANARY.encode(), b"nowhere at all"]
    found, elsewhere, _count = isolated.searched("default", ["t"], pieces)
    assert (found, elsewhere) == ({pieces[0]}, set()), "in what was not taken"
    found, elsewhere, _count = isolated.searched("default", ["none"], pieces)
    assert (found, elsewhere) == (set(), {pieces[0]}), "in others'"
    async with Runtime.open(url, worker=False) as runtime:
        preview = await preview_erasure(runtime, thread="t", sandbox=isolated)
        assert (preview.layers, preview.forks) == (3, ["f"])
        assert preview.sandbox_bytes > 0
        assert len(layers_of(isolated)) == 4
        receipt = await erase(runtime, thread="t", by="ada", sandbox=isolated)
        assert (receipt.sandbox.layers, receipt.sandbox.threads) == (3, 2)
        # Folders of a tree that waits for its next command come and go, of 4 KiB each.
        assert abs(receipt.sandbox.bytes - preview.sandbox_bytes) < 100_000
        assert (receipt.sandbox.remaining, receipt.sandbox.unknown) == ([], 0)
        assert receipt.sandbox.searched > 0
        assert (receipt.is_clean, receipt.sandbox.found) == (True, 0)
        assert receipt.sandbox.searched_bytes > 0
        assert "sandbox" not in {each.kind for each in receipt.remains}
        assert (await verify(runtime)).findings == []
    assert {path.parts[-4] for path in holding(isolated.root)} == layers_of(isolated)
    other = isolated.open("default", "other")
    assert (await other.run("cat secret")).output == CANARY
    write_receipt(receipt, tmp_path / "r.json")
    assert check_receipt(tmp_path / "r.json").receipt == receipt


async def test_a_layer_that_another_thread_stands_on_is_named(isolated, tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url, isolated)
    async with Runtime.open(url, worker=False) as runtime:
        points = await runtime.history("t")
        first = min((each for each in points if each.snapshot), key=lambda each: each.id)
        await isolated.open("default", "by-hand").restore(first.snapshot)
        preview = await preview_erasure(runtime, thread="t", sandbox=isolated)
        receipt = await erase(runtime, thread="t", by="ada", sandbox=isolated)
        for remains in (preview.remains, receipt.remains):
            [left] = [each for each in remains if each.kind == "sandbox_layer"]
            assert left.name == first.snapshot
        assert receipt.sandbox.remaining == [first.snapshot]
        assert receipt.sandbox.layers == 1
        ran = await isolated.open("default", "by-hand").run("cat secret")
        assert ran.output == CANARY
        await isolated.open("default", "by-hand").restore(None)
        done = await collect_snapshots(runtime, isolated, tenant="default")
        assert done.layers == 1


async def test_who_held_it_brings_nothing_back(isolated, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url, isolated)
    zombie = isolated.open("default", "t", fence=(2, 7))
    late = isolated.open("default", "late", fence=(1, 1))
    running = asyncio.create_task(zombie.run(f"sleep {LONG}"))
    while not alive():  # noqa: ASYNC110  # of a process
        await asyncio.sleep(0.01)
    async with Runtime.open(url, worker=False) as runtime:
        receipt = await erase(runtime, thread="t", by="ada", sandbox=isolated)
        assert receipt.is_clean
    assert (await running).code == 137
    for act in (zombie.run("true"), zombie.write("x", b"x"), zombie.take(), zombie.restore(None)):
        with pytest.raises(LeaseLost):
            await act
    with pytest.raises(LeaseLost):
        await isolated.open("default", "t", fence=(2, 8)).run("true")
    [folder] = isolated.root.glob("tenants/default.*/threads/t.*")
    assert {path.name for path in folder.iterdir()} == {"lock", "fence"}
    await late.run("true")  # of another thread
    graph = graph_of(shell, "ls; echo new > new")
    async with Runtime.open(url, [graph], sandbox=isolated) as runtime:
        state = await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        assert state.results == [""]
        left = isolated.forget("default", "t", 2)
        assert (left.is_used, left.bytes >= 0) == (True, True)
        later = asyncio.create_task(isolated.open("default", "t").run(f"sleep {LONG}"))
        while not alive():  # noqa: ASYNC110  # of a process
            await asyncio.sleep(0.01)
        monkeypatch.setattr("perdure.sandbox._disk.LOCK_WAIT_S", 0.05)
        assert (await asyncio.to_thread(isolated.forget, "default", "t", 2)).is_used
        later.cancel()
        with pytest.raises(asyncio.CancelledError):
            await later
    assert [*folder.glob("top/*/workspace/new")] or [
        *isolated.root.glob("tenants/default.*/layers/*/*/workspace/new")
    ]


async def test_a_thread_that_was_erased_without_its_folder_is_collected_later(isolated, tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url, isolated)
    async with Runtime.open(url, worker=False) as runtime:
        receipt = await erase(runtime, thread="t", by="ada")
        assert receipt.sandbox is None
        [left] = [each for each in receipt.remains if each.kind == "sandbox"]
        assert "sandbox collect" in left.why
        assert len(layers_of(isolated)) == 3
        done = await collect_snapshots(runtime, isolated)
        assert done.layers == 2
    assert len(holding(isolated.root)) == 1


async def test_files_of_plain_directories_go(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    backend = DirectorySandboxes(tmp_path / "plain")
    graph = graph_of(put, "secret", CANARY)
    other = graph_of(put, "n", "1")
    for each, thread in ((graph, "t"), (other, "u")):
        async with Runtime.open(url, [each], sandbox=backend) as runtime:
            await (await runtime.start(each, {}, thread=thread)).result(timeout=60)
    assert len(holding(backend.root)) == 2
    async with Runtime.open(url, worker=False) as runtime:
        receipt = await erase(runtime, thread="t", by="ada", sandbox=backend)
    assert (receipt.sandbox.layers, receipt.sandbox.threads, receipt.is_clean) == (1, 1, True)
    assert holding(backend.root) == []
    assert (backend.open("default", "u").path / "n").read_text() == "1"


WORKER = """
import asyncio, os, signal, sys
from dataclasses import replace
from perdure import Runtime
from perdure.clock import system_services
from perdure.governance import erase
from perdure.sandbox import IsolatedSandboxes

url, root, point = sys.argv[1:]

def die(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    services = replace(system_services(), probe=die)
    async with Runtime.open(url, worker=False, services=services) as runtime:
        await erase(runtime, thread="t", by="ada", sandbox=IsolatedSandboxes(root))

asyncio.run(main())
"""


@pytest.mark.parametrize("point", POINTS)
async def test_killed_while_erasing_files(isolated, tmp_path, point):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url, isolated)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = await warm.execute(
        sys.executable, "-c", WORKER, url, str(isolated.root), point,
        env=environment, stderr=subprocess.PIPE,
    )  # fmt: skip
    _out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, err.decode()
    async with Runtime.open(url, worker=False) as runtime:
        with pytest.raises(NotFound, match="was erased"):
            await runtime.state("t")
        receipt = await erase(runtime, thread="t", by="ada", sandbox=isolated)
        assert (receipt.is_resumed, receipt.is_clean) == (True, True)
        assert await runtime.engine.store.find_erasures(open_only=True) == []
        assert (await verify(runtime)).findings == []
    assert len(holding(isolated.root)) == 1
    assert len(layers_of(isolated)) == 1
