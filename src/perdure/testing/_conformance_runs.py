"""Conformance: starts, claims, leases, the fence, and the end of runs."""

from itertools import pairwise
from typing import Any

import pytest

from perdure.errors import StartKeyReused, StoreCorrupt, ThreadBusy
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import (
    Appended,
    EffectPut,
    Failure,
    Fenced,
    KeyTaken,
    MailKind,
    OnBusy,
    RunProgressed,
    RunReleased,
    RunSpawned,
    RunStatus,
    Started,
    ThreadBased,
    Wait,
    WaitKind,
)
from perdure.store.api import RunQuery, Store
from perdure.testing._store_kit import (
    GRAPHS,
    OTHER,
    T0,
    TENANT,
    WORKER,
    appended_to,
    claimed,
    effect_of,
    ended,
    new_run,
    outcome_of,
    signal_to,
    started,
    taken,
    the_run,
    waiting,
    worker,
    written,
)

THREAD = ThreadId("thread_shared")


class StartRules:
    """What a start does."""

    async def test_start_is_visible_with_its_first_frame(self, store: Store) -> None:
        """A started run is pending, due, and has one frame of seq 1."""
        row = await started(store, "a", priority=3, start_key="k", input_digest="d")
        assert await store.read_run(row.run_id) == row
        assert (row.status, row.ready_at_us, row.token) == (RunStatus.PENDING, T0, 0)
        assert (row.ordinal, row.last_seq, row.priority) == (1, 1, 3)
        [frame] = await store.read_frames(row.run_id)
        assert (frame.first_seq, frame.count, frame.token, frame.body) == (1, 1, 0, b"first")
        assert (frame.prev_hash, frame.hash) == (bytes(32), b"1" * 32)

    async def test_start_of_many_in_order(self, store: Store) -> None:
        """Outcomes come in the order of the runs."""
        outcomes = await store.start([new_run(name) for name in "cab"])
        names = [outcome.row.run_id for outcome in outcomes if isinstance(outcome, Started)]
        assert names == ["r_c", "r_a", "r_b"]

    async def test_start_taken_holds_the_lease(self, store: Store) -> None:
        """A start with `take_for` is running, with token 1, in the same transaction."""
        [outcome] = await store.start([new_run("a", take_for=WORKER, lease_until_us=T0 + 1000)])
        assert isinstance(outcome, Started)
        assert outcome.taken
        row = outcome.row
        assert (row.status, row.token, row.claims) == (RunStatus.RUNNING, 1, 1)
        assert (row.holder, row.ready_at_us) == (WORKER, T0 + 1000)
        assert await claimed(store, OTHER) == []

    async def test_delayed_start_is_not_taken_and_not_due(self, store: Store) -> None:
        """A delay holds, even when a worker asks for the lease."""
        row = await taken(store, "a", ready_at_us=T0 + 500)
        assert (row.status, row.holder) == (RunStatus.PENDING, None)
        assert await claimed(store) == []
        assert [run.run_id for run in await claimed(store, now_us=T0 + 500)] == [row.run_id]

    async def test_start_key_gives_the_first_run(self, store: Store) -> None:
        """The same key and digest return the first run, also within one call."""
        keyed: dict[str, Any] = {"start_key": "k", "input_digest": "d"}
        outcomes = await store.start([new_run("a", **keyed), new_run("b", **keyed)])
        outcomes += await store.start([new_run("c", **keyed)])
        rows = [
            (outcome.row.run_id, outcome.created)
            for outcome in outcomes
            if isinstance(outcome, Started)
        ]
        assert rows == [("r_a", True), ("r_a", False), ("r_a", False)]
        assert await store.read_run(RunId("r_b")) is None

    async def test_start_key_with_other_input_is_refused_alone(self, store: Store) -> None:
        """Another digest is `StartKeyReused`; the other starts of the call are written."""
        await started(store, "a", start_key="k", input_digest="d")
        refused, made = await store.start(
            [new_run("b", start_key="k", input_digest="other"), new_run("c")]
        )
        assert isinstance(refused, StartKeyReused)
        assert isinstance(made, Started)
        assert await store.read_run(RunId("r_b")) is None

    async def test_start_keys_of_tenants_are_apart(self, store: Store) -> None:
        """A start key is unique per tenant only."""
        await started(store, "a", start_key="k", input_digest="d")
        row = await started(store, "b", start_key="k", input_digest="x", tenant=TenantId("other"))
        assert row.run_id == "r_b"

    async def test_busy_thread_queues(self, store: Store) -> None:
        """A start on a busy thread stands behind it, and only the end before it makes it due."""
        first = await taken(store, "a", thread=THREAD)
        second = await taken(store, "b", thread=THREAD)
        third = await started(store, "c", thread=THREAD)
        assert (second.status, second.ready_at_us, second.ordinal) == (RunStatus.PENDING, None, 2)
        assert [wait.kind for wait in second.waits] == [WaitKind.THREAD]
        await store.post(signal_to(second.run_id))
        await store.post(signal_to(second.run_id, kind=MailKind.CANCEL))
        assert await claimed(store, now_us=T0 + 10_000) == [await the_run(store, first.run_id)]

        first = await the_run(store, first.run_id)
        await written(store, first, ended(checkpoint=7))
        [turn] = await claimed(store)
        assert (turn.run_id, turn.waits, turn.base_checkpoint) == (second.run_id, (), 7)
        assert (await the_run(store, third.run_id)).ready_at_us is None

    async def test_queued_delayed_start_keeps_its_delay(self, store: Store) -> None:
        """The turn of a queued run does not hurry its delay."""
        first = await taken(store, "a", thread=THREAD)
        await started(store, "b", thread=THREAD, ready_at_us=T0 + 5000)
        await written(store, first, ended())
        assert await claimed(store) == []
        assert (await the_run(store, "r_b")).ready_at_us == T0 + 5000

    async def test_busy_thread_rejects(self, store: Store) -> None:
        """`on_busy="reject"` writes nothing on a busy thread, and starts on a free one."""
        first = await taken(store, "a", thread=THREAD)
        [refused] = await store.start([new_run("b", thread=THREAD, on_busy=OnBusy.REJECT)])
        assert isinstance(refused, ThreadBusy)
        assert await store.read_run(RunId("r_b")) is None
        await written(store, first, ended())
        assert (await started(store, "c", thread=THREAD, on_busy=OnBusy.REJECT)).ordinal == 2

    async def test_busy_thread_cancels(self, store: Store) -> None:
        """`on_busy="cancel"` asks every unfinished run of the thread to cancel, and queues."""
        await taken(store, "a", thread=THREAD)
        await started(store, "b", thread=THREAD)
        [outcome] = await store.start([new_run("c", thread=THREAD, on_busy=OnBusy.CANCEL)])
        assert isinstance(outcome, Started)
        assert outcome.cancelled == ("r_a", "r_b")
        assert outcome.row.ready_at_us is None
        for run_id in outcome.cancelled:
            assert [mail.kind for mail in await store.read_mail(run_id)] == [MailKind.CANCEL]

    async def test_cancel_hurries_a_delayed_start(self, store: Store) -> None:
        """A run that was never claimed and is not queued is hurried by a cancel only."""
        row = await started(store, "a", ready_at_us=T0 + 5000)
        assert (await store.post(signal_to(row.run_id))).ready_at_us == T0 + 5000
        posted = await store.post(signal_to(row.run_id, kind=MailKind.CANCEL))
        assert posted.ready_at_us == T0 + 20


