"""The SQLite store: the protocol's coroutines over two OS threads.

Each coroutine hands one function to the thread that owns the connection and waits for its result.
What the functions do is in the modules named after it; nothing here touches the database.

Size: one method for each of the protocol.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
from msgspec.structs import replace

from perdure.clock import Services
from perdure.errors import PerdureError, StoreUnavailable, UsageError
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    AppendOutcome,
    AskRow,
    EffectRow,
    Fenced,
    FrameRow,
    KeyRow,
    LimitRow,
    LimitState,
    Mail,
    NewRun,
    Page,
    RunRow,
    ScheduleRow,
    Started,
    ThreadRow,
    WorkerRow,
)
from perdure.store import _rules as rules
from perdure.store._watch import ChangeWatch
from perdure.store.api import (
    CROSS_PROCESS,
    DURABLE,
    LIVENESS,
    TRANSACTION,
    Answered,
    AskQuery,
    Decided,
    EffectQuery,
    RunQuery,
    Transaction,
)
from perdure.store.rewriting import Rewriting
from perdure.store.sqlite import _append, _keys, _mail, _orders, _pages, _queries, _runs
from perdure.store.sqlite._connect import connect_reader, connect_writer
from perdure.store.sqlite._erasing_store import SqliteErasing
from perdure.store.sqlite._liveness import LockFolder
from perdure.store.sqlite._os_thread import ConnectionThread, Writer
from perdure.store.sqlite._retention import SqliteRetention
from perdure.store.sqlite._rewriting import rewriting
from perdure.store.sqlite._session import Call, Operation, Session, run_guarded
from perdure.store.sqlite._url import parse_url
from perdure.store.sqlite.limits import POLL_S

Result = TypeVar("Result")


class _SessionTransaction:
    """What a body writes through."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await hand_in(self._session, "execute", lambda db: run_guarded(db, sql, params))


