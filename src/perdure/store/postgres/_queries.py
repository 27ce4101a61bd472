"""Statements and how their rows are read; the writes are in `sql/0003_writes.sql`."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from perdure.ids import EffectId
from perdure.model import (
    AppendOutcome,
    AskRow,
    EffectRow,
    EffectState,
    Fenced,
    FrameRow,
    KeyTaken,
    Mail,
    RunRow,
    WorkerRow,
)
from perdure.store import _rows as rows
from perdure.store import _rules as rules
from perdure.store.api import AskQuery, EffectQuery, RunQuery
from perdure.store.postgres._schema import qualified
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres._wire import text_out

_PHYSICAL = {
    "ready_at_us": "CASE WHEN {0}status = 'running' THEN {0}lease_until_us ELSE {0}ready_at_us END"
}


def _columns(struct: type[msgspec.Struct], prefix: str = "") -> str:
    names = [field.name for field in msgspec.structs.fields(struct)]
    return ", ".join(_PHYSICAL.get(name, "{0}" + name).format(prefix) for name in names)


RUN = _columns(RunRow)
RUN_OF_RESULT = _columns(RunRow, "(x.run).")
EFFECT = _columns(EffectRow)
ASK = _columns(AskRow)
WORKER = rows.WORKER_COLUMNS
THREAD = rows.THREAD_COLUMNS
FRAME = "f.first_seq, f.count, f.token, f.at_us, f.body, f.prev_hash, f.hash"
MAIL = "m.mail_id, m.kind, m.subject, m.body_wire, m.sender, m.at_us, m.post_id"

APPEND_TYPES = ("jsonb", "bytea", "jsonb", "jsonb", "jsonb", "jsonb")
APPEND_PREPARED = "SELECT * FROM @.commit_frames($1, $2, $3, $4, $5, $6)"
APPEND = "SELECT * FROM @.commit_frames(" + ", ".join(f"%s::{kind}" for kind in APPEND_TYPES) + ")"
PUT_PAGES = "SELECT @.put_pages(%s::text, %s::jsonb, %s::bytea, %s::bigint)"
# In the order of the keys, so that two writers of the same ones do not wait for each other.
PUT_KEYS = f"""
INSERT INTO @.keys ({rows.KEY_COLUMNS})
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bytea[], %s::text[],
    %s::bigint[]) AS n (tenant, scope, number)
ORDER BY n.tenant COLLATE "C", n.scope COLLATE "C", n.number
ON CONFLICT (tenant, scope, number) DO NOTHING
"""
REWRAP_KEY = """
UPDATE @.keys SET wrapped = %s, wrapped_by = %s
WHERE tenant = %s AND scope = %s AND number = %s AND key_id = %s AND wrapped = %s
RETURNING 1
"""
FIND_KEYS = f"""
SELECT {rows.KEY_COLUMNS} FROM @.keys
WHERE %(tenant)s::text IS NULL
    OR (tenant, scope, number) > (%(tenant)s, %(scope)s, %(number)s::bigint)
