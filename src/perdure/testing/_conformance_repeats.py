"""Conformance: every write may be called again when its answer was lost."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import RunFinal
from perdure.ids import RunId, ThreadId
from perdure.model import (
    Append,
    Appended,
    AskPut,
    EffectPut,
    EffectState,
    Fenced,
    MailKind,
    MailPosted,
    MailTaken,
    OnBusy,
    RunReleased,
    RunRow,
    RunSpawned,
    RunStatus,
    Started,
)
from perdure.store.api import RunQuery, Store
from perdure.testing._store_kit import (
    OTHER,
    T0,
    WORKER,
    appended_to,
    ask_of,
    claimed,
    effect_of,
    ended,
    new_run,
    outcome_of,
    signal_to,
    taken,
    the_run,
    waiting,
    worker,
    written,
)


async def _fate(store: Store, row: RunRow, fate: str) -> None:
    """Let become of a run what may become of it between a write and its repetition."""
    if fate == "went on":
        await written(store, row, hash=b"3" * 32)
    elif fate == "released":
        await written(store, row, waiting(), hash=b"3" * 32)
    elif fate == "ended":
        await written(store, row, ended(), hash=b"3" * 32)
    elif fate == "taken over":
        [again] = await claimed(store, OTHER, now_us=T0 + 1000)
        await written(store, again, hash=b"4" * 32)


FATES = ("nothing", "went on", "released", "ended", "taken over")


class RepeatRules:
    """What was written is recognised when it comes again, and written once."""

    async def _everything(self, store: Store, run_id: RunId) -> list[Any]:
        row = await the_run(store, run_id)
        return [
            row,
            await store.read_frames(run_id),
            await store.read_mail(run_id),
            await store.read_thread(row.tenant, row.thread),
            await store.next_ready_at((("g", 1),)),
            len(await store.find_runs(RunQuery())),
        ]

    @pytest.mark.parametrize("fate", FATES)
    async def test_append_that_is_written_is_appended(self, store: Store, fate: str) -> None:
        """The frame in the journal decides, whatever became of the run since."""
        row = await taken(store, "a")
        child = new_run("child", ready_at_us=T0 + 5000)
        posted = MailPosted(mail=signal_to(row.run_id))
        put = EffectPut(row=effect_of(row, "x", business_key="k"))
        item = appended_to(row, RunSpawned(run=child), posted, put)
        assert await outcome_of(store, item) == Appended()
        await _fate(store, await the_run(store, row.run_id), fate)
        before = await self._everything(store, row.run_id)
        assert await outcome_of(store, item) == Appended()
        assert await store.append([item, item]) == [Appended(), Appended()]
        assert await self._everything(store, row.run_id) == before

    @pytest.mark.parametrize("last", ["release", "end"])
    async def test_append_that_lets_go_is_appended(self, store: Store, last: str) -> None:
        """The release and the end of a run are recognised by who wrote them."""
        row = await taken(store, "a")
        item = appended_to(row, waiting(ready_at_us=T0 + 50) if last == "release" else ended())
        for _ in range(2):
            assert await outcome_of(store, item) == Appended()
        if last == "release":
            await claimed(store, OTHER)
            assert await outcome_of(store, item) == Appended()

    @pytest.mark.parametrize(
        "wrong", [{"hash": b"9" * 32}, {"token": 2}, {"count": 2}, {"first_seq": 4}]
    )
    async def test_append_of_another_is_fenced(self, store: Store, wrong: dict[str, Any]) -> None:
        """What differs in seq, count, token or hash is not what was written."""
        row = await taken(store, "a")
        item = appended_to(row)
        await written(store, row)
        before = await self._everything(store, row.run_id)
        assert isinstance(await outcome_of(store, _changed(item, wrong)), Fenced)
        assert await self._everything(store, row.run_id) == before

    async def test_batch_is_recognised_item_by_item(self, store: Store) -> None:
        """A repeated batch whose one run was lost meanwhile is refused for what was not written."""
        a, b = await taken(store, "a"), await taken(store, "b")
        first = [appended_to(a), appended_to(b)]
        assert await store.append(first) == [Appended(), Appended()]
        a = await the_run(store, a.run_id)
        await _fate(store, await the_run(store, b.run_id), "ended")
        late = appended_to(await the_run(store, b.run_id), hash=b"5" * 32)
        outcomes = await store.append([*first, appended_to(a, hash=b"6" * 32), late])
        assert [type(each) for each in outcomes] == [Appended, Appended, Appended, Fenced]

    @pytest.mark.parametrize("fate", FATES)
    async def test_start_is_recognised_by_its_run_id(self, store: Store, fate: str) -> None:
        """It returns the run; taken while its worker still holds it under the first token."""
        new = new_run("a", take_for=WORKER, lease_until_us=T0 + 1000, on_busy=OnBusy.REJECT)
        [first] = await store.start([new])
        assert isinstance(first, Started)
        assert (first.created, first.taken) == (True, True)
        await _fate(store, first.row, fate)
        before = await self._everything(store, new.run_id)
        [again] = await store.start([new])
        assert isinstance(again, Started)
        is_held = fate in {"nothing", "went on"}
        assert (again.row, again.created, again.taken) == (before[0], False, is_held)
        assert await self._everything(store, new.run_id) == before

    async def test_start_with_a_key_takes_nobody_elses_run(self, store: Store) -> None:
        """The key of a run that another start made and holds gives the run, not its lease."""
        held = {"take_for": WORKER, "lease_until_us": T0 + 1000, "start_key": "k"}
        [first] = await store.start([new_run("a", **held)])
        [other] = await store.start([new_run("b", **held)])
        assert isinstance(first, Started)
        assert isinstance(other, Started)
        assert (other.row, other.created, other.taken) == (first.row, False, False)

    async def test_start_that_cancels_cancels_once(self, store: Store) -> None:
        """`on_busy="cancel"` come again posts no second cancel."""
        row = await taken(store, "a")
        new = new_run("b", thread=ThreadId("thread_a"), on_busy=OnBusy.CANCEL)
        for _ in range(2):
            await store.start([new])
        assert [mail.kind for mail in await store.read_mail(row.run_id)] == [MailKind.CANCEL]

    @pytest.mark.parametrize("fate", FATES)
    async def test_post_with_an_id_is_stored_once(self, store: Store, fate: str) -> None:
        """Also when it was consumed, or its run has ended, meanwhile."""
        row = await taken(store, "a")
        mail = signal_to(row.run_id, post_id="p_1")
        await store.post(mail)
        [stored] = await store.read_mail(row.run_id)
        assert (stored.post_id, stored.subject) == ("p_1", "topic")
        row = await written(store, row, MailTaken(mail_ids=(stored.mail_id,)))
        await _fate(store, row, fate)
        before = await self._everything(store, row.run_id)
        assert await store.post(mail) == before[0]
        assert await self._everything(store, row.run_id) == before

    async def test_posts_are_told_apart(self, store: Store) -> None:
        """Another id, another run, or no id at all: each is a message of its own."""
        a, b = await taken(store, "a"), await taken(store, "b")
        for run, post_id in ((a, "p_1"), (a, "p_2"), (b, "p_1"), (b, ""), (b, "")):
            await store.post(signal_to(run.run_id, post_id=post_id))
        counts = [len(await store.read_mail(row.run_id)) for row in (a, b)]
        assert counts == [2, 3]
        await written(store, a, ended())
        with pytest.raises(RunFinal):
            await store.post(signal_to(a.run_id, post_id="p_3"))

    async def test_unread_post_is_known_for_as_long_as_it_is_unread(self, store: Store) -> None:
        """Ten minutes later the consumed are forgotten, the unread are not."""
        row = await taken(store, "a")
        mail = signal_to(row.run_id, post_id="p_1")
        late = signal_to(row.run_id, post_id="p_2", at_us=T0 + 700_000_000)
        for each in (mail, late, mail):
            await store.post(each)
        assert [each.post_id for each in await store.read_mail(row.run_id)] == ["p_1", "p_2"]

    @pytest.mark.parametrize("fate", FATES)
    async def test_answer_come_again_is_accepted(self, store: Store, fate: str) -> None:
        """The same value, by the same person, at the same time is the answer that stands."""
        row = await taken(store, "a")
        ask = ask_of(row, "x", expires_at_us=T0 + 500)
        await written(store, row, AskPut(row=ask))
        given: dict[str, Any] = {"value_wire": b"\xc3", "by": "ann", "at_us": T0 + 50}
        first = await store.answer(ask.ask_id, **given)
        [mail] = await store.read_mail(row.run_id)
        taken_in = MailTaken(mail_ids=(mail.mail_id,))
        row = await written(store, await the_run(store, row.run_id), taken_in)
        await _fate(store, row, fate)
        before = await self._everything(store, row.run_id)
        again = await store.answer(ask.ask_id, **given)
        assert (again.accepted, again.row) == (True, first.row)
        for other in ({"value_wire": b"\xc2"}, {"by": "bob"}, {"at_us": T0 + 51}):
            assert not (await store.answer(ask.ask_id, **(given | other))).accepted
        assert await self._everything(store, row.run_id) == before

    @pytest.mark.parametrize("state", [EffectState.CONFIRMED, EffectState.UNCERTAIN])
    async def test_decision_come_again_is_accepted(self, store: Store, state: EffectState) -> None:
        """Also when the effect went on; it never decides the question that came after it."""
        row = await taken(store, "a")
        effect = effect_of(row, "x", state=EffectState.UNCERTAIN)
        parked = RunReleased(status=RunStatus.NEEDS_DECISION)
        await written(store, row, EffectPut(row=effect), parked)
        given: dict[str, Any] = {"happened": False, "result_wire": None, "by": "ann"}
        given["at_us"] = T0 + 50
        for _ in range(2):
            assert (await store.decide(effect.effect_id, **given)).accepted
        [mail] = await store.read_mail(row.run_id)
        [row] = await claimed(store)
        sent = EffectPut(row=replace(effect, state=EffectState.INTENDED, attempt=2))
        row = await written(store, row, MailTaken(mail_ids=(mail.mail_id,)), sent)
        row = await written(store, row, EffectPut(row=replace(effect, state=state, attempt=2)))
        again = await store.decide(effect.effect_id, **given)
        assert (again.accepted, again.row.state, again.row.decision) == (True, state, None)
        assert await store.read_mail(row.run_id) == []
        other = await store.decide(effect.effect_id, **(given | {"at_us": T0 + 60}))
        assert other.accepted == (state is EffectState.UNCERTAIN)

    async def test_expiry_come_again_changes_nothing(self, store: Store) -> None:
        """An ask is closed once."""
        row = await taken(store, "a")
        ask = ask_of(row, "x", expires_at_us=T0 + 500)
        await written(store, row, AskPut(row=ask))
        rows = [await store.expire(ask.ask_id, at_us=T0 + 500 + n) for n in range(2)]
        assert rows[0] == rows[1]

    async def test_claim_is_found_again_by_its_holder(self, store: Store) -> None:
        """The runs of a claim whose answer was lost are those of the worker with its lease end."""
        for name in "abc":
            await new_due(store, name)
        await claimed(store, OTHER, limit=1)
        rows = await claimed(store, lease_until_us=T0 + 1001)
        query = RunQuery(holder=WORKER, statuses=(RunStatus.RUNNING,))
        found = await store.find_runs(query)
        assert sorted(row.run_id for row in found) == sorted(row.run_id for row in rows)
        assert {row.ready_at_us for row in found} == {T0 + 1001}
        assert await store.find_runs(RunQuery(holder=OTHER, limit=10)) == [
            row for row in await store.find_runs(RunQuery()) if row.holder == OTHER
        ]

    async def test_worker_calls_come_again(self, store: Store) -> None:
        """To register, to renew and to forget twice is to do it once."""
        row = await taken(store, "a")
        await asyncio.gather(*(store.register_worker(worker()) for _ in range(2)))
        assert len(await store.find_workers()) == 1
        held, until = [(row.run_id, row.token)], {"now_us": T0 + 5, "lease_until_us": T0 + 2000}
        for _ in range(2):
            assert await store.renew(WORKER, held, **until) == set()
        assert (await the_run(store, row.run_id)).ready_at_us == T0 + 2000
        for _ in range(2):
            await store.forget_worker(WORKER)
        assert await store.find_workers() == []


async def new_due(store: Store, name: str) -> None:
    """Start a run that is due."""
    await store.start([new_run(name)])


def _changed(item: Append, fields: dict[str, Any]) -> Append:
    return replace(item, **fields)