async def hand_in(session: Session, name: str, operation: Operation[Result]) -> Result:
    """Hand a call to the session's thread and return its result."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    session.put(Call(name, operation, future))
    return await future


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SqliteStore(SqliteRetention, SqliteErasing):
    """A store in one SQLite file.

    URL: `sqlite:///relative.db` or `sqlite:////absolute.db`; options in the query: `busy_timeout_s`
        (10: how long a write waits for another process), `max_pages` (a quota, in pages of 4 KiB),
        `flush_delay_ms` (sleep after each commit; stands for a slow disk in benchmarks),
        `reserve_mb` (64: room on the disk that starts leave to runs under way, in MiB).

    One object serves one event loop; several objects and processes may open the same file. A
    process that forks without exec must not use the store in the child.
    """

    capabilities = frozenset({TRANSACTION, LIVENESS, CROSS_PROCESS, DURABLE})

    def __init__(self, url: str, services: Services) -> None:
        """Read the URL; `open` touches the file.

        Raises:
            SettingInvalid: the URL names no file, or an unknown option.
        """
        self.url = url
        self._options = parse_url(url)
        self.place = str(self._options.path)
        self._services = services
        self._locks = LockFolder(self._options.path)
        self._watch = ChangeWatch(services.clock, waiting=self._start_polling)
        self._poller: asyncio.Task[None] | None = None
        self._data_version: int | None = None
        self._file: tuple[int, int] | None = None
        self._threads: tuple[Writer, ConnectionThread] | None = None

    # -- life --------------------------------------------------------------------------------------

    async def is_there(self) -> bool:
        """Return whether the file exists."""
        return self._options.path.exists()  # one look, no wait

    async def open(self) -> None:
        """Open or create the file, and migrate an older schema. Idempotent.

        Raises:
            StoreForeign: another application's file.
            StoreSchemaNewer: written by a newer Perdure.
            StoreCorrupt: the file is damaged.
            StoreReadOnly: the file cannot be written.
            StoreUnavailable: it cannot be opened.
        """
        if self._threads is not None:
            return
        path = self._options.path
        writer = Writer(
            path,
            partial(connect_writer, self._options),
            probe=self._services.probe,
            flush_delay_s=self._options.flush_delay_ms / 1000,
            changed=self._watch.bump,
        )
        await writer.open()
        reader = ConnectionThread(
            f"perdure-reader {path.name}", path, partial(connect_reader, self._options)
        )
        try:
            await reader.open()
        except BaseException:
            await writer.close()
            raise
        self._threads = (writer, reader)
        self._file = _identity_of(path)
        self._data_version = await self._peek_data_version()

    def _check_file(self) -> None:
        """Refuse to go on with a file that was removed or replaced: its writes would be lost."""
        path = self._options.path
        if self._threads is not None and _identity_of(path) != self._file:
            msg = (
                f"the file {path} was removed or replaced while it was open; nothing was written. "
                "Put it back, or stop this process: what it wrote last is in the removed file"
            )
            raise StoreUnavailable(msg, path=str(path))

    async def close(self) -> None:
        """Finish what was handed in, close the connections, let go of the locks. Idempotent."""
        if self._threads is None:
            return
        writer, reader = self._threads
        self._threads = None
        self._watch.bump()  # nobody waits for a closed store
        if self._poller is not None:
            self._poller.cancel()
        await reader.close()
        await writer.close()
        self._locks.let_go_all()

    async def check(self) -> list[str]:
        """Return what `PRAGMA quick_check` finds wrong with the file; empty: nothing."""
        return await self._read("check", _queries.check)

    @property
    def _writer(self) -> Writer:
        return self._open_threads()[0]

    def _open_threads(self) -> tuple[Writer, ConnectionThread]:
        if self._threads is None:
            path = str(self._options.path)
            msg = f"the store {path} is not open; nothing was written. Call open() first"
            raise StoreUnavailable(msg, path=path)
        return self._threads

    def _read(self, name: str, operation: Operation[Result]) -> asyncio.Future[Result]:
        return self._open_threads()[1].call(name, operation)

    def now_us(self) -> int:
        """Return the time by this host's clock; see `Store.now_us`."""
        return self._services.clock.now_us()

    def rewriting(self) -> AbstractAsyncContextManager[Rewriting]:
        """Begin a transaction over the whole file; see `RewritableStore.rewriting`."""
        return rewriting(self._options, self._services.clock)

    # -- writing -----------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started | Exception]:
        """Create runs, each with its first journal record; see `Store.start`."""
        self._check_file()
        return await self._writer.call("start", lambda db: _runs.start(db, runs))

    async def append(self, batch: Sequence[Append]) -> list[AppendOutcome]:
        """Write the frames and changes of many runs in one commit; see `Store.append`."""
        outcomes = await self._writer.call("append", lambda db: _append.append(db, batch))
        if rules.wakes_others(batch):
            self._watch.bump()
        return outcomes

    async def put_pages(self, tenant: TenantId, pages: Sequence[Page]) -> None:
        """Store pages; see `Store.put_pages`."""
        at_us = self._services.clock.now_us()
        await self._writer.call("pages", lambda db: _pages.put_pages(db, tenant, pages, at_us))

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys; see `Store.put_keys`."""
        return await self._writer.call("put_keys", lambda db: _keys.put_keys(db, keys))

    async def rewrap_key(self, key: KeyRow, *, expected: bytes) -> bool:
        """Wrap a data key anew; see `Store.rewrap_key`."""
        return await self._writer.call("rewrap", lambda db: _keys.rewrap_key(db, key, expected))

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[Append]],
        *,
        run_id: RunId,
        token: int,
    ) -> AppendOutcome:
        """Run `body` in a transaction and commit it with its append; see `Store.transact`."""
        opened: asyncio.Future[Fenced | None] = asyncio.get_running_loop().create_future()
        session = Session(run_id, token, opened)
        writer = self._writer
        writer.transact(session)
        try:
            fenced = await opened
            if fenced is not None:
                return fenced
            item = await body(_SessionTransaction(session))
            if item.run_id != run_id or item.token != token:
                msg = f"the transaction of run {run_id!r} returned an append of {item.run_id!r}"
                raise UsageError(msg, run_id=run_id)  # noqa: TRY301  # rolled back below
        except BaseException:
            await self._abandon(session)
            raise
        outcome: AppendOutcome = await hand_in(
            session, "commit", lambda db: writer.commit_session(db, session, item)
        )
        return outcome

    async def _abandon(self, session: Session) -> None:
        # Queued before anything is awaited: a second cancellation cannot leave the transaction
        # open.
        future = asyncio.get_running_loop().create_future()
        try:
            session.put(Call("rollback", lambda _db: None, future))
        except UsageError:  # it is over already
            return
        await asyncio.shield(asyncio.gather(future, return_exceptions=True))

    async def claim(
        self,
        worker_id: WorkerId,
        graphs: Sequence[tuple[str, int]],
        *,
        now_us: int,
        lease_until_us: int,
        limit: int,
    ) -> list[RunRow]:
        """Take up to `limit` claimable runs of these graphs; see `Store.claim`."""
        operation = partial(
            _runs.claim,
            worker_id=worker_id,
            graphs=_runs.graphs_json(graphs),
            now_us=now_us,
            lease_until_us=lease_until_us,
            limit=limit,
        )
        return await self._writer.call("claim", operation)

    async def take(
        self, run_id: RunId, worker_id: WorkerId, *, token: int, now_us: int, lease_until_us: int
    ) -> RunRow | None:
        """Claim this one run; see `Store.take`."""
        operation = partial(
            _runs.take,
            run_id=run_id,
            worker_id=worker_id,
            token=token,
            now_us=now_us,
            lease_until_us=lease_until_us,
        )
        return await self._writer.call("claim", operation)

    async def renew(
        self,
        worker_id: WorkerId,
        held: Sequence[tuple[RunId, int]],
        *,
        now_us: int,
        lease_until_us: int,
    ) -> set[RunId]:
        """Extend the leases and the heartbeat; return the runs that are lost."""
        operation = partial(
            _runs.renew,
            worker_id=worker_id,
            held=held,
            now_us=now_us,
            lease_until_us=lease_until_us,
        )
        self._check_file()
        return await self._writer.call("renew", operation)

    async def post(self, mail: Mail) -> RunRow:
        """Store a message for an unfinished run and wake it; see `Store.post`."""
        return await self._writer.call("post", lambda db: _mail.post(db, mail))

    async def answer(self, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
        """Answer an open ask once; see `Store.answer`."""
        operation = partial(_mail.answer, ask_id=ask_id, value_wire=value_wire, by=by, at_us=at_us)
        return await self._writer.call("answer", operation)

    async def decide(
        self,
        effect_id: EffectId,
        *,
        happened: bool,
        result_wire: bytes | None,
        by: str,
        at_us: int,
    ) -> Decided:
        """Decide an uncertain effect once; see `Store.decide`."""
        operation = partial(
            _mail.decide,
            effect_id=effect_id,
            happened=happened,
            result_wire=result_wire,
            by=by,
            at_us=at_us,
        )
        return await self._writer.call("decide", operation)

    async def expire(self, ask_id: AskId, *, at_us: int) -> AskRow:
        """Close an open ask as expired, unless it was answered; see `Store.expire`."""
        return await self._writer.call("expire", partial(_mail.expire, ask_id=ask_id, at_us=at_us))

    # -- workers -----------------------------------------------------------------------------------

    async def register_worker(self, row: WorkerRow) -> None:
        """Take the worker's lock, then make it known."""
        known = replace(row, liveness=self._locks.liveness_of(row.worker_id))
        await self._read("lock", lambda _db: self._locks.hold(row.worker_id))
        await self._writer.call("register", lambda db: _runs.put_worker(db, known))

    async def forget_worker(self, worker_id: WorkerId) -> None:
        """Remove the worker and its lock; runs that it still holds become claimable at once."""
        await self._drop_workers([worker_id])
        await self._read("unlock", lambda _db: self._locks.let_go(worker_id))

    async def release_dead(self) -> list[WorkerId]:
        """Make the runs of workers of this host that died claimable at once; return who died."""
        dead = await self._read(
            "find_dead", lambda db: self._locks.find_dead(_queries.find_workers(db))
        )
        if not dead:
            return []
        try:
            await self._drop_workers([worker_id for worker_id, _fd in dead])
        except BaseException:
            for _worker_id, fd in dead:  # the rows are still there: so stay the files
                os.close(fd)
            raise
        for worker_id, fd in dead:
            self._locks.remove(worker_id, fd)
        return [worker_id for worker_id, _fd in dead]

    async def _drop_workers(self, worker_ids: list[WorkerId]) -> None:
        now_us = self._services.clock.now_us()

        def drop(db: apsw.Connection) -> None:
            for worker_id in worker_ids:
                _runs.drop_worker(db, worker_id, now_us)

        await self._writer.call("forget", drop)

    async def find_workers(self) -> list[WorkerRow]:
        """Return all known workers, oldest first."""
        return await self._read("find_workers", _queries.find_workers)

    # -- waiting for others ------------------------------------------------------------------------

    def change_mark(self) -> int:
        """Return how many writes this object knows of; see `Store.change_mark`."""
        return self._watch.mark

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Return True soon after anybody wrote; see `Store.wait_for_change`."""
        self._open_threads()
        return await self._watch.wait(timeout_s, since)

    def _start_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.ensure_future(self._poll())

    async def _poll(self) -> None:
        # Asked on the write connection, whose own commits do not move data_version: others' do.
        while self._watch.has_waiters:
            try:
                found = await self._peek_data_version()
            except PerdureError:
                self._watch.bump()  # whoever waits finds the error by the next call
                return
            if found != self._data_version:
                self._data_version = found
                self._watch.bump()
            await self._services.clock.sleep(POLL_S)

    async def _peek_data_version(self) -> int:
        return await self._writer.peek(lambda db: int(db.pragma("data_version")))

    async def next_ready_at(
        self, graphs: Sequence[tuple[str, int]], *, after_us: int = 0
    ) -> int | None:
        """Return when a claim of these graphs may find more; see `Store.next_ready_at`."""
        wanted = _runs.graphs_json(graphs)
        return await self._read(
            "next_ready", lambda db: _queries.next_ready_at(db, wanted, after_us)
        )

    # -- limits and schedules ----------------------------------------------------------------------

    async def set_limit(self, limit: LimitRow) -> None:
        """Insert or replace the limit; see `Store.set_limit`."""
        await self._writer.call("limit", lambda db: _orders.set_limit(db, limit))

    async def drop_limit(self, tenant: TenantId, graph: str) -> bool:
        """Remove the limit; return whether there was one."""
        return await self._writer.call("limit", lambda db: _orders.drop_limit(db, tenant, graph))

    async def read_limits(self) -> LimitState:
        """Return the limits, and what they count, as of one moment."""
        return await self._read("limits", _orders.read_limits)

    async def put_schedule(self, row: ScheduleRow, *, expected: int) -> bool:
        """Write the schedule if the stored one has this revision; see `Store.put_schedule`."""
        operation = partial(_orders.put_schedule, row=row, expected=expected)
        return await self._writer.call("schedule", operation)

    async def drop_schedule(self, tenant: TenantId, name: str) -> bool:
        """Remove a schedule; return whether there was one."""
        operation = partial(_orders.drop_schedule, tenant=tenant, name=name)
        return await self._writer.call("schedule", operation)

    async def find_schedules(
        self, *, tenant: TenantId | None = None, due_us: int | None = None, limit: int = 100_000
    ) -> list[ScheduleRow]:
        """Return schedules by `next_at_us`; see `Store.find_schedules`."""
        operation = partial(_orders.find_schedules, tenant=tenant, due_us=due_us, limit=limit)
        return await self._read("schedules", operation)

    # -- reading -----------------------------------------------------------------------------------

    async def read_run(self, run_id: RunId) -> RunRow | None:
        """Return the run's row, or None."""
        return await self._read("read_run", lambda db: _runs.read_run(db, run_id))

    async def find_runs(self, query: RunQuery) -> list[RunRow]:
        """Return rows, newest first."""
        return await self._read("find_runs", lambda db: _queries.find_runs(db, query))

    async def read_thread(self, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
        """Return the thread's row, or None."""
        return await self._read("thread", lambda db: _queries.read_thread(db, tenant, thread))

    async def read_thread_runs(
        self, tenant: TenantId, thread: ThreadId, *, from_ordinal: int
    ) -> list[RunRow]:
        """Return the thread's runs with at least this ordinal, by ordinal."""
        return await self._read(
            "thread_runs",
            lambda db: _queries.read_thread_runs(db, tenant, thread, from_ordinal),
        )

    async def read_frames(
        self, run_id: RunId, *, from_seq: int = 1, limit: int | None = None
    ) -> list[FrameRow]:
        """Return the frames with the records from `from_seq` on; see `Store.read_frames`."""
        return await self._read(
            "frames", lambda db: _queries.read_frames(db, run_id, from_seq, limit)
        )

    async def scan_frames(self, run_id: RunId, *, from_seq: int, limit: int) -> list[FrameRow]:
        """Return stored frames as they are; see `Store.scan_frames`."""
        return await self._read(
            "scan", lambda db: _queries.scan_frames(db, run_id, from_seq, limit)
        )

    async def read_mail(self, run_id: RunId, *, after: int = 0) -> list[Mail]:
        """Return the run's unread messages with an id above `after`, in order of arrival."""
        return await self._read("mail", lambda db: _queries.read_mail(db, run_id, after))

    async def read_held_mail(self, worker_id: WorkerId, *, seen: Mapping[RunId, int]) -> list[Mail]:
        """Return unread messages to runs that the worker holds; see `Store.read_held_mail`."""
        return await self._read(
            "held_mail", lambda db: _queries.read_held_mail(db, worker_id, seen)
        )

    async def read_pages(self, tenant: TenantId, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the tenant's pages by hash; see `Store.read_pages`."""
        return await self._read("pages", lambda db: _pages.read_pages(db, tenant, hashes))

    async def read_keys(
        self,
        scopes: Sequence[tuple[TenantId, str]] | None = None,
        *,
        after: tuple[TenantId, str, int] | None = None,
        limit: int = 100_000,
    ) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number); see `Store.read_keys`."""
        most = rules.limit_of(limit)
        return await self._read("keys", lambda db: _keys.read_keys(db, scopes, after, most))

    async def read_ask(self, ask_id: AskId) -> AskRow | None:
        """Return the ask, or None."""
        return await self._read("ask", lambda db: _queries.read_ask(db, ask_id))

    async def find_asks(self, query: AskQuery) -> list[AskRow]:
        """Return asks, oldest first."""
        return await self._read("asks", lambda db: _queries.find_asks(db, query))

    async def read_effect(self, effect_id: EffectId) -> EffectRow | None:
        """Return the effect, or None."""
        return await self._read("effect", lambda db: _queries.read_effect(db, effect_id))

    async def read_effect_by_key(self, tenant: TenantId, business_key: str) -> EffectRow | None:
        """Return the effect that holds the business key, or None."""
        return await self._read(
            "effect_by_key", lambda db: _queries.read_effect_by_key(db, tenant, business_key)
        )

    async def find_effects(self, query: EffectQuery) -> list[EffectRow]:
        """Return effects, newest change first."""
        return await self._read("effects", lambda db: _queries.find_effects(db, query))
