"""A collection of files is killed wherever it removes something, and others work meanwhile."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from perdure import Runtime
from perdure.errors import UsageError
from perdure.governance import prune, verify
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes, folder_name
from tests import warm
from tests.fault.collecting import THREADS, graph
from tests.fault.conftest import ROOT
from tests.sandbox.workload import seen

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

LAYER_POINTS = [
    ("sandbox.collect.renamed", 1),
    ("sandbox.collect.renamed", 3),
    ("sandbox.collect.hidden", 1),
]
BLOB_POINTS = [("sandbox.collect.manifests", 1), ("sandbox.collect.blobs", 1)]
PRUNE_POINTS = [("prune.layers.begun", 1), ("prune.layers.collected", 1)]


def program(*arguments, **kwargs):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.fault.collecting", *map(str, arguments)]
    return warm.Popen(command, cwd=ROOT, env=environment, **kwargs)


async def killed(*arguments):
    with program(*arguments) as process:
        code = await asyncio.to_thread(process.wait, 60)
    return code == -signal.SIGKILL


def finish(backend, named):
    with backend.collection("acme") as collection:
        return collection.finish(named, {folder_name(name) for name in THREADS})


@pytest.fixture
async def isolated(tmp_path):
    backend = IsolatedSandboxes(tmp_path / "boxes")
    try:
        await backend.capabilities()
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    yield backend
    backend.close()


async def layers(backend):
    """Return the content of snapshots: a chain of six, and a branch of two from its third."""
    known = {}
    sandbox = backend.open("acme", "t-1")
    for n in range(8):
        if n == 6:
            await sandbox.restore([*known][2])
        await sandbox.run(f"echo {n} > n; mkdir d{n}; echo {n} > d{n}/f; rm -rf d{n - 2}")
        known[await sandbox.take()] = await seen(sandbox)
    await sandbox.restore(None)
    return known


async def check_layers(backend, known, named):
    sandbox = backend.open("acme", "t-2")
    for snapshot in named:
        await sandbox.restore(snapshot)
        assert await seen(sandbox) == known[snapshot]
    await sandbox.restore(None)


@pytest.mark.parametrize(("point", "nth"), LAYER_POINTS)
async def test_killed_while_collecting_layers(isolated, point, nth):
    known = await layers(isolated)
    named = [[*known][1], [*known][6]]
    assert await killed("layers", isolated.root, point, nth, *named)
    await check_layers(isolated, known, named)
    finish(isolated, named)
    assert not [*isolated.root.glob("tenants/*/going/*")]
    left = {path.name for path in isolated.root.glob("tenants/*/layers/*")}
    assert left == {*[*known][:3], [*known][6]}
    await check_layers(isolated, known, named)


async def test_killed_at_any_instant_while_collecting_layers(isolated):
    chance = random.Random(3)  # noqa: S311  # not for secrets
    known = await layers(isolated)
    named = [*known]
    while named:
        named = sorted(set(named) - {chance.choice(named)})
        with program("layers", isolated.root, "", 1, *named) as process:
            time.sleep(chance.uniform(0.1, 0.5))  # noqa: ASYNC251
            process.kill()
        await check_layers(isolated, known, chance.sample(named, min(3, len(named))))
    done = finish(isolated, [])
    assert done.kept == 0
    assert not [*isolated.root.glob("tenants/*/layers/*")]


@pytest.mark.parametrize(("point", "nth"), BLOB_POINTS)
async def test_killed_while_collecting_blobs(tmp_path, point, nth):
    backend = DirectorySandboxes(tmp_path)
    sandbox = backend.open("acme", "t-1")
    taken = []
    for n in range(4):
        (sandbox.path / "same").write_bytes(b"same")
        (sandbox.path / f"f{n}").write_bytes(b"%d" % n * 1000)
        (sandbox.path / "own").write_bytes(b"own %d" % n)
        taken.append(await sandbox.take())
    named = taken[1:2]
    assert await killed("blobs", tmp_path, point, nth, *named)
    # Who takes what was garbage, after a collection that was cut short, has all of it.
    await sandbox.restore(taken[3])
    (sandbox.path / "own").write_bytes(b"own 2")
    (sandbox.path / "f3").unlink()
    assert await sandbox.take() == taken[2]
    assert finish(backend, named).kept == 2
    for n in (1, 2):
        await sandbox.restore(taken[n])
        assert (sandbox.path / "own").read_bytes() == b"own %d" % n
        assert len([*sandbox.path.iterdir()]) == n + 3
    assert not (backend.folder("acme") / "collecting").exists()


@pytest.fixture
def many_copies(monkeypatch):
    """Let whole copies be written at every step, so that history can be pruned."""
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)


async def fill(url, backend, runs):
    async with Runtime.open(url, [graph], sandbox=IsolatedSandboxes(backend.root)) as runtime:
        for thread, count in runs.items():
            for _ in range(count):
                run = await runtime.start(graph, {}, thread=thread)
                state = await run.result(timeout=100)
        return state


def layers_left(backend):
    return {path.name for path in backend.root.glob("tenants/default.*/layers/*")}


@pytest.mark.usefixtures("many_copies")
@pytest.mark.parametrize(("point", "nth"), PRUNE_POINTS)
async def test_killed_while_pruning_with_files(isolated, tmp_path, point, nth):
    url = f"sqlite:///{tmp_path}/store.db"
    await fill(url, isolated, {"t-1": 5, "t-2": 1})
    before = layers_left(isolated)
    assert len(before) == 6
    async with Runtime.open(url, worker=False) as runtime:
        await runtime.tag("t-1", 4, "release")
    assert await killed("prune", isolated.root, url, point, nth)
    async with Runtime.open(url, [graph], sandbox=isolated) as runtime:
        assert (await verify(runtime)).findings == []
        await prune(runtime, keep=1, sandbox=isolated)
        # Nothing is removed that what is kept stands on: layers stand on those before them.
        assert layers_left(isolated) == before
        await runtime.rollback("t-1", at=4, by="ada")
        sandbox = isolated.open("default", "t-1")
        for lines in (3, 4, 5):
            run = await runtime.start(graph, {}, thread="t-1")
            assert (await run.result(timeout=100)).results[-1].count("\n") == lines
        done = await prune(runtime, keep=1, sandbox=isolated)
        assert (await sandbox.run("wc -l log")).output == "5 log\n"
    assert done.layers.layers == 3


@pytest.mark.usefixtures("many_copies")
async def test_layers_are_collected_while_workers_take_fork_and_roll_back(isolated, tmp_path):
    """Collectors are killed all the time; runs, forks and rollbacks find all their files."""
    url = f"sqlite:///{tmp_path}/store.db"
    chance = random.Random(5)  # noqa: S311  # not for secrets
    await fill(url, isolated, {"t-1": 1})
    collector = program("loop", isolated.root, url, stdout=subprocess.PIPE)
    try:
        await asyncio.to_thread(collector.stdout.readline)
        async with Runtime.open(url, [graph], sandbox=isolated) as runtime:
            lines = {"t-1": [1]}
            for n in range(30):
                thread = chance.choice([*lines])
                line = lines[thread]
                act = chance.random()
                if act < 0.2:
                    points = await runtime.history(thread)
                    found = chance.choice([each for each in points if each.snapshot])
                    fork = await runtime.fork(thread, at=found.id, to=f"f-{n}")
                    state = await fork.result(timeout=100)
                    lines[f"f-{n}"] = [len(state.results[-1].splitlines())]
                elif act < 0.35 and len(line) > 1:
                    points = await runtime.history(thread)
                    newest = max(each.id for each in points)
                    found = chance.choice([e for e in points if e.snapshot and e.id < newest])
                    back = await runtime.rollback(thread, at=found.id, by="ada")
                    lines[thread] = [len(back.state["results"][-1].splitlines())]
                else:
                    run = await runtime.start(graph, {}, thread=thread)
                    state = await run.result(timeout=100)
                    assert len(state.results[-1].splitlines()) == line[-1] + 1
                    line.append(line[-1] + 1)
                if chance.random() < 0.3:
                    await prune(runtime, keep=2, rewrite=False)
                if chance.random() < 0.3:
                    collector.kill()
                    collector.communicate()
                    collector = program("loop", isolated.root, url, stdout=subprocess.PIPE)
            assert collector.poll() is None
            assert (await verify(runtime)).findings == []
    finally:
        collector.kill()
        collector.communicate()
