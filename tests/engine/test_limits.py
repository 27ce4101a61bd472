"""Limits over all workers: several runtimes on one store, on virtual time."""

import random
from collections import Counter

import pytest

from perdure import RunStatus
from perdure.engine.outlook import outlook_of
from perdure.errors import NotFound, SettingInvalid
from perdure.store.api import RunQuery
from tests.engine.one_node import one_node


class Gauge:
    """Counts the nodes that run at once, and when each began."""

    def __init__(self, clock, hold_s=10.0):
        self.clock, self.hold_s = clock, hold_s
        self.now, self.most, self.begun = 0, 0, []

    async def __call__(self, _ctx):
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.append(self.clock.monotonic_s())
        await self.clock.sleep(self.hold_s)
        self.now -= 1


async def finished(runtime, count):
    """Wait until so many runs have succeeded."""
    while len(await runtime.runs(status="succeeded", limit=1000)) < count:
        await runtime.engine.services.clock.sleep(1.0)


async def test_concurrency_holds_over_several_workers(clock, open_workers):
    gauge = Gauge(clock)
    async with clock.autojump():
        workers = await open_workers(3, one_node(gauge, "g"))
        await workers[0].set_limit(graph="g", concurrency=4)
        for n in range(20):
            await workers[n % 3].start("g")
        await finished(workers[0], 20)
    assert gauge.most == 4
    # The next one follows when one ends, not at a look now and then.
    assert clock.monotonic_s() < 20 / 4 * 10 + 5


async def test_other_graphs_pass_by(clock, open_workers):
    gauge = Gauge(clock, hold_s=1000.0)
    async with clock.autojump():
        [runtime] = await open_workers(1, one_node(gauge, "slow"))
        await runtime.set_limit(graph="slow", concurrency=1)
        for _ in range(5):
            await runtime.start("slow")
        quick = one_node(_nothing, "quick")
        run = await runtime.start(quick)
        await run.result()
    assert clock.monotonic_s() < 5


async def _nothing(_ctx):
    return "done"


async def test_rate_begins_one_after_the_other_without_polling(clock, open_workers):
    gauge = Gauge(clock, hold_s=0.1)
    async with clock.autojump():
        workers = await open_workers(2, one_node(gauge, "g"), heartbeat_s=5.0)
        await workers[0].set_limit(graph="g", rate=3, period=30.0)
        claims = _counted(workers)
        for _ in range(9):
            await workers[0].start("g")
        await finished(workers[1], 9)
    begun = [round(at - gauge.begun[0]) for at in gauge.begun]
    assert begun == [0, 0, 0, 10, 20, 30, 40, 50, 60]
    assert claims["claim"] < 150, "two workers that look each 5 s and at each change"


def _counted(workers):
    counts = Counter()
    for runtime in workers:
        store, claim = runtime.engine.store, runtime.engine.store.claim

        async def counted(*args, claim=claim, **kwargs):
            counts["claim"] += 1
            return await claim(*args, **kwargs)

        store.claim = counted
    return counts


async def test_start_is_kept_back_and_says_so(clock, open_workers):
    gauge = Gauge(clock)
    async with clock.autojump():
        [runtime] = await open_workers(1, one_node(gauge, "g"))
        await runtime.set_limit(graph="g", concurrency=1)
        await runtime.set_limit(tenant="slow", rate=1, period=3600)
        first = await runtime.start("g")
        second = await runtime.start("g")
        await clock.sleep(1)
        row = await second.row()
        assert row.status is RunStatus.PENDING
        found = await outlook_of(runtime.engine, row)
        assert found.standing == "moving"
        assert found.kept == "kept back by the limit of graph 'g': 1 of 1 running"
        await first.result()
        await second.result()
        await (await runtime.start("g", tenant="slow")).result()
        third = await runtime.start("g", tenant="slow")
        await clock.sleep(60)
        found = await outlook_of(runtime.engine, await third.row())
        assert (
            "limit of tenant 'slow': 1 begun per 3600 s, the next at 2030-01-01T01:0" in found.kept
        )


async def test_limits_are_listed_and_removed(open_workers):
    [runtime] = await open_workers(1)
    await runtime.set_limit(graph="g", concurrency=2)
    await runtime.set_limit(tenant="*", rate=5, period=60)
    found = {(each.graph, each.tenant): each for each in await runtime.limits()}
    assert found["g", None].concurrency == 2
    assert (found[None, "*"].rate, found[None, "*"].period_s) == (5, 60.0)
    assert found["g", None].running == 0
    await runtime.remove_limit(graph="g")
    assert [each.tenant for each in await runtime.limits()] == ["*"]
    with pytest.raises(NotFound):
        await runtime.remove_limit(graph="g")


@pytest.mark.parametrize(
    "given",
    [{}, {"concurrency": 0}, {"rate": -1}, {"concurrency": True}, {"rate": 1, "period": 0}],
)
async def test_limits_out_of_range_are_refused(open_workers, given):
    [runtime] = await open_workers(1)
    with pytest.raises(SettingInvalid):
        await runtime.set_limit(graph="g", **given)
    assert await runtime.limits() == []


async def test_removed_limit_lets_the_rest_begin(clock, open_workers):
    gauge = Gauge(clock)
    async with clock.autojump():
        workers = await open_workers(2, one_node(gauge, "g"))
        await workers[0].set_limit(concurrency=1)
        for _ in range(6):
            await workers[0].start("g")
        await clock.sleep(1)
        await workers[1].remove_limit()
        await clock.sleep(1)
        assert gauge.now == 6
        await finished(workers[0], 6)


@pytest.mark.parametrize("seed", range(5))
async def test_workers_that_vanish_take_no_place_with_them(clock, open_workers, seed):
    rng = random.Random(seed)  # noqa: S311  # repeatable, not secret
    gauge = Gauge(clock, hold_s=7.0)
    async with clock.autojump():
        graph = one_node(gauge, "g")
        workers = await open_workers(4, graph)
        await workers[0].set_limit(graph="g", concurrency=3)
        await workers[0].set_limit(tenant="*", concurrency=2)
        seen = []
        for runtime in workers:
            _watch(runtime, seen)
        for n in range(30):
            await workers[n % 4].start("g", tenant=rng.choice("tuv"))
        for victim in workers[1:3]:
            await clock.sleep(rng.uniform(1, 20))
            _vanish(victim.worker)
        await finished(workers[0], 30)
    assert max(total for total, _most in seen) == 3
    assert max(most for _total, most in seen) == 2


def _watch(runtime, seen):
    """Note after every claim how many runs are running, in all and of one tenant at most."""
    store, claim = runtime.engine.store, runtime.engine.store.claim

    async def watched(*args, **kwargs):
        rows = await claim(*args, **kwargs)
        running = await store.find_runs(RunQuery(statuses=(RunStatus.RUNNING,)))
        tenants = Counter(row.tenant for row in running)
        seen.append((len(running), max(tenants.values(), default=0)))
        return rows

    store.claim = watched


def _vanish(worker):
    """End a worker as its host's power would: nothing is released, nothing is said."""
    for task in [*worker._loops, *(task for _row, _execution, task in worker._held.values())]:
        task.cancel()
    worker._loops, worker.is_draining = [], True
