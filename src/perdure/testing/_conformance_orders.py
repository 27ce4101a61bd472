"""Conformance: limits over all workers, schedules, and taking one run."""

import asyncio
from typing import Any

from perdure.core.room import Room
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import (
    ALL_TENANTS,
    EACH_TENANT,
    GraphShape,
    LimitRow,
    MailKind,
    Missed,
    OnBusy,
    RunReleased,
    RunStatus,
    ScheduleRow,
    Started,
)
from perdure.store.api import RunQuery, Store
from perdure.testing._conformance_shared import MakeStore, opened
from perdure.testing._store_kit import (
    GRAPHS,
    OTHER,
    T0,
    TENANT,
    WORKER,
    claimed,
    ended,
    new_run,
    signal_to,
    started,
    taken,
    the_run,
    waiting,
    worker,
    written,
)

SECOND = 1_000_000
BOTH = (("g", 1), ("h", 1))


async def begin(store: Store, names: str, **fields: Any) -> None:
    """Start a run for each letter, in order."""
    await store.start(
        [new_run(name, created_at_us=T0 + n, **fields) for n, name in enumerate(names)]
    )


async def names_of(store: Store, worker_id: Any = WORKER, **fields: Any) -> list[str]:
    """Claim runs of the graphs `g` and `h`; return the letters of what was taken."""
    given: dict[str, Any] = {"now_us": T0 + 100, "lease_until_us": T0 + 100 * SECOND, "limit": 10}
    rows = await store.claim(worker_id, BOTH, **(given | fields))
    return [row.run_id.removeprefix("r_") for row in rows]


