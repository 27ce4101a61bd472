"""Exports to a place that is not the one of before: away, emptied, another one, come back."""

import asyncio
import shutil

import pytest

from perdure import RunStatus, Runtime
from perdure.errors import SnapshotNotDurable
from tests.engine.polled import PAUSE_S
from tests.sandbox.test_export import copied
from tests.sandbox.test_runs import graph_of

pytestmark = pytest.mark.timeout(200)


async def turn(sandbox, n):
    await sandbox.run(f"echo {n} >> log")
    return await sandbox.take()


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_place_that_is_not_mounted_is_not_made_anew(hosts, tmp_path, is_there):
    sandbox = hosts("a").open("acme", "t")
    first = await turn(sandbox, 1)
    await sandbox.make_durable(first)
    (tmp_path / "objects").rename(tmp_path / "away")
    if is_there:
        (tmp_path / "objects").mkdir()
    second = await turn(sandbox, 2)
    for snapshot in (first, second):
        with pytest.raises(SnapshotNotDurable, match=r"objects.* Is it mounted"):
            await sandbox.make_durable(snapshot)
    assert not sandbox.is_durable(second)
    with pytest.raises(SnapshotNotDurable, match="Is it mounted"):
        await sandbox.fetch()
    assert (tmp_path / "objects").exists() == is_there
    if is_there:
        (tmp_path / "objects").rmdir()
    (tmp_path / "away").rename(tmp_path / "objects")
    await copied(hosts("a"), hosts("b"), second)


async def test_another_place_gets_the_whole_chain(hosts, tmp_path):
    sandbox = hosts("a").open("acme", "t")
    for n in range(3):
        await sandbox.make_durable(await turn(sandbox, n))
    (tmp_path / "objects").rename(tmp_path / "away")
    other = hosts("c").open("acme", "u")
    await other.make_durable(await turn(other, 0))  # makes it, with another key
    last = await turn(sandbox, 3)
    await copied(hosts("a"), hosts("b"), last)


async def test_broken_chains_are_repaired_by_hand(hosts, tmp_path):
    a = hosts("a")
    sandbox = a.open("acme", "t")
    taken = [await turn(sandbox, n) for n in range(4)]
    await sandbox.make_durable(taken[-1])
    done, tally = await a.make_all_durable()
    assert (done, tally.known, tally.stored_bytes) == ([], 4, 0)
    [lost] = (tmp_path / "objects").glob(f"*/snapshots/{taken[1]}")
    shutil.rmtree(lost)
    done, tally = await a.make_all_durable()
    assert (done, tally.known) == (taken[1:], 1)  # what stood on it was of no use to anybody
    await copied(a, hosts("b"), taken[-1])
    assert (await a.make_all_durable())[0] == []


async def test_a_run_waits_for_its_place(hosts, tmp_path, caplog):
    graph = graph_of("echo a >> log; cat log")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("a", durable=True)) as runtime:
        await (await runtime.start(graph, {}, thread="t")).result(timeout=60)
        (tmp_path / "objects").rename(tmp_path / "away")
        run = await runtime.start(graph, {}, thread="t")
        async with asyncio.timeout(60):
            while "Is it mounted" not in caplog.text:  # noqa: ASYNC110  # the log tells
                await asyncio.sleep(PAUSE_S)
        assert await run.status() is not RunStatus.SUCCEEDED
        assert not (tmp_path / "objects").exists()
    (tmp_path / "away").rename(tmp_path / "objects")
    async with Runtime.open(url, graphs=[graph], sandbox=hosts("b", durable=True)) as runtime:
        run = await runtime.get(run.id)
        assert (await run.result(timeout=60)).results[-1] == "a\na\n"
