"""Limits, schedules and taking one run in a memory store, inside a transaction of `Tables`."""

from collections import Counter
from collections.abc import Callable

from perdure.core.room import Closed, Room
from perdure.ids import RunId, WorkerId
from perdure.model import BucketRow, LimitState, RunRow, RunStatus, ScheduleRow
from perdure.store import _rules as rules
from perdure.store._memory_tables import Tables


def claim_within(
    tables: Tables,
    due: list[RunRow],
    in_order: Callable[[list[RunRow]], list[RunRow]],
    take: Callable[[RunRow], RunRow],
    *,
    now_us: int,
    limit: int,
) -> list[RunRow]:
    """Take up to `limit` of the due runs: those that are running already, then as there is room."""
    lost = [row for row in due if row.status is RunStatus.RUNNING]
    taken = [take(row) for row in in_order(lost)[:limit]]
    waiting = [row for row in due if row.status is not RunStatus.RUNNING]
    candidates = {row.run_id: _candidate(row) for row in waiting}

    def find_due(closed: list[Closed], count: int) -> list[rules.Candidate]:
        left = [
            row
            for row in waiting
            if tables.runs[row.run_id] is row
            and not rules.is_closed(candidates[row.run_id], closed)
        ]
        return [candidates[row.run_id] for row in in_order(left)[:count]]

    def take_one(candidate: rules.Candidate) -> RunRow:
        return take(tables.runs[candidate.number])

    room = Room(limit_state(tables), now_us)
    taken += rules.claim_within(room, find_due, take_one, limit - len(taken))
    _put_buckets(tables, room.moved_buckets(), now_us)
    return taken


def _candidate(row: RunRow) -> rules.Candidate:
    return rules.Candidate(
        number=row.run_id, tenant=row.tenant, graph=row.graph, is_first=row.token == 0
    )


def _put_buckets(tables: Tables, buckets: list[BucketRow], now_us: int) -> None:
    """Write the buckets from which tokens were taken; one that is full again needs no row."""
    for bucket in buckets:
        tables.put(tables.buckets, (bucket.tenant, bucket.graph), bucket.full_at_us)
    full = [key for key, full_at in tables.buckets.items() if buckets and full_at <= now_us]
    for key in full:
        tables.drop(tables.buckets, key)


def take(
    tables: Tables,
    run_id: RunId,
    worker_id: WorkerId,
    *,
    token: int,
    now_us: int,
    lease_until_us: int,
) -> RunRow | None:
    """Claim this one run, if it is to be had."""
    row = tables.runs.get(run_id)
    if row is None or not rules.is_takeable(row, token=token, now_us=now_us):
        return None
    claimed = rules.claimed(row, worker_id, lease_until_us)
    tables.put_run(claimed)
    return claimed


def limit_state(tables: Tables) -> LimitState:
    """Return the limits, and what they count."""
    limits = tuple(tables.limits[key] for key in sorted(tables.limits))
    counts = Counter(
        (row.tenant, row.graph)
        for row in (tables.runs.values() if limits else ())
        if row.status is RunStatus.RUNNING
    )
    return LimitState(
        limits=limits,
        running=tuple((*key, count) for key, count in sorted(counts.items())),
        buckets=tuple(
            BucketRow(tenant=tenant, graph=graph, full_at_us=full_at)
            for (tenant, graph), full_at in sorted(tables.buckets.items())
        ),
    )


def put_schedule(tables: Tables, row: ScheduleRow, *, expected: int) -> bool:
    """Write the schedule if the stored one has the expected revision."""
    known = tables.schedules.get((row.tenant, row.name))
    if known == row:
        return True
    if (known.revision if known is not None else 0) != expected:
        return False
    tables.put(tables.schedules, (row.tenant, row.name), row)
    return True
