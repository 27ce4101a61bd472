"""Rewriting a whole schema: one transaction that holds every table alone.

A process that took the store for a plain one may be connected, or come back, after it: the tables
then refuse what it writes (`sql/sealed.sql`), as it is not sealed. Nothing of that is in a store
that was encrypted from its first row on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import psycopg

from perdure.ids import TenantId
from perdure.model import KeyRow
from perdure.store import _rows as rows
from perdure.store.postgres import _queries as queries
from perdure.store.postgres._errors import map_error
from perdure.store.postgres._lanes import Connection, connect, run
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres.limits import REWRITING_LOCK_MS
from perdure.store.rewriting import REWRITTEN_AT_ONCE, RowKind, Stored, selecting, stored_of

_LOCKED = (
    "runs", "threads", "frames", "mail", "posts", "effects", "asks", "pages", "keys", "schedules",
    "copies", "tags", "collections", "marked", "erasures",
)  # fmt: skip
_OVER = ("DELETE FROM @.marked", "UPDATE @.collections SET is_under_way = false")
_JOIN = "r.tenant = t.tenant AND r.run_id = t.run_id"
_KEYS_OF = f"""
SELECT {rows.KEY_COLUMNS} FROM @.keys
WHERE (tenant, scope) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY tenant, scope, number
"""
_PUT_KEY = f"""
INSERT INTO @.keys ({rows.KEY_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, scope, number) DO NOTHING
"""


class PostgresRewriting:
    """The transaction over a whole schema."""

    def __init__(
        self,
        connection: Connection,
        options: PostgresOptions,
        now_us: Callable[[], int],
        scrub: Callable[[], Awaitable[list[str]]],
    ) -> None:
        """Work with a connection in a transaction that holds all tables."""
        self._connection = connection
        self._options = options
        self._scrub = scrub
        self.place = options.place
        self.now_us = now_us

    async def _run(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        return await run(self._connection, queries.of(sql, self._options), params)

    async def count(self, kind: RowKind) -> int:
        """Return how many rows of a kind there are."""
        [(count,)] = await self._run(f"SELECT count(*) FROM @.{kind.name}")
        return int(count)

    async def batches(self, kind: RowKind) -> AsyncIterator[list[Stored]]:
        """Yield all rows of a kind: a cursor does not see what is changed after it was opened."""
        width = len(kind.key)
        query = selecting(kind, kind.key, prefix="@.", join=_JOIN)
        await self._run(f"DECLARE rewritten NO SCROLL CURSOR FOR {query}")
        while found := await self._run(f"FETCH {REWRITTEN_AT_ONCE:d} FROM rewritten"):
            yield [stored_of(kind, row, width) for row in found]
        await self._run("CLOSE rewritten")

    async def replace(self, kind: RowKind, new: Sequence[tuple[Stored, Any]]) -> None:
        """Write rows anew."""
        sql = (
            f"UPDATE @.{kind.name} SET {', '.join(f'{name} = %s' for name in kind.changed)} "
            f"WHERE {' AND '.join(f'{name} = %s' for name in kind.key)}"
        )
        params = [(*kind.values(row), *stored.place) for stored, row in new]
        async with self._connection.cursor() as cursor:
            await cursor.executemany(queries.of(sql, self._options).encode(), params)

    async def read_keys(self, scopes: Sequence[tuple[TenantId, str]]) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number)."""
        params = ([tenant for tenant, _ in scopes], [scope for _, scope in scopes])
        return [rows.key_row(row) for row in await self._run(_KEYS_OF, params)]

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys where there are none; return those that stand."""
        for key in keys:
            rest = (key.key_id, key.wrapped, key.wrapped_by, key.created_at_us)
            await self._run(_PUT_KEY, (key.tenant, key.scope, key.number, *rest))
        wanted = {(key.tenant, key.scope, key.number) for key in keys}
        found = await self.read_keys([(key.tenant, key.scope) for key in keys])
        return [key for key in found if (key.tenant, key.scope, key.number) in wanted]

    async def commit(self) -> None:
        """Commit, and take sealed rows only from now on; see `Rewriting.commit`."""
        guard = files("perdure.store.postgres").joinpath("sql", "sealed.sql").read_text("utf-8")
        await self._connection.execute(queries.of(guard, self._options).encode())
        for sql in _OVER:
            await self._run(sql)
        await self._run("COMMIT")

    async def scrub(self) -> list[str]:
        """Write the tables anew."""
        return await self._scrub()


@asynccontextmanager
async def rewriting(
    options: PostgresOptions,
    now_us: Callable[[], int],
    scrub: Callable[[], Awaitable[list[str]]],
) -> AsyncIterator[PostgresRewriting]:
    """Begin a transaction over the whole schema; see `RewritableStore.rewriting`."""
    connection = await connect(options, plain=True)
    try:
        await run(connection, "BEGIN")
        await run(connection, f"SET LOCAL lock_timeout = {REWRITING_LOCK_MS:d}")
        tables = ", ".join(f"@.{name}" for name in _LOCKED)
        locking = f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"
        await run(connection, queries.of(locking, options))
        yield PostgresRewriting(connection, options, now_us, scrub)
    except psycopg.Error as error:
        raise map_error(error, options.place) from error
    finally:
        await connection.close()  # the server rolls back what was not committed