class LimitRules:
    """Limits are obeyed by every claim, and keep back nobody else."""

    async def test_limits_are_read_back(self, store: Store) -> None:
        """One limit for each tenant and graph; setting it again replaces it."""
        first = LimitRow(graph="g", concurrency=3, set_at_us=T0)
        second = LimitRow(tenant=TENANT, rate=5, period_us=SECOND)
        await store.set_limit(first)
        await store.set_limit(LimitRow(tenant=TENANT, concurrency=1))
        await store.set_limit(second)
        assert (await store.read_limits()).limits == (first, second)
        assert await store.drop_limit(ALL_TENANTS, "g")
        assert not await store.drop_limit(ALL_TENANTS, "g")
        assert (await store.read_limits()).limits == (second,)

    async def test_what_runs_is_counted(self, store: Store) -> None:
        """`running` holds the runs that are running, by tenant and graph."""
        await store.set_limit(LimitRow(concurrency=9))
        await begin(store, "abc")
        await begin(store, "de", graph="h", tenant=TenantId("t"))
        await names_of(store)
        await written(store, await the_run(store, "r_a"), ended())
        await written(store, await the_run(store, "r_b"), waiting())
        found = (await store.read_limits()).running
        assert found == ((TENANT, "g", 1), (TenantId("t"), "h", 2))

    async def test_concurrency_of_a_graph(self, store: Store) -> None:
        """No more are running than the limit says; the end, or a wait, of one lets in the next."""
        await store.set_limit(LimitRow(graph="g", concurrency=2))
        await begin(store, "abcde")
        assert await names_of(store) == ["a", "b"]
        assert await names_of(store, OTHER) == []
        await written(store, await the_run(store, "r_a"), ended())
        assert await names_of(store, OTHER) == ["c"]
        await written(store, await the_run(store, "r_b"), waiting())
        assert await names_of(store, OTHER) == ["d"]
        pending = RunReleased(status=RunStatus.PENDING, ready_at_us=T0)
        await written(store, await the_run(store, "r_c"), pending)
        assert await names_of(store, limit=1) == ["c"]

    async def test_kept_runs_hold_up_nobody(self, store: Store) -> None:
        """Runs of other graphs and tenants are taken past those that are kept back."""
        await store.set_limit(LimitRow(graph="g", concurrency=1))
        await begin(store, "abcdef")
        await begin(store, "xy", graph="h")
        assert await names_of(store, limit=3) == ["a", "x", "y"]

    async def test_priority_and_turns_hold_among_the_rest(self, store: Store) -> None:
        """What is kept back is no turn of its tenant, and has no priority over others."""
        await store.set_limit(LimitRow(tenant=TenantId("t"), graph="g", concurrency=1))
        await begin(store, "abc", tenant=TenantId("t"), priority=5)
        await begin(store, "de", tenant=TenantId("t"), graph="h")
        await begin(store, "fgh", tenant=TenantId("u"))
        assert await names_of(store, limit=4) == ["a", "d", "f", "e"]
        assert await names_of(store) == ["g", "h"]

    async def test_each_tenant_and_those_with_their_own(self, store: Store) -> None:
        """The limit for each tenant is a default: a tenant's own replaces it."""
        await store.set_limit(LimitRow(tenant=EACH_TENANT, concurrency=1))
        await store.set_limit(LimitRow(tenant=TenantId("big"), concurrency=3))
        await begin(store, "abcd", tenant=TenantId("big"))
        await begin(store, "ef", tenant=TenantId("small"))
        await begin(store, "gh", tenant=TenantId("tiny"))
        assert sorted(await names_of(store)) == ["a", "b", "c", "e", "g"]
        assert await names_of(store) == []

    async def test_every_limit_of_a_run_counts(self, store: Store) -> None:
        """A run needs room in all: of its tenant, of its graph, of both, and of everything."""
        await store.set_limit(LimitRow(concurrency=4))
        await store.set_limit(LimitRow(graph="g", concurrency=3))
        await store.set_limit(LimitRow(tenant=TenantId("t"), graph="g", concurrency=1))
        await begin(store, "abc", tenant=TenantId("t"))
        await begin(store, "defg", tenant=TenantId("u"))
        await begin(store, "hij", tenant=TenantId("u"), graph="h")
        assert sorted(await names_of(store)) == ["a", "d", "e", "h"]

    async def test_rate_is_a_bucket(self, store: Store) -> None:
        """So many runs begin at once, then one each time that a token comes back."""
        await store.set_limit(LimitRow(graph="g", rate=3, period_us=3 * SECOND))
        await begin(store, "abcdefgh")
        assert await names_of(store) == ["a", "b", "c"]
        assert await names_of(store, OTHER, now_us=T0 + SECOND) == []
        assert await names_of(store, OTHER, now_us=T0 + 100 + SECOND) == ["d"]
        assert await names_of(store, now_us=T0 + 100 + 3 * SECOND) == ["e", "f"]
        assert await names_of(store, now_us=T0 + 60 * SECOND) == ["g", "h"]

    async def test_rate_counts_beginnings_only(self, store: Store) -> None:
        """A run that was claimed before goes on without a token."""
        await store.set_limit(LimitRow(graph="g", rate=1, period_us=60 * SECOND))
        await begin(store, "ab")
        assert await names_of(store) == ["a"]
        await written(store, await the_run(store, "r_a"), waiting(ready_at_us=T0))
        assert await names_of(store, OTHER) == ["a"]

    async def test_next_ready_at_knows_the_next_token(self, store: Store) -> None:
        """What is due and kept back wakes nobody before a token comes back."""
        await store.set_limit(LimitRow(graph="g", rate=2, period_us=10 * SECOND))
        await begin(store, "abcd")
        assert await names_of(store) == ["a", "b"]
        now_us = T0 + 100
        assert await store.next_ready_at(GRAPHS, after_us=now_us) == now_us + 5 * SECOND
        await started(store, "z", ready_at_us=T0 + 2 * SECOND)
        assert await store.next_ready_at(GRAPHS, after_us=now_us) == T0 + 2 * SECOND

    async def test_next_ready_at_leaves_out_what_was_due(self, store: Store) -> None:
        """`after_us` leaves out what a claim at that time has seen already."""
        await begin(store, "a")
        assert await store.next_ready_at(GRAPHS) == T0
        assert await store.next_ready_at(GRAPHS, after_us=T0) is None
        await started(store, "b", ready_at_us=T0 + 7)
        assert await store.next_ready_at(GRAPHS, after_us=T0) == T0 + 7

    async def test_clock_that_jumps_back_does_not_close_a_rate(self, store: Store) -> None:
        """Tokens taken at a later time cost at most one period."""
        await store.set_limit(LimitRow(graph="g", rate=1, period_us=SECOND))
        await begin(store, "abc")
        assert await names_of(store, now_us=T0 + 900 * SECOND, lease_until_us=T0 * 2) == ["a"]
        assert await names_of(store, now_us=T0 + 100) == []
        room = Room(await store.read_limits(), T0 + 100)
        kept = room.keeps(TENANT, "g", is_first=True)
        assert kept is not None
        assert kept.next_at_us == T0 + 100 + SECOND

    async def test_start_does_not_pass_by_a_limit(self, store: Store) -> None:
        """A run that a limit counts is stored pending, whatever worker would take it."""
        await store.set_limit(LimitRow(graph="g", concurrency=1))
        fields = {"take_for": WORKER, "lease_until_us": T0 + 1000}
        [counted, free] = await store.start(
            [new_run("a", **fields), new_run("b", graph="h", **fields)]
        )
        assert isinstance(counted, Started)
        assert isinstance(free, Started)
        assert (counted.taken, counted.row.status) == (False, RunStatus.PENDING)
        assert free.taken
        assert await names_of(store) == ["a"]

    async def test_lost_lease_is_taken_over_without_room(self, store: Store) -> None:
        """A run whose lease ended is running already: it needs no room, and comes first."""
        await begin(store, "ab")
        assert await names_of(store, lease_until_us=T0 + 200) == ["a", "b"]
        await store.set_limit(LimitRow(graph="g", concurrency=1))
        await begin(store, "c", priority=9)
        assert await names_of(store, OTHER, now_us=T0 + 200) == ["a", "b"]

    async def test_dropped_limit_keeps_back_nobody(self, store: Store) -> None:
        """Without the limit, what it kept back is taken."""
        await store.set_limit(LimitRow(concurrency=1))
        await begin(store, "abc")
        assert await names_of(store) == ["a"]
        await store.drop_limit(ALL_TENANTS, "")
        assert await names_of(store) == ["b", "c"]

    async def test_many_claims_at_once_never_exceed(
        self, make_store: MakeStore, store: Store
    ) -> None:
        """Several objects that claim at once have, together, no more than the limits say."""
        await store.set_limit(LimitRow(graph="g", concurrency=5))
        await store.set_limit(LimitRow(tenant=TENANT, rate=7, period_us=3600 * SECOND))
        async with opened(make_store()) as second, opened(make_store()) as third:
            await store.start([new_run(f"{n:02}") for n in range(30)])
            stores = [store, second, third] * 3
            first = await asyncio.gather(*[names_of(each, limit=2) for each in stores])
            assert len([name for names in first for name in names]) == 5
            for names in first:
                for name in names:
                    await written(store, await the_run(store, f"r_{name}"), ended())
            again = await asyncio.gather(*[names_of(each, limit=2) for each in stores])
            assert len([name for names in again for name in names]) == 2


