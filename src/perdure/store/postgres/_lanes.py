"""Connections that serve calls: each call is one statement, one round trip, one transaction.

A call is handed in and answered by a future; whoever stops waiting does not stop the statement. A
connection is opened when it is needed and again after it broke. A read that was under way then is
asked again; a write is uncertain (`CommitUncertain`).
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import psycopg
from msgspec import Struct
from psycopg.errors import FeatureNotSupported, InsufficientPrivilege, InterfaceError

from perdure.clock import Services
from perdure.errors import CommitUncertain, SettingInvalid, StoreError, StoreUnavailable
from perdure.store.postgres._errors import REPEATABLE, map_error, told
from perdure.store.postgres._prepared import Prepared, Rows, Sender
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres.limits import (
    ANSWER_S_MAX,
    CLAIM_IDLE_S,
    LANE_IDLE_S,
    RETRIES_MAX,
    RETRY_PAUSE_S,
    RETRY_PAUSE_S_MAX,
)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

_COMMON = {
    "synchronous_commit": "on",
    "standard_conforming_strings": "on",
    # All names are qualified: what is in other schemas, by whoever, is not looked at.
    "search_path": "",
}
_SETTINGS = _COMMON | {
    "default_transaction_isolation": "read committed",
    # Plans are made while the tables are small, and kept: they must not scan or hash whole tables.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    # A claim under limits locks out all others until its end, also where its process was stopped.
    "idle_in_transaction_session_timeout": f"{CLAIM_IDLE_S}s",
}


Work = Callable[["Connection"], Awaitable[Any]]
"""Several statements of one transaction."""


class Call(Struct, frozen=True):
    """One statement (or one transaction) on its way to the server and back."""

    name: str
    sql: str
    params: Any
    future: "asyncio.Future[Any]"
    is_write: bool
    work: Work | None = None
    statement: Prepared | None = None


async def run(connection: Connection, sql: str, params: Any = ()) -> Rows:
    """Run one statement and return its rows."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(sql.encode(), params, prepare=True)
        return await cursor.fetchall() if cursor.description else []


async def connect(
    options: PostgresOptions, *, plain: bool = False, keeps_path: bool = False
) -> Connection:
    """Open a connection; `plain`: without the settings for Perdure's own statements.

    `keeps_path`: with the search_path of the role, for statements of a user.

    Raises:
        StoreUnavailable: it can't be opened.
    """
    try:
        connection = await psycopg.AsyncConnection.connect(options.conninfo, autocommit=True)
    except psycopg.Error as error:
        raise map_error(error, options.place) from None  # the driver's text may name the password
    settings = dict(_COMMON if plain else _SETTINGS)
    if keeps_path:
        del settings["search_path"]
    if options.flush_delay_ms:
        settings |= {
            "commit_delay": str(round(options.flush_delay_ms * 1000)),
            "commit_siblings": "0",
        }
    try:
        asked = ", ".join(["pg_catalog.set_config(%s::text, %s::text, false)"] * len(settings))
        pairs = [text for pair in settings.items() for text in pair]
        await connection.execute(f"SELECT {asked}", pairs)  # placeholders only
    except InsufficientPrivilege as error:
        await connection.close()
        msg = (
            f"{options.place}: flush_delay_ms={options.flush_delay_ms:g} needs a superuser "
            f"({told(error)}); leave it out, it is for benchmarks"
        )
        raise SettingInvalid(msg) from error
    except psycopg.Error as error:
        await connection.close()
        raise map_error(error, options.place) from error
    return connection


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Return whether the error ended the connection, rather than the statement alone."""
    return connection.closed or (error.sqlstate or "").startswith("57P")


def _hang_up(connection: Connection) -> None:
    """End a connection that does not answer, from outside: cancelling would wait for an answer."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _refuse(call: Call, error: Exception, cause: Exception | None = None) -> None:
    if cause is not None:
        error.__cause__ = cause
    if not call.future.done():
        call.future.set_exception(error)
        call.future.exception()  # nobody waiting any more is no news