class ClaimRules:
    """Who may take which run."""

    async def test_claim_takes_only_what_it_can_run(self, store: Store) -> None:
        """Name and version of the graph must both match."""
        await started(store, "a", version=2)
        await started(store, "b", graph="h")
        assert await claimed(store) == []
        assert [run.run_id for run in await store.claim(
            WORKER, [("g", 2), ("h", 1)], now_us=T0, lease_until_us=T0 + 9, limit=5
        )] == ["r_a", "r_b"]  # fmt: skip

    async def test_claim_order_and_limit(self, store: Store) -> None:
        """Priority first, then what was ready first; never more than the limit."""
        await started(store, "late", ready_at_us=T0 + 20)
        await started(store, "early", ready_at_us=T0 + 10)
        await started(store, "urgent", ready_at_us=T0 + 30, priority=5)
        first = await claimed(store, limit=2)
        assert [run.run_id for run in first] == ["r_urgent", "r_early"]
        assert [run.run_id for run in await claimed(store)] == ["r_late"]
        assert await claimed(store) == []

    async def test_claim_takes_tenants_in_turn(self, store: Store) -> None:
        """A tenant with a hundred runs does not keep another one waiting."""
        crowd = [new_run(f"a{i:03}", tenant=TenantId("crowd")) for i in range(100)]
        few = [new_run(f"b{i}", tenant=TenantId("few"), created_at_us=T0 + 50) for i in range(2)]
        await store.start(crowd + few)
        tenants = [run.tenant for run in await claimed(store, limit=4)]
        assert tenants == ["crowd", "few", "crowd", "few"]

    async def test_claim_sets_token_holder_and_lease(self, store: Store) -> None:
        """The claimed row is the stored one."""
        await started(store, "a")
        [row] = await claimed(store)
        assert (row.status, row.token, row.claims) == (RunStatus.RUNNING, 1, 1)
        assert (row.holder, row.ready_at_us, row.waits) == (WORKER, T0 + 1000, ())
        assert await the_run(store, row.run_id) == row

    async def test_ended_lease_is_claimable(self, store: Store) -> None:
        """After the lease's end another worker takes the run, and the old token is refused."""
        old = await taken(store, "a")
        assert await claimed(store, OTHER, now_us=T0 + 999) == []
        [new] = await claimed(store, OTHER, now_us=T0 + 1000, lease_until_us=T0 + 2000)
        assert (new.token, new.claims, new.holder) == (2, 2, OTHER)
        refused = await outcome_of(store, appended_to(old))
        assert refused == Fenced(token=2, holder=OTHER, last_seq=1)
        await written(store, new)

    async def test_progress_resets_claims_and_extends(self, store: Store) -> None:
        """`RunProgressed` sets claims to 1 and the lease's end."""
        await taken(store, "a")
        [row] = await claimed(store, OTHER, now_us=T0 + 1000, lease_until_us=T0 + 2000)
        row = await written(store, row, RunProgressed(lease_until_us=T0 + 3000))
        assert (row.claims, row.ready_at_us) == (1, T0 + 3000)

    async def test_progress_does_not_shorten_a_lease(self, store: Store) -> None:
        """It may have been on its way while the lease was renewed, and the holder counts on that.

        Found by the simulator: another took the run over, and an effect was sent by both.
        """
        await store.register_worker(worker())
        row = await taken(store, "a", lease_until_us=T0 + 1000)
        await store.renew(WORKER, [(row.run_id, 1)], now_us=T0 + 900, lease_until_us=T0 + 5000)
        row = await written(store, row, RunProgressed(lease_until_us=T0 + 1000))
        assert (row.claims, row.ready_at_us) == (1, T0 + 5000)
        assert await claimed(store, OTHER, now_us=T0 + 4000) == []

    async def test_renew_extends_and_reports_the_lost(self, store: Store) -> None:
        """A heartbeat extends what is held, and names what is not (any more)."""
        await store.register_worker(worker())
        kept = await taken(store, "a")
        lost = await taken(store, "b", lease_until_us=T0 + 50)
        await claimed(store, OTHER)
        held = [(kept.run_id, 1), (lost.run_id, 1), (RunId("r_unknown"), 1)]
        found = await store.renew(WORKER, held, now_us=T0 + 200, lease_until_us=T0 + 5000)
        assert found == {lost.run_id, "r_unknown"}
        assert (await the_run(store, kept.run_id)).ready_at_us == T0 + 5000
        assert (await the_run(store, lost.run_id)).ready_at_us == T0 + 1000
        assert [row.seen_at_us for row in await store.find_workers()] == [T0 + 200]

    async def test_forgotten_worker_leaves_its_runs(self, store: Store) -> None:
        """What a worker still holds when it goes is claimable at once."""
        await store.register_worker(worker())
        await taken(store, "a", lease_until_us=1 << 61)
        await store.forget_worker(WORKER)
        assert await store.find_workers() == []
        rows = await claimed(store, OTHER, now_us=1 << 60, lease_until_us=1 << 61)
        assert [row.token for row in rows] == [2]

    async def test_next_ready_at(self, store: Store) -> None:
        """The earliest time at which any run of these graphs is due."""
        assert await store.next_ready_at(GRAPHS) is None
        await started(store, "a", ready_at_us=T0 + 500)
        await started(store, "b", graph="h", ready_at_us=T0 + 100)
        assert await store.next_ready_at(GRAPHS) == T0 + 500
        row = await taken(store, "c", lease_until_us=T0 + 300)
        assert await store.next_ready_at(GRAPHS) == T0 + 300
        await written(store, row, ended())
        assert await store.next_ready_at(GRAPHS) == T0 + 500


