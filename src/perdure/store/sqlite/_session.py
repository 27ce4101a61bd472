"""Calls to an OS thread, and the thread's side of one `transact`."""

import asyncio
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Generic, TypeVar

import apsw

from perdure.errors import UsageError
from perdure.ids import RunId
from perdure.model import Fenced
from perdure.store.sqlite._append import fence
from perdure.store.sqlite.limits import TRANSACTION_IDLE_S

Result = TypeVar("Result")
Operation = Callable[[apsw.Connection], Result]

_DENIED = frozenset(
    {
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_TRANSACTION,
    }
)
_SECOND_IS_COLUMN = frozenset({apsw.SQLITE_READ, apsw.SQLITE_UPDATE})


class Call(Generic[Result]):
    """One operation on its way to a thread and back."""

    __slots__ = ("error", "future", "name", "operation", "result", "value")

    def __init__(
        self, name: str, operation: Operation[Result], future: asyncio.Future[Result]
    ) -> None:
        """Keep what to run, and the future that waits for it."""
        self.name = name
        self.operation = operation
        self.future = future
        self.result: Result | None = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Resolve the future, in its loop; one whose waiter has gone is left alone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # set: no error


def settle_all(calls: Sequence[Call[Any]]) -> None:
    """Resolve the futures of the calls, in their loop."""
    for call in calls:
        call.settle()


class Session:
    """One transaction with its body in the event loop, until a commit or a rollback."""

    def __init__(self, run_id: RunId, token: int, opened: asyncio.Future[Fenced | None]) -> None:
        """Keep the fence that is checked before the body runs."""
        self.opened = Call("transact", lambda _db: None, opened)
        self.failure: BaseException | None = None
        self._run_id = run_id
        self._token = token
        self._calls: SimpleQueue[Call[Any]] = SimpleQueue()
        self._lock = Lock()  # invariant: nothing is queued after `end`, where nobody would serve it
        self._has_ended = False

    def check(self, db: apsw.Connection) -> bool:
        """Return whether the fence holds; where it does not, that is what `opened` gets."""
        self.opened.result = fence(db, self._run_id, self._token)
        return self.opened.result is None

    def put(self, call: Call[Any]) -> None:
        """Hand a call to the thread (loop side).

        Raises:
            UsageError: the transaction is over.
        """
        with self._lock:
            if not self._has_ended:
                self._calls.put(call)
                return
        raise self._over()

    def next_call(self) -> Call[Any] | None:
        """Return the next call; None: the body was silent for too long (thread side)."""
        try:
            return self._calls.get(timeout=TRANSACTION_IDLE_S)
        except Empty:
            return None

    def end(self) -> list[Call[Any]]:
        """Refuse later calls, and return those that were not served, refused (thread side)."""
        left: list[Call[Any]] = []
        with self._lock:
            self._has_ended = True
            while not self._calls.empty():
                left.append(self._calls.get_nowait())
        for call in left:
            call.error = self._over()
        return left

    def _over(self) -> UsageError:
        msg = (
            f"the transaction of run {self._run_id!r} is over (it may be silent for "
            f"{TRANSACTION_IDLE_S:g} s); what it had not committed is rolled back. "
            "Do slow work before or after it"
        )
        return UsageError(msg, run_id=self._run_id)


def run_guarded(db: apsw.Connection, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement of a body; Perdure's tables and the transaction are out of reach.

    Raises:
        UsageError: it touched them; nothing of the statement was done.
    """
    db.authorizer = _authorize
    try:
        return db.execute(sql, tuple(params)).fetchall()
    except apsw.AuthError as error:
        msg = (
            f"{sql!r} touches Perdure's own tables or the transaction itself; it is rolled back. "
            "Use other tables, and leave PRAGMA, ATTACH, BEGIN, COMMIT and SAVEPOINT to the store"
        )
        raise UsageError(msg, sql=sql) from error
    finally:
        db.authorizer = None


def _authorize(
    operation: int,
    first: str | None,
    second: str | None,
    _database: str | None,
    _trigger: str | None,
) -> int:
    names = (first,) if operation in _SECOND_IS_COLUMN else (first, second)
    touches_own = any(name and name.lower().startswith("perdure_") for name in names)
    return apsw.SQLITE_DENY if touches_own or operation in _DENIED else apsw.SQLITE_OK
