"""Which runs a claim takes: priority first, and within one priority the tenants take turns.

Two ways to the same order. While few runs are due, all of them are looked at, by the index on
`ready_at_us`. Under a backlog that would cost more with every run that waits: then only the heads
of each tenant's line are looked at, by the index on (priority, tenant, ready_at_us), so that the
cost follows the number of tenants.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from perdure.core.room import Closed
from perdure.model import ALL_GRAPHS, ALL_TENANTS
from perdure.store import _rules as rules
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


# -- under limits ----------------------------------------------------------------------------------

_LOST = f"""
SELECT priority, tenant, ready_at_us, run_no FROM perdure_runs INDEXED BY perdure_runs_holder
WHERE holder IS NOT NULL AND status = 'running' AND ready_at_us <= :now AND {_GRAPHS}
"""
_COUNT_DUE = """
SELECT count(*) FROM (SELECT 1 FROM perdure_runs WHERE ready_at_us <= :now LIMIT :window)
"""
_DUE_ROWS = f"""
SELECT priority, tenant, ready_at_us, run_no, graph, token FROM perdure_runs
WHERE ready_at_us <= :now AND status <> 'running' AND {_GRAPHS}
"""
_OPEN_HEADS = f"""
SELECT priority, tenant, ready_at_us, run_no, graph, token
FROM perdure_runs INDEXED BY perdure_runs_turn
WHERE priority = :priority AND tenant = :tenant AND ready_at_us <= :now AND status <> 'running'
    AND {_GRAPHS} AND graph NOT IN (SELECT value FROM json_each(:shut))
    AND (token > 0 OR graph NOT IN (SELECT value FROM json_each(:shut_first)))
ORDER BY ready_at_us LIMIT :limit
"""


def find_lost(db: apsw.Connection, graphs: str, *, now_us: int, limit: int) -> list[int]:
    """Return the numbers of running runs of these graphs whose lease ended, in claim order."""
    rows: list[Row] = db.execute(_LOST, {"now": now_us, "graphs": graphs}).fetchall()
    return [row[3] for row in _in_turn(rows)[:limit]]


class DueWithin:
    """The due runs of one claim under limits that are not running, outside what is closed."""

    def __init__(
        self, db: apsw.Connection, graphs: str, *, now_us: int, window: int = CLAIM_WINDOW
    ) -> None:
        """Read them, unless they are a backlog: then only the heads of the lines are looked at."""
        self._db = db
        self._params = {"now": now_us, "graphs": graphs, "window": window}
        self._names = {name for name, _version in json.loads(graphs)}
        self._taken: set[int] = set()
        is_backlog = db.execute(_COUNT_DUE, self._params).get >= window
        self._rows = None if is_backlog else db.execute(_DUE_ROWS, self._params).fetchall()

    def is_taken(self, number: int) -> None:
        """Leave the run out from now on."""
        self._taken.add(number)

    def find(self, closed: list[Closed], limit: int) -> list[rules.Candidate]:
        """Return up to `limit` of them, in the order of a claim."""
        if self._rows is None:
            return self._heads(closed, limit)
        rows = [
            row
            for row in self._rows
            if row[3] not in self._taken and not rules.is_closed(_candidate(row), closed)
        ]
        return [_candidate(row) for row in _in_turn(rows)[:limit]]

    def _heads(self, closed: list[Closed], limit: int) -> list[rules.Candidate]:
        found: list[rules.Candidate] = []
        rows: list[Row] = []
        priority_before: int | None = None
        for priority, tenant in _lines(self._db):
            if priority != priority_before:
                found += [_candidate(row) for row in _in_turn(rows)[: limit - len(found)]]
                if len(found) >= limit:
                    return found
                rows, priority_before = [], priority
            rows += self._line(priority, tenant, closed, limit)
        return found + [_candidate(row) for row in _in_turn(rows)[: limit - len(found)]]

    def _line(self, priority: int, tenant: str, closed: list[Closed], limit: int) -> Sequence[Row]:
        mine = [each for each in closed if each.tenant in {ALL_TENANTS, tenant}]
        shut = {each.graph for each in mine if not each.only_first}
        if ALL_GRAPHS in shut or self._names <= shut:
            return ()  # not to look at each of its runs: they may be many
        shut_first = {each.graph for each in mine if each.only_first}
        if ALL_GRAPHS in shut_first:
            shut_first = self._names
        params: dict[str, Any] = {
            **self._params,
            "priority": priority,
            "tenant": tenant,
            "limit": limit,
            "shut": json.dumps(sorted(shut)),
            "shut_first": json.dumps(sorted(shut_first)),
        }
        return self._db.execute(_OPEN_HEADS, params).fetchall()


def _candidate(row: Row) -> rules.Candidate:
    _priority, tenant, _ready, run_no, graph, token = row
    return rules.Candidate(number=run_no, tenant=tenant, graph=graph, is_first=token == 0)


def _in_turn(rows: Sequence[Row]) -> list[Row]:
    """Return rows that begin with priority, tenant, ready_at_us, run_no in the order of a claim."""
    turns: dict[tuple[int, str], int] = {}
    keyed: list[tuple[tuple[int, int, int, int], Row]] = []
    for row in sorted(rows, key=lambda row: (row[2], row[3])):
        priority, tenant, ready, run_no = row[:4]
        turn = turns[priority, tenant] = turns.get((priority, tenant), 0) + 1
        keyed.append(((-priority, turn, ready, run_no), row))
    return [row for _key, row in sorted(keyed)]
