"""The one protocol that every store keeps, and the rules that come with it.

Rules, for every implementation (the conformance suite in `perdure.testing` checks them):

- **Durable when it returns.** A call that writes returns after its writes survive a power loss.
  Each call is one transaction: all of it or nothing; `append` is one transaction for the whole
  batch, in which a refused append writes nothing and the others are written.
- **Fenced.** An append whose token is not the run's token, or whose `first_seq` is not `last_seq +
  1`, or whose run is not `running`, is refused (`Fenced`). The check is part of the write, never a
  read before it.
- **A claim may be made** of a run whose `ready_at_us` is at or before now. That is: a pending run
  that is due, a waiting run whose timer is due or that was woken, a running one whose lease has
  ended or whose holder is known dead. A claim sets status `running`, adds 1 to `token` and to
  `claims`, sets holder and lease end, clears waits.
- **Every write that wakes a run sets `ready_at_us` in the same transaction** (mail, answer,
  decision, end of the run before it on the thread, end of a child), unless the run is running: then
  the holder finds it when it reads its mail and `RunReleased.mail_seen` keeps a race from losing
  it. A `needs_decision` run is woken by decision, retry and cancel only. A queued run (`waits`
  names the thread) is woken by the end of the run before it only; a cancel of a queued run takes
  effect when the thread is free, or at once where the store ends it itself.
- **Repeatable.** The answer of a write can be lost on its way (`CommitUncertain`). Every write but
  `transact` and `claim` may then be called again with the same arguments: what is written already
  is recognised as the caller's own, answered as the first time, and never written twice. How it is
  recognised is said at each method. A claim's answer is found again by `RunQuery.holder`; what
  became of a transaction its store finds out by itself.
- **Limits are obeyed by the claim itself**, in its transaction, so that all workers together never
  exceed one. `core.room` decides from the limits, the runs that are running and the token buckets:
  a run is taken if `Room.keeps` gives None for it, and is then counted by `Room.take`. One whose
  lease ended is running already: it is always taken, and comes before the others. A run that is
  kept back stays as it is, holds up no other, and is no turn of its tenant; priority and turns hold
  among those that are left. Two claims, or a claim and `start(take_for=...)` or `set_limit`, must
  not read the same room at once.
- **Errors** are those of `perdure.errors`, the driver's error as the cause. `StoreError` from a
  write means: nothing was written; `CommitUncertain` alone means: nobody knows.

Size: every call of a store, with its rules.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    AppendOutcome,
    AskRow,
    AskState,
    EffectRow,
    EffectState,
    FrameRow,
    KeyRow,
    LimitRow,
    LimitState,
    Mail,
    NewRun,
    Page,
    RunRow,
    RunStatus,
    ScheduleRow,
    Started,
    ThreadRow,
    WorkerRow,
)
from perdure.store.erasing_api import ErasingStore
from perdure.store.retention import RetentionStore


class Capability(msgspec.Struct, frozen=True):
    """One thing that stores may or may not do, declared by name."""

    name: str


TRANSACTION = Capability("transaction")
"""`transact` works: user writes and the journal record commit together."""
LIVENESS = Capability("liveness")
"""`release_dead` notices the death of a worker on this host at once, by a system lock."""
CROSS_PROCESS = Capability("cross_process")
"""Several processes may open the same store."""
DURABLE = Capability("durable")
"""What is written survives the process."""
REMOTE = Capability("remote")
"""Behind a network: answers can be lost (`CommitUncertain`), and outages (`StoreUnavailable`) pass.

The engine repeats the calls of such a store.
"""


KEYS_MAX = 1_000
"""Data keys that are stored or asked for at once: bounds one statement."""


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first.

    Attributes:
        statuses: any of these; empty: all.
        holder: only runs that this worker holds.
        due_us: only runs whose `ready_at_us` is at or before it.
        run_ids: only these runs; empty: all.
        except_graphs: only runs of other graphs (name, version) than these.
        before: only runs with a smaller run id (the next page).
        limit: at most this many rows, 1 to 100,000.
    """

    tenant: TenantId | None = None
    thread: ThreadId | None = None
    graph: str | None = None
    parent: RunId | None = None
    statuses: tuple[RunStatus, ...] = ()
    before: RunId | None = None
    limit: int = 100
    holder: WorkerId | None = None
    due_us: int | None = None
    except_graphs: tuple[tuple[str, int], ...] = ()
    run_ids: tuple[RunId, ...] = ()


class EffectQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which effects to list, newest change first."""

    tenant: TenantId | None = None
    run_id: RunId | None = None
    states: tuple[EffectState, ...] = ()
    limit: int = 100


class AskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which asks to list, oldest first."""

    tenant: TenantId | None = None
    run_id: RunId | None = None
    states: tuple[AskState, ...] = ()
    limit: int = 100


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a decision: the effect now, and whether this call decided it."""

    row: EffectRow
    accepted: bool


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an answer: the ask now, and whether this call answered it."""

    row: AskRow
    accepted: bool


class Transaction(Protocol):
    """What a `transaction` effect writes through: the store's own open transaction."""

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises:
            StoreError: the statement failed; the whole transaction will be rolled back.
            UsageError: it touches Perdure's own tables or the transaction itself.
        """


class Store(RetentionStore, ErasingStore, Protocol):
    """A place where runs live. All methods are coroutines; one object serves one event loop."""

    capabilities: frozenset[Capability]
    place: str
    """Where it is, for people: no password."""

    async def is_there(self) -> bool:
        """Return whether there is a store at this place, without opening or creating one.

        Raises: StoreUnavailable (the server can't be reached).
        """
        ...

    async def open(self) -> None:
        """Open or create the store, and migrate an older schema.

        Raises: StoreForeign, StoreSchemaNewer, StoreCorrupt, StoreReadOnly, StoreUnavailable (left
            untouched).
        """

    async def close(self) -> None:
        """Finish what was handed in, release everything. Idempotent."""

    def now_us(self) -> int:
        """Return the time that all users of the store go by, in microseconds since the epoch.

        Leases and due times are compared across hosts: a store of several hosts answers with one
        clock for all (its server's), whatever the clock of this host says. Cheap: no I/O.
        """
        ...

    # -- writing -----------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started | Exception]:
        """Create runs, each with its first journal record, and say what became of each, in order.

        An element is an exception (StartKeyReused, ThreadBusy, Conflict: see `erasing_api`) where
        that one was refused; the others are written. A start key that exists with the same digest
        returns the first run, `created=False`. On a thread with an unfinished run: `queue` stores
        it with `ready_at_us=None` and a `thread` wait; `reject` refuses it; `cancel` posts a cancel
        to every unfinished run of the thread, and queues. A run that a limit counts is not taken
        (`take_for` is left out of account): it is stored pending, for the next claim. The thread is
        about `subject` from then on; a child's is about whom its parent's is about.
        Idempotent: by run id (`created=False`; `taken` while `take_for` still holds it under token
        1).
        Durability: all created runs, when it returns. Atomicity: each run with its first frame.
        """

    async def append(self, batch: Sequence[Append]) -> list[AppendOutcome]:
        """Write the frames and changes of many runs in one commit; outcomes in order.

        Two appends of one run under one token in a batch are applied in order; if the first is
        refused, so is the second. Under two tokens each has its own fate: a process that took a run
        over from itself may write for both holders.
        Idempotent: by the frame. An item that would be refused, but whose frame (first seq, count,
        token, hash) is in the journal, answers `Appended` and changes nothing, whatever became of
        the run meanwhile.
        Durability: everything that answers `Appended`, when it returns.
        """

    async def put_pages(self, tenant: TenantId, pages: Sequence[Page]) -> None:
        """Store pages; what is there under the same hash stays as it is.

        For values of runs that are yet to be started: a page is durable before what refers to it.
        Idempotent: by hash.
        Durability: all of them, when it returns.
        """

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys; return those that stand, in order: where there was one, that one.

        Of several that come at once for one (tenant, scope, number) exactly one stands, and all
        callers get it. At most `KEYS_MAX` at once.
        Idempotent: by (tenant, scope, number).
        Durability: all of them, when it returns.
        """
        ...

    async def rewrap_key(self, key: KeyRow, *, expected: bytes) -> bool:
        """Replace `wrapped` and `wrapped_by` of a data key if it is wrapped as expected.

        Returns whether it is wrapped as given now. Nothing else of the key changes.
        Idempotent: yes.
        Durability: when it returns. Atomicity: the comparison is part of the write.
        """
        ...

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[Append]],
        *,
        run_id: RunId,
        token: int,
    ) -> AppendOutcome:
        """Open a transaction, check the fence, run `body`, apply its append, commit.

        Whatever `body` raises rolls everything back and is raised again. Other writers wait
        meanwhile.
        Capability: TRANSACTION.
        """

    async def claim(
        self,
        worker_id: WorkerId,
        graphs: Sequence[tuple[str, int]],
        *,
        now_us: int,
        lease_until_us: int,
        limit: int,
    ) -> list[RunRow]:
        """Take up to `limit` claimable runs of these graphs (name, version); rows after the claim.

        Order: priority (higher first); within one, tenants in turn, each by `ready_at_us`. A run
        whose row can't be read is logged and passed over for a while: it must not hold up others.
        Limits: see the rules above.
        Durability: the new tokens, when it returns.
        """

    async def take(
        self, run_id: RunId, worker_id: WorkerId, *, token: int, now_us: int, lease_until_us: int
    ) -> RunRow | None:
        """Claim this one run, of whatever graph and version; None: it is not to be had.

        It must be unfinished, have this token still, and be due, waiting or parked: not running
        under a lease that holds, and not pending without a time (queued behind its thread). Limits
        do not count. For what no worker of its graph version is there to do: to park it, to move it
        to another version, to cancel it.
        Idempotent: no; as with a claim, `RunQuery.holder` tells what became of it.
        Durability: the new token, when it returns.
        """

    async def renew(
        self,
        worker_id: WorkerId,
        held: Sequence[tuple[RunId, int]],
        *,
        now_us: int,
        lease_until_us: int,
    ) -> set[RunId]:
        """Extend the leases (run id, token) and the worker's `seen_at_us`; return the lost runs."""

    async def post(self, mail: Mail) -> RunRow:
        """Store a message for an unfinished run and wake it; return the run's row after that.

        Idempotent: by `post_id`, for 10 minutes (of the writers' clocks), also when the first was
        consumed or the run has ended meanwhile. Raises: NotFound; RunFinal.
        """

    async def answer(self, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
        """Answer an open ask once, post the answer to its run, wake it: one transaction.

        An ask whose `expires_at_us` is at or before `at_us` is not answered (`accepted=False`). The
        mail: kind `answer`, subject the ask id, body `value_wire`, sender `by`. Idempotent: the
        answer that stands, come again with the same value, `by` and `at_us`, is accepted again.
        Raises: NotFound.
        """

    async def decide(
        self, effect_id: EffectId, *, happened: bool, result_wire: bytes | None, by: str, at_us: int
    ) -> Decided:
        """Decide an uncertain effect once, post the decision to its run, wake it: one transaction.

        The row keeps its state until the run records the outcome; `decision` and `decided_by` are
        set at once. The mail: kind `decision`, subject the effect id, sender `by`, body
        `[happened, result_wire or nil]` in MessagePack. An effect that is not uncertain or has its
        decision is left alone (`accepted=False`). Idempotent: the same decision with the same `by`
        and `at_us` is accepted again, by the `post_id` of its mail. Raises: NotFound.
        """

    async def expire(self, ask_id: AskId, *, at_us: int) -> AskRow:
        """Close an open ask as expired, unless it was answered; return it as it is then.

        So exactly one of answer and expiry wins. Raises: NotFound.
        """
        ...

    # -- workers -----------------------------------------------------------------------------------

    async def register_worker(self, row: WorkerRow) -> None:
        """Make the worker known; with LIVENESS, take the lock that its life is read from.

        Called again it replaces the row (a worker that begins to drain says so).
        """

    async def forget_worker(self, worker_id: WorkerId) -> None:
        """Remove the worker and its lock; runs that it still holds become claimable at once."""

    async def release_dead(self) -> list[WorkerId]:
        """Make the runs of dead workers claimable at once; return who died.

        Where a death is not proven but believed (a session that ended), the runs keep the end of
        their lease as `doubted_until_us`: who takes them over waits for it before it decides what
        became of an effect that may still be sent.

        Cheap enough to be called many times a second. Without LIVENESS: returns an empty list.
        """

    async def find_workers(self) -> list[WorkerRow]:
        """Return all known workers, oldest first."""

    # -- waiting for others ------------------------------------------------------------------------

    def change_mark(self) -> int:
        """Return how many writes this object knows of; take it before reading, for `since`."""

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Return True soon after anybody (this process or another) wrote, False after `timeout_s`.

        Never loses a write after `since` (a `change_mark`). Without it: none after the last call of
        the same asyncio task returned; in a new task, none after the last call of anybody returned.
        Several callers may wait at once. May return True without a change, never the other way
        round.
        """

    async def next_ready_at(
        self, graphs: Sequence[tuple[str, int]], *, after_us: int = 0
    ) -> int | None:
        """Return the first time above `after_us` at which a claim of these graphs may find more.

        That is the earliest `ready_at_us` of their runs, or, where a rate keeps runs back, the
        earliest time at which an empty bucket has a token (of any graph). None: nothing is due by
        itself.
        """

    # -- limits ------------------------------------------------------------------------------------

    async def set_limit(self, limit: LimitRow) -> None:
        """Insert the limit, or replace the one of the same (tenant, graph); buckets stay.

        Idempotent: yes.
        Durability: when it returns. Every later claim obeys it; what is running goes on.
        """

    async def drop_limit(self, tenant: TenantId, graph: str) -> bool:
        """Remove the limit of exactly this tenant and graph; return whether there was one.

        Buckets that no limit needs any more may stay, or go.
        """

    async def read_limits(self) -> LimitState:
        """Return the limits, and what they count, as of one moment."""

    # -- schedules ---------------------------------------------------------------------------------

    async def put_schedule(self, row: ScheduleRow, *, expected: int) -> bool:
        """Write the schedule if the stored one has this revision (0: if there is none).

        Returns whether it was written. The row carries its new revision, unlike any before.
        Idempotent: a row that is stored as it is given was written by this call before.
        Durability: when it returns. Atomicity: the comparison is part of the write.
        """

    async def drop_schedule(self, tenant: TenantId, name: str) -> bool:
        """Remove a schedule; return whether there was one."""

    async def find_schedules(
        self, *, tenant: TenantId | None = None, due_us: int | None = None, limit: int = 100_000
    ) -> list[ScheduleRow]:
        """Return schedules: by `next_at_us`, those without one last, then by tenant and name.

        `due_us`: only those whose `next_at_us` is at or before it.
        """
        ...

    # -- reading -----------------------------------------------------------------------------------

    async def read_run(self, run_id: RunId) -> RunRow | None:
        """Return the run's row, or None."""

    async def find_runs(self, query: RunQuery) -> list[RunRow]:
        """Return rows, newest first."""

    async def read_thread(self, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
        """Return the thread's row, or None."""

    async def read_thread_runs(
        self, tenant: TenantId, thread: ThreadId, *, from_ordinal: int
    ) -> list[RunRow]:
        """Return the thread's runs with at least this ordinal, by ordinal."""

    async def read_frames(
        self, run_id: RunId, *, from_seq: int = 1, limit: int | None = None
    ) -> list[FrameRow]:
        """Return the frames that hold records from `from_seq` on, by seq, gap-free.

        Raises: StoreCorrupt where frames are missing between.
        """

    async def scan_frames(self, run_id: RunId, *, from_seq: int, limit: int) -> list[FrameRow]:
        """Return up to `limit` frames that begin at `from_seq` or later, by seq, as they are.

        For audits: nothing is checked, so that what stands behind a gap can be read too.
        """
        ...

    async def read_mail(self, run_id: RunId, *, after: int = 0) -> list[Mail]:
        """Return the run's unread messages with an id above `after`, in order of arrival."""

    async def read_held_mail(self, worker_id: WorkerId, *, seen: Mapping[RunId, int]) -> list[Mail]:
        """Return unread messages to runs that the worker holds, by id.

        `seen`: for each run that is asked about the highest mail id that was read before. A mark
        for each run, as ids rise in the order of arrival within a run, but not across runs.
        """
        ...

    async def read_pages(self, tenant: TenantId, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the tenant's pages by hash; those that are missing are left out."""
        ...

    async def read_keys(
        self,
        scopes: Sequence[tuple[TenantId, str]] | None = None,
        *,
        after: tuple[TenantId, str, int] | None = None,
        limit: int = 100_000,
    ) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number).

        Args:
            scopes: only those of these (tenant, scope), at most `KEYS_MAX`; None: all.
            after: only those above (the next page).
            limit: at most this many rows, 1 to 100,000.
        """
        ...

    async def read_ask(self, ask_id: AskId) -> AskRow | None:
        """Return the ask, or None."""

    async def find_asks(self, query: AskQuery) -> list[AskRow]:
        """Return asks, oldest first."""

    async def read_effect(self, effect_id: EffectId) -> EffectRow | None:
        """Return the effect, or None."""

    async def read_effect_by_key(self, tenant: TenantId, business_key: str) -> EffectRow | None:
        """Return the effect that holds the business key, or None."""

    async def find_effects(self, query: EffectQuery) -> list[EffectRow]:
        """Return effects, newest change first."""
