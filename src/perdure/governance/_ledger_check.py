"""Effects and asks as a run's journal has them, compared with the rows that people query.

Theory: a row is a view of the journal, written in the same commit as the record that changed it. So
of a run that is not being written to, every row must say what the last record about it says. What
no record says (the schema of an ask's answer, the times of an effect's row) can't be compared. What
people do between two records (an answer, a decision) is in the row first.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from msgspec import Raw, Struct

from perdure.codec import PageRef, ref_of
from perdure.governance._page_check import PageNeeds
from perdure.model import AskRow, AskState, EffectKind, EffectRow, EffectState, Failure
from perdure.model import records as rec


class _Effect(Struct):
    """What the row of an effect must say."""

    seq: int
    node: str
    name: str
    kind: str
    state: EffectState
    attempt: int
    key: str | None = None
    business_key: str | None = None
    args_digest: str | None = None
    request: bytes | PageRef | None = None
    result: bytes | PageRef | None = None
    failure: Failure | None = None
    decision: tuple[str, str] | None = None


class _Ask(Struct):
    """What the row of an ask must say."""

    seq: int
    node: str
    question: bytes
    asked_at_us: int
    expires_at_us: int | None
    states: tuple[AskState, ...] = (AskState.OPEN, AskState.ANSWERED, AskState.EXPIRED)
    value: bytes | PageRef | None = None
    by: str | None = None
    at_us: int | None = None


def _digest(value: Any) -> bytes:
    """Return what is kept of a value: rows may be large, and there may be many of them."""
    return sha256(value if isinstance(value, bytes) else memoryview(value)).digest()


def _told(raw: Raw) -> bytes | PageRef:
    """Return what is kept of a value in a record: its reference, if it is in pages."""
    ref = ref_of(raw)
    return _digest(raw) if ref is None else ref


def _kept(value: bytes | None) -> bytes | None:
    return None if value is None else _digest(value)


_OUTSIDE = frozenset(kind.value for kind in EffectKind if kind.is_outside)


_OUTCOME = frozenset({"state", "attempt", "result", "failure", "decision"})
"""Columns that a later record changes."""
_MAY_GO_ON = frozenset({EffectState.INTENDED, EffectState.UNCERTAIN, EffectState.COMPENSATING})
_CAME_LATER = frozenset({
    EffectState.COMPENSATING,
    EffectState.COMPENSATED,
    EffectState.COMPENSATION_FAILED,
})  # fmt: skip


class LedgerCheck:
    """The effects and asks of one run."""

    def __init__(self, pages: PageNeeds) -> None:
        """Know of nothing yet; `pages`: those that the journal refers to."""
        self._pages = pages
        self._effects: dict[str, _Effect] = {}
        self._asks: dict[str, _Ask] = {}
        self._apply = {
            rec.EffectIntended: self._intended,
            rec.EffectConfirmed: self._confirmed,
            rec.EffectFailed: self._failed,
            rec.EffectUncertain: self._uncertain,
            rec.CompensationStarted: self._compensating,
            rec.CompensationEnded: self._compensated,
            rec.Asked: self._asked,
            rec.AskAnswered: self._answered,
            rec.AskLapsed: self._lapsed,
            rec.RunEnded: self._ended,
        }

    def apply(self, seq: int, record: rec.Record) -> None:
        """Take in one record."""
        apply: Any = self._apply.get(type(record))
        if apply is not None:
            apply(seq, record)

    # -- records -----------------------------------------------------------------------------------

    def _intended(self, seq: int, record: rec.EffectIntended) -> None:
        self._effects[record.effect_id] = _Effect(
            seq=seq,
            node=record.task,
            name=record.name,
            kind=record.kind,
            state=EffectState.INTENDED,
            attempt=record.attempt,
            key=record.key,
            business_key=record.business_key,
            args_digest=record.args_digest,
            request=_told(record.request),
        )

    def _confirmed(self, seq: int, record: rec.EffectConfirmed) -> None:
        known = self._effects.get(record.effect_id)
        if known is None and record.kind == EffectKind.TRANSACTION:
            known = self._effects[record.effect_id] = _Effect(
                seq, record.task, record.name, record.kind, EffectState.CONFIRMED, record.attempt
            )
        if known is not None:  # else of a kind without a row, or another run's effect was taken
            self._change(known, seq, EffectState.CONFIRMED, record.attempt)
            known.result = _told(record.result)
            if record.via == "decision":
                known.decision = ("happened", record.by)

    def _failed(self, seq: int, record: rec.EffectFailed) -> None:
        known = self._effects.get(record.effect_id)
        if known is not None and record.kind in _OUTSIDE:
            self._change(known, seq, EffectState.FAILED, record.attempt, record.failure)
            if record.via == "decision":
                known.decision = ("not_happened", record.by)

    def _uncertain(self, seq: int, record: rec.EffectUncertain) -> None:
        known = self._effects.get(record.effect_id)
        if known is not None:
            self._change(known, seq, EffectState.UNCERTAIN, record.attempt, record.failure)

    def _compensating(self, seq: int, record: rec.CompensationStarted) -> None:
        known = self._effects.get(record.effect_id)
        if known is not None:
            known.seq, known.state = seq, EffectState.COMPENSATING

    def _compensated(self, seq: int, record: rec.CompensationEnded) -> None:
        known = self._effects.get(record.effect_id)
        if known is not None:
            is_well = record.failure is None
            state = EffectState.COMPENSATED if is_well else EffectState.COMPENSATION_FAILED
            known.seq, known.state, known.failure = seq, state, record.failure

    @staticmethod
    def _change(
        known: _Effect,
        seq: int,
        state: EffectState,
        attempt: int,
        failure: Failure | None = None,
    ) -> None:
        known.seq, known.state, known.attempt = seq, state, attempt
        known.failure, known.result, known.decision = failure, None, None

    def _asked(self, seq: int, record: rec.Asked) -> None:
        question = _digest(record.question.encode("utf-8", "surrogatepass"))
        self._asks.setdefault(
            record.ask_id,
            _Ask(seq, record.task, question, record.at_us, record.expires_at_us),
        )

    def _answered(self, seq: int, record: rec.AskAnswered) -> None:
        known = self._asks.get(record.ask_id)
        if known is None:
            return
        known.seq = seq
        if record.via == "default":
            known.states = (AskState.EXPIRED,)
        else:
            known.states, known.value = (AskState.ANSWERED,), _told(record.value)
            known.by, known.at_us = record.by, record.answered_at_us

    def _lapsed(self, seq: int, record: rec.AskLapsed) -> None:
        known = self._asks.get(record.ask_id)
        if known is not None:
            known.seq, known.states = seq, (AskState.EXPIRED,)

    def _ended(self, _seq: int, _record: rec.RunEnded) -> None:
        still_open = (AskState.WITHDRAWN, AskState.ANSWERED, AskState.EXPIRED)
        for known in self._asks.values():
            if AskState.OPEN in known.states:
                known.states = still_open

    # -- rows --------------------------------------------------------------------------------------

    def effect(self, row: EffectRow, erased_to: int = 0) -> tuple[int, list[str]] | None:
        """Return the seq that a row must agree with, and what of it differs; None: no record.

        `erased_to`: records up to this seq may have been pruned; what they may have said can't be
        compared.
        """
        known = self._effects.pop(row.effect_id, None)
        if known is None:
            return None
        pairs: dict[str, tuple[Any, Any]] = {
            "node": (row.node, known.node),
            "name": (row.name, known.name),
            "kind": (row.kind.value, known.kind),
            "state": (row.state, known.state),
            "attempt": (row.attempt, known.attempt),
            "result": self._pair(row.result_wire, known.result),
            "failure": (row.failure, known.failure),
        }
        if known.key is not None:
            pairs["key"] = (row.key, known.key)
            pairs["business_key"] = (row.business_key, known.business_key)
            pairs["args_digest"] = (row.args_digest, known.args_digest)
            pairs["request"] = self._pair(row.request_wire, known.request)
        if known.decision is not None:
            pairs["decision"] = ((row.decision, row.decided_by), known.decision)
        is_open = known.state in _MAY_GO_ON or row.state in _CAME_LATER
        unknown = _OUTCOME if known.seq <= erased_to and is_open else frozenset[str]()
        names = [name for name, (stored, told) in pairs.items() if stored != told]
        return known.seq, [name for name in names if name not in unknown]

    def ask(self, row: AskRow) -> tuple[int, list[str]] | None:
        """Return the same for the row of an ask."""
        known = self._asks.pop(row.ask_id, None)
        if known is None:
            return None
        question = _digest(row.question.encode("utf-8", "surrogatepass"))
        pairs: dict[str, tuple[Any, Any]] = {
            "node": (row.node, known.node),
            "question": (question, known.question),
            "asked_at_us": (row.asked_at_us, known.asked_at_us),
            "expires_at_us": (row.expires_at_us, known.expires_at_us),
            "state": (row.state in known.states, True),
        }
        if known.value is not None:
            pairs["value"] = self._pair(row.value_wire, known.value)
            pairs["answered_by"] = (row.answered_by, known.by)
            pairs["answered_at_us"] = (row.answered_at_us, known.at_us)
        return known.seq, [name for name, (stored, told) in pairs.items() if stored != told]

    def forget(self, identity: str) -> None:
        """Take in that there is a row of this effect or ask, which can't be compared."""
        self._effects.pop(identity, None)
        self._asks.pop(identity, None)

    def _pair(self, stored: bytes | None, told: bytes | PageRef | None) -> tuple[Any, Any]:
        """Return what the row and the journal say of a value, so that equal means the same.

        Of one whose pages are missing nobody can tell; that is found by itself.
        """
        if stored is None or not isinstance(told, PageRef):
            return _kept(stored), told
        return self._pages.is_value(told, stored) is not False, True

    def lacking(self) -> Iterator[tuple[str, str, int]]:
        """Yield (what, id, seq) of the effects and asks whose rows did not come."""
        for effect_id, effect in self._effects.items():
            yield "effect", effect_id, effect.seq
        for ask_id, ask in self._asks.items():
            yield "ask", ask_id, ask.seq
