"""Reads: functions over the read connection, one statement each."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import apsw
import msgspec

from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import AskRow, EffectRow, FrameRow, Mail, RunRow, RunStatus, ThreadRow, WorkerRow
from perdure.store import _rules as rules
from perdure.store._rows import (
    RUN_COLUMNS,
    THREAD_COLUMNS,
    WORKER_COLUMNS,
    Row,
    ask_row,
    effect_row,
    frame_row,
    mail_of,
    run_row,
    thread_row,
    worker_row,
)
from perdure.store.api import AskQuery, EffectQuery, RunQuery
from perdure.store.sqlite._columns import ASK_COLUMNS, ASKS_FROM, EFFECT_COLUMNS, EFFECTS_FROM
from perdure.store.sqlite._orders import next_token_at

_NEXT_READY = """
SELECT ready_at_us FROM perdure_runs
WHERE ready_at_us > ? AND (graph, version) IN (SELECT value ->> 0, value ->> 1 FROM
json_each(?)) ORDER BY ready_at_us LIMIT 1
"""
_PAIRS = "SELECT value ->> 0, value ->> 1 FROM json_each(?)"
_FRAMES = """
SELECT first_seq, count, token, at_us, CAST(body AS BLOB), CAST(prev_hash AS BLOB),
    CAST(hash AS BLOB) FROM perdure_frames
WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = :run) AND first_seq >= (
    SELECT coalesce(max(first_seq), 0) FROM perdure_frames
    WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = :run) AND first_seq <= :seq)
ORDER BY first_seq LIMIT :limit
"""
_SCAN = """
SELECT first_seq, count, token, at_us, CAST(body AS BLOB), CAST(prev_hash AS BLOB),
    CAST(hash AS BLOB) FROM perdure_frames
WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?) AND first_seq >= ?
ORDER BY first_seq LIMIT ?
"""
_MAIL = """
SELECT mail_id, kind, subject, body_wire, sender, at_us, post_id FROM perdure_mail
WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?) AND mail_id > ? ORDER BY mail_id
"""


class Filter:
    """The WHERE clause of a listing, built from what the query names."""

    def __init__(self) -> None:
        """Start with no condition."""
        self._terms: list[str] = []
        self.params: list[Any] = []

    def equals(self, column: str, value: object) -> None:
        """Require the value, unless it is None."""
        if value is not None:
            self.term(f"{column} = ?", value)

    def term(self, sql: str, *params: object) -> None:
        """Require a condition."""
        self._terms.append(sql)
        self.params.extend(params)

    def states(self, column: str, states: Sequence[StrEnum]) -> None:
        """Require any of the states (none: all), as literals for the partial indexes."""
        literals = [f"'{state.value}'" for state in states]
        if len(literals) == 1:
            self.term(f"{column} = {literals[0]}")
        elif literals:
            self.term(f"{column} IN ({', '.join(literals)})")

    def where(self) -> str:
        """Return the clause, with its keyword."""
        return f"WHERE {' AND '.join(self._terms)}" if self._terms else ""


def find_runs(db: apsw.Connection, query: RunQuery) -> list[RunRow]:
    """Return rows, newest first."""
    found = Filter()
    found.equals("tenant", query.tenant)
    found.equals("thread", query.thread)
    found.equals("graph", query.graph)
    found.equals("parent", query.parent)
    found.equals("holder", query.holder)
    found.states("status", query.statuses)
    if query.before is not None:
        found.term("run_id < ?", query.before)
    if query.due_us is not None:
        found.term("ready_at_us <= ?", query.due_us)
    if query.run_ids:
        names = msgspec.json.encode(query.run_ids).decode()
        found.term("run_id IN (SELECT value FROM json_each(?))", names)
    if query.except_graphs:
        graphs = msgspec.json.encode(query.except_graphs).decode()
        found.term(f"(graph, version) NOT IN ({_PAIRS})", graphs)
    # Few runs are due, or parked, whatever the order of the listing makes the planner believe.
    index = ""
    if query.due_us is not None:
        index = "INDEXED BY perdure_runs_ready"
    elif query.statuses == (RunStatus.NEEDS_DECISION,):
        index = "INDEXED BY perdure_runs_parked"
    sql = (
        f"SELECT {RUN_COLUMNS} FROM perdure_runs {index} {found.where()} "
        "ORDER BY run_id DESC LIMIT ?"
    )
    rows = db.execute(sql, (*found.params, rules.limit_of(query.limit))).fetchall()
    return [run_row(row) for row in rows]


def read_thread(db: apsw.Connection, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
    """Return the thread's row, or None."""
    sql = f"SELECT {THREAD_COLUMNS} FROM perdure_threads WHERE tenant = ? AND thread = ?"
    rows = db.execute(sql, (tenant, thread)).fetchall()
    return thread_row(rows[0]) if rows else None


def read_thread_runs(
    db: apsw.Connection, tenant: TenantId, thread: ThreadId, from_ordinal: int
) -> list[RunRow]:
    """Return the thread's runs with at least this ordinal, by ordinal."""
    sql = (
        f"SELECT {RUN_COLUMNS} FROM perdure_runs WHERE tenant = ? AND thread = ? AND ordinal >= ? "
        "ORDER BY ordinal"
    )
    return [run_row(row) for row in db.execute(sql, (tenant, thread, from_ordinal)).fetchall()]


