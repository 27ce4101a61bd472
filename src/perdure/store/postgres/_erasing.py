"""The part of a PostgreSQL store that erases; what writes is in `sql/0008_erasure.sql`."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.errors import InsufficientPrivilege

from perdure.errors import Conflict
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import ErasureBegun, ErasureRow, ExportRow, NewRun, ThreadRow
from perdure.store import _erasing_rules as rules
from perdure.store import _rows as rows
from perdure.store.postgres import _queries as queries
from perdure.store.postgres._errors import map_error
from perdure.store.postgres._lanes import Connection, Lanes, connect, run
from perdure.store.postgres._url import PostgresOptions

_SUBJECT = "subject:"
_HOLDING = (
    "runs", "threads", "frames", "mail", "posts", "effects", "asks", "pages", "keys", "schedules",
    "erasures", "exports", "copies", "tags", "marked",
)  # fmt: skip
"""Tables with something of users in them."""

_BEGUN = f"SELECT {rows.ERASURE_COLUMNS} FROM @.erasures WHERE erasure_id = %s"
_OPEN = f"SELECT {rows.ERASURE_COLUMNS} FROM @.erasures WHERE tenant = %s AND ended_at_us IS NULL"
_ONE_AT_A_TIME = (
    "SELECT pg_advisory_xact_lock(hashtextextended('@erase' || chr(1) || %s, 0::bigint))"
)
_LOCK = f"SELECT {rows.THREAD_COLUMNS} FROM @.lock_erased(%s::text, %s::text[])"
_UNFINISHED = """
SELECT run_id FROM @.runs WHERE tenant = %s AND thread = ANY (%s::text[])
    AND status NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY thread, ordinal
"""
_BEGIN = f"INSERT INTO @.erasures ({rows.ERASURE_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
_EMPTY = """
UPDATE @.threads SET erased = last_ordinal, base_ordinal = 0, base_seq = 0, graph = '',
    subject = NULL, pruned_at_us = 0 WHERE tenant = %s AND thread = ANY (%s::text[])
"""
_FORGET = (
    "DELETE FROM @.copies WHERE tenant = %s AND thread = ANY (%s::text[])",
    "DELETE FROM @.tags WHERE tenant = %s AND thread = ANY (%s::text[])",
)
_ERASE = "SELECT * FROM @.erase_run(%s::text, %s::bigint[], %s::bytea[], %s::boolean)"
_DROP_KEYS = """
DELETE FROM @.keys AS k WHERE k.tenant = %s AND k.scope = ANY (%s::text[]) AND k.number < (
    SELECT max(n.number) FROM @.keys AS n WHERE n.tenant = k.tenant AND n.scope = k.scope)
