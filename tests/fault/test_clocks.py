"""Wall clocks that are wrong, or jump, while their worker holds runs: nothing is done twice.

On PostgreSQL leases go by the server's clock, so that a wrong one changes nothing at all. SQLite
has no clock of its own: a worker whose clock is ahead takes runs from living holders. The fence
keeps that safe, and everything still ends.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, Runtime, WorkerSettings, append, effect
from perdure.clock import SystemClock, system_services
from perdure.engine.loading import read_records
from perdure.model.records import LeaseTaken

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

HOUR_US = 3_600_000_000
SETTINGS = WorkerSettings(lease_ttl_s=2.0, heartbeat_s=0.4, drain_window_s=2.0, concurrency=8)
RUNS = 16
sent: Counter[str] = Counter()


class WrongClock(SystemClock):
    """A wall clock that is off by so much."""

    def __init__(self) -> None:
        self.off_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.off_us


@dataclass
class Work:
    label: str = ""
    log: Annotated[list[str], append] = field(default_factory=list)


graph = Graph(Work, name="work")


@effect(kind="keyed")
async def act(label: str, *, idempotency_key: str) -> str:
    sent[idempotency_key] += 1
    await asyncio.sleep(0.1)
    return label


@graph.node
async def first(state: Work, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(act, f"{state.label}-{n}") for n in range(3)]}


@graph.node
async def second(state: Work, ctx: Context) -> dict[str, Any]:
    await ctx.sleep(0.4)
    return {"log": [await ctx.call(act, f"{state.label}-last")]}


graph.edge(START, first)
graph.edge(first, second)
graph.edge(second, END)


async def jump(clock: WrongClock) -> None:
    """Jump forth and back until cancelled."""
    while True:
        for by_us in (HOUR_US, 0, -HOUR_US, 0):
            clock.off_us = by_us
            await asyncio.sleep(0.15)


COURSES = ["ahead", "behind", "jumps"]


async def played(url: str, course: str) -> dict[str, Any]:
    """Execute runs on a worker with a right clock and on one with a wrong clock."""
    sent.clear()
    clock = WrongClock()
    clock.off_us = {"ahead": HOUR_US, "behind": -HOUR_US, "jumps": 0}[course]
    services = replace(system_services(), clock=clock)
    async with (
        Runtime.open(url, graphs=[graph], worker=False) as person,
        Runtime.open(url, graphs=[graph], worker=SETTINGS),
        Runtime.open(url, graphs=[graph], worker=SETTINGS, services=services) as wrong,
    ):
        jumping = asyncio.create_task(jump(clock)) if course == "jumps" else None
        try:
            starters = (person, wrong)
            runs = [
                await starters[n % 2].start(graph, {"label": f"{course}-{n}"}) for n in range(RUNS)
            ]
            async with asyncio.timeout(40):
                states = [await (await person.get(run.id)).result(timeout=40) for run in runs]
            rows = [await person.read_row(run.id) for run in runs]
            holders = {holder for run in runs for holder in await _holders(person, run.id)}
        finally:
            if jumping is not None:
                jumping.cancel()
                await asyncio.gather(jumping, return_exceptions=True)
    assert [len(state.log) for state in states] == [4] * RUNS
    return {
        "twice": sorted(key for key, times in sent.items() if times > 1),
        "keys": len(sent),
        "stolen": sum(row.token - 2 for row in rows),
        "holders": len(holders),
    }


async def _holders(runtime: Runtime, run_id: str) -> set[str]:
    entries = await read_records(runtime.engine.store, run_id)
    return {record.holder for _seq, _frame, record in entries if isinstance(record, LeaseTaken)}


@pytest.mark.parametrize("course", COURSES)
async def test_postgres_goes_by_the_servers_clock(postgres, schema, course, record_property):
    seen = await played(postgres.url(schema), course)
    record_property("figure", f"clock {course} on PostgreSQL: {seen}")
    assert seen["twice"] == []
    assert seen["keys"] == RUNS * 4
    assert seen["stolen"] == 0
    assert seen["holders"] == 2


@pytest.mark.parametrize("course", COURSES)
async def test_sqlite_is_safe_and_ends(tmp_path, course, record_property):
    seen = await played(f"sqlite:///{tmp_path / 'store.db'}", course)
    record_property("figure", f"clock {course} on SQLite: {seen}")
    # Sent again under the same key, where a run was taken from its holder in the middle of a call.
    assert len(seen["twice"]) <= seen["stolen"]
    assert seen["keys"] == RUNS * 4
