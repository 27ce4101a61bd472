"""Several workers on one store: order of claims, heartbeats, what a worker says of itself."""

import asyncio

from perdure.engine.limits import LEASE_MARGIN_S
from tests.engine.one_node import one_node


def noting(clock, order, hold_s=1.0):
    """Return a graph whose runs say when they begin, and take a while."""

    async def act(ctx):
        order.append((ctx.run_id, clock.monotonic_s()))
        await clock.sleep(hold_s)

    return one_node(act, "g")


async def ended(runtime, count):
    """Wait until so many runs have succeeded."""
    while len(await runtime.runs(status="succeeded", limit=1000)) < count:
        await runtime.engine.services.clock.sleep(1.0)


async def test_higher_priority_is_begun_first(clock, open_workers):
    order = []
    async with clock.autojump():
        graph = noting(clock, order)
        [starting] = await open_workers(1, graph, worker=False)
        runs = {}
        for priority in (0, 5, -1, 9, 0, 5):
            run = await starting.start("g", priority=priority)
            runs[run.id] = priority
        await open_workers(2, graph, concurrency=1)
        await ended(starting, 6)
    assert [runs[run_id] for run_id, _at in order] == [9, 5, 5, 0, 0, -1]


async def test_delay_is_kept_by_every_worker(clock, open_workers):
    order = []
    async with clock.autojump():
        workers = await open_workers(2, noting(clock, order))
        delays = {(await workers[0].start("g", delay=s)).id: s for s in (30.0, 7.0, 0.5, 3600.0)}
        await ended(workers[1], 4)
    assert [delays[run_id] for run_id, _at in order] == [0.5, 7.0, 30.0, 3600.0]
    late = [at - delays[run_id] for run_id, at in order]
    assert all(0 <= each < 0.1 for each in late), "begun when it is due, not at a look"


async def test_tenants_take_turns_over_workers(clock, open_workers):
    order = []
    async with clock.autojump():
        graph = noting(clock, order)
        [starting] = await open_workers(1, graph, worker=False)
        tenants = {}
        for tenant, count in (("crowd", 40), ("few", 4), ("one", 1)):
            for _ in range(count):
                run = await starting.start("g", tenant=tenant)
                tenants[run.id] = tenant
        await open_workers(2, graph, concurrency=3)
        await ended(starting, 45)
    begun = [tenants[run_id] for run_id, _at in order]
    # Each claim of a worker takes its three from three tenants, as long as there are so many.
    assert begun.index("one") < 3
    assert sum(tenant == "few" for tenant in begun[:12]) == 4


async def test_heartbeat_is_one_write_for_all_runs(clock, open_workers):
    order = []
    async with clock.autojump():
        [runtime] = await open_workers(1, noting(clock, order, hold_s=100.0))
        store, renew = runtime.engine.store, runtime.engine.store.renew
        sent = []

        async def counted(worker_id, held, **times):
            sent.append(len(held))
            return await renew(worker_id, held, **times)

        store.renew = counted
        for _ in range(50):
            await runtime.start("g")
        await clock.sleep(50.5)
    assert sent[1:10] == [50] * 9
    assert len(sent) <= 21


async def test_lease_is_counted_from_the_sending_of_the_accepted_renewal(clock, open_workers):
    async with clock.autojump():
        [runtime] = await open_workers(1, noting(clock, [], hold_s=1000.0))
        await runtime.start("g")
        engine, worker = runtime.engine, runtime.worker
        store, renew = engine.store, engine.store.renew
        await clock.sleep(0.5)
        [(_row, execution, _task)] = worker._held.values()

        async def slow(worker_id, held, **times):
            found = await renew(worker_id, held, **times)
            await clock.sleep(4.0)  # the answer is long on its way
            return found

        store.renew = slow
        await clock.sleep(9.0)
        assert execution.leased_s == 5.0, "sent at 5, answered at 9"
        assert worker.vitals().heartbeat_age_s == clock.monotonic_s() - 5.0

        async def dead(_worker_id, _held, **_times):
            await asyncio.Event().wait()

        store.renew = dead
        left_s = engine.lease_ttl_s - LEASE_MARGIN_S
        await clock.sleep(execution.leased_s + left_s - clock.monotonic_s() - 0.1)
        assert execution.leased_s == 5.0, "the one that was sent at 10 was never answered"
        assert engine.is_lease_safe(execution.leased_s)
        await clock.sleep(0.2)
        assert not engine.is_lease_safe(execution.leased_s)
        assert not worker.vitals().is_store_reachable
        await clock.sleep(20.0)
        assert worker.vitals().is_overdue
        store.renew = renew


async def test_row_of_a_worker_says_what_it_can_do(clock, open_workers):
    async with clock.autojump():
        [runtime] = await open_workers(1, noting(clock, []), concurrency=9)
        [row] = await runtime.workers()
        assert (row.concurrency, row.is_draining) == (9, False)
        assert [(shape.name, shape.nodes, shape.fields) for shape in row.shapes] == [
            ("g", ("act",), ("results",))
        ]
        await runtime.start(one_node(nothing, "later"))
        await clock.sleep(11.0)
        [row] = await runtime.workers()
        assert row.graphs == (("g", 1), ("later", 1)), "what it learned meanwhile, too"


async def nothing(_ctx):
    return None