ORDER BY tenant, scope, number LIMIT %(limit)s
"""
READ_KEYS = f"""
SELECT {rows.KEY_COLUMNS} FROM @.keys
WHERE (tenant, scope) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY tenant, scope, number
"""
READ_PAGES = "SELECT hash, body FROM @.pages WHERE tenant = %s AND hash = ANY (%s::bytea[])"
START_PAGED = (
    f"SELECT x.outcome, x.cancelled, {RUN_OF_RESULT} "
    "FROM @.start_paged(%s::jsonb, %s::bytea, %s::jsonb, %s::bigint) AS x"
)
START = f"SELECT x.outcome, x.cancelled, {RUN_OF_RESULT} FROM @.start(%s::jsonb, %s::bytea) AS x"
CLAIM = f"SELECT {RUN} FROM @.claim(%s::text, %s::jsonb, %s::bigint, %s::bigint, %s::int, %s::int)"
RENEW = "SELECT * FROM @.renew(%s::text, %s::jsonb, %s::bigint, %s::bigint)"
DUE = (
    "SELECT tenant, run_id, graph, token FROM @.due(%s::jsonb, %s::bigint, %s::int, %s::int, "
    "%s::boolean, %s::boolean, %s::jsonb)"
)
CLAIM_CHOSEN = (
    f"SELECT {RUN} FROM @.claim_chosen(%s::text, %s::jsonb, %s::bigint, %s::bigint, %s::int)"
)
POSTPONE = (
    "UPDATE @.runs SET status = 'pending', holder = NULL, lease_until_us = NULL, ready_at_us = %s "
    "WHERE run_id = %s"
)
LOOK_AT_LEASES = "SELECT @.look_at_leases(%s::bigint, %s::int)"
TAKE = f"SELECT {RUN} FROM @.take(%s::text, %s::text, %s::bigint, %s::bigint, %s::bigint)"
POST = f"SELECT x.is_repeat, {RUN_OF_RESULT} FROM @.post(%s::jsonb, %s::bytea) AS x"
LOOK = "SELECT token, holder, last_seq, status FROM @.runs WHERE run_id = %s"
LOCK = f"{LOOK} FOR UPDATE"
HAS_FRAME = (
    "SELECT 1 FROM @.frames WHERE tenant = %s AND run_id = %s AND first_seq = %s AND hash = %s"
)
READ_RUN = f"SELECT {RUN} FROM @.runs WHERE run_id = %s"
READ_ASK = f"SELECT {ASK} FROM @.asks WHERE ask_id = %s"
READ_EFFECT = f"SELECT {EFFECT} FROM @.effects WHERE effect_id = %s"
READ_EFFECT_BY_KEY = f"SELECT {EFFECT} FROM @.effects WHERE tenant = %s AND business_key = %s"
READ_THREAD = f"SELECT {THREAD} FROM @.threads WHERE tenant = %s AND thread = %s"
READ_THREAD_RUNS = (
    f"SELECT {RUN} FROM @.runs WHERE tenant = %s AND thread = %s AND ordinal >= %s ORDER BY ordinal"
)
# The frame that holds the first wanted record may begin before it. One statement: frames and last
# seq are of one moment.
READ_FRAMES = f"""
WITH run AS MATERIALIZED (SELECT tenant, run_id, last_seq FROM @.runs WHERE run_id = %(run)s)
SELECT run.last_seq, {FRAME} FROM run LEFT JOIN LATERAL (
    SELECT * FROM @.frames AS f
    WHERE f.tenant = run.tenant AND f.run_id = run.run_id AND f.first_seq >= coalesce((
        SELECT max(b.first_seq) FROM @.frames AS b
        WHERE b.tenant = run.tenant AND b.run_id = run.run_id AND b.first_seq <= %(seq)s), 0)
    ORDER BY f.first_seq LIMIT %(limit)s
) AS f ON true ORDER BY f.first_seq
"""
SCAN_FRAMES = (
    f"SELECT {FRAME} FROM @.runs AS r JOIN @.frames AS f ON f.tenant = r.tenant "
    "AND f.run_id = r.run_id WHERE r.run_id = %s AND f.first_seq >= %s "
    "ORDER BY f.first_seq LIMIT %s"
)
READ_MAIL = f"""
SELECT r.run_id, {MAIL} FROM @.runs AS r JOIN @.mail AS m ON m.tenant = r.tenant
    AND m.run_id = r.run_id WHERE r.run_id = %s AND m.mail_id > %s ORDER BY m.mail_id
"""
READ_HELD_MAIL = f"""
SELECT r.run_id, {MAIL} FROM jsonb_each(%s::jsonb) AS s
JOIN @.runs AS r ON r.run_id = s.key AND r.holder = %s AND r.status = 'running'
JOIN @.mail AS m ON m.tenant = r.tenant AND m.run_id = r.run_id AND m.mail_id > s.value::bigint
ORDER BY m.mail_id
"""
PUT_WORKER = f"""
WITH old AS (DELETE FROM @.workers WHERE seen_at_us < %(oldest)s AND worker_id <> %(worker_id)s)
INSERT INTO @.workers ({WORKER})
VALUES (%(worker_id)s, %(host)s, %(pid)s, %(graphs)s, %(started_at_us)s, %(seen_at_us)s,
    %(liveness)s, %(is_draining)s, %(concurrency)s, %(shapes)s)
ON CONFLICT (worker_id) DO UPDATE SET host = excluded.host, pid = excluded.pid,
    graphs = excluded.graphs, started_at_us = excluded.started_at_us,
    seen_at_us = excluded.seen_at_us, liveness = excluded.liveness,
    is_draining = excluded.is_draining, concurrency = excluded.concurrency,
    shapes = excluded.shapes