class TakeRules:
    """One run can be claimed by name, whatever its graph."""

    async def test_take_is_a_claim(self, store: Store) -> None:
        """It gets a token more, the holder and the lease; the row is the stored one."""
        await started(store, "a", version=7)
        row = await self.take(store, "a", token=0)
        assert row is not None
        assert (row.status, row.token, row.claims) == (RunStatus.RUNNING, 1, 1)
        assert (row.holder, row.ready_at_us) == (OTHER, T0 + 1000)
        assert await the_run(store, "r_a") == row
        await written(store, row)

    async def test_due_runs_of_other_graphs_are_found(self, store: Store) -> None:
        """`due_us` and `except_graphs` choose what nobody is there to claim."""
        await started(store, "due", version=2)
        await started(store, "served")
        await started(store, "later", version=2, ready_at_us=T0 + 500)
        await taken(store, "held", version=2, lease_until_us=T0 + 500)
        await taken(store, "lost", version=2, lease_until_us=T0 + 50)
        await written(store, await taken(store, "ended", version=2), ended())
        named = RunQuery(run_ids=(RunId("r_due"), RunId("r_none"), RunId("r_held")))
        assert [row.run_id for row in await store.find_runs(named)] == ["r_held", "r_due"]
        query = RunQuery(due_us=T0 + 100, except_graphs=GRAPHS)
        assert [row.run_id for row in await store.find_runs(query)] == ["r_lost", "r_due"]
        query = RunQuery(due_us=T0 + 100)
        assert len(await store.find_runs(query)) == 3
        query = RunQuery(except_graphs=(*GRAPHS, ("g", 2)))
        assert await store.find_runs(query) == []

    async def test_take_leaves_what_is_not_to_be_had(self, store: Store) -> None:
        """Another token, a lease that holds, a queued, a final and an unknown run: nothing."""
        await taken(store, "held", thread=ThreadId("t"))
        await started(store, "queued", thread=ThreadId("t"))
        await started(store, "other")
        await written(store, await taken(store, "final"), ended())
        for name, token in (("held", 1), ("queued", 0), ("other", 1), ("final", 1), ("none", 0)):
            assert await self.take(store, name, token=token) is None, name
        assert (await the_run(store, "r_queued")).token == 0

    async def test_take_of_parked_waiting_and_lost_runs(self, store: Store) -> None:
        """What is parked or waits can be had though it is not due; and what lost its holder."""
        parked = RunReleased(status=RunStatus.NEEDS_DECISION)
        await written(store, await taken(store, "parked"), parked)
        await written(store, await taken(store, "waiting"), waiting())
        await taken(store, "lost", lease_until_us=T0 + 50)
        await taken(store, "held", lease_until_us=T0 + 500)
        for name in ("parked", "waiting", "lost"):
            row = await self.take(store, name, token=1)
            assert row is not None, name
            assert row.token == 2
        assert await self.take(store, "held", token=1) is None

    async def test_one_of_many_takes(self, make_store: MakeStore, store: Store) -> None:
        """Of several that take the run as they saw it, one has it."""
        await started(store, "a")
        async with opened(make_store()) as second:
            rows = await asyncio.gather(
                *[self.take(each, "a", token=0) for each in (store, second, store, second)]
            )
            assert [row is not None for row in rows].count(True) == 1

    async def test_release_moves_a_run_to_another_version(self, store: Store) -> None:
        """`RunReleased.version` is the run's version from then on; None leaves it."""
        row = await written(
            store,
            await taken(store, "a", version=2),
            RunReleased(status=RunStatus.PENDING, ready_at_us=T0, version=1),
        )
        assert row.version == 1
        [row] = await claimed(store)
        await written(store, row, waiting())
        assert (await the_run(store, "r_a")).version == 1

    async def test_mail_waits_for_who_takes(self, store: Store) -> None:
        """Mail to a parked run is there when it is taken."""
        parked = RunReleased(status=RunStatus.NEEDS_DECISION)
        await written(store, await taken(store, "a", version=3), parked)
        await store.post(signal_to((await the_run(store, "r_a")).run_id, kind=MailKind.CANCEL))
        assert await self.take(store, "a", token=1) is not None
        [mail] = await store.read_mail((await the_run(store, "r_a")).run_id)
        assert mail.kind is MailKind.CANCEL

    async def take(self, store: Store, name: str, *, token: int) -> Any:
        """Take a run for the other worker at `T0 + 100`."""
        run_id = new_run(name).run_id
        return await store.take(
            run_id, OTHER, token=token, now_us=T0 + 100, lease_until_us=T0 + 1000
        )


