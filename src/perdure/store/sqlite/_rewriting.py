"""Rewriting a whole file: one transaction, under a lock that nobody else's connection can share.

Theory: in WAL mode each connection keeps a shared lock on the file for as long as it is open. With
`locking_mode=EXCLUSIVE` the first write takes that lock alone, which fails while anybody else has
the file open, idle or not, and keeps it until the connection is closed: so no process that took the
store for a plain one can be there afterwards, and none can come before the file was written anew.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import apsw

from perdure.clock import Clock
from perdure.errors import StoreLocked
from perdure.ids import TenantId
from perdure.model import KeyRow
from perdure.store.api import KEYS_MAX
from perdure.store.rewriting import REWRITTEN_AT_ONCE, RowKind, Stored, selecting, stored_of
from perdure.store.sqlite._connect import connect_scrubber
from perdure.store.sqlite._erasing_store import scrub
from perdure.store.sqlite._keys import put_keys, read_keys
from perdure.store.sqlite._os_thread import ConnectionThread
from perdure.store.sqlite._url import SqliteOptions

_KEYS = {
    "schedules": ("tenant", "name"),
    "tags": ("tenant", "thread", "name"),
    "posts": ("run_no", "post_id"),
}
"""Tables whose rows are named by columns that may change: they are few, and read at once."""


class SqliteRewriting:
    """The transaction over a whole file."""

    def __init__(self, thread: ConnectionThread, options: SqliteOptions, clock: Clock) -> None:
        """Work with the connection of a thread that holds the file alone."""
        self._thread = thread
        self._clock = clock
        self.place = str(options.path)

    def now_us(self) -> int:
        """Return the time by this host's clock."""
        return self._clock.now_us()

    async def count(self, kind: RowKind) -> int:
        """Return how many rows of a kind there are."""
        sql = f"SELECT count(*) FROM perdure_{kind.name}"
        [(count,)] = await self._thread.call("count", lambda db: db.execute(sql).fetchall())
        return int(count or 0)

    async def batches(self, kind: RowKind) -> AsyncIterator[list[Stored]]:
        """Yield all rows of a kind; see `Rewriting.batches`."""
        key = _KEYS.get(kind.name)
        if key is not None:
            sql = _select(kind, key)
            found = await self._thread.call("rows", lambda db: db.execute(sql).fetchall())
            yield [stored_of(kind, row, len(key)) for row in found]
            return
        sql = f"{_select(kind, ('rowid',))} WHERE t.rowid > ? ORDER BY t.rowid LIMIT ?"
        last = 0
        while found := await self._thread.call("rows", partial(_page, sql, last)):
            last = found[-1][0]
            yield [stored_of(kind, row, 1) for row in found]

    async def replace(self, kind: RowKind, new: Sequence[tuple[Stored, Any]]) -> None:
        """Write rows anew."""
        key = _KEYS.get(kind.name, ("rowid",))
        sql = (
            f"UPDATE perdure_{kind.name} SET {', '.join(f'{name} = ?' for name in kind.changed)} "
            f"WHERE {' AND '.join(f'{name} = ?' for name in key)}"
        )
        params = [(*kind.values(row), *stored.place) for stored, row in new]
        await self._thread.call("replace", lambda db: db.executemany(sql, params))

    async def read_keys(self, scopes: Sequence[tuple[TenantId, str]]) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number)."""
        most = KEYS_MAX * len(scopes)
        return await self._thread.call("keys", lambda db: read_keys(db, scopes, None, most))

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys where there are none; return those that stand."""
        return await self._thread.call("put_keys", lambda db: put_keys(db, keys))

    async def commit(self) -> None:
        """Commit; see `Rewriting.commit`."""
        await self._thread.call("commit", _commit)

    async def scrub(self) -> list[str]:
        """Write the file anew, cut its log."""
        return await self._thread.call("scrub", scrub)


def _select(kind: RowKind, key: Sequence[str]) -> str:
    return selecting(kind, key, prefix="perdure_", join="r.run_no = t.run_no")


def _page(sql: str, last: int, db: apsw.Connection) -> list[tuple[Any, ...]]:
    return db.execute(sql, (last, REWRITTEN_AT_ONCE)).fetchall()


def _commit(db: apsw.Connection) -> None:
    db.execute("DELETE FROM perdure_marked")
    db.execute("UPDATE perdure_collections SET is_under_way = 0")
    db.execute("COMMIT")


def _connect_alone(options: SqliteOptions) -> apsw.Connection:
    db = connect_scrubber(options)
    try:
        db.set_busy_handler(None)  # who has it open stays longer than anybody waits
        db.pragma("locking_mode", "exclusive")
        db.execute("BEGIN EXCLUSIVE")
    except apsw.BusyError as error:
        db.close()
        msg = (
            f"another process, or another part of this one, has {options.path} open; nothing was "
            f"written. End it first; look at: fuser {options.path}"
        )
        raise StoreLocked(msg, path=str(options.path)) from error
    except BaseException:
        db.close()
        raise
    return db


@asynccontextmanager
async def rewriting(options: SqliteOptions, clock: Clock) -> AsyncIterator[SqliteRewriting]:
    """Begin a transaction over the whole file; see `RewritableStore.rewriting`."""
    path = options.path
    thread = ConnectionThread(
        f"perdure-rewriting {path.name}", path, lambda: _connect_alone(options)
    )
    await thread.open()
    try:
        yield SqliteRewriting(thread, options, clock)
    finally:
        await thread.close()  # rolls back what was not committed
