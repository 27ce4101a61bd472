"""Pruning is killed wherever it writes, and pages are collected while others write."""

import asyncio
import os
import random
import signal
import subprocess
import sys

import pytest

from perdure import Runtime
from perdure.errors import HistoryPruned
from perdure.governance import prune, verify
from tests import warm
from tests.fault.conftest import ROOT
from tests.fault.kept import graph, states_of

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

LINES = {"a": [[1, 2, 3, 4], [5, 1, 6], [7, 8, 2]], "b": [[1, 9], [10, 11, 12, 3], [4]]}
"""What the runs of each thread read: some of it more than once, and in both."""

POINTS = [
    ("prune.batch", 1),
    ("prune.batch", 3),
    ("prune.erased", 1),
    ("collect.begun", 1),
    ("collect.marked", 1),
    ("collect.dropped", 1),
    ("collect.dropped", 2),
    ("prune.collected", 1),
]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))


@pytest.fixture(autouse=True)
def many_copies(monkeypatch):
    """Let whole copies be written far more often than in life."""
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 600)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)


async def fill(url):
    async with Runtime.open(url, [graph]) as runtime:
        for thread, line in LINES.items():
            for todo in line:
                await (await runtime.start(graph, {"todo": todo}, thread=thread)).result(timeout=30)
        await runtime.tag("a", 4, "release")


async def child(url, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.fault.kept", url, *arguments]
    return await warm.execute(*command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


async def check(url, must):
    """Every checkpoint is what it was, or is said to be pruned; nothing is damaged."""
    gone = 0
    async with Runtime.open(url, [graph], worker=False) as runtime:
        for thread, line in LINES.items():
            states = states_of(line)
            for checkpoint, state in enumerate(states, 1):
                try:
                    assert await runtime.state(thread, at=checkpoint) == state
                except HistoryPruned:
                    assert checkpoint not in must[thread]
                    gone += 1
        assert (await verify(runtime)).findings == []
    return gone


@pytest.mark.parametrize(("point", "nth"), POINTS)
async def test_killed_while_pruning(url, point, nth):
    await fill(url)
    must = {
        thread: {len(states_of(line)), len(states_of(line)) - 1} for thread, line in LINES.items()
    }
    must["a"].add(4)
    assert await check(url, {thread: set(range(99)) for thread in LINES}) == 0
    process = await child(url, "prune", point, str(nth))
    _out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, err.decode()
    await check(url, must)
    async with Runtime.open(url, [graph]) as runtime:
        done = await prune(runtime, keep=2)
        left = await runtime.engine.store.usage()
        assert (await prune(runtime, keep=2)).bytes == 0
        assert await runtime.engine.store.usage() == left
        assert done.collected is not None
        again = await runtime.start(graph, {"todo": []}, thread="b")
        assert (await again.result(timeout=30)).log == states_of(LINES["b"])[-1].log
    assert await check(url, must) >= 10


async def test_killed_between_a_tag_and_its_fork(url, monkeypatch):
    """The tag of a fork that never came keeps too much for a while, and nothing else happens."""
    await fill(url)
    process = await child(url, "fork", "fork.pinned", "1")
    _out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == -signal.SIGKILL, err.decode()
    must = {thread: {len(states_of(line))} for thread, line in LINES.items()}
    async with Runtime.open(url, [graph]) as runtime:
        assert await runtime.runs(thread="f") == []
        await prune(runtime, keep=1)
        await check(url, must | {"a": {2, 4, *must["a"]}})
        assert len(await runtime.tags("a")) == 1
        fork = await runtime.fork("a", at=2, to="f")
        state = await fork.result(timeout=30)
        monkeypatch.setattr("perdure.governance._forked.PIN_GRACE_US", 0)
        await prune(runtime, keep=1)
        assert await runtime.state("f") == state
        assert len(await runtime.engine.store.find_tags("default", "a")) == 2
        assert (await verify(runtime)).findings == []


@pytest.mark.timeout(240)
async def test_pages_are_collected_while_others_write(url):
    """The same texts come and go, so that garbage is wanted again all the time."""
    chance = random.Random(7)  # noqa: S311  # repeatable, not secret
    lines = {f"t{number}": [] for number in range(4)}
    async with Runtime.open(url, [graph]) as runtime:
        pruner = await child(url, "loop")
        try:
            for _round in range(20):
                todos = {thread: [chance.randrange(40) for _ in range(4)] for thread in lines}
                runs = [
                    await runtime.start(graph, {"todo": todo}, thread=thread)
                    for thread, todo in todos.items()
                ]
                for run in runs:
                    lines[run.thread].append(todos[run.thread])
                    assert await run.result(timeout=60) == states_of(lines[run.thread])[-1]
                for thread, line in lines.items():
                    assert await runtime.state(thread) == states_of(line)[-1]
                if chance.random() < 0.4:
                    pruner.kill()
                    await pruner.wait()
                    pruner = await child(url, "loop")
            assert pruner.returncode is None, (await pruner.communicate())[1].decode()
        finally:
            if pruner.returncode is None:
                pruner.kill()
            await pruner.wait()
        await prune(runtime, keep=1)
        assert (await verify(runtime)).findings == []
        for thread, line in lines.items():
            assert await runtime.state(thread) == states_of(line)[-1]
