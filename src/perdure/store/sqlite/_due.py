"""Which runs a claim takes: priority first, and within one priority the tenants take turns.

Two ways to the same order. While few runs are due, all of them are looked at, by the index on
`ready_at_us`. Under a backlog that would cost more with every run that waits: then only the heads
of each tenant's line are looked at, by the index on (priority, tenant, ready_at_us), so that the
cost follows the number of tenants.
"""

from collections.abc import Iterator

import apsw

from perdure.store._rows import Row
from perdure.store.sqlite.limits import CLAIM_WINDOW

_GRAPHS = "(graph, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:graphs))"
_ALL_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT run_no, tenant, priority, ready_at_us FROM perdure_runs
    WHERE ready_at_us <= :now AND {_GRAPHS}
    ORDER BY ready_at_us LIMIT :window
)
SELECT run_no, (SELECT count(*) FROM due) FROM (
    SELECT run_no, priority, ready_at_us,
        row_number() OVER (PARTITION BY priority, tenant ORDER BY ready_at_us, run_no) AS turn
    FROM due
)
ORDER BY priority DESC, turn, ready_at_us, run_no LIMIT :limit
"""
_FIRST_LINE = """
SELECT priority, tenant FROM perdure_runs INDEXED BY perdure_runs_turn
WHERE ready_at_us IS NOT NULL ORDER BY priority DESC, tenant LIMIT 1
"""
_NEXT_TENANT = """
SELECT priority, tenant FROM perdure_runs INDEXED BY perdure_runs_turn
WHERE ready_at_us IS NOT NULL AND priority = ? AND tenant > ? ORDER BY tenant LIMIT 1
"""
_NEXT_PRIORITY = """
SELECT priority, tenant FROM perdure_runs INDEXED BY perdure_runs_turn
WHERE ready_at_us IS NOT NULL AND priority < ? ORDER BY priority DESC, tenant LIMIT 1
"""
_HEADS = f"""
SELECT ready_at_us, run_no FROM perdure_runs INDEXED BY perdure_runs_turn
WHERE priority = :priority AND tenant = :tenant AND ready_at_us <= :now AND {_GRAPHS}
ORDER BY ready_at_us LIMIT :limit
"""


def find_due(
    db: apsw.Connection, graphs: str, *, now_us: int, limit: int, window: int = CLAIM_WINDOW
) -> list[int]:
    """Return the numbers of up to `limit` due runs of these graphs (JSON), in the order of a claim.

    Args:
        db: an open transaction.
        graphs: JSON list of `[name, version]`.
        now_us: what is ready at or before it is due.
        limit: at most so many.
        window: how many due runs make a backlog.
    """
    params = {"now": now_us, "graphs": graphs, "limit": limit, "window": window}
    rows: list[Row] = db.execute(_ALL_DUE, params).fetchall()
    if not rows or rows[0][1] < window:
        return [row[0] for row in rows]
    return _heads_in_turn(db, params, limit)


def _heads_in_turn(db: apsw.Connection, params: dict[str, object], limit: int) -> list[int]:
    found: list[int] = []
    turns: list[tuple[int, int, int]] = []
    priority_before: int | None = None
    for priority, tenant in _lines(db):
        if priority != priority_before:
            found += _picked(turns, limit - len(found))
            if len(found) >= limit:
                return found
            turns, priority_before = [], priority
        line = params | {"priority": priority, "tenant": tenant}
        heads: list[Row] = db.execute(_HEADS, line).fetchall()
        turns += [(turn, ready, run_no) for turn, (ready, run_no) in enumerate(heads)]
    return found + _picked(turns, limit - len(found))


def _picked(turns: list[tuple[int, int, int]], limit: int) -> list[int]:
    return [run_no for _turn, _ready, run_no in sorted(turns)[:limit]]


def _lines(db: apsw.Connection) -> Iterator[tuple[int, str]]:
    rows: list[Row] = db.execute(_FIRST_LINE).fetchall()
    while rows:
        priority, tenant = rows[0]
        yield priority, tenant
        rows = db.execute(_NEXT_TENANT, (priority, tenant)).fetchall()
        rows = rows or db.execute(_NEXT_PRIORITY, (priority,)).fetchall()