class Lanes:
    """Up to so many connections that share the calls handed in."""

    def __init__(self, options: PostgresOptions, services: Services, *, most: int) -> None:
        """Serve with at most so many connections; none is opened yet."""
        self._options = options
        self._services = services
        self._most = most
        self._calls: asyncio.Queue[Call | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = 0
        self._is_closed = False
        self._only: _Lane | None = None

    def call(
        self, name: str, sql: str, params: Any = (), *, is_write: bool = False
    ) -> "asyncio.Future[Rows]":
        """Hand in a statement; the future gets its rows.

        Raises:
            StoreUnavailable: the store is closed; nothing was written.
        """
        return self._hand_in(name, sql, params, is_write=is_write)

    def send(
        self, name: str, statement: Prepared, params: list[bytes | None]
    ) -> "asyncio.Future[Rows]":
        """Hand in a write that is prepared on each connection; the future gets its rows.

        Sent at once where the only connection is free: a turn of the event loop is dear here.

        Raises:
            StoreUnavailable: the store is closed; nothing was written.
        """
        if self._is_closed or self._only is None or not self._calls.empty():
            return self._hand_in(name, "", params, is_write=True, statement=statement)
        call = Call(name, "", params, self._future(), is_write=True, statement=statement)
        if not self._only.begin(call, self._calls.put_nowait):
            self._calls.put_nowait(call)
        return call.future

    def work(self, name: str, work: Work) -> "asyncio.Future[Any]":
        """Hand in a transaction that writes; the future gets what the work returned.

        The work may be called again from its beginning, after a rollback.

        Raises:
            StoreUnavailable: the store is closed; nothing was written.
        """
        return self._hand_in(name, "", (), is_write=True, work=work)

    def _hand_in(
        self,
        name: str,
        sql: str,
        params: Any,
        *,
        is_write: bool,
        work: Work | None = None,
        statement: Prepared | None = None,
    ) -> "asyncio.Future[Any]":
        if self._is_closed:
            msg = (
                f"the store {self._options.place} is not open; nothing was written. "
                "Call open() first"
            )
            raise StoreUnavailable(msg)
        future = self._future()
        self._calls.put_nowait(Call(name, sql, params, future, is_write, work, statement))
        if self._idle < self._calls.qsize() and len(self._tasks) < self._most:
            self._begin()
        return future

    def _begin(self) -> None:
        task = asyncio.create_task(self._serve(), name="perdure-lane")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Have calls served, or refused, that were handed to a lane which somebody cancelled.

        `asyncio.run` cancels all tasks at once where an exception ends it: whoever closes the
        store then waits for what it calls last.
        """
        if task in self._tasks:
            self._tasks.remove(task)
        if self._tasks or self._calls.empty():
            return
        if not self._is_closed:
            self._begin()
            return
        while not self._calls.empty():
            call = self._calls.get_nowait()
            if call is not None:
                msg = f"the store {self._options.place} was closed; {call.name!r} was not begun"
                _refuse(call, StoreUnavailable(msg))

    @staticmethod
    def _future() -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Serve what was handed in, then close the connections. Idempotent."""
        self._is_closed = True
        for _task in self._tasks:
            self._calls.put_nowait(None)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next_call(self) -> Call | None:
        """Return the next call; None: this lane ends, as it was not needed for a while."""
        while self._most > 1:
            try:
                async with asyncio.timeout(LANE_IDLE_S):
                    return await self._calls.get()
            except TimeoutError:
                if len(self._tasks) > 1 and not self._is_closed:
                    self._tasks.remove(cast("asyncio.Task[None]", asyncio.current_task()))
                    return None
        return await self._calls.get()  # the only lane stays: no alarm is set for each append

    async def _serve(self) -> None:
        lane = _Lane(self._options, self._services)
        if self._most == 1:
            self._only = lane
        try:
            while True:
                self._idle += 1
                try:
                    call = await self._next_call()
                finally:
                    self._idle -= 1
                if call is None:
                    return
                await lane.settle(call)
        finally:
            self._only = None
            await lane.drop()


class _Lane:
    """One connection, opened again when it broke."""

    def __init__(self, options: PostgresOptions, services: Services) -> None:
        self._options = options
        self._services = services
        self._connection: Connection | None = None
        self._sender: Sender | None = None
        self._is_busy = False
        self._is_ahead = False
        self._is_wanted = False
        self._free: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._sent_s = 0.0

    # -- at once -----------------------------------------------------------------------------------

    def begin(self, call: Call, hand_over: Callable[[Call], None]) -> bool:
        """Send a prepared call at once, unless the lane is at work or has not prepared it yet.

        `hand_over` gets it if it is to be made again.
        """
        if self._is_busy or self._is_wanted or self._sender is None:
            return False
        self._is_busy = self._is_ahead = True
        self._watch()

        def answered(rows: Rows | None, error: psycopg.Error | None) -> None:
            self._is_busy = self._is_ahead = False
            if self._free is not None:
                self._free.set_result(None)
                self._free = None
            if error is not None:
                self._failed(call, error, hand_over)
                return
            try:
                self._reach(call, "after")
            except Exception as raised:  # noqa: BLE001  # handed to whoever waits
                _refuse(call, raised)
            else:
                if not call.future.done():
                    call.future.set_result(rows)

        try:
            self._reach(call, "before")
            self._sender.send(call.params, answered)
        except Exception as raised:  # noqa: BLE001  # as above
            self._is_busy = self._is_ahead = False
            _refuse(call, raised)
        return True

    def _failed(self, call: Call, error: psycopg.Error, hand_over: Callable[[Call], None]) -> None:
        """Tell what is known of a call that was sent at once, or have it made again."""
        if self._connection is None or is_lost(self._connection, error):
            self._sender = None  # what comes next waits for a new connection
            _refuse(call, self._uncertain(call, error), error)
        elif isinstance(error, (*REPEATABLE, FeatureNotSupported)):
            hand_over(call)
        else:
            _refuse(call, map_error(error, self._options.place), error)

    def _watch(self) -> None:
        """Have an eye on the answers to come: one alarm for many calls, as most come soon."""
        loop = asyncio.get_running_loop()
        self._sent_s = loop.time()
        if self._alarm is None:
            self._alarm = loop.call_later(ANSWER_S_MAX, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = None
        if not self._is_busy:
            return
        left_s = self._sent_s + ANSWER_S_MAX - loop.time()
        if left_s > 0:
            self._alarm = loop.call_later(left_s, self._ring)
        elif self._connection is not None:
            _hang_up(self._connection)

    async def _turn(self) -> None:
        """Return when what was sent at once is answered."""
        self._is_wanted = True  # nobody may slip in between the answer and our turn
        try:
            while self._is_ahead:
                self._free = asyncio.get_running_loop().create_future()
                await self._free
        finally:
            self._is_wanted = False

    # -- one after the other -----------------------------------------------------------------------

    async def settle(self, call: Call) -> None:
        """Serve a call and resolve its future."""
        try:
            await self._turn()
            self._is_busy = True
            try:
                await self._settle(call)
            finally:
                self._is_busy = False
        except asyncio.CancelledError:
            _refuse(call, self._cut_off(call))
            raise

    async def _settle(self, call: Call) -> None:
        try:
            self._reach(call, "before")
            rows = await self._execute(call)
            self._reach(call, "after")
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            _refuse(call, error)
        else:
            if not call.future.done():
                call.future.set_result(rows)

    def _cut_off(self, call: Call) -> StoreError:
        """Return the error of a call whose lane was cancelled: by whoever cancels all tasks."""
        if call.is_write:
            return self._uncertain(call, InterfaceError("its task was cancelled"))
        msg = f"{self._options.place}: {call.name!r} was cancelled; nothing was written"
        return StoreUnavailable(msg)

    def _reach(self, call: Call, moment: str) -> None:
        """Tell the probe of a write; a read that is killed leaves nothing to look at."""
        if call.is_write:
            self._services.probe(f"store.{call.name}.{moment}")

    async def _execute(self, call: Call) -> Any:
        pause_s = RETRY_PAUSE_S
        for attempt in range(RETRIES_MAX):
            connection = self._connection
            if connection is None or connection.closed:
                self._sender = None
                connection = self._connection = await connect(self._options)
            waiting = asyncio.get_running_loop().call_later(ANSWER_S_MAX, _hang_up, connection)
            try:
                return await self._run(call, connection)
            except REPEATABLE as error:
                if attempt == RETRIES_MAX - 1:
                    raise map_error(error, self._options.place) from error
                await self._services.clock.sleep(self._services.rng.uniform(0.0, pause_s))
                pause_s = min(pause_s * 2, RETRY_PAUSE_S_MAX)
            except psycopg.Error as error:
                await self._give_up(call, connection, error, is_last=attempt > 0)
            finally:
                waiting.cancel()
        msg = f"{self._options.place}: {call.name} was tried too often; nothing was written"
        raise StoreError(msg)

    async def _run(self, call: Call, connection: Connection) -> Any:
        """Run the call; return its rows, or what the work returned."""
        if call.statement is not None:
            if self._sender is None:
                self._sender = await Sender.prepare(connection, call.statement)
            answer: asyncio.Future[Rows] = asyncio.get_running_loop().create_future()

            def answered(rows: Rows | None, error: psycopg.Error | None) -> None:
                if answer.done():
                    return
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(rows or [])

            self._sender.send(call.params, answered)
            return await answer
        if call.work is not None:
            async with connection.transaction():
                return await call.work(connection)
        return await run(connection, call.sql, call.params)

    async def _give_up(
        self, call: Call, connection: Connection, error: psycopg.Error, *, is_last: bool
    ) -> None:
        """Raise what is known of the call; return if it can be made again on a new connection."""
        is_stale = isinstance(error, FeatureNotSupported)  # a plan from before a migration
        is_broken = is_lost(connection, error)
        if is_stale or is_broken:
            await self.drop()
        if is_broken and call.is_write:
            raise self._uncertain(call, error) from error
        if is_last or not (is_stale or is_broken):
            raise map_error(error, self._options.place) from error

    def _uncertain(self, call: Call, error: psycopg.Error) -> CommitUncertain:
        msg = (
            f"{self._options.place}: the connection broke while {call.name!r} was under way "
            f"({told(error)}); it may or may not be written. Called again with the same arguments, "
            "it is written once"
        )
        return CommitUncertain(msg)

    async def drop(self) -> None:
        """Close the connection; the next call opens another."""
        await self._turn()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        connection, self._connection, self._sender = self._connection, None, None
        if connection is not None:
            await connection.close()
