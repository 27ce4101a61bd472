"""A worker is killed while it moves a run to another version: the run is as it was, or moved."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from perdure import RunStatus, Runtime
from tests import warm
from tests.fault.bills import graph_of
from tests.fault.conftest import ROOT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))


@pytest.fixture
def paid(tmp_path, monkeypatch):
    monkeypatch.setenv("PAID", str(tmp_path / "paid"))
    return tmp_path / "paid"


async def waiting(url):
    """Start a run of v1 and let it wait; return its id."""
    async with Runtime.open(url, [graph_of(1)]) as runtime:
        run = await runtime.start("bills", {"amount": 7}, thread="t")
        await until(run, RunStatus.WAITING)
    return run.id


async def until(run, status):
    for _ in range(1000):
        if await run.status() is status:
            return await run.row()
        await asyncio.sleep(0.02)
    raise AssertionError(await run.row())


async def killed(url, point):
    """Let a worker of v2 run into the point, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.fault.bills", url, point]
    process = await warm.execute(*command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    _out, err = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == -signal.SIGKILL, err.decode()


@pytest.mark.parametrize(
    ("point", "version"), [("version.move.before", 1), ("version.move.after", 2)]
)
async def test_killed_while_moving(url, paid, point, version):
    run_id = await waiting(url)
    async with Runtime.open(url, worker=False) as asking:
        before = await asking.engine.store.read_frames(run_id)
        await (await asking.get(run_id)).signal("go")
        await killed(url, point)
        row = await asking.read_row(run_id)
        frames = await asking.engine.store.read_frames(run_id)
        assert row.version == version
        assert frames[: len(before)] == before
        assert len(frames) - len(before) == (version == 2)
    async with Runtime.open(url, [graph_of(2)]) as runtime:
        state = await (await runtime.get(run_id)).result(timeout=40)
        assert (state.cents, state.notes) == (700, ["paid rent v2"])
        kinds = [event.kind for event in await runtime.events(run_id)]
        assert kinds.count("version_moved") == 1
        assert paid.read_text().splitlines() == ["rent"]
        again = await runtime.start("bills", thread="t")
        await again.signal("go")
        assert (await again.result(timeout=20)).cents == 700


async def test_moved_on_every_store(url, paid):
    run_id = await waiting(url)
    async with Runtime.open(url, [graph_of(2)], worker=False) as runtime:
        await runtime.resolve_version(run_id, 2, by="ada")
        row = await runtime.read_row(run_id)
        assert (row.version, row.status, row.ready_at_us) == (2, RunStatus.WAITING, None)
        assert (await runtime.state("t")).cents == 700
    async with Runtime.open(url, [graph_of(2)]) as runtime:
        run = await runtime.get(run_id)
        await run.signal("go")
        assert (await run.result(timeout=20)).notes == ["paid rent v2"]
    assert paid.read_text().splitlines() == ["rent"]


async def test_a_newer_run_is_left_untouched_by_older_code(url, paid):
    async with Runtime.open(url, [graph_of(2)]) as runtime:
        run = await runtime.start("bills", {"cents": 7}, thread="t")
        await until(run, RunStatus.WAITING)
    async with Runtime.open(url, [graph_of(1)]) as older:
        await (await older.get(run.id)).signal("go")  # so that it is due
        before = (await older.read_row(run.id), await older.engine.store.read_frames(run.id))
        await asyncio.sleep(1.0)
        after = (await older.read_row(run.id), await older.engine.store.read_frames(run.id))
        assert after == before