class AppendRules:
    """The fence, the batch, and what the changes do to the run."""

    async def test_stale_token_and_wrong_seq_write_nothing(self, store: Store) -> None:
        """Every wrong fence is refused, and nothing of the append is written."""
        row = await taken(store, "a")
        change = EffectPut(row=effect_of(row, "x"))
        for wrong in ({"token": 0}, {"token": 2}, {"first_seq": 1}, {"first_seq": 3}):
            refused = await outcome_of(store, appended_to(row, change, **wrong))
            assert refused == Fenced(token=1, holder=WORKER, last_seq=1)
        assert len(await store.read_frames(row.run_id)) == 1
        assert await store.read_effect(change.row.effect_id) is None
        assert await the_run(store, row.run_id) == row

    async def test_run_that_is_not_running_is_fenced(self, store: Store) -> None:
        """Pending, waiting, final and unknown runs take no append."""
        pending = await started(store, "a")
        assert isinstance(await outcome_of(store, appended_to(pending)), Fenced)
        released = await written(store, await taken(store, "b"), waiting())
        assert isinstance(await outcome_of(store, appended_to(released)), Fenced)
        final = await written(store, await taken(store, "c"), ended())
        assert isinstance(await outcome_of(store, appended_to(final)), Fenced)
        unknown = appended_to(pending, run_id=RunId("r_unknown"))
        assert isinstance(await outcome_of(store, unknown), Fenced)

    async def test_one_fenced_run_does_not_fail_the_batch(self, store: Store) -> None:
        """In a batch, a refused append writes nothing and the others are written."""
        a, b, c = [await taken(store, name) for name in "abc"]
        outcomes = await store.append(
            [appended_to(a), appended_to(b, token=9), appended_to(c, count=3)]
        )
        assert [type(outcome) for outcome in outcomes] == [Appended, Fenced, Appended]
        assert [(await the_run(store, f"r_{name}")).last_seq for name in "abc"] == [2, 1, 4]

    async def test_appends_of_one_run_in_a_batch(self, store: Store) -> None:
        """They are applied in order; after a refused one the next is refused too."""
        a, b = await taken(store, "a"), await taken(store, "b")
        batch = [appended_to(a), appended_to(a, first_seq=3)]
        batch += [appended_to(b, first_seq=9), appended_to(b)]
        outcomes = await store.append(batch)
        assert [type(outcome) for outcome in outcomes] == [Appended, Appended, Fenced, Fenced]
        assert [frame.first_seq for frame in await store.read_frames(a.run_id)] == [1, 2, 3]
        assert len(await store.read_frames(b.run_id)) == 1

    async def test_old_holder_in_a_batch_does_not_fail_the_new_one(self, store: Store) -> None:
        """A worker that took a run over from itself writes under both tokens; the new one holds."""
        old = await taken(store, "a")
        [new] = await claimed(store, now_us=T0 + 1000)
        outcomes = await store.append([appended_to(old), appended_to(new)])
        assert [type(outcome) for outcome in outcomes] == [Fenced, Appended]
        late = appended_to(old, hash=b"3" * 32)
        outcomes = await store.append([appended_to(await the_run(store, new.run_id)), late])
        assert [type(outcome) for outcome in outcomes] == [Appended, Fenced]

    async def test_taken_business_key_refuses_its_append_alone(self, store: Store) -> None:
        """`KeyTaken` names the holder; nothing of that append is written, the others are."""
        a, b, c = [await taken(store, name) for name in "abc"]
        held = EffectPut(row=effect_of(a, "held", business_key="order-7"))
        await written(store, a, held)
        batch = [
            appended_to(
                b,
                EffectPut(row=effect_of(b, "free")),
                EffectPut(row=effect_of(b, "clash", business_key="order-7")),
            ),
            appended_to(c),
        ]
        outcomes = await store.append(batch)
        assert outcomes == [
            KeyTaken(effect_id=held.row.effect_id, business_key="order-7"),
            Appended(),
        ]
        assert (await the_run(store, b.run_id)).last_seq == 1
        assert await store.read_effect(effect_of(b, "free").effect_id) is None
        found = await store.read_effect_by_key(TENANT, "order-7")
        assert found == held.row

    async def test_business_key_twice_in_one_append(self, store: Store) -> None:
        """Two effects of one append cannot share a key either."""
        row = await taken(store, "a")
        changes = [EffectPut(row=effect_of(row, name, business_key="k")) for name in "xy"]
        assert isinstance(await outcome_of(store, appended_to(row, *changes)), KeyTaken)
        assert (await the_run(store, row.run_id)).last_seq == 1

    async def test_release_lets_go(self, store: Store) -> None:
        """A released run has status, waits, failure and checkpoint as said, and no holder."""
        waits = (Wait(kind=WaitKind.SIGNAL, subject="topic", due_us=T0 + 700, note="n"),)
        failure = Failure(type="X", message="m")
        row = await taken(store, "a")
        row = await written(
            store, row, waiting(waits=waits, ready_at_us=T0 + 700, failure=failure, checkpoint=4)
        )
        assert (row.status, row.holder, row.claims, row.token) == (RunStatus.WAITING, None, 0, 1)
        assert (row.waits, row.ready_at_us, row.failure) == (waits, T0 + 700, failure)
        thread = await store.read_thread(TENANT, row.thread)
        assert thread is not None
        assert (thread.checkpoint, thread.graph, row.checkpoint) == (4, "g", 4)
        [again] = await claimed(store, now_us=T0 + 700)
        assert (again.token, again.claims, again.waits) == (2, 1, ())

    async def test_release_may_keep_claims(self, store: Store) -> None:
        """A poison run keeps its count over a release."""
        row = await taken(store, "a")
        row = await written(store, row, RunReleased(status=RunStatus.PENDING, keep_claims=True))
        assert row.claims == 1

    async def test_end_sets_everything_at_once(self, store: Store) -> None:
        """A final run has no holder, no readiness, no mail; its thread has its checkpoint."""
        row = await taken(store, "a")
        await store.post(signal_to(row.run_id))
        failure = Failure(type="X", message="m")
        row = await written(
            store, row, ended(RunStatus.FAILED, failure=failure, checkpoint=9), ThreadBased(seq=2)
        )
        assert (row.status, row.holder, row.ready_at_us) == (RunStatus.FAILED, None, None)
        assert (row.failure, row.checkpoint, row.ended_at_us) == (failure, 9, T0 + 30)
        assert await store.read_mail(row.run_id) == []
        thread = await store.read_thread(TENANT, row.thread)
        assert thread is not None
        assert (thread.checkpoint, thread.graph) == (9, "g")
        assert (thread.base_ordinal, thread.base_seq, thread.last_ordinal) == (1, 2, 1)

    async def test_spawn_is_idempotent(self, store: Store) -> None:
        """A child with the same id stays as it is, and does not stop the append."""
        row = await taken(store, "a")
        child = new_run("child", parent=row.run_id, parent_call="c1")
        row = await written(store, row, RunSpawned(run=child))
        [running] = await claimed(store)
        assert (running.run_id, running.parent, running.parent_call) == ("r_child", "r_a", "c1")
        await written(store, row, RunSpawned(run=child))
        assert await the_run(store, "r_child") == running
        found = await store.find_runs(RunQuery(parent=row.run_id))
        assert found == [running]

    async def test_end_posts_to_the_parent(self, store: Store) -> None:
        """The end of a child wakes its waiting parent with a message."""
        parent = await written(store, await taken(store, "a"), waiting())
        child = await taken(store, "child", parent=parent.run_id)
        mail = signal_to(parent.run_id, kind=MailKind.CHILD, subject=child.run_id)
        await written(store, child, ended(mail_to_parent=mail))
        assert (await the_run(store, parent.run_id)).ready_at_us == T0 + 20
        [message] = await store.read_mail(parent.run_id)
        assert (message.kind, message.subject) == (MailKind.CHILD, child.run_id)

    async def test_frames_from_the_middle(self, store: Store) -> None:
        """Reading from a seq gives the frame that holds it and all later ones."""
        row = await taken(store, "a")
        for count in (3, 1, 2):
            row = await written(store, row, count=count)
        reads = [await store.read_frames(row.run_id, from_seq=seq) for seq in (1, 3, 5, 6, 7, 8)]
        firsts = [[frame.first_seq for frame in frames] for frames in reads]
        assert firsts == [[1, 2, 5, 6], [2, 5, 6], [5, 6], [6], [6], []]
        limited = await store.read_frames(row.run_id, from_seq=2, limit=2)
        assert [frame.first_seq for frame in limited] == [2, 5]
        assert all(a.first_seq + a.count == b.first_seq for a, b in pairwise(reads[0]))
        assert await store.read_frames(RunId("r_unknown")) == []

    @pytest.mark.parametrize("lost", [1, 2, 3])
    async def test_missing_frame_is_an_error(self, store: Store, lost: int) -> None:
        """A frame that is gone, at the start, between or at the end, is `StoreCorrupt`."""
        row = await taken(store, "a")
        row = await written(store, await written(store, row))
        await self.lose_frame(store, row.run_id, lost)
        with pytest.raises(StoreCorrupt):
            await store.read_frames(row.run_id)

    async def test_scan_reads_what_is_there(self, store: Store) -> None:
        """A scan gives stored frames in their order, by pages, also where one is missing."""
        row = await taken(store, "a")
        for _ in range(3):
            row = await written(store, row)
        frames = await store.read_frames(row.run_id)
        assert await store.scan_frames(row.run_id, from_seq=1, limit=99) == frames
        assert await store.scan_frames(row.run_id, from_seq=2, limit=2) == frames[1:3]
        assert await store.scan_frames(row.run_id, from_seq=99, limit=2) == []
        assert await store.scan_frames(RunId("r_nobody"), from_seq=1, limit=2) == []
        await self.lose_frame(store, row.run_id, frames[2].first_seq)
        left = await store.scan_frames(row.run_id, from_seq=1, limit=99)
        assert left == [*frames[:2], frames[3]]

    async def lose_frame(self, store: Store, run_id: RunId, first_seq: int) -> None:
        """Remove a frame behind the store's back; a backend without such a door lists the gap."""
        pytest.skip(
            f"gap: {type(store).__name__} gives no back door to lose frame {first_seq} of {run_id}"
        )

    async def test_list_of_runs(self, store: Store) -> None:
        """Newest first, by tenant, thread, graph and status, in pages."""
        await store.start([new_run(name) for name in "abc"])
        await taken(store, "d", tenant=TenantId("other"))
        found = await store.find_runs(RunQuery(tenant=TENANT, limit=2))
        assert [row.run_id for row in found] == ["r_c", "r_b"]
        found = await store.find_runs(RunQuery(tenant=TENANT, before=RunId("r_b")))
        assert [row.run_id for row in found] == ["r_a"]
        found = await store.find_runs(RunQuery(statuses=(RunStatus.RUNNING, RunStatus.FAILED)))
        assert [row.run_id for row in found] == ["r_d"]
        found = await store.find_runs(RunQuery(thread=ThreadId("thread_b"), graph="g"))
        assert [row.run_id for row in found] == ["r_b"]
        runs = await store.read_thread_runs(TENANT, ThreadId("thread_b"), from_ordinal=1)
        assert [row.run_id for row in runs] == ["r_b"]
