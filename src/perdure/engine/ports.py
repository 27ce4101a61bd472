"""What the parts of the engine need of each other, so that no two modules import each other."""

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Struct

from perdure.core import fold
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.queue import RunJournal
from perdure.model import Change, Failure, Mail, MailKind, RunRow, Wait
from perdure.model.records import Record
from perdure.store.api import Transaction


class Answer(Struct, frozen=True, kw_only=True):
    """A person's answer to `ctx.ask`.

    Attributes:
        value: the answer, of the type that was asked for.
        by: who answered; "default" where nobody did in time and the ask had a default.
        at: when (UTC).
    """

    value: Any
    by: str
    at: dt.datetime


class RunPort(Protocol):
    """A held run, as its acts see it."""

    row: RunRow
    engine: Environment

    def now_us(self) -> int:
        """Return the time."""

    def record(self, record: Record, *changes: Change) -> None:
        """Apply a record to the state and add it to the journal, with its changes.

        Not durable yet.
        """

    async def barrier(self) -> None:
        """Return when everything recorded is durable; never returns once the lease is lost."""

    async def keep_up(self) -> None:
        """Return when the commits are not too far behind."""

    async def wait(self, context: "NodePort", wait: Wait) -> None:
        """Return when the wait is due; releases the run when all of it waits."""

    async def wait_for_mail(self, context: "NodePort", wait: Wait, kind: MailKind) -> Mail | None:
        """Return the message that the wait names, or None when it is due first."""

    async def find_mail(self, kind: MailKind, subject: str) -> Mail | None:
        """Read the mail again and return the first such message, or None."""

    def sandbox(self) -> Any:
        """Return the thread's sandbox."""

    def park(self, error: Exception) -> None:
        """Stop the run and leave it to a person. Does not return (CancelledError)."""

    @property
    def is_running(self) -> bool:
        """Whether nothing stops the run or lets it fail."""

    async def check_lease(self) -> None:
        """Return when the lease is safe; else stop this execution (CancelledError)."""

    async def check_dispatch(self) -> None:
        """Return when a new outside effect may be dispatched, else raise CancelledError."""

    def touch(self) -> None:
        """Say that something in the run moved."""

    async def enter_sandbox(self, context: "NodePort") -> None:
        """Return when this node execution has the sandbox to itself."""

    async def settle_sandbox(self) -> None:
        """Return when no step before this one can be executed on other files again.

        An act outside depends on what they gave. A node that has the sandbox goes with its step.
        """

    async def transact(
        self, body: Callable[[Transaction], Awaitable[tuple[Record, Change]]]
    ) -> None:
        """Run body in a transaction of the store; what it returns is committed with it."""


class HeldRun(RunPort, Protocol):
    """A held run, as the parts of its execution see it."""

    plan: GraphPlan
    state: fold.RunState
    journal: RunJournal
    is_draining: bool
    is_failing: bool
    is_concluding: bool
    stop_reason: str | None
    stop_failure: Failure | None

    @property
    def waits(self) -> "WaitsPort":
        """Its open waits."""

    @property
    def sandbox_use(self) -> "SandboxPort":
        """Its use of the thread's sandbox."""

    def stop(self, reason: str) -> None:
        """Stop the host for a reason."""


class WaitsPort(Protocol):
    """The open waits of a held run."""

    mail_counted: int

    @property
    def contexts(self) -> set[Any]:
        """The node executions under way."""

    @property
    def open(self) -> list[Any]:
        """The open waits, each with a `wait`."""


class SandboxPort(Protocol):
    """The sandbox of a held run's thread.

    `is_spoilt`: a node failed on files of which no snapshot is; the run must go back to its last
    checkpoint.
    """

    is_spoilt: bool

    async def leave(self, context: "NodePort", *, defers: bool = False) -> None:
        """Let others in, if this node execution has the sandbox, with a snapshot unless told."""

    async def settle(self) -> bool:
        """Take the snapshot that steps left to be taken; return whether the files are theirs."""

    def abandon(self, context: "NodePort") -> None:
        """Let others in without a snapshot, if this node execution has the sandbox."""

    async def leave_waiting(self) -> None:
        """The same for whoever has it, before the run is released."""


class NodePort(Protocol):
    """A node execution, as its acts see it."""

    active: int
    waiting: int
    held: int

    @property
    def run(self) -> RunPort:
        """The run."""

    @property
    def run_id(self) -> str:
        """Its id."""

    @property
    def task(self) -> fold.Task:
        """The record of the execution."""

    def identify(self, kind: str, name: str, digest: str) -> str:
        """Return the identity of the next act of this kind, name and digest."""

    def digest(self, value: Any, place: str) -> str:
        """Return the digest of a value."""

    def find(self, identity: str) -> fold.Call | None:
        """Return the recorded act and note that it was asked for."""


WAITING, PARKED, DRAINED, CANCELLED, LOST = "waiting", "parked", "drained", "cancelled", "lost"
BACK = "back"
"""Why a host is stopped before its graph has ended; `BACK`: to go on from its last checkpoint."""


class GaveUp(Exception):  # private to the engine: caught by the supervisor
    """A node failed for the last time: the run fails."""

    def __init__(self, failure: Failure) -> None:
        """Carry the failure to the supervisor."""
        super().__init__(failure.message)
        self.failure = failure


class Drained(BaseException):
    """The run reached a boundary while its worker drains.

    Not an Exception: no node may catch it.
    """
