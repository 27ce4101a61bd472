"""Claims under limits, and what is stored for all runs to come: limits and schedules.

A claim under limits is a transaction of several statements, one at a time in the whole store: it
reads what the limits leave, and `core.room` decides, as for every store.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.room import Closed, Room
from perdure.model import BucketRow, LimitRow, LimitState, ScheduleRow
from perdure.store import _rows as rows
from perdure.store.postgres import _queries as queries
from perdure.store.postgres._lanes import Connection, run
from perdure.store.postgres._url import PostgresOptions
from perdure.store.postgres._wire import as_json, text_in, text_out
from perdure.store.postgres.limits import CLAIM_WINDOW

_ONE_AT_A_TIME = "SELECT 1 FROM @.claim_turn FOR UPDATE"
_PUT_BUCKETS = "SELECT @.put_buckets(%s::jsonb, %s::bigint)"
_LIMIT = ", ".join(field.name for field in msgspec.structs.fields(LimitRow))
_SCHEDULE_NAMES = [field.name for field in msgspec.structs.fields(ScheduleRow)]
_SCHEDULE = ", ".join(_SCHEDULE_NAMES)

# One statement: all of one moment.
READ_LIMITS = f"""
SELECT 0, {_LIMIT} FROM @.limits
UNION ALL SELECT 1, tenant, graph, full_at_us, NULL, NULL, NULL FROM @.buckets
UNION ALL (SELECT 2, tenant, graph, count(*), NULL, NULL, NULL FROM @.runs
    WHERE status = 'running' AND EXISTS (SELECT FROM @.limits) GROUP BY tenant, graph)
ORDER BY 1, 2, 3
"""
SET_LIMIT = f"""
INSERT INTO @.limits ({_LIMIT}) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, graph) DO UPDATE SET concurrency = excluded.concurrency,
    rate = excluded.rate, period_us = excluded.period_us, set_at_us = excluded.set_at_us
"""
DROP_LIMIT = "DELETE FROM @.limits WHERE tenant = %s AND graph = %s RETURNING 1"
DROP_SCHEDULE = "DELETE FROM @.schedules WHERE tenant = %s AND name = %s RETURNING 1"
READ_SCHEDULE = f"SELECT {_SCHEDULE} FROM @.schedules WHERE tenant = %s AND name = %s"
FIND_SCHEDULES = f"""
SELECT {_SCHEDULE} FROM @.schedules
WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    AND (%(due)s::bigint IS NULL OR next_at_us <= %(due)s)
ORDER BY next_at_us IS NULL, next_at_us, tenant COLLATE "C", name COLLATE "C" LIMIT %(limit)s
"""
_MARKS = ", ".join(f"%({name})s" for name in _SCHEDULE_NAMES)
_SET = ", ".join(f"{name} = %({name})s" for name in _SCHEDULE_NAMES)
PUT_SCHEDULE = f"""
WITH changed AS (
    UPDATE @.schedules SET {_SET}
    WHERE tenant = %(tenant)s AND name = %(name)s AND revision = %(expected)s RETURNING 1
), made AS (
    INSERT INTO @.schedules ({_SCHEDULE}) SELECT {_MARKS} WHERE %(expected)s = 0
    ON CONFLICT (tenant, name) DO NOTHING RETURNING 1
)
SELECT 1 FROM changed UNION ALL SELECT 1 FROM made
"""


def limit_state(found: Sequence[Sequence[Any]]) -> LimitState:
    """Return the limits and what they count, of the rows of `READ_LIMITS`."""
    limits = tuple(rows.limit_row(row[1:]) for row in found if row[0] == 0)
    buckets = tuple(rows.bucket_row(row[1:4]) for row in found if row[0] == 1)
    running = tuple((row[1], row[2], row[3]) for row in found if row[0] == 2)  # noqa: PLR2004  # the third part
    return LimitState(limits=limits, buckets=buckets, running=running)


def schedule_params(row: ScheduleRow, *, expected: int) -> dict[str, Any]:
    """Return the parameters of `PUT_SCHEDULE`."""
    params = dict(zip(_SCHEDULE_NAMES, rows.schedule_params(row), strict=True))
    return params | {"problem": text_in(row.problem), "expected": expected}


def schedule_of(row: Sequence[Any]) -> ScheduleRow:
    """Return the schedule of a row."""
    return rows.schedule_row((*row[:18], text_out(row[18])))


class ClaimOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim is asked for; `graphs` as JSON."""

    worker_id: str
    graphs: str
    now_us: int
    lease_until_us: int
    limit: int


class LimitedClaim:
    """One claim under limits."""

    def __init__(self, options: PostgresOptions, order: ClaimOrder) -> None:
        """Prepare; call it with a connection in an open transaction."""
        self._options = options
        self._order = order
        self._connection: Connection

    async def __call__(self, connection: Connection) -> list[tuple[Any, ...]]:
        """Take what there is room for, in an open transaction; return the rows of the runs."""
        self._connection = connection
        await self._run(_ONE_AT_A_TIME)
        await self._run(queries.LOOK_AT_LEASES, (self._order.now_us, CLAIM_WINDOW))
        lost = await self._due(self._order.limit, lost=True, closed=[])
        taken = await self._take(lost)  # running already: always taken
        room = Room(limit_state(await self._run(READ_LIMITS)), self._order.now_us)
        has_moved = True
        while has_moved and len(taken) < self._order.limit:
            found = await self._due(
                self._order.limit - len(taken), lost=False, closed=room.closed()
            )
            chosen = [row for row in found if self._takes(room, row)]
            got = await self._take(chosen)
            has_moved = bool(got)
            taken += got
        if buckets := room.moved_buckets():
            await self._put(buckets)
        return taken

    @staticmethod
    def _takes(room: Room, row: Sequence[Any]) -> bool:
        tenant, _run_id, graph, token = row
        if room.keeps(tenant, graph, is_first=token == 0) is not None:
            return False  # the room went to those before it
        room.take(tenant, graph, is_first=token == 0)
        return True

    async def _due(self, most: int, *, lost: bool, closed: list[Closed]) -> list[Any]:
        patterns = [(each.tenant, each.graph, each.only_first) for each in closed]
        shut = as_json(patterns) if patterns else None
        now_us = self._order.now_us
        params = (self._order.graphs, now_us, most, CLAIM_WINDOW, lost, not lost, shut)
        return await self._run(queries.DUE, params)

    async def _take(self, chosen: list[Any]) -> list[tuple[Any, ...]]:
        if not chosen:
            return []
        names = as_json([(row[0], row[1]) for row in chosen])
        params = (
            self._order.worker_id,
            names,
            self._order.now_us,
            self._order.lease_until_us,
            len(chosen),
        )
        return await self._run(queries.CLAIM_CHOSEN, params)

    async def _put(self, buckets: list[BucketRow]) -> None:
        moved = as_json([(each.tenant, each.graph, each.full_at_us) for each in buckets])
        await self._run(_PUT_BUCKETS, (moved, self._order.now_us))

    async def _run(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        return await run(self._connection, queries.of(sql, self._options), params)
