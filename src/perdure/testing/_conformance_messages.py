"""Conformance: mail, asks, effects and decisions."""

import asyncio

import msgspec
import pytest

from perdure.errors import NotFound, RunFinal
from perdure.ids import AskId, EffectId, RunId
from perdure.model import (
    AskClosed,
    AskPut,
    AskState,
    EffectPut,
    EffectState,
    Failure,
    MailKind,
    MailPosted,
    MailTaken,
    RunReleased,
    RunStatus,
)
from perdure.store.api import AskQuery, EffectQuery, Store
from perdure.testing._store_kit import (
    T0,
    TENANT,
    ask_of,
    claimed,
    effect_of,
    ended,
    signal_to,
    taken,
    the_run,
    waiting,
    written,
)


class MailRules:
    """A message is kept until it is consumed, and no wake-up is lost."""

    async def test_mail_wakes_a_waiting_run(self, store: Store) -> None:
        """A signal makes a waiting run claimable at once, and is read in order."""
        row = await written(store, await taken(store, "a"), waiting(ready_at_us=T0 + 9000))
        posted = await store.post(signal_to(row.run_id, body_wire=b"\x01", sender="me"))
        assert (posted.status, posted.ready_at_us) == (RunStatus.WAITING, T0 + 20)
        await store.post(signal_to(row.run_id, at_us=T0 + 40))
        assert (await the_run(store, row.run_id)).ready_at_us == T0 + 20
        first, second = await store.read_mail(row.run_id)
        assert (first.subject, first.body_wire, first.sender) == ("topic", b"\x01", "me")
        assert 0 < first.mail_id < second.mail_id
        assert await store.read_mail(row.run_id, after=first.mail_id) == [second]
        assert [run.run_id for run in await claimed(store)] == [row.run_id]

    async def test_early_signal_is_kept(self, store: Store) -> None:
        """A signal before anybody waits for it is there when somebody does."""
        row = await taken(store, "a")
        await store.post(signal_to(row.run_id))
        [mail] = await store.read_mail(row.run_id)
        row = await written(store, row, waiting(mail_seen=mail.mail_id))
        assert row.ready_at_us is None
        assert await store.read_mail(row.run_id) == [mail]

    async def test_release_with_mail_that_was_not_seen_is_due_at_once(self, store: Store) -> None:
        """A message that came after the holder last read makes the released run due."""
        row = await taken(store, "a")
        await store.post(signal_to(row.run_id))
        [seen] = await store.read_mail(row.run_id)
        await store.post(signal_to(row.run_id))
        row = await written(store, row, waiting(mail_seen=seen.mail_id, ready_at_us=T0 + 9000))
        assert row.ready_at_us == T0 + 10

    async def test_mail_ids_are_never_given_again(self, store: Store) -> None:
        """A message after a consumed one has a higher id, or `mail_seen` would hide it."""
        row = await taken(store, "a")
        await store.post(signal_to(row.run_id))
        [first] = await store.read_mail(row.run_id)
        row = await written(store, row, MailTaken(mail_ids=(first.mail_id,)))
        assert await store.read_mail(row.run_id) == []
        await store.post(signal_to(row.run_id))
        row = await written(store, row, waiting(mail_seen=first.mail_id))
        assert row.ready_at_us == T0 + 10

    async def test_needs_decision_is_woken_by_deciding_mail_only(self, store: Store) -> None:
        """A signal does not wake a parked run; a retry does."""
        parked = RunReleased(status=RunStatus.NEEDS_DECISION)
        row = await taken(store, "a")
        await store.post(signal_to(row.run_id))
        row = await written(store, row, parked)
        assert row.ready_at_us is None
        await store.post(signal_to(row.run_id))
        assert (await the_run(store, row.run_id)).ready_at_us is None
        await store.post(signal_to(row.run_id, kind=MailKind.RETRY))
        assert (await the_run(store, row.run_id)).ready_at_us == T0 + 20

    async def test_mail_for_nobody(self, store: Store) -> None:
        """Unknown and final runs take no mail; in an append it is dropped."""
        with pytest.raises(NotFound):
            await store.post(signal_to(RunId("r_unknown")))
        final = await written(store, await taken(store, "a"), ended())
        with pytest.raises(RunFinal):
            await store.post(signal_to(final.run_id))
        row = await taken(store, "b")
        posts = [MailPosted(mail=signal_to(RunId(name))) for name in ("r_unknown", "r_a", "r_b")]
        await written(store, row, *posts)
        assert await store.read_mail(final.run_id) == []
        assert len(await store.read_mail(row.run_id)) == 1


