"""One held run: from its claim to the next release.

Theory: a supervisor (`run`) takes the loaded state, lets the driver take the graph through its
steps in a task of its own (the host), and concludes: finished, failed, cancelled, waiting, parked,
drained, or lost. Whatever stops the host early says why (`stop`) and cancels it; nothing else
unwinds a node, so that user code can't swallow it as an ordinary exception.

Invariants: state changes only by records (`record`: queued and applied together); nothing is
concluded as durable without a barrier; after the lease is lost nothing is written or dispatched.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.codec import encode_record
from perdure.core import fold
from perdure.core.machines import RunEvent
from perdure.core.plan import GraphPlan
from perdure.engine import conclusions
from perdure.engine.acts import failure_of
from perdure.engine.driver import GraphDriver
from perdure.engine.environment import Environment
from perdure.engine.held_waits import HeldWaits
from perdure.engine.limits import CLAIMS_MAX, RECANCEL_S
from perdure.engine.loading import Loaded
from perdure.engine.migrations import failure_of_adoption, plan_adoption
from perdure.engine.os_threads import without_exit
from perdure.engine.paging import ValuePagers
from perdure.engine.ports import (
    CANCELLED,
    DRAINED,
    LOST,
    PARKED,
    Drained,
    GaveUp,
    NodePort,
)
from perdure.engine.queue import RunJournal
from perdure.engine.run_sandbox import RunSandbox
from perdure.errors import (
    DecodeFailed,
    InvariantBroken,
    LeaseLost,
    MigrationFailed,
    PerdureError,
    ReplayDiverged,
    StoreError,
)
from perdure.model import (
    Append,
    Appended,
    AppendOutcome,
    Change,
    Failure,
    Mail,
    MailKind,
    RunProgressed,
    RunRow,
    Wait,
)
from perdure.model import records as rec
from perdure.store.api import Transaction

_PROGRESS = frozenset({rec.StepCommitted, rec.NodeFinished, rec.EffectConfirmed})
"""Records that show that the run gets further, so that its claims are counted anew."""


class Execution:
    """A run that this worker holds."""

    def __init__(
        self, engine: Environment, row: RunRow, plan: GraphPlan, *, leased_s: float
    ) -> None:
        """Belong to a claimed run; `leased_s`: when the claim was sent (monotonic seconds)."""
        self.engine = engine
        self.row = row
        self.plan = plan
        self.leased_s = leased_s
        self.now_us = engine.now_us
        self.journal: RunJournal
        self.state: fold.RunState
        self.is_draining = False
        self.is_failing = False
        self.accepts_mail = False
        self.is_concluding = False
        self._is_unproven = row.claims > 1
        self.stop_reason: str | None = None
        self.stop_failure: Failure | None = None
        self.waits = HeldWaits(self)
        self.sandbox_use = RunSandbox(self)
        self._values = ValuePagers()
        self._host: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[Any] | None = None
        self._driver: GraphDriver

    async def run(self, loaded: Loaded, *, is_fresh: bool = False) -> None:
        """Take the run as far as it goes now; returns when this worker holds it no more.

        Args:
            loaded: its state; owned by the execution from now on.
            is_fresh: it was started and taken in one transaction, so there can't be older mail.
        """
        self._supervisor = asyncio.current_task()
        self.state = loaded.state
        self._driver = GraphDriver(self, loaded)
        self.journal = RunJournal(self.engine.queue, self.row, loaded.prev_hash)
        try:
            self.record(
                rec.LeaseTaken(
                    self.now_us(),
                    self.engine.worker_id,
                    self.row.token,
                    self.row.claims,
                    *loaded.anchor(self.row),
                )
            )
            if not is_fresh:
                await self.take_mail()
            self.accepts_mail = True
            if self.state.cancel is not None and self.stop_reason is None:
                self.stop(CANCELLED)  # taken in by a holder that did not live to conclude
            if self.stop_reason is None and self.row.claims > CLAIMS_MAX:
                self._park_exhausted()
            if self.stop_reason is None:
                self._adopt(loaded)
            await self._supervise()
        except (LeaseLost, StoreError) as error:
            self.stop_reason = LOST
            self.engine.on_lost(self.row, error)
        except asyncio.CancelledError:
            if self.stop_reason != LOST:
                raise
        finally:
            await self.sandbox_use.close()

    async def _supervise(self) -> None:
        failure: Failure | None = self._given_up()
        if self.stop_reason is None and failure is None:
            self._host = asyncio.create_task(
                without_exit(self._driver.drive), name=f"perdure-{self.row.run_id}"
            )
            failure = await self._host_failure(self._host)
        self.is_concluding = True
        if self.stop_reason == LOST:
            return
        await self._driver.checkpoint()
        if self.stop_reason == CANCELLED:
            await conclusions.conclude_cancelled(self)
        elif failure is not None:
            await conclusions.conclude_failed(self, failure)
        elif self.stop_reason is None:
            await conclusions.conclude(self, RunEvent.SUCCEED, None)
        else:
            await conclusions.release(self)

    async def _host_failure(self, host: "asyncio.Task[None]") -> Failure | None:
        """Wait for the host; return why the run fails, or None (ended, or stopped)."""
        try:
            await asyncio.wait({host})
        except asyncio.CancelledError:
            # The worker is torn down without a drain: as in a crash, nothing is written.
            self.stop_reason = LOST
            host.cancel()
            await asyncio.gather(host, return_exceptions=True)
            raise
        finally:
            self.waits.close()
        if self.stop_reason == LOST or (host.cancelled() and self.stop_reason is not None):
            return None
        if host.cancelled():
            return Failure(type="CancelledError", message="the graph was cancelled by its own code")
        error = host.exception()
        if error is None:
            return None
        if isinstance(error, Drained):
            self.stop_reason = DRAINED
            return None
        if isinstance(error, GaveUp):
            return error.failure
        if isinstance(error, LeaseLost | StoreError):
            raise error
        if isinstance(error, ReplayDiverged | DecodeFailed | InvariantBroken):
            # The code or the stored data do not fit: nothing that a person can't mend and go on.
            self.stop_failure = failure_of(error)
            self.stop_reason = PARKED
            return None
        return failure_of(error)

    def _given_up(self) -> Failure | None:
        """Return the failure of a node that gave up before the last holder could conclude."""
        for scope in self.state.scopes.values():
            for task in scope.all_tasks:
                is_final = task.failure is not None and task.retry_at_us is None
                if is_final and task.outcome is None:
                    return task.failure
        return None

    def _park_exhausted(self) -> None:
        why = "its code may kill the worker"
        if self.row.failure is not None:
            why = self.row.failure.message
        message = (
            f"claimed {self.row.claims} times without finishing a step; {why}. Look at 'perdure "
            f"show {self.row.run_id}', then: perdure resolve {self.row.run_id} --retry --by NAME"
        )
        self.stop_failure = Failure(type="AttemptsExhausted", message=message)
        self.stop(PARKED)

    def _adopt(self, loaded: Loaded) -> None:
        """Bring the state of the thread to the run's version, if an older one wrote it."""
        try:
            moved = plan_adoption(self.engine, self.plan, self.row, loaded)
        except (MigrationFailed, DecodeFailed) as error:
            self.stop_failure = failure_of_adoption(error, self.row, self.plan)
            self.stop(PARKED)
            return
        if moved is not None:
            self.record(moved)

    # -- records -----------------------------------------------------------------------------------

    def record(self, record: rec.Record, *changes: Change) -> None:
        """Apply a record and queue it with its changes."""
        if self._is_unproven and type(record) in _PROGRESS:
            self._is_unproven = False
            changes = (*changes, RunProgressed(lease_until_us=self.engine.lease_until_us()))
        if self.journal.error is not None:
            raise self.journal.error
        # In this order: what can't be encoded is not applied, what can't be applied not journalled.
        held, pages = self._values.filed(record)
        encoded = encode_record(held)
        fold.apply(self.state, record)
        self.journal.add_encoded(encoded, (*changes, *pages) if pages else changes)
        self._values.keep()

    async def barrier(self) -> None:
        """Return when everything recorded is durable; a lost lease stops the run instead."""
        try:
            await self.journal.barrier()
        except PerdureError as error:
            self.lose(error)
            raise asyncio.CancelledError from error

    async def keep_up(self) -> None:
        """Wait while too much is uncommitted."""
        if self.journal.is_behind:
            await self.barrier()

    def lose(self, error: PerdureError) -> None:
        """Stop everything: the run is somebody else's, or the store refuses it."""
        self.engine.on_lost(self.row, error)
        self.stop(LOST)

    # -- stopping ----------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Stop the host for a reason; the first reason stands, but a lost lease overrides it."""
        if self.stop_reason is None:
            # What comes from now on finds nobody who waits for it: the release must not count it.
            self.waits.mail_counted = self.waits.mail_seen
        if self.stop_reason is None or reason == LOST:
            self.stop_reason = reason
        self._cancel_host()
        if reason == LOST and self.is_concluding and self._supervisor is not None:
            self._supervisor.cancel()  # it may be compensating: that is the other holder's now

    def _cancel_host(self) -> None:
        """Cancel the node, again and again if it swallows its cancellation."""
        if self._host is not None and not self._host.done():
            self._host.cancel()
            asyncio.get_running_loop().call_later(RECANCEL_S, self._cancel_host)

    def park(self, error: Exception) -> None:
        """Stop and leave the run to a person."""
        self.stop_failure = failure_of(error)
        self.stop(PARKED)
        raise asyncio.CancelledError

    def lost(self) -> None:
        """The lease is somebody else's: stop, write nothing."""
        self.stop(LOST)

    def stop_now(self) -> None:
        """The drain window is over: stop where it stands; effects in flight stay intended."""
        self.stop(DRAINED)

    async def check_lease(self) -> None:
        """Return when the lease is safe; stop when the run is somebody else's, or may be.

        While the store is away a renewal is waited for: who comes back in time goes on.
        """
        while self.stop_reason != LOST and self.journal.error is None:
            if self.engine.is_lease_safe(self.leased_s):
                return
            if not await self.engine.wait_for_renewal():
                self._lose_lease()
        raise asyncio.CancelledError

    @property
    def is_running(self) -> bool:
        """Whether nothing stops the run or lets it fail."""
        return self.stop_reason is None and not self.is_failing

    async def check_dispatch(self) -> None:
        """Return when the lease is safe to dispatch with; refuse when the run is being stopped.

        Nothing is awaited between the look at the lease and the return.
        """
        while self.stop_reason is None and self.journal.error is None:
            if self.engine.is_lease_safe(self.leased_s):
                return
            if not await self.engine.wait_for_renewal():
                self._lose_lease()
        raise asyncio.CancelledError

    def _lose_lease(self) -> None:
        run_id = self.row.run_id
        msg = f"run {run_id!r}: the lease could not be renewed; nothing was dispatched"
        self.lose(LeaseLost(msg, run_id=run_id))

    # -- waiting and mail --------------------------------------------------------------------------

    def touch(self) -> None:
        """Something moved; look whether the whole run waits now."""
        self.waits.touch()

    async def wait(self, context: NodePort, wait: Wait) -> None:
        """Return when the wait is due."""
        await self.waits.wait(context, wait)

    async def wait_for_mail(self, context: NodePort, wait: Wait, kind: MailKind) -> Mail | None:
        """Return the message, or None when the wait is due first."""
        return await self.waits.wait_for_mail(context, wait, kind)

    async def find_mail(self, kind: MailKind, subject: str) -> Mail | None:
        """Read the mail again and return the first such message, or None."""
        return await self.waits.find_mail(kind, subject)

    async def take_mail(self) -> None:
        """Read new messages and hand them to who waits for them."""
        await self.waits.take_mail()

    @property
    def mail_seen(self) -> int:
        """Id of the newest message that was taken in; 0: none yet."""
        return self.waits.mail_seen

    def deliver(self, mail: Mail) -> None:
        """Take one message in. Idempotent by its id."""
        self.waits.deliver(mail)

    # -- transactions and the sandbox --------------------------------------------------------------

    async def transact(
        self, body: Callable[[Transaction], Awaitable[tuple[rec.Record, Change]]]
    ) -> None:
        """Run body in a transaction of the store; its record is committed with it."""
        journal = self.journal
        await journal.acquire()
        prepared: list[tuple[Append, rec.Record]] = []

        async def inner(transaction: Transaction) -> Append:
            """Keep the append, to commit it to the journal."""
            record, change = await body(transaction)
            # Where an open transaction keeps others from writing, no heartbeat renewed the lease.
            lease = RunProgressed(lease_until_us=self.engine.lease_until_us())
            held, pages = ValuePagers().filed(record)
            append = journal.prepare(held, lease, change, *pages)
            prepared.append((append, record))
            return append

        working = asyncio.ensure_future(
            self.engine.store.transact(inner, run_id=self.row.run_id, token=self.row.token)
        )
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            if not prepared:
                working.cancel()  # still in the body: rolled back
            await _until_done(working)  # what is being committed may come true: know it first
            self._take_in(working, prepared)
            raise
        self._take_in(working, prepared)

    def _take_in(
        self, working: "asyncio.Future[AppendOutcome]", prepared: list[tuple[Append, rec.Record]]
    ) -> None:
        """Go on from what became of a transaction; raise what it raised."""
        journal = self.journal
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        if error is not None:
            journal.release(None)
            if isinstance(error, StoreError) and type(error) is not StoreError:
                # The store can't serve, which says nothing about the effect: the run is lost here.
                journal.refuse(error)
                raise asyncio.CancelledError from error
            raise error
        outcome = working.result()
        if not isinstance(outcome, Appended):
            journal.release(None)
            journal.refuse(outcome)
            raise asyncio.CancelledError
        append, record = prepared[0]
        fold.apply(self.state, record)
        journal.release(append)

    def sandbox(self) -> Any:
        """Return the thread's sandbox."""
        return self.sandbox_use.open()

    async def enter_sandbox(self, context: NodePort) -> None:
        """Return when this node execution has the sandbox to itself."""
        await self.sandbox_use.enter(context)

    async def settle_sandbox(self) -> None:
        """Take the snapshot that steps which went by left to be taken; a lost one stops the run."""
        try:
            await self.sandbox_use.settle()
        except StoreError as error:
            self.lose(error)
            raise asyncio.CancelledError from error


async def _until_done(working: "asyncio.Future[Any]") -> None:
    """Return when it is done, however often this is cancelled meanwhile."""
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            continue
