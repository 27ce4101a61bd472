"""What erases: functions over an open transaction."""

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import ErasureBegun, ErasureRow, ExportRow, NewRun, ThreadRow
from perdure.store import _erasing_rules as rules
from perdure.store._rows import (
    ERASURE_COLUMNS,
    EXPORT_COLUMNS,
    THREAD_COLUMNS,
    erasure_params,
    erasure_row,
    export_params,
    export_row,
    thread_row,
)

_THREAD = f"SELECT {THREAD_COLUMNS} FROM perdure_threads WHERE tenant = ? AND thread = ?"
_UNFINISHED = """
SELECT run_id FROM perdure_runs WHERE tenant = ? AND thread = ?
    AND status NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY ordinal
"""
_OPEN = f"SELECT {ERASURE_COLUMNS} FROM perdure_erasures WHERE tenant = ? AND ended_at_us IS NULL"
_BEGUN = f"SELECT {ERASURE_COLUMNS} FROM perdure_erasures WHERE erasure_id = ?"
_BEGIN = f"INSERT INTO perdure_erasures ({ERASURE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_EMPTY = """
UPDATE perdure_threads SET erased = last_ordinal, base_ordinal = 0, base_seq = 0, graph = '',
    subject = NULL, pruned_at_us = 0 WHERE tenant = ? AND thread = ?
"""
_ERASABLE = """
SELECT r.run_no, r.ordinal, t.erased FROM perdure_runs AS r
JOIN perdure_threads AS t ON t.tenant = r.tenant AND t.thread = r.thread WHERE r.run_id = ?
"""
_BODY = "UPDATE perdure_frames SET body = ? WHERE run_no = ? AND first_seq = ?"
_REST = (
    "DELETE FROM perdure_mail WHERE run_no = ?",
    "DELETE FROM perdure_posts WHERE run_no = ?",
    "DELETE FROM perdure_effects WHERE run_no = ?",
    "DELETE FROM perdure_asks WHERE run_no = ?",
    """
    UPDATE perdure_runs SET start_key = NULL, input_digest = '', waits = NULL, failure = NULL
    WHERE run_no = ?
    """,
)
_OLD_KEYS = """
DELETE FROM perdure_keys WHERE tenant = :tenant AND scope = :scope AND number < (
    SELECT max(number) FROM perdure_keys WHERE tenant = :tenant AND scope = :scope)
