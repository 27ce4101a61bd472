"""Limits over all workers, and schedules: functions over an open connection."""

from collections.abc import Sequence

import apsw
import msgspec

from perdure.core.room import Room
from perdure.ids import TenantId
from perdure.model import BucketRow, LimitRow, LimitState, ScheduleRow
from perdure.store import _rules as rules
from perdure.store._rows import Row, bucket_row, limit_row, schedule_params, schedule_row

_LIMIT_COLUMNS = "tenant, graph, concurrency, rate, period_us, set_at_us"
SCHEDULE_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(ScheduleRow))
_RUNNING = (
    "SELECT tenant, graph, count(*) FROM perdure_runs INDEXED BY perdure_runs_holder "
    "WHERE holder IS NOT NULL AND status = 'running' GROUP BY tenant, graph ORDER BY tenant, graph"
)


def has_limits(db: apsw.Connection) -> bool:
    """Return whether there is any limit."""
    return db.execute("SELECT 1 FROM perdure_limits LIMIT 1").get is not None


def read_limits(db: apsw.Connection) -> LimitState:
    """Return the limits, and what they count, as of one moment."""
    with db:
        sql = f"SELECT {_LIMIT_COLUMNS} FROM perdure_limits ORDER BY tenant, graph"
        limits = tuple(limit_row(row) for row in db.execute(sql).fetchall())
        sql = "SELECT tenant, graph, full_at_us FROM perdure_buckets ORDER BY tenant, graph"
        buckets = tuple(bucket_row(row) for row in db.execute(sql).fetchall())
        running: tuple[Row, ...] = tuple(db.execute(_RUNNING).fetchall()) if limits else ()
    return LimitState(limits=limits, running=running, buckets=buckets)


def next_token_at(db: apsw.Connection, after_us: int) -> int | None:
    """Return when an empty bucket has a token, above `after_us`; None: no rate keeps a run back."""
    if not has_limits(db):
        return None
    return Room(read_limits(db), after_us).next_token_at(after_us)


def put_buckets(db: apsw.Connection, buckets: Sequence[BucketRow], now_us: int) -> None:
    """Write the buckets from which tokens were taken; one that is full again needs no row."""
    if not buckets:
        return
    rows = [(each.tenant, each.graph, each.full_at_us) for each in buckets]
    db.executemany("INSERT OR REPLACE INTO perdure_buckets VALUES (?, ?, ?)", rows)
    db.execute("DELETE FROM perdure_buckets WHERE full_at_us <= ?", (now_us,))


def set_limit(db: apsw.Connection, limit: LimitRow) -> None:
    """Insert or replace the limit."""
    sql = f"INSERT OR REPLACE INTO perdure_limits ({_LIMIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
    db.execute(sql, msgspec.structs.astuple(limit))


def drop_limit(db: apsw.Connection, tenant: TenantId, graph: str) -> bool:
    """Remove the limit; return whether there was one."""
    sql = "DELETE FROM perdure_limits WHERE tenant = ? AND graph = ? RETURNING 1"
    return db.execute(sql, (tenant, graph)).get is not None


def put_schedule(db: apsw.Connection, row: ScheduleRow, *, expected: int) -> bool:
    """Write the schedule if the stored one has the expected revision (0: none)."""
    sql = f"SELECT {SCHEDULE_COLUMNS} FROM perdure_schedules WHERE tenant = ? AND name = ?"
    rows = db.execute(sql, (row.tenant, row.name)).fetchall()
    known = schedule_row(rows[0]) if rows else None
    if known == row:
        return True
    if (known.revision if known is not None else 0) != expected:
        return False
    params = schedule_params(row)
    marks = ", ".join("?" * len(params))
    sql = f"INSERT OR REPLACE INTO perdure_schedules ({SCHEDULE_COLUMNS}) VALUES ({marks})"
    db.execute(sql, params)
    return True


def drop_schedule(db: apsw.Connection, tenant: TenantId, name: str) -> bool:
    """Remove a schedule; return whether there was one."""
    sql = "DELETE FROM perdure_schedules WHERE tenant = ? AND name = ? RETURNING 1"
    return db.execute(sql, (tenant, name)).get is not None


_SCHEDULES = (
    f"SELECT {SCHEDULE_COLUMNS} FROM perdure_schedules WHERE (:tenant IS NULL OR tenant = :tenant) "
)
_ALL_BY_TIME = "ORDER BY next_at_us IS NULL, next_at_us, tenant, name LIMIT :limit"
_DUE_BY_TIME = "AND next_at_us <= :due ORDER BY next_at_us, tenant, name LIMIT :limit"  # by index


def find_schedules(
    db: apsw.Connection, *, tenant: TenantId | None, due_us: int | None, limit: int
) -> list[ScheduleRow]:
    """Return schedules by `next_at_us`, those without one last."""
    params = {"tenant": tenant, "due": due_us, "limit": rules.limit_of(limit)}
    sql = _SCHEDULES + (_ALL_BY_TIME if due_us is None else _DUE_BY_TIME)
    return [schedule_row(row) for row in db.execute(sql, params).fetchall()]