def read_frames(
    db: apsw.Connection, run_id: RunId, from_seq: int, limit: int | None
) -> list[FrameRow]:
    """Return the frames that hold records from `from_seq` on.

    Raises:
        StoreCorrupt: frames are missing between.
    """
    params = {"run": run_id, "seq": from_seq, "limit": -1 if limit is None else limit}
    with db:  # frames and last seq of one moment
        rows = db.execute(_FRAMES, params).fetchall()
        last_seq = db.execute("SELECT last_seq FROM perdure_runs WHERE run_id = ?", (run_id,)).get
    frames = [frame_row(run_id, row) for row in rows]
    return rules.gap_free(run_id, frames, from_seq=from_seq, limit=limit, last_seq=last_seq or 0)


def scan_frames(db: apsw.Connection, run_id: RunId, from_seq: int, limit: int) -> list[FrameRow]:
    """Return the frames that begin at `from_seq` or later, as they are."""
    return [frame_row(run_id, row) for row in db.execute(_SCAN, (run_id, from_seq, limit))]


def read_mail(db: apsw.Connection, run_id: RunId, after: int) -> list[Mail]:
    """Return the run's unread messages with an id above `after`, in order of arrival."""
    return [mail_of(run_id, row) for row in db.execute(_MAIL, (run_id, after)).fetchall()]


_HELD_MAIL = (
    "SELECT r.run_id, m.mail_id, m.kind, m.subject, m.body_wire, m.sender, m.at_us, m.post_id "
    "FROM json_each(:seen) s JOIN perdure_runs r ON r.run_id = s.key "
    "JOIN perdure_mail m ON m.run_no = r.run_no AND m.mail_id > s.value "
    "WHERE r.holder = :worker AND r.status = 'running' ORDER BY m.mail_id"
)


def read_held_mail(
    db: apsw.Connection, worker_id: WorkerId, seen: Mapping[RunId, int]
) -> list[Mail]:
    """Return the unread messages above its mark to each run that the worker holds, by id."""
    params = {"seen": msgspec.json.encode(dict(seen)).decode(), "worker": worker_id}
    rows = db.execute(_HELD_MAIL, params).fetchall()
    return [mail_of(row[0], row[1:]) for row in rows]


def read_ask(db: apsw.Connection, ask_id: AskId) -> AskRow | None:
    """Return the ask, or None."""
    sql = f"SELECT {ASK_COLUMNS} FROM {ASKS_FROM} WHERE a.ask_id = ?"
    rows = db.execute(sql, (ask_id,)).fetchall()
    return ask_row(rows[0]) if rows else None


def find_asks(db: apsw.Connection, query: AskQuery) -> list[AskRow]:
    """Return asks, oldest first."""
    found = Filter()
    found.equals("a.tenant", query.tenant)
    found.equals("r.run_id", query.run_id)
    found.states("a.state", query.states)
    sql = (
        f"SELECT {ASK_COLUMNS} FROM {ASKS_FROM} {found.where()} "
        "ORDER BY a.asked_at_us, a.ask_no LIMIT ?"
    )
    rows = db.execute(sql, (*found.params, rules.limit_of(query.limit))).fetchall()
    return [ask_row(row) for row in rows]


def read_effect(db: apsw.Connection, effect_id: EffectId) -> EffectRow | None:
    """Return the effect, or None."""
    sql = f"SELECT {EFFECT_COLUMNS} FROM {EFFECTS_FROM} WHERE e.effect_id = ?"
    rows = db.execute(sql, (effect_id,)).fetchall()
    return effect_row(rows[0]) if rows else None


def read_effect_by_key(
    db: apsw.Connection, tenant: TenantId, business_key: str
) -> EffectRow | None:
    """Return the effect that holds the business key, or None."""
    sql = f"SELECT {EFFECT_COLUMNS} FROM {EFFECTS_FROM} WHERE e.tenant = ? AND e.business_key = ?"
    rows = db.execute(sql, (tenant, business_key)).fetchall()
    return effect_row(rows[0]) if rows else None


def find_effects(db: apsw.Connection, query: EffectQuery) -> list[EffectRow]:
    """Return effects, newest change first."""
    found = Filter()
    found.equals("e.tenant", query.tenant)
    found.equals("r.run_id", query.run_id)
    found.states("e.state", query.states)
    sql = (
        f"SELECT {EFFECT_COLUMNS} FROM {EFFECTS_FROM} {found.where()} "
        "ORDER BY e.changed_at_us DESC, e.effect_no DESC LIMIT ?"
    )
    rows = db.execute(sql, (*found.params, rules.limit_of(query.limit))).fetchall()
    return [effect_row(row) for row in rows]


def find_workers(db: apsw.Connection) -> list[WorkerRow]:
    """Return all known workers, oldest first."""
    sql = f"SELECT {WORKER_COLUMNS} FROM perdure_workers ORDER BY started_at_us, worker_id"
    return [worker_row(row) for row in db.execute(sql).fetchall()]


def next_ready_at(db: apsw.Connection, graphs: str, after_us: int) -> int | None:
    """Return when a claim of these graphs (JSON) may find more than at `after_us`."""
    ready_at: int | None = db.execute(_NEXT_READY, (after_us, graphs)).get
    token_at = next_token_at(db, after_us)
    return min((at for at in (ready_at, token_at) if at is not None), default=None)


def check(db: apsw.Connection) -> list[str]:
    """Return what `PRAGMA quick_check` finds wrong with the file; empty: nothing."""
    try:
        rows: list[Row] = db.execute("PRAGMA quick_check").fetchall()
    except apsw.CorruptError as error:
        return [str(error)]
    return [str(row[0]) for row in rows if row[0] != "ok"]
