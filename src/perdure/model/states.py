"""The states that things can be in. Which state follows which is in `core.machines`."""

from enum import StrEnum


class RunStatus(StrEnum):
    """State of a run."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    NEEDS_DECISION = "needs_decision"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in FINAL_STATUSES


FINAL_STATUSES = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED})


class EffectKind(StrEnum):
    """What an effect declares about the outside world (DESIGN section 5)."""

    PURE = "pure"
    KEYED = "keyed"
    LOOKUP = "lookup"
    ONCE = "once"
    TRANSACTION = "transaction"
    CONTAINED = "contained"

    @property
    def is_outside(self) -> bool:
        """Whether an intent must be durable before dispatch, because others can see the act."""
        return self in {EffectKind.KEYED, EffectKind.LOOKUP, EffectKind.ONCE}


class EffectState(StrEnum):
    """State of an effect in the ledger."""

    INTENDED = "intended"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


class AskState(StrEnum):
    """State of a question to a person."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class MailKind(StrEnum):
    """What a message to a run says."""

    SIGNAL = "signal"
    ANSWER = "answer"
    CANCEL = "cancel"
    DECISION = "decision"
    CHILD = "child"
    RETRY = "retry"


class WaitKind(StrEnum):
    """What a waiting or queued run waits for."""

    TIMER = "timer"
    ASK = "approval"
    SIGNAL = "signal"
    CHILD = "child"
    THREAD = "thread"
    DECISION = "decision"


class OnBusy(StrEnum):
    """What a start does on a thread with an unfinished run."""

    QUEUE = "queue"
    REJECT = "reject"
    CANCEL = "cancel"


class WriteOp(StrEnum):
    """How one node's value for a channel enters the state.

    FOLD_MANY: the value is a list, folded one by one (what a subgraph's nodes wrote, in order).
    """

    REPLACE = "r"
    APPEND = "a"
    FOLD = "f"
    FOLD_MANY = "m"