RETURNING 1
"""
_END = """
UPDATE @.erasures SET ended_at_us = coalesce(ended_at_us, %s) WHERE erasure_id = %s RETURNING 1
"""
_FIND = f"""
SELECT {rows.ERASURE_COLUMNS} FROM @.erasures
WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    AND (NOT %(open)s::boolean OR ended_at_us IS NULL)
ORDER BY begun_at_us, erasure_id
"""
_ABOUT = f"""
SELECT {rows.THREAD_COLUMNS} FROM @.threads
WHERE tenant = %s AND subject = %s AND thread > %s ORDER BY thread LIMIT %s
"""
_NOTE = f"""
INSERT INTO @.exports ({rows.EXPORT_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_EXPORTS = f"""
SELECT {rows.EXPORT_COLUMNS} FROM @.exports WHERE tenant IN ('', %s) AND thread IN ('', %s)
ORDER BY made_at_us, export_id
"""
# As text a row shows its bytes in hexadecimal, and its texts as they are.
_COUNT = """
SELECT n.place, count(*) FROM (SELECT t::text AS shown FROM @.{table} AS t) AS x,
    unnest(%s::text[], %s::text[]) WITH ORDINALITY AS n(plain, hex, place)
WHERE position(n.hex IN x.shown) > 0 OR n.plain <> '' AND position(n.plain IN x.shown) > 0
GROUP BY n.place
"""


def refusal(new: NewRun, outcome: str) -> Conflict | None:
    """Return the refusal that `start` names; None: it is another outcome."""
    if outcome == "origin":
        return rules.origin_erased(new)
    if outcome == "key":
        return rules.key_retired(new)
    if outcome.startswith(_SUBJECT):
        return rules.other_subject(new, outcome.removeprefix(_SUBJECT))
    return None


class _Beginning:
    """The transaction that begins an erasure."""

    def __init__(self, options: PostgresOptions, erasure: ErasureRow) -> None:
        """Prepare; call it with a connection in an open transaction."""
        self._options = options
        self._erasure = erasure

    async def __call__(self, connection: Connection) -> ErasureBegun:
        """Write the intent, and empty the threads; see `ErasingStore.begin_erasure`."""
        erasure, tenant = self._erasure, self._erasure.tenant

        async def ask(sql: str, *params: Any) -> list[tuple[Any, ...]]:
            return await run(connection, queries.of(sql, self._options), params)

        await ask(_ONE_AT_A_TIME, tenant)
        for known in await ask(_BEGUN, erasure.erasure_id):
            return ErasureBegun(row=rows.erasure_row(known))
        names = [each.thread for each in erasure.threads]
        threads = [rows.thread_row(row) for row in await ask(_LOCK, tenant, names)]
        unfinished = [RunId(row[0]) for row in await ask(_UNFINISHED, tenant, names)]
        opened = [rows.erasure_row(row) for row in await ask(_OPEN, tenant)]
        begun = rules.begun(erasure, threads, unfinished, opened)
        if begun.row is not None:
            await ask(_BEGIN, *rows.erasure_params(begun.row))
            for sql in (_EMPTY, *_FORGET):
                await ask(sql, tenant, names)
        return begun


class PostgresErasing:
    """The part of a PostgreSQL store that erases."""

    _options: PostgresOptions

    def _call(self, name: str, sql: str, params: Any = (), *, is_write: bool = False) -> Any:
        raise NotImplementedError

    def _calls(self) -> Lanes:
        raise NotImplementedError

    async def begin_erasure(self, erasure: ErasureRow) -> ErasureBegun:
        """Write down what is erased; see `ErasingStore.begin_erasure`."""
        beginning = _Beginning(self._options, erasure)
        begun: ErasureBegun = await self._calls().work("begin_erasure", beginning)
        return begun

    async def erase_run(
        self, run_id: RunId, bodies: Sequence[tuple[int, bytes]], *, is_last: bool
    ) -> None:
        """Erase frames of a run, and at last the rest of it; see `ErasingStore.erase_run`."""
        params = (run_id, [each[0] for each in bodies], [each[1] for each in bodies], is_last)
        found = await self._call("erase_run", _ERASE, params, is_write=True)
        rules.check_erasable(run_id, found[0] if found else None)

    async def drop_keys(self, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
        """Remove all data keys of threads but the newest; see `ErasingStore.drop_keys`."""
        params = (tenant, [rules.thread_scope(thread) for thread in threads])
        return len(await self._call("drop_keys", _DROP_KEYS, params, is_write=True))

    async def end_erasure(self, erasure_id: str, *, at_us: int) -> None:
        """Write down that an erasure was done; see `ErasingStore.end_erasure`."""
        if not await self._call("end_erasure", _END, (at_us, erasure_id), is_write=True):
            raise rules.no_erasure(erasure_id)

    async def find_erasures(
        self, tenant: TenantId | None = None, *, open_only: bool = False
    ) -> list[ErasureRow]:
        """Return erasures, oldest first; see `ErasingStore.find_erasures`."""
        found = await self._call("erasures", _FIND, {"tenant": tenant, "open": open_only})
        return [rows.erasure_row(row) for row in found]

    async def find_threads(
        self, tenant: TenantId, subject: str, *, after: str = "", limit: int = 1000
    ) -> list[ThreadRow]:
        """Return the threads that are about a subject, by name."""
        found = await self._call("threads", _ABOUT, (tenant, subject, after, limit))
        return [rows.thread_row(row) for row in found]

    async def note_export(self, export: ExportRow) -> None:
        """Write down that an export was made; see `ErasingStore.note_export`."""
        await self._call("note_export", _NOTE, rows.export_params(export), is_write=True)

    async def find_exports(self, tenant: TenantId, thread: ThreadId) -> list[ExportRow]:
        """Return exports that may hold the thread, oldest first."""
        found = await self._call("exports", _EXPORTS, (tenant, thread))
        return [rows.export_row(row) for row in found]

    async def scrub(self) -> list[str]:
        """Write the tables anew; see `ErasingStore.scrub`."""
        connection = await connect(self._options, plain=True)
        left = ["the server's write-ahead log, replicas and backups, for as long as they are kept"]
        try:
            await connection.set_autocommit(True)  # psycopg's form
            for table in _HOLDING:
                vacuum = queries.of(f"VACUUM (FULL) @.{table}", self._options)
                await connection.execute(vacuum.encode())
            try:
                await connection.execute(b"CHECKPOINT")
            except InsufficientPrivilege:
                left.append("the files of the old tables, until the server's next checkpoint")
        except psycopg.Error as error:
            raise map_error(error, self._options.place) from error
        finally:
            await connection.close()
        return left

    async def count_bytes(self, needles: Sequence[bytes]) -> list[int]:
        """Return in how many rows byte strings stand; see `ErasingStore.count_bytes`."""
        counts = [0] * len(needles)
        params = ([_plain(each) for each in needles], [each.hex() for each in needles])
        for table in _HOLDING if needles else ():
            sql = _COUNT.format(table=table)
            for place, count in await self._call("count", sql, params):
                counts[place - 1] += count
        return counts


def _plain(needle: bytes) -> str:
    """Return a needle as text columns would show it; empty: they could not."""
    text = needle.decode("utf-8", "ignore")
    return text if text.encode() == needle and "\0" not in text else ""