def schedule(name: str, **fields: Any) -> ScheduleRow:
    """Return a schedule of graph `g`, revision 1, due at `T0 + 10`."""
    given: dict[str, Any] = {
        "tenant": TENANT,
        "name": name,
        "revision": 1,
        "graph": "g",
        "version": 1,
        "cron": "* * * * *",
        "next_at_us": T0 + 10,
    }
    return ScheduleRow(**(given | fields))


class ScheduleRules:
    """Schedules are rows that are written by comparing their revision."""

    async def test_schedule_is_read_back(self, store: Store) -> None:
        """Every field comes back as it was."""
        full = schedule(
            "full",
            timezone="Europe/Paris",
            input_wire=b"\x81\xa1x\x01",
            input_digest="d",
            thread="th",
            priority=-3,
            on_busy=OnBusy.REJECT,
            missed=Missed.ALL,
            is_paused=True,
            next_at_us=None,
            created_at_us=T0,
            fired_at_us=T0 - 5,
            fired_run="r_1",
            problem="why",
        )
        assert await store.put_schedule(full, expected=0)
        assert await store.put_schedule(schedule("plain"), expected=0)
        assert await store.find_schedules() == [schedule("plain"), full]

    async def test_put_compares_the_revision(self, store: Store) -> None:
        """Only who has seen the newest row writes; 0 stands for none."""
        assert not await store.put_schedule(schedule("a", revision=2), expected=1)
        assert await store.put_schedule(schedule("a"), expected=0)
        assert not await store.put_schedule(schedule("a", revision=9), expected=0)
        assert await store.put_schedule(schedule("a", revision=2, cron="0 * * * *"), expected=1)
        assert not await store.put_schedule(schedule("a", revision=3), expected=1)
        again = schedule("a", revision=2, cron="0 * * * *")
        assert await store.put_schedule(again, expected=1), "its answer was lost"
        [row] = await store.find_schedules()
        assert (row.revision, row.cron) == (2, "0 * * * *")

    async def test_one_of_many_puts(self, make_store: MakeStore, store: Store) -> None:
        """Of several that move the row on from the same revision, one does."""
        await store.put_schedule(schedule("a"), expected=0)
        async with opened(make_store()) as second:
            moved = await asyncio.gather(*[
                each.put_schedule(schedule("a", revision=revision), expected=1)
                for revision, each in enumerate((store, second) * 2, start=5)
            ])  # fmt: skip
        assert moved.count(True) == 1

    async def test_schedules_by_when_they_are_due(self, store: Store) -> None:
        """By due time, those without one last; `due_us`, `tenant` and `limit` choose."""
        rows = [
            schedule("late", next_at_us=T0 + 30),
            schedule("early", next_at_us=T0 + 20),
            schedule("never", next_at_us=None),
            schedule("early", next_at_us=T0 + 20, tenant=TenantId("a")),
        ]
        for row in rows:
            await store.put_schedule(row, expected=0)
        late, early, never, other = rows
        assert await store.find_schedules() == [other, early, late, never]
        assert await store.find_schedules(due_us=T0 + 20) == [other, early]
        assert await store.find_schedules(due_us=T0 + 19) == []
        assert await store.find_schedules(limit=1) == [other]
        assert await store.find_schedules(tenant=TENANT) == [early, late, never]

    async def test_dropped_schedule(self, store: Store) -> None:
        """It is gone, once, and only that of its tenant."""
        await store.put_schedule(schedule("a"), expected=0)
        assert not await store.drop_schedule(TenantId("other"), "a")
        assert await store.drop_schedule(TENANT, "a")
        assert not await store.drop_schedule(TENANT, "a")
        assert await store.find_schedules() == []


class WorkerRowRules:
    """A worker says what it can do, and what it is about to do."""

    async def test_worker_is_read_back_and_replaced(self, store: Store) -> None:
        """Concurrency, shapes and draining come back; registering again replaces the row."""
        row = worker(concurrency=3, shapes=(GraphShape("g", 1, ("a", "b"), ("x",)),))
        await store.register_worker(row)
        [found] = await store.find_workers()
        assert (found.concurrency, found.shapes, found.is_draining) == (3, row.shapes, False)
        await store.register_worker(worker(concurrency=3, is_draining=True))
        [found] = await store.find_workers()
        assert found.is_draining
