"""Waiting for the ends of runs that other processes execute: one look for all who wait."""

import asyncio
from collections import Counter

from perdure import Runtime
from perdure.store import make_store
from perdure.testing import virtual_services

WAITERS = 200


class CountingStore:
    """A store that counts the calls of each method."""

    def __init__(self, store):
        self._store = store
        self.calls = Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self._store, name)


async def double(x: int) -> int:
    return 2 * x


async def test_many_waiters_share_their_looks():
    services = virtual_services(7)
    url = "memory://lookout"
    desk_store = CountingStore(make_store(url, services))
    async with (
        services.clock.autojump(),
        Runtime.open(desk_store, [double], worker=False, services=services) as desk,
    ):
        runs = [await desk.start(double, n) for n in range(WAITERS)]
        waiting = [asyncio.create_task(run.result()) for run in runs]
        await services.clock.sleep(1)
        before = Counter(desk_store.calls)
        async with Runtime.open(make_store(url, services), [double], services=services):
            assert await asyncio.gather(*waiting) == [2 * n for n in range(WAITERS)]
        looks = desk_store.calls["find_runs"] - before["find_runs"]
        # Each waiter reads its own run once it has ended; before that, one query looks for all.
        reads = desk_store.calls["read_run"] - before["read_run"]
        assert 1 <= looks <= 50
        assert reads <= 3 * WAITERS


async def test_waiter_of_a_closed_runtime_is_let_go():
    services = virtual_services(8)
    async with services.clock.autojump():
        desk = Runtime.open("memory://closing", [double], worker=False, services=services)
        async with desk:
            run = await desk.start(double, 1)
            waiting = asyncio.create_task(run.result())
            await services.clock.sleep(1)
        [outcome] = await asyncio.gather(waiting, return_exceptions=True)
        assert "not open" in str(outcome)


async def test_start_whose_caller_stops_waiting_is_executed():
    services = virtual_services(9)
    async with (
        services.clock.autojump(),
        Runtime.open("memory://cancelled", [double], services=services) as runtime,
    ):
        before_us = services.clock.now_us()
        starting = asyncio.create_task(runtime.start(double, 21, thread="t"))
        for _ in range(3):  # handed in, and not answered yet
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        async with asyncio.timeout(5):
            while not (rows := await runtime.runs(thread="t")) or not rows[0].status.is_final:
                await services.clock.sleep(0.05)
        assert services.clock.now_us() - before_us < 2_000_000