class AskRules:
    """A question has one answer."""

    async def test_ask_is_answered_once(self, store: Store) -> None:
        """The first answer stands, wakes the run, and the second one gets its record."""
        row = await taken(store, "a")
        ask = ask_of(row, "x", schema={"type": "boolean"}, expires_at_us=T0 + 500)
        await written(store, row, AskPut(row=ask), waiting(ready_at_us=T0 + 500))
        assert await store.read_ask(ask.ask_id) == ask
        given = {"ann": (b"\xc3", T0 + 50), "bob": (b"\xc2", T0 + 51)}
        answers = await asyncio.gather(
            *(
                store.answer(ask.ask_id, value_wire=value, by=by, at_us=at_us)
                for by, (value, at_us) in given.items()
            )
        )
        [first] = [by for by, answer in zip(given, answers, strict=True) if answer.accepted]
        value, at_us = given[first]
        assert answers[0].row == answers[1].row == await store.read_ask(ask.ask_id)
        assert (answers[1].row.answered_by, answers[1].row.value_wire) == (first, value)
        assert answers[1].row.state is AskState.ANSWERED
        [mail] = await store.read_mail(row.run_id)
        assert (mail.kind, mail.subject, mail.body_wire) == (MailKind.ANSWER, "a_x", value)
        assert (await the_run(store, row.run_id)).ready_at_us == at_us

    async def test_late_answer_is_refused(self, store: Store) -> None:
        """At the expiry it is too late, whether or not the run has noticed."""
        row = await taken(store, "a")
        ask = ask_of(row, "x", expires_at_us=T0 + 500)
        await written(store, row, AskPut(row=ask))
        late = await store.answer(ask.ask_id, value_wire=b"\xc3", by="ann", at_us=T0 + 500)
        assert (late.accepted, late.row) == (False, ask)
        assert await store.read_mail(row.run_id) == []
        with pytest.raises(NotFound):
            await store.answer(AskId("a_unknown"), value_wire=b"", by="ann", at_us=T0)

    async def test_closing_loses_against_an_answer(self, store: Store) -> None:
        """An ask that was answered meanwhile stays answered; asking again changes nothing."""
        row = await taken(store, "a")
        ask = ask_of(row, "x")
        row = await written(store, row, AskPut(row=ask))
        await store.answer(ask.ask_id, value_wire=b"\xc3", by="ann", at_us=T0 + 50)
        closed = AskClosed(ask_id=ask.ask_id, state=AskState.EXPIRED, at_us=T0 + 60)
        await written(store, row, closed, AskPut(row=ask))
        found = await store.read_ask(ask.ask_id)
        assert found is not None
        assert (found.state, found.answered_by) == (AskState.ANSWERED, "ann")

    async def test_closed_ask_takes_no_answer(self, store: Store) -> None:
        """An expired ask, and one whose run has ended, are not answered."""
        row = await taken(store, "a")
        x, y = ask_of(row, "x"), ask_of(row, "y", asked_at_us=T0 + 1)
        row = await written(store, row, AskPut(row=y), AskPut(row=x))
        assert await store.find_asks(AskQuery(states=(AskState.OPEN,))) == [x, y]
        closed = AskClosed(ask_id=x.ask_id, state=AskState.EXPIRED, at_us=T0 + 60)
        await written(store, row, closed, ended())
        found = await store.find_asks(AskQuery(tenant=TENANT, run_id=row.run_id))
        assert [ask.state for ask in found] == [AskState.EXPIRED, AskState.WITHDRAWN]
        for ask in (x, y):
            late = await store.answer(ask.ask_id, value_wire=b"\xc3", by="ann", at_us=T0 + 70)
            assert not late.accepted


class EffectRules:
    """The ledger's rows, and the one decision about an uncertain effect."""

    async def test_effect_is_replaced_by_id(self, store: Store) -> None:
        """A put replaces the row, and listings give the newest change first."""
        row = await taken(store, "a")
        effect = effect_of(row, "x", request_wire=b"\x90", business_key="k")
        row = await written(store, row, EffectPut(row=effect))
        assert await store.read_effect(effect.effect_id) == effect
        other = effect_of(row, "y", changed_at_us=T0 + 1)
        confirmed = msgspec.structs.replace(
            effect,
            state=EffectState.CONFIRMED,
            result_wire=b"\x01",
            attempt=2,
            failure=Failure(type="X", message="m"),
            changed_at_us=T0 + 2,
        )
        await written(store, row, EffectPut(row=other), EffectPut(row=confirmed))
        assert await store.find_effects(EffectQuery(run_id=row.run_id)) == [confirmed, other]
        assert await store.read_effect_by_key(TENANT, "k") == confirmed
        found = await store.find_effects(EffectQuery(tenant=TENANT, states=(EffectState.INTENDED,)))
        assert found == [other]

    async def test_uncertain_effect_is_decided_once(self, store: Store) -> None:
        """The first decision stands, wakes the parked run, and survives a later put."""
        row = await taken(store, "a")
        effect = effect_of(row, "x", state=EffectState.UNCERTAIN)
        parked = RunReleased(status=RunStatus.NEEDS_DECISION)
        await written(store, row, EffectPut(row=effect), parked)
        decisions = [
            await store.decide(
                effect.effect_id, happened=happened, result_wire=b"\x07", by=by, at_us=T0 + 50
            )
            for happened, by in ((True, "ann"), (False, "bob"))
        ]
        assert [decided.accepted for decided in decisions] == [True, False]
        assert decisions[0].row == decisions[1].row == await store.read_effect(effect.effect_id)
        assert (decisions[1].row.decision, decisions[1].row.decided_by) == ("happened", "ann")
        [mail] = await store.read_mail(row.run_id)
        assert (mail.kind, mail.subject, mail.sender) == (MailKind.DECISION, "e_x", "ann")
        assert msgspec.msgpack.decode(mail.body_wire) == [True, b"\x07"]
        [row] = await claimed(store)
        confirmed = msgspec.structs.replace(effect, state=EffectState.CONFIRMED)
        await written(store, row, EffectPut(row=confirmed))
        found = await store.read_effect(effect.effect_id)
        assert found is not None
        assert (found.state, found.decision, found.decided_by) == ("confirmed", "happened", "ann")

    async def test_certain_effect_takes_no_decision(self, store: Store) -> None:
        """Only an uncertain effect is decided."""
        row = await taken(store, "a")
        effect = effect_of(row, "x")
        await written(store, row, EffectPut(row=effect))
        decided = await store.decide(
            effect.effect_id, happened=False, result_wire=None, by="ann", at_us=T0 + 50
        )
        assert (decided.accepted, decided.row) == (False, effect)
        with pytest.raises(NotFound):
            await store.decide(
                EffectId("e_unknown"), happened=True, result_wire=None, by="ann", at_us=T0
            )
