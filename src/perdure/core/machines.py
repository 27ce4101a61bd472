"""The state machines, as tables: what the table lacks is an error.

Run, effect, ask. Each table maps (state, event) to the next state; `advance` looks it up.
`docs/states.md` is drawn from these tables.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from perdure.errors import InvariantBroken
from perdure.model import AskState, EffectState, RunStatus


class RunEvent(StrEnum):
    """What can happen to a run."""

    CLAIM = "claim"
    WAIT = "wait"
    RELEASE = "release"
    PARK = "park"
    WAKE = "wake"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


class EffectEvent(StrEnum):
    """What can happen to an effect."""

    CONFIRM = "confirm"
    REFUSE = "refuse"
    LOSE = "lose"
    RESEND = "resend"
    COMPENSATE = "compensate"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


class AskEvent(StrEnum):
    """What can happen to an ask."""

    ANSWER = "answer"
    EXPIRE = "expire"
    WITHDRAW = "withdraw"


RUN_TABLE: dict[tuple[RunStatus, RunEvent], RunStatus] = {
    (RunStatus.PENDING, RunEvent.CLAIM): RunStatus.RUNNING,
    (RunStatus.PENDING, RunEvent.CANCEL): RunStatus.CANCELLED,
    (RunStatus.RUNNING, RunEvent.CLAIM): RunStatus.RUNNING,  # takeover after the lease ended
    (RunStatus.RUNNING, RunEvent.WAIT): RunStatus.WAITING,
    (RunStatus.RUNNING, RunEvent.RELEASE): RunStatus.PENDING,
    (RunStatus.RUNNING, RunEvent.PARK): RunStatus.NEEDS_DECISION,
    (RunStatus.RUNNING, RunEvent.SUCCEED): RunStatus.SUCCEEDED,
    (RunStatus.RUNNING, RunEvent.FAIL): RunStatus.FAILED,
    (RunStatus.RUNNING, RunEvent.CANCEL): RunStatus.CANCELLED,
    (RunStatus.WAITING, RunEvent.CLAIM): RunStatus.RUNNING,
    (RunStatus.WAITING, RunEvent.WAKE): RunStatus.WAITING,
    (RunStatus.NEEDS_DECISION, RunEvent.CLAIM): RunStatus.RUNNING,
    (RunStatus.NEEDS_DECISION, RunEvent.WAKE): RunStatus.NEEDS_DECISION,
}

EFFECT_TABLE: dict[tuple[EffectState, EffectEvent], EffectState] = {
    (EffectState.INTENDED, EffectEvent.CONFIRM): EffectState.CONFIRMED,
    (EffectState.INTENDED, EffectEvent.REFUSE): EffectState.FAILED,
    (EffectState.INTENDED, EffectEvent.LOSE): EffectState.UNCERTAIN,
    (EffectState.UNCERTAIN, EffectEvent.CONFIRM): EffectState.CONFIRMED,
    (EffectState.UNCERTAIN, EffectEvent.REFUSE): EffectState.FAILED,
    (EffectState.UNCERTAIN, EffectEvent.LOSE): EffectState.UNCERTAIN,
    (EffectState.UNCERTAIN, EffectEvent.RESEND): EffectState.INTENDED,
    # A failed effect is known not to have happened, so sending it again is no repetition.
    (EffectState.FAILED, EffectEvent.RESEND): EffectState.INTENDED,
    (EffectState.CONFIRMED, EffectEvent.COMPENSATE): EffectState.COMPENSATING,
    (EffectState.COMPENSATING, EffectEvent.COMPENSATE): EffectState.COMPENSATING,
    (EffectState.COMPENSATING, EffectEvent.COMPENSATED): EffectState.COMPENSATED,
    (EffectState.COMPENSATING, EffectEvent.COMPENSATION_FAILED): EffectState.COMPENSATION_FAILED,
    (EffectState.COMPENSATION_FAILED, EffectEvent.COMPENSATE): EffectState.COMPENSATING,
}

ASK_TABLE: dict[tuple[AskState, AskEvent], AskState] = {
    (AskState.OPEN, AskEvent.ANSWER): AskState.ANSWERED,
    (AskState.OPEN, AskEvent.EXPIRE): AskState.EXPIRED,
    (AskState.OPEN, AskEvent.WITHDRAW): AskState.WITHDRAWN,
}

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


def advance(table: Mapping[tuple[S, E], S], state: S, event: E, subject: str) -> S:
    """Return the state after the event.

    Raises:
        InvariantBroken: the table has no such transition; names the subject. Nothing was written.
    """
    following = table.get((state, event))
    if following is None:
        msg = (
            f"{subject}: {event.value!r} is not possible in state {state.value!r}; nothing was "
            "written"
        )
        raise InvariantBroken(msg, subject=subject, state=state.value, event=event.value)
    return following