"""
_NEWEST_KEY = """
SELECT key_id FROM perdure_keys WHERE tenant = ? AND scope = ? ORDER BY number DESC LIMIT 1
"""
_FORGET = (
    "DELETE FROM perdure_copies WHERE tenant = ? AND thread = ?",
    "DELETE FROM perdure_tags WHERE tenant = ? AND thread = ?",
)
_END = "UPDATE perdure_erasures SET ended_at_us = coalesce(ended_at_us, ?) WHERE erasure_id = ?"
_FIND = f"""
SELECT {ERASURE_COLUMNS} FROM perdure_erasures
WHERE (:tenant IS NULL OR tenant = :tenant) AND (NOT :open OR ended_at_us IS NULL)
ORDER BY begun_at_us, erasure_id
"""
_ABOUT = f"""
SELECT {THREAD_COLUMNS} FROM perdure_threads
WHERE tenant = ? AND subject = ? AND thread > ? ORDER BY thread LIMIT ?
"""
_NOTE = f"""
INSERT INTO perdure_exports ({EXPORT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (export_id) DO NOTHING
"""
_EXPORTS = f"""
SELECT {EXPORT_COLUMNS} FROM perdure_exports WHERE tenant IN ('', ?) AND thread IN ('', ?)
ORDER BY made_at_us, export_id
"""
_PARENT_SUBJECT = """
SELECT t.subject FROM perdure_runs AS r
JOIN perdure_threads AS t ON t.tenant = r.tenant AND t.thread = r.thread WHERE r.run_id = ?
"""
NAME_SUBJECT = """
UPDATE perdure_threads SET subject = ? WHERE tenant = ? AND thread = ? AND subject IS NULL
"""


# -- starts ----------------------------------------------------------------------------------------


def refused_start(db: apsw.Connection, run: NewRun) -> Exception | None:
    """Return why a start is refused that an erasure, or the thread's subject, speaks against."""
    if run.origin is None and not run.sealed_by and run.subject is None:
        return None
    key = (run.tenant, rules.thread_scope(run.thread))
    found = [row[0] for row in db.execute(_NEWEST_KEY, key)] if run.sealed_by else []
    return rules.refused_start(
        run,
        _thread(db, run.tenant, run.thread),
        origin=None if run.origin is None else _thread(db, run.tenant, run.origin),
        newest_key=found[0] if found else None,
    )


def name_subject(db: apsw.Connection, run: NewRun) -> None:
    """Say whom the thread of a run is about, if nobody has said it; a child: as its parent's."""
    subject = run.subject
    if subject is None and run.parent is not None:
        subject = next((row[0] for row in db.execute(_PARENT_SUBJECT, (run.parent,))), None)
    if subject is not None:
        db.execute(NAME_SUBJECT, (subject, run.tenant, run.thread))


def _thread(db: apsw.Connection, tenant: str, thread: str) -> ThreadRow | None:
    return next((thread_row(row) for row in db.execute(_THREAD, (tenant, thread))), None)


# -- erasures --------------------------------------------------------------------------------------


def begin(db: apsw.Connection, erasure: ErasureRow) -> ErasureBegun:
    """Write down what is erased, and up to which run."""
    for known in db.execute(_BEGUN, (erasure.erasure_id,)):
        return ErasureBegun(row=erasure_row(known))
    named = dict.fromkeys(each.thread for each in erasure.threads)
    found = (_thread(db, erasure.tenant, name) for name in named)
    threads = [row for row in found if row is not None]
    opened = [erasure_row(row) for row in db.execute(_OPEN, (erasure.tenant,))]
    begun = rules.begun(erasure, threads, _unfinished(db, threads), opened)
    if begun.row is not None:
        db.execute(_BEGIN, erasure_params(begun.row))
        for sql in (_EMPTY, *_FORGET):
            db.executemany(sql, [(row.tenant, row.thread) for row in threads])
    return begun


def _unfinished(db: apsw.Connection, threads: Sequence[ThreadRow]) -> Iterator[RunId]:
    for row in threads:
        for (run_id,) in db.execute(_UNFINISHED, (row.tenant, row.thread)).fetchall():
            yield RunId(str(run_id))


def erase_run(
    db: apsw.Connection, run_id: RunId, bodies: Sequence[tuple[int, bytes]], *, is_last: bool
) -> None:
    """Erase frames of a run, and at last the rest of it."""
    found: list[tuple[Any, ...]] = db.execute(_ERASABLE, (run_id,)).fetchall()
    rules.check_erasable(run_id, (found[0][1], found[0][2]) if found else None)
    run_no = found[0][0]
    db.executemany(_BODY, [(body, run_no, first_seq) for first_seq, body in bodies])
    for sql in _REST if is_last else ():
        db.execute(sql, (run_no,))


def drop_keys(db: apsw.Connection, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
    """Remove all data keys of threads but the newest of each."""
    before = db.total_changes()
    for thread in set(threads):
        db.execute(_OLD_KEYS, {"tenant": tenant, "scope": rules.thread_scope(thread)})
    return db.total_changes() - before


def end(db: apsw.Connection, erasure_id: str, at_us: int) -> None:
    """Write down that an erasure was done."""
    if not db.execute(_BEGUN, (erasure_id,)).fetchall():
        raise rules.no_erasure(erasure_id)
    db.execute(_END, (at_us, erasure_id))


def find_erasures(
    db: apsw.Connection, tenant: TenantId | None, *, open_only: bool
) -> list[ErasureRow]:
    """Return erasures, oldest first."""
    params = {"tenant": tenant, "open": open_only}
    return [erasure_row(row) for row in db.execute(_FIND, params)]


def find_threads(
    db: apsw.Connection, tenant: TenantId, subject: str, after: str, limit: int
) -> list[ThreadRow]:
    """Return the threads that are about a subject, by name."""
    return [thread_row(row) for row in db.execute(_ABOUT, (tenant, subject, after, limit))]


def note_export(db: apsw.Connection, export: ExportRow) -> None:
    """Write down that an export was made."""
    db.execute(_NOTE, export_params(export))


def find_exports(db: apsw.Connection, tenant: TenantId, thread: ThreadId) -> list[ExportRow]:
    """Return exports that may hold the thread, oldest first."""
    return [export_row(row) for row in db.execute(_EXPORTS, (tenant, thread))]
