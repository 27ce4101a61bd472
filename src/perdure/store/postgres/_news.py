"""News of other processes, and the session that proves this one's workers alive.

One connection listens for notifications and holds a session lock for each worker of this process:
the server lets the lock go with the connection, however the process dies. When it breaks, it is
opened again, the locks are taken again, and whoever waits looks for himself.

A worker's row names its lock, the server's start, and its machine. A lock counts as let go only
under that same start: after a restart of the server nobody holds a lock, until each has come back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from perdure.clock import Services
from perdure.errors import PerdureError, StoreLocked
from perdure.ids import WorkerId
from perdure.store.postgres._death import this_machine
from perdure.store.postgres._errors import map_error
from perdure.store.postgres._lanes import Connection, connect
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres.limits import (
    BLIND_POLL_S,
    RECONNECT_PAUSE_S,
    RECONNECT_PAUSE_S_MAX,
)

log = logging.getLogger("perdure")

LOCK_KEY = "hashtextextended('perdure.worker.' || {schema} || '.' || {worker}, 0::bigint)"
_END_HOLDERS = """
SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l, (SELECT {key} AS key) AS k
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = k.key
"""
_SERVER = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text"


def channel_of(schema: str) -> str:
    """Return the channel of a schema's notifications."""
    return f"perdure_{schema}"


class News:
    """The listening connection of one store object."""

    def __init__(
        self,
        options: PostgresOptions,
        services: Services,
        *,
        own_name: str,
        heard: Callable[[], None],
        proven: Callable[[WorkerId, str], Awaitable[None]],
    ) -> None:
        """Prepare; `start` opens the connection.

        Args:
            options: where.
            services: time.
            own_name: the payload of this object's own notifications, which are passed over.
            heard: called for each notification of somebody else, and while none can come.
            proven: stores what a worker's row says of its lock, when it was taken once more.
        """
        self._options = options
        self._services = services
        self._own_name = own_name
        self._heard = heard
        self._proven = proven
        self._workers: set[WorkerId] = set()
        self._connection: Connection | None = None
        self._server = ""
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._is_free = asyncio.Lock()
        self._is_told = True

    async def start(self) -> None:
        """Open the connection and begin to listen.

        Raises:
            StoreUnavailable: it can't be opened.
        """
        await self._open()
        self._is_told = True
        self._task = asyncio.create_task(self._for_ever(), name="perdure-news")

    async def close(self) -> None:
        """Stop listening and let every lock go. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._workers.clear()
        await self._drop()

    # -- locks -------------------------------------------------------------------------------------

    async def hold(self, worker_id: WorkerId) -> str:
        """Take the worker's lock and keep it; return what its row says of it.

        Raises:
            StoreLocked: a living worker has the same id.
            StoreUnavailable: the server can't be reached.
        """
        if not self._options.has_liveness:
            return ""
        async with self._is_free:
            connection = await self._quiet()
            try:
                if worker_id not in self._workers:
                    await self._lock(connection, worker_id)
            except psycopg.Error as error:
                raise map_error(error, self._options.place) from error
            finally:
                self._listen_on()
            self._workers.add(worker_id)
            return self._liveness(worker_id)

    async def let_go(self, worker_id: WorkerId) -> None:
        """Let the worker's lock go."""
        if worker_id not in self._workers:
            return
        async with self._is_free:
            self._workers.discard(worker_id)
            with suppress(PerdureError, psycopg.Error):  # with the connection, the lock is gone
                connection = await self._quiet()
                await connection.execute(
                    f"SELECT pg_advisory_unlock({_key()})", (self._options.schema, worker_id)
                )
            self._listen_on()

    def _liveness(self, worker_id: WorkerId) -> str:
        return f"{self._server}:{worker_id}@{this_machine()}"

    async def _lock(self, connection: Connection, worker_id: WorkerId) -> None:
        cursor = await connection.execute(
            f"SELECT pg_try_advisory_lock({_key()})", (self._options.schema, worker_id)
        )
        [(is_held,)] = await cursor.fetchall()
        if not is_held:
            msg = (
                f"worker {worker_id!r} is alive elsewhere; nothing was written. "
                "Give each its own id"
            )
            raise StoreLocked(msg, worker_id=worker_id)

    # -- the connection ----------------------------------------------------------------------------

    async def _open(self) -> Connection:
        connection = await connect(self._options, plain=True)
        self._is_told = False
        try:
            await connection.execute(f'LISTEN "{channel_of(self._options.schema)}"')
            cursor = await connection.execute(_SERVER)
            [(self._server,)] = await cursor.fetchall()
            for worker_id in self._workers:
                await self._lock_again(connection, worker_id)
        except psycopg.Error as error:
            await connection.close()
            raise map_error(error, self._options.place) from error
        self._connection = connection
        return connection

    async def _lock_again(self, connection: Connection, worker_id: WorkerId) -> None:
        """Take the lock once more.

        A server that did not see the network break keeps the session that had it: nobody else can
        have it, as ids of workers are unique, so that session is ended.
        """
        params = (self._options.schema, worker_id)
        await connection.execute(_END_HOLDERS.format(key=_key()), params)
        await connection.execute("SET lock_timeout = '5s'")
        await connection.execute(f"SELECT pg_advisory_lock({_key()})", params)
        await connection.execute("SET lock_timeout = 0")

    async def _quiet(self) -> Connection:
        """Return the connection with nobody listening on it."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        if self._connection is None or self._connection.closed:
            return await self._open()
        return self._connection

    def _listen_on(self) -> None:
        if self._listening is None and self._connection is not None:
            self._listening = asyncio.create_task(self._listen(self._connection))

    async def _listen(self, connection: Connection) -> None:
        async for notification in connection.notifies():
            if notification.payload != self._own_name:
                self._heard()

    async def _drop(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _for_ever(self) -> None:
        pause_s = RECONNECT_PAUSE_S
        while True:
            async with self._is_free:
                try:
                    if self._connection is None or self._connection.closed:
                        await self._drop()
                        await self._open()
                    self._listen_on()
                    if not self._is_told:
                        await self._tell_locks()
                        self._is_told = True
                        self._heard()  # what was notified meanwhile is lost
                    pause_s = RECONNECT_PAUSE_S
                except PerdureError as error:
                    if pause_s == RECONNECT_PAUSE_S:
                        log.warning("%s; waiters look for themselves meanwhile", error)
            listening = self._listening
            if listening is not None:
                # Ends when the connection breaks, or when somebody needs it for himself.
                await asyncio.wait({listening})
                if not listening.cancelled() and listening.exception() is not None:
                    await self._break()
                continue
            await self._services.clock.sleep(min(pause_s, BLIND_POLL_S))
            pause_s = min(pause_s * 2, RECONNECT_PAUSE_S_MAX)
            self._heard()

    async def _break(self) -> None:
        async with self._is_free:
            await self._drop()

    async def _tell_locks(self) -> None:
        for worker_id in self._workers:
            await self._proven(worker_id, self._liveness(worker_id))


def _key() -> str:
    return LOCK_KEY.format(schema="%s::text", worker="%s::text")
