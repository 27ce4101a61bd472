"""What one append changes beside the journal, and what a store answers.

A change is data. The core decides which changes belong to which records; every store applies them
in the same transaction as the frame, in the order given.
"""

import msgspec

from perdure.ids import EffectId, RunId, TenantId, ThreadId
from perdure.model.rows import AskRow, EffectRow, Failure, Mail, NewRun, Page, RunRow, Wait
from perdure.model.states import AskState, RunStatus


class RunReleased(msgspec.Struct, frozen=True, kw_only=True, tag="released"):
    """The holder lets go of an unfinished run: it waits, is parked, or is free for anybody.

    The store sets status, waits, `ready_at_us`, failure and checkpoint, clears holder and claims
    (unless `keep_claims`). If the run has unread mail that was not there when the holder last read
    (`mail_seen`: the highest mail id it has read), `ready_at_us` becomes "at once" whatever is said
    here, so that no wake-up is lost.

    `version`: the run goes on with this version of its graph from now on; None: with the one that
    it has.
    """

    status: RunStatus
    waits: tuple[Wait, ...] = ()
    ready_at_us: int | None = None
    failure: Failure | None = None
    checkpoint: int = 0
    mail_seen: int = 0
    keep_claims: bool = False
    version: int | None = None


class RunProgressed(msgspec.Struct, frozen=True, kw_only=True, tag="progressed"):
    """The run got further since its claim: `claims` becomes 1, the lease ends when said here.

    Never earlier than it did: between this and its commit the lease may have been renewed, and its
    holder counts on that.
    """

    lease_until_us: int


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The run reached a final status.

    The store sets status, failure, checkpoint and `ended_at_us`, clears holder, waits and
    readiness, deletes the run's unread mail, withdraws its open asks, moves the thread's checkpoint
    and graph, and makes the next queued run of the thread claimable at once. If the run has a
    parent of its own tenant, `mail_to_parent` is posted to it.
    """

    status: RunStatus
    at_us: int
    failure: Failure | None = None
    checkpoint: int = 0
    mail_to_parent: Mail | None = None


class EffectPut(msgspec.Struct, frozen=True, kw_only=True, tag="effect"):
    """Insert the effect, or replace the row with the same id.

    `decision` and `decided_by` are kept, unless the state is `intended` (a new attempt is open
    again) or the put `reopens` the question, because the decision did not fit.

    A business key that another effect of the tenant holds refuses the whole append (`KeyTaken`).
    """

    row: EffectRow
    reopens: bool = False


class AskPut(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Open the ask; one with the same id stays as it is."""

    row: AskRow


class AskClosed(msgspec.Struct, frozen=True, kw_only=True, tag="ask_closed"):
    """Close an open ask without an answer (expired or withdrawn).

    If it was answered meanwhile, it stays answered.
    """

    ask_id: str
    state: AskState
    at_us: int


class MailTaken(msgspec.Struct, frozen=True, kw_only=True, tag="mail_taken"):
    """Delete the messages that the records of this append consumed."""

    mail_ids: tuple[int, ...]


class MailPosted(msgspec.Struct, frozen=True, kw_only=True, tag="mail_posted"):
    """Post a message to another run and wake it; a run that is unknown or final gets nothing."""

    mail: Mail


class RunSpawned(msgspec.Struct, frozen=True, kw_only=True, tag="spawned"):
    """Create a child run; one with the same id stays as it is."""

    run: NewRun


class ThreadBased(msgspec.Struct, frozen=True, kw_only=True, tag="based"):
    """The record at `seq` of this run holds the thread's whole state: loading starts there.

    `made_at`: the oldest checkpoint that can be read by it, for the index of copies; 0: none.
    """

    seq: int
    made_at: int = 0


class PagesPut(msgspec.Struct, frozen=True, kw_only=True, tag="pages"):
    """Store pages of the run's tenant; what is there under the same hash stays as it is."""

    pages: tuple[Page, ...]


Change = (
    RunReleased
    | RunProgressed
    | RunEnded
    | EffectPut
    | AskPut
    | AskClosed
    | MailTaken
    | MailPosted
    | RunSpawned
    | ThreadBased
    | PagesPut
)


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One run's share of a group commit.

    Attributes:
        token: fencing token of the holder.
        first_seq: seq of the first record; must be the run's `last_seq + 1`.
        count: number of records in the frame, at least 1.
        body: the encoded frame; the store keeps it as it is.
        prev_hash: chain hash before the frame.
        hash: chain hash after it.
        changes: applied in order, in the same transaction.
    """

    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    token: int
    first_seq: int
    at_us: int
    count: int
    body: bytes
    prev_hash: bytes
    hash: bytes
    changes: tuple[Change, ...] = ()


class Appended(msgspec.Struct, frozen=True):
    """The append is durable."""


class Fenced(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of the append was written: the run has another token or another last seq."""

    token: int
    holder: str | None
    last_seq: int


class KeyTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of the append was written: another effect holds the business key."""

    effect_id: EffectId
    business_key: str


AppendOutcome = Appended | Fenced | KeyTaken


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A start that is durable.

    Attributes:
        row: the run: the new one, or the first one of the same start key.
        created: whether this call created it.
        taken: whether the caller's worker holds its lease now.
        cancelled: unfinished runs of the thread that were asked to cancel (on_busy="cancel").
    """

    row: RunRow
    created: bool
    taken: bool = False
    cancelled: tuple[RunId, ...] = ()