"""
FIND_WORKERS = f"SELECT {WORKER} FROM @.workers ORDER BY started_at_us, worker_id"
DROP_WORKERS = "SELECT * FROM @.drop_workers(%s::text[], %s::bigint, %s::boolean)"
# Only those whose lock is free at this very moment; who comes back meanwhile waits for it.
DROP_DEAD = """
SELECT * FROM @.drop_workers(ARRAY(
    SELECT w.worker_id FROM unnest(%s::text[]) AS w(worker_id)
    WHERE pg_try_advisory_xact_lock({key})
), %s::bigint, %s::boolean)
"""
# Workers, and whether each is dead: nobody holds its lock, though the server it was taken on runs.
FIND_DEAD = """
SELECT w.worker_id, starts_with(w.liveness,
        (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text
        || ':' || w.worker_id || '@')
    AND NOT EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND ((l.classid::bigint << 32) | l.objid::bigint) = {key}),
    split_part(w.liveness, '@', 2), w.pid
FROM @.workers AS w
"""
# A running run's indexed time is a lower bound: the first few by it, by their true time.
NEXT_READY = """
WITH served AS MATERIALIZED (
    SELECT g->>0 AS graph, (g->>1)::bigint AS version
    FROM jsonb_array_elements(%(graphs)s::jsonb) AS g
)
SELECT min(x.ready), EXISTS (SELECT FROM @.buckets) FROM (
    (SELECT r.ready_at_us AS ready FROM @.runs AS r
     WHERE r.ready_at_us IS NOT NULL AND r.status <> 'running' AND r.ready_at_us > %(after)s
        AND (r.graph, r.version) IN (SELECT s.graph, s.version FROM served AS s)
     ORDER BY r.ready_at_us LIMIT 1)
    UNION ALL
    (SELECT r.lease_until_us FROM @.runs AS r
     WHERE r.status = 'running' AND r.lease_until_us > %(after)s
        AND (r.graph, r.version) IN (SELECT s.graph, s.version FROM served AS s)
     ORDER BY r.ready_at_us LIMIT 100)
) AS x
"""


def of(sql: str, options: PostgresOptions) -> str:
    """Return a statement for the schema of the options."""
    return qualified(sql, options.schema)


class Filter:
    """The WHERE clause of a listing, built from what the query names."""

    def __init__(self) -> None:
        """Start with no condition."""
        self._terms: list[str] = []
        self.params: list[Any] = []

    def equals(self, column: str, value: object) -> None:
        """Require the value, unless it is None."""
        if value is not None:
            self._terms.append(f"{column} = %s")
            self.params.append(value)

    def any_of(self, column: str, values: Sequence[str]) -> None:
        """Require one of the values, unless there are none."""
        if values:
            self._terms.append(f"{column} = ANY(%s::text[])")
            self.params.append(list(values))

    def below(self, column: str, value: object) -> None:
        """Require less than the value, unless it is None."""
        if value is not None:
            self._terms.append(f"{column} < %s")
            self.params.append(value)

    def due(self, due_us: int | None) -> None:
        """Require that a run is due then, unless it is None; each half has its partial index."""
        if due_us is not None:
            ready = "ready_at_us IS NOT NULL AND ready_at_us <= %s"
            self._terms.append(
                f"((status <> 'running' AND {ready}) "
                f"OR (status = 'running' AND {ready} AND lease_until_us <= %s))"
            )
            self.params += [due_us, due_us, due_us]

    def except_graphs(self, graphs: Sequence[tuple[str, int]]) -> None:
        """Require another graph version than these."""
        if graphs:
            self._terms.append(
                "(graph, version) NOT IN (SELECT g->>0, (g->>1)::bigint "
                "FROM jsonb_array_elements(%s::jsonb) AS g)"
            )
            self.params.append(msgspec.json.encode(graphs).decode())

    def exists(self, column: str) -> None:
        """Require that there is a value."""
        self._terms.append(f"{column} IS NOT NULL")

    def states(self, column: str, states: Sequence[StrEnum]) -> None:
        """Require any of the states (none: all), as literals for the partial indexes."""
        literals = [f"'{state.value}'" for state in states]
        if literals:
            self._terms.append(f"{column} IN ({', '.join(literals)})")

    def where(self) -> str:
        """Return the clause, with its keyword."""
        return f"WHERE {' AND '.join(self._terms)}" if self._terms else ""


def find_runs(query: RunQuery) -> tuple[str, list[Any]]:
    """Return the statement of a listing of runs, newest first."""
    found = Filter()
    found.equals("tenant", query.tenant)
    found.equals("thread", query.thread)
    found.equals("graph", query.graph)
    found.equals("parent", query.parent)
    found.equals("holder", query.holder)
    found.states("status", query.statuses)
    found.below("run_id", query.before)
    found.due(query.due_us)
    found.except_graphs(query.except_graphs)
    found.any_of("run_id", query.run_ids)
    rows_of = f"SELECT * FROM @.runs {found.where()}"
    if query.due_us is not None:
        # Few runs are due, whatever the order of the listing makes the planner believe.
        sql = f"WITH due AS MATERIALIZED ({rows_of}) SELECT {RUN} FROM due"
    else:
        sql = f"SELECT {RUN} FROM ({rows_of}) AS found"
    sql += " ORDER BY run_id DESC LIMIT %s"
    return sql, [*found.params, rules.limit_of(query.limit)]


def find_asks(query: AskQuery) -> tuple[str, list[Any]]:
    """Return the statement of a listing of asks, oldest first."""
    found = Filter()
    found.equals("tenant", query.tenant)
    found.equals("run_id", query.run_id)
    found.states("state", query.states)
    sql = f"SELECT {ASK} FROM @.asks {found.where()} ORDER BY asked_at_us, ask_no LIMIT %s"
    return sql, [*found.params, rules.limit_of(query.limit)]


def find_effects(query: EffectQuery) -> tuple[str, list[Any]]:
    """Return the statement of a listing of effects, newest change first."""
    found = Filter()
    found.equals("tenant", query.tenant)
    found.equals("run_id", query.run_id)
    changed_at = "changed_at_us"
    if tuple(query.states) == (EffectState.UNCERTAIN,):
        changed_at = "uncertain_at_us"  # the same time, of those alone: it has the index
        found.exists(changed_at)
    else:
        found.states("state", query.states)
    sql = (
        f"SELECT {EFFECT} FROM @.effects {found.where()} "
        f"ORDER BY {changed_at} DESC, effect_no DESC LIMIT %s"
    )
    return sql, [*found.params, rules.limit_of(query.limit)]


def refusal(row: Sequence[Any]) -> AppendOutcome:
    """Return what an append gets that is named in the rows of `append`."""
    _item, token, holder, last_seq, effect_id, business_key = row
    if effect_id is not None:
        return KeyTaken(effect_id=EffectId(effect_id), business_key=business_key)
    return Fenced(token=token, holder=holder, last_seq=last_seq)


def effect_of(row: Sequence[Any]) -> EffectRow:
    """Return the effect of a row with `EFFECT`."""
    return rows.effect_row((*row[:18], text_out(row[18])))


def ask_of(row: Sequence[Any]) -> AskRow:
    """Return the ask of a row with `ASK`."""
    return rows.ask_row((*row[:5], text_out(row[5]), *row[6:11], text_out(row[11]), row[12]))


def mail_of(row: Sequence[Any]) -> Mail:
    """Return the message of a row with the run's id and `MAIL`."""
    run_id, mail_id, kind, subject, body_wire, sender, at_us, post_id = row
    fields = (mail_id, kind, text_out(subject), body_wire, text_out(sender), at_us, post_id)
    return rows.mail_of(run_id, fields)


def frames_of(run_id: Any, found: list[tuple[Any, ...]], *, from_seq: int, limit: int | None) -> (
    list[FrameRow]
):  # fmt: skip
    """Return the frames of the rows of `READ_FRAMES`.

    Raises:
        StoreCorrupt: frames are missing between.
    """
    last_seq = found[0][0] if found else 0
    frames = [rows.frame_row(run_id, row[1:]) for row in found if row[1] is not None]
    return rules.gap_free(run_id, frames, from_seq=from_seq, limit=limit, last_seq=last_seq)


def worker_params(row: WorkerRow) -> dict[str, Any]:
    """Return the worker as the parameters of `PUT_WORKER`."""
    names = WORKER.split(", ")
    return dict(zip(names, rows.worker_params(row), strict=True))
