"""OS threads that own one connection each, and the hand-off between them and the event loop.

A call travels loop -> thread through a `SimpleQueue` and back through `call_soon_threadsafe`, once
per batch: no executor, no lock held while waiting.

The writer runs everything that is queued when the last commit returns in one transaction, with a
savepoint per call, so that a call that fails takes nothing of the others with it. A failed commit
fails all of them. A probe that raises (a simulated crash) counts as a failure of the whole
transaction.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import apsw

from perdure.clock import Probe
from perdure.errors import StoreUnavailable
from perdure.model import Append, Appended, AppendOutcome
from perdure.store.sqlite._append import append_one
from perdure.store.sqlite._errors import map_error
from perdure.store.sqlite._session import Call, Operation, Session, settle_all
from perdure.store.sqlite.limits import COALESCE_MAX

Result = TypeVar("Result")

CRASH_POINTS: dict[str, tuple[str, str, str]] = {
    "start": (
        "store.start.before",  # crash-point: store.start.before
        "store.start.during",  # crash-point: store.start.during
        "store.start.after",  # crash-point: store.start.after
    ),
    "append": (
        "store.append.before",  # crash-point: store.append.before
        "store.append.during",  # crash-point: store.append.during
        "store.append.after",  # crash-point: store.append.after
    ),
    "claim": (
        "store.claim.before",  # crash-point: store.claim.before
        "store.claim.during",  # crash-point: store.claim.during
        "store.claim.after",  # crash-point: store.claim.after
    ),
    "post": (
        "store.post.before",  # crash-point: store.post.before
        "store.post.during",  # crash-point: store.post.during
        "store.post.after",  # crash-point: store.post.after
    ),
    "answer": (
        "store.answer.before",  # crash-point: store.answer.before
        "store.answer.during",  # crash-point: store.answer.during
        "store.answer.after",  # crash-point: store.answer.after
    ),
    "decide": (
        "store.decide.before",  # crash-point: store.decide.before
        "store.decide.during",  # crash-point: store.decide.during
        "store.decide.after",  # crash-point: store.decide.after
    ),
    "expire": (
        "store.expire.before",  # crash-point: store.expire.before
        "store.expire.during",  # crash-point: store.expire.during
        "store.expire.after",  # crash-point: store.expire.after
    ),
    "renew": (
        "store.renew.before",  # crash-point: store.renew.before
        "store.renew.during",  # crash-point: store.renew.during
        "store.renew.after",  # crash-point: store.renew.after
    ),
    "register": (
        "store.register.before",  # crash-point: store.register.before
        "store.register.during",  # crash-point: store.register.during
        "store.register.after",  # crash-point: store.register.after
    ),
    "forget": (
        "store.forget.before",  # crash-point: store.forget.before
        "store.forget.during",  # crash-point: store.forget.during
        "store.forget.after",  # crash-point: store.forget.after
    ),
    "transact": (
        "store.transact.before",  # crash-point: store.transact.before
        "store.transact.during",  # crash-point: store.transact.during
        "store.transact.after",  # crash-point: store.transact.after
    ),
}
"""Probe names of each kind of write: before BEGIN, right before COMMIT, after COMMIT."""


class ConnectionThread:
    """An OS thread that owns one connection and runs calls in order, each by itself (reads)."""

    def __init__(self, name: str, path: Path, connect: Callable[[], apsw.Connection]) -> None:
        """Prepare the thread; `open` starts it.

        Args:
            name: of the OS thread.
            path: the database file, for messages.
            connect: makes the connection, in the thread.
        """
        self._path = path
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._is_closed = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._os_thread = Thread(target=self._main, name=name, daemon=True)

    async def open(self) -> None:
        """Start the thread and wait until its connection is open; raise what opening raised."""
        opened = self._loop.create_future()
        self._opened = Call("open", lambda _db: None, opened)
        self._os_thread.start()
        await opened

    def call(self, name: str, operation: Operation[Result]) -> asyncio.Future[Result]:
        """Hand the operation to the thread; the future gets its result."""
        if self._is_closed:
            raise self._closed_error()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._calls.put(Call(name, operation, future))
        return future

    async def close(self) -> None:
        """Finish what was handed in, close the connection, end the thread. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._calls.put(None)
        await asyncio.shield(self._closed)

    def _closed_error(self) -> StoreUnavailable:
        msg = f"the store {self._path} is closed; nothing was written. Open it again"
        return StoreUnavailable(msg, path=str(self._path))

    def _main(self) -> None:
        try:
            db = self._connect()
        except BaseException as error:  # handed to the opener, who raises it
            self._is_closed = True
            self._opened.error = self._edge(error)
            self._resolve([self._opened])
            self._notify_closed()
            return
        self._resolve([self._opened])
        try:
            while self._serve(db):
                pass
        finally:
            db.close()
            self._notify_closed()

    def _serve(self, db: apsw.Connection) -> bool:
        call = self._calls.get()
        if call is None:
            return False
        self._run(db, call)
        self._resolve([call])
        return True

    def _run(self, db: apsw.Connection, call: Call[Any]) -> None:
        try:
            call.result = call.operation(db)
        except BaseException as error:  # handed to the caller, who raises it
            call.error = self._edge(error)

    def _edge(self, error: BaseException) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        mapped = map_error(error, self._path)
        mapped.__cause__ = error
        return mapped

    def _resolve(self, calls: list[Call[Any]]) -> None:
        self._to_loop(lambda: settle_all(calls))

    def _notify_closed(self) -> None:
        self._to_loop(self._set_closed)

    def _set_closed(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def _to_loop(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


QUIET = frozenset({"renew", "append"})
"""Calls that wake nobody by themselves; the store says so when an append does."""


class Writer(ConnectionThread):
    """The OS thread that owns the write connection: one transaction for all that is queued."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], apsw.Connection],
        *,
        probe: Probe,
        flush_delay_s: float,
        changed: Callable[[], None],
    ) -> None:
        """Prepare the thread.

        Args:
            path: the database file, for messages.
            connect: makes the connection, in the thread.
            probe: called with the names of crash points.
            flush_delay_s: sleep after each commit that wrote, to stand for a slow disk.
            changed: called in the loop, before the waiters, after each commit that others may wait
                for.
        """
        super().__init__(f"perdure-writer {path.name}", path, connect)
        self._probe = probe
        self._flush_delay_s = flush_delay_s
        self._changed = changed
        self._never = Event()

    def peek(self, operation: Operation[Result]) -> asyncio.Future[Result]:
        """Run an operation on the write connection outside any transaction (it must not write)."""
        return self.call("peek", operation)

    def _serve(self, db: apsw.Connection) -> bool:
        batch = [self._calls.get()]
        while isinstance(batch[-1], Call) and len(batch) < COALESCE_MAX:
            try:
                batch.append(self._calls.get_nowait())
            except Empty:
                break
        last = batch[-1]
        if not isinstance(
            last, Call
        ):  # a session is served alone, after them; None ends the thread
            batch.pop()
        writes = [call for call in batch if call.name != "peek"]
        if writes:
            self._commit(db, writes)
        for call in batch:
            if call.name == "peek":
                self._run(db, call)
                self._resolve([call])
        if isinstance(last, Session):
            self._transact(db, last)
        return last is not None

    def _commit(self, db: apsw.Connection, calls: list[Call[Any]]) -> None:
        names = {call.name for call in calls}
        before = db.total_changes()
        try:
            self._reach(names, 0)
            db.execute("BEGIN IMMEDIATE")
            for call in calls:
                self._savepoint(db, call, alone=len(calls) == 1)
            self._reach(names, 1)
            db.execute("COMMIT")
            self._flush_delay(db.total_changes() - before)
            self._reach(names, 2)
        except BaseException as error:  # handed to every caller of the transaction
            mapped = self._edge(error)
            for call in calls:
                call.error = call.error or mapped
        finally:
            _roll_back(db)
        if db.total_changes() != before and not names <= QUIET:
            self._to_loop(self._changed)
        self._resolve(calls)

    def _reach(self, names: set[str], moment: int) -> None:
        for name in names & CRASH_POINTS.keys():
            self._probe(CRASH_POINTS[name][moment])

    def _savepoint(self, db: apsw.Connection, call: Call[Any], *, alone: bool) -> None:
        if alone:
            call.result = call.operation(db)
            return
        db.execute("SAVEPOINT perdure_call")
        self._run(db, call)
        if call.error is not None:
            if not db.in_transaction:  # SQLite gave up the whole transaction, the others with it
                raise call.error
            db.execute("ROLLBACK TO perdure_call")
        db.execute("RELEASE perdure_call")

    def _flush_delay(self, changes: int) -> None:
        if self._flush_delay_s and changes:
            self._never.wait(self._flush_delay_s)

    def transact(self, session: Session) -> None:
        """Queue the session; its `opened` says whether the fence holds, then it is served alone."""
        if self._is_closed:
            raise self._closed_error()
        self._calls.put(session)

    def _transact(self, db: apsw.Connection, session: Session) -> None:
        before = db.total_changes()
        try:
            self._reach({"transact"}, 0)
            db.execute("BEGIN IMMEDIATE")
            if session.check(db):
                self._resolve([session.opened])
                self._serve_session(db, session)
        except BaseException as error:  # handed to the coroutine that waits for the session
            session.opened.error = self._edge(error)
        finally:
            _roll_back(db)
        if db.total_changes() != before:
            self._to_loop(self._changed)
        self._resolve([session.opened, *session.end()])

    def _serve_session(self, db: apsw.Connection, session: Session) -> None:
        while (call := session.next_call()) is not None:
            self._run(db, call)
            if call.name != "execute":
                _roll_back(db)
                self._resolve([call])
                return
            session.failure = session.failure or call.error
            self._resolve([call])

    def commit_session(self, db: apsw.Connection, session: Session, item: Append) -> AppendOutcome:
        """Write the body's append and commit; anything but `Appended` writes nothing."""
        if session.failure is not None:
            raise session.failure
        outcome = append_one(db, item)
        if isinstance(outcome, Appended):
            self._reach({"transact"}, 1)
            db.execute("COMMIT")
            self._flush_delay(1)
            self._reach({"transact"}, 2)
        return outcome


def _roll_back(db: apsw.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")
