"""The SQLite store between real processes, some of which are killed."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.ids import EffectId, RunId, WorkerId
from perdure.model import AskPut, AskState, EffectPut, EffectState, RunStatus
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite._os_thread import CRASH_POINTS
from perdure.testing import _store_kit as kit
from tests import warm

CHILD = Path(__file__).with_name("_child.py")
POINTS = [point for points in CRASH_POINTS.values() for point in points]


def spawn(*arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return warm.Popen(
        [sys.executable, str(CHILD), *arguments], env=environment, stdout=subprocess.PIPE
    )


@contextmanager
def holder(url: str, worker_id: str) -> Iterator[subprocess.Popen[bytes]]:
    child = spawn("hold", url, worker_id)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(url, system_services())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


async def test_many_processes_create_one_store_at_once(url: str):
    children = [spawn("start", url, f"p{number}") for number in range(6)]
    assert [child.wait(timeout=60) for child in children] == [0] * 6
    for child in children:
        child.stdout.close()
    async with opened(url) as store:
        runs = await kit.claimed(store, limit=100)
        assert len(runs) == 60
        assert await store.check() == []


async def test_killed_holder_is_noticed_at_once(url: str, tmp_path: Path):
    async with opened(url) as store, opened(url) as other:
        with holder(url, "w_dead") as dead, holder(url, "w_alive"):
            assert await store.release_dead() == []
            dead.kill()
            dead.wait()
            reports = await asyncio.gather(store.release_dead(), other.release_dead())
            assert sorted(reports) == [[], ["w_dead"]]
            assert [row.worker_id for row in await store.find_workers()] == ["w_alive"]
            [row] = await kit.claimed(store, now_us=kit.FAR, lease_until_us=2 * kit.FAR)
            assert (row.run_id, row.token) == ("r_w_dead", 2)
            locks = [path.name for path in (tmp_path / "store.db-locks").iterdir()]
            assert locks == ["w_alive.lock"]


async def test_worker_of_another_host_is_not_judged(url: str, tmp_path: Path):
    async with opened(url) as store, opened(url) as other:
        await store.register_worker(kit.worker())
        lock = tmp_path / "store.db-locks" / f"{kit.WORKER}.lock"
        await store._writer.call(
            "test",
            lambda db: db.execute("UPDATE perdure_workers SET liveness = 'other-boot:w_1.lock'"),
        )
        lock.unlink()
        lock.touch()
        assert await other.release_dead() == []


async def test_write_of_another_process_is_heard_of(url: str):
    async with opened(url) as store:
        await store.wait_for_change(0.05)
        waiting = asyncio.create_task(store.wait_for_change(20.0))
        child = spawn("start", url, "p")
        assert await waiting
        assert child.wait(timeout=20) == 0
        child.stdout.close()


@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_crash_point_is_all_or_nothing(url: str, point: str):
    async with opened(url) as store:
        row = await kit.taken(store, "a")
        effect = kit.effect_of(row, "x", state=EffectState.UNCERTAIN)
        ask = kit.ask_of(row, "x")
        row = await kit.written(store, row, EffectPut(row=effect), AskPut(row=ask))
        await kit.started(store, "due")

    child = spawn("die", url, point)
    assert child.wait(timeout=20) == -9
    child.stdout.close()

    _, kind, moment = point.split(".")
    async with opened(url) as store:
        assert await store.check() == []
        assert await _has_happened(store, kind) is (moment == "after")
        assert (
            len(await store.read_frames(row.run_id)) == (await kit.the_run(store, "r_a")).last_seq
        )
        await kit.started(store, "next")


async def _has_happened(store: SqliteStore, kind: str) -> bool:
    run = await kit.the_run(store, "r_a")
    if kind == "start":
        return await store.read_run(RunId("r_new")) is not None
    if kind == "append":
        return run.last_seq == 3 and run.status is RunStatus.WAITING
    if kind == "claim":
        return (await kit.the_run(store, "r_due")).token == 1
    if kind == "post":
        return len(await store.read_mail(run.run_id)) == 1
    if kind == "answer":
        asks = await store.read_ask(kit.AskId("a_x"))
        return asks is not None and asks.state is AskState.ANSWERED
    if kind == "decide":
        effect = await store.read_effect(EffectId("e_x"))
        return effect is not None and effect.decision == "happened"
    if kind == "expire":
        asks = await store.read_ask(kit.AskId("a_x"))
        return asks is not None and asks.state is AskState.EXPIRED
    if kind == "renew":
        return run.ready_at_us == 2 * kit.FAR
    if kind in {"register", "forget"}:
        is_known = any(worker.worker_id == "w_new" for worker in await store.find_workers())
        return is_known is (kind == "register")
    tables = await store._read("tables", lambda db: db.execute("SELECT name FROM sqlite_master"
        " WHERE name = 'orders'").fetchall())  # fmt: skip
    assert bool(tables) is (run.last_seq == 3)
    return run.last_seq == 3


async def test_forgotten_worker_may_come_back(url: str):
    async with opened(url) as store, opened(url) as other:
        for _ in range(3):
            await store.register_worker(kit.worker())
            assert await other.release_dead() == []
            await store.forget_worker(WorkerId(kit.WORKER))
        assert await other.find_workers() == []


async def test_many_may_create_the_same_store_at_once(tmp_path: Path):
    """Each found it locked, or took it for somebody else's, now and then."""
    folder = str(tmp_path)
    children = [spawn("create", folder, "100") for _ in range(4)]
    for child in children:
        output, _ = await asyncio.to_thread(child.communicate, timeout=60)
        assert child.returncode == 0, output
