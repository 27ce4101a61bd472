"""Schedules: fire what is due, once, whoever fires and however often.

Theory: a due time becomes a run by a start whose key is `schedule:<name>:<due time>`. Start keys
are unique per tenant, so that workers that fire the same due time at once, or again after a crash,
get one run. Only then is the row moved on to its next due time, if nobody else has moved it: what
a worker computed from an older row is never written.

A clock that jumps forward, and a time in which no worker lived, look alike: due times were missed,
and the row's `missed` says what becomes of them. A clock that jumps back fires nothing again, as
the row says what is due next.
"""

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.core.plan import GraphPlan
from perdure.engine.cron import check_cron, last_due, next_due
from perdure.engine.environment import Environment, input_digest
from perdure.engine.limits import SCHEDULE_BATCH, SCHEDULE_LATE_S, SCHEDULE_MISSED_MAX
from perdure.engine.outlook import served_graphs
from perdure.engine.starting import checked_name, encode_writes, finish_new_run
from perdure.errors import StartKeyReused, StoreError, StoreFull, ThreadBusy
from perdure.ids import TenantId
from perdure.model import Missed, OnBusy, ScheduleRow, Started
from perdure.model import records as rec

log = logging.getLogger("perdure")

_EVER_US = 1 << 62
"""Later than any due time: what is due by then is what is not paused."""

_encode = msgspec.msgpack.Encoder().encode
_decode_input = msgspec.msgpack.Decoder(dict[str, tuple[str, Raw]]).decode


def new_schedule(
    engine: Environment,
    plan: GraphPlan,
    given: Any,
    *,
    name: str,
    cron: str,
    timezone: str,
    tenant: str,
    thread: str | None,
    priority: int,
    on_busy: OnBusy,
    missed: Missed,
) -> ScheduleRow:
    """Return the row of a new schedule; its input is checked and encoded here, once.

    Raises:
        SettingInvalid: the name, the expression or the time zone is none.
        UpdateInvalid, ValueUnserializable: the input does not fit the graph.
    """
    now_us = engine.now_us()
    next_at_us = check_cron(cron, timezone, now_us)
    values = plan.read_input(given, thread is None)
    writes = encode_writes(engine, plan, values, "input field")
    canonical = engine.codec.canonical([thread, values], "input")
    return ScheduleRow(
        tenant=TenantId(checked_name(tenant, "tenant")),
        name=checked_name(name, "name"),
        revision=now_us,
        graph=plan.name,
        version=plan.version,
        cron=cron,
        timezone=timezone,
        input_wire=_encode(writes),
        input_digest=input_digest(plan.name, 0, canonical),
        thread=None if thread is None else checked_name(thread, "thread"),
        priority=priority,
        on_busy=on_busy,
        missed=missed,
        next_at_us=next_at_us,
        created_at_us=now_us,
    )


def start_key(row: ScheduleRow, due_us: int) -> str:
    """Return the start key of a due time: `schedule:<name>:<time in UTC, to the second>`."""
    at = dt.datetime.fromtimestamp(due_us // 1_000_000, tz=dt.UTC)
    return f"schedule:{row.name}:{at:%Y-%m-%dT%H:%M:%SZ}"


def due_times(row: ScheduleRow, now_us: int) -> list[int]:
    """Return the due times that become runs now, oldest first: what its `missed` says.

    The newest one counts as missed when it is more than `SCHEDULE_LATE_S` ago.
    """
    if row.next_at_us is None or row.next_at_us > now_us:
        return []
    count = SCHEDULE_MISSED_MAX if row.missed is Missed.ALL else 1
    times = last_due(row.cron, row.timezone, first_us=row.next_at_us, now_us=now_us, count=count)
    if row.missed is Missed.SKIP:
        return [at for at in times if now_us - at <= SCHEDULE_LATE_S * 1_000_000]
    return times


async def fire_due(engine: Environment, *, poke: Callable[[], None]) -> int | None:
    """Start the runs of all due schedules; return when the next one is due, or None.

    Raises:
        StoreError: some may have been fired; nothing is fired twice by firing again.
    """
    has_moved = True
    while has_moved:
        rows = await engine.store.find_schedules(due_us=engine.now_us(), limit=SCHEDULE_BATCH)
        moved = [await _fire_alone(engine, row, poke) for row in rows]
        has_moved = len(rows) == SCHEDULE_BATCH and any(moved)
    first = await engine.store.find_schedules(due_us=_EVER_US, limit=1)
    return first[0].next_at_us if first else None


async def _fire_alone(engine: Environment, row: ScheduleRow, poke: Callable[[], None]) -> bool:
    """Fire one schedule; what is wrong with it is its own problem, and holds up no other."""
    try:
        return await _fire(engine, row, poke)
    except StoreFull as error:  # there may be room later: it stays due
        return await _troubled(engine, row, error)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  # a supervisor: one bad row must not stop the others
        return await _troubled(engine, row, error)


async def _troubled(engine: Environment, row: ScheduleRow, error: Exception) -> bool:
    """Say of a schedule why it is not fired; return that it has not moved."""
    problem = f"{type(error).__name__}: {error}"
    if problem != row.problem:
        log.warning("schedule %s of tenant %s: %s", row.name, row.tenant, problem)
        await _put(engine, row, replace(row, problem=problem))
    return False


async def _fire(engine: Environment, row: ScheduleRow, poke: Callable[[], None]) -> bool:
    """Fire one schedule and move it on; return whether it has moved."""
    now_us = engine.now_us()
    # What this process can't read (a time zone that it lacks) another one may.
    following = next_due(row.cron, row.timezone, max(now_us, row.next_at_us or 0))
    times = due_times(row, now_us)
    fired = row
    for due_us in times:
        fired = await _fire_once(engine, fired, due_us, poke)
    # Whoever dies here has moved nothing: the next one starts the same keys again, which are known.
    problem = fired.problem if fired is not row else ""
    return await _put(engine, row, replace(fired, next_at_us=following, problem=problem))


async def _put(engine: Environment, before: ScheduleRow, after: ScheduleRow) -> bool:
    revision = max(engine.now_us(), before.revision + 1)
    return await engine.store.put_schedule(
        replace(after, revision=revision), expected=before.revision
    )


async def _fire_once(
    engine: Environment, row: ScheduleRow, due_us: int, poke: Callable[[], None]
) -> ScheduleRow:
    """Start the run of one due time; return the row that says what became of it."""
    outcome = await _start(engine, row, due_us)
    if isinstance(outcome, StartKeyReused):  # the input was changed between two that fired it
        return replace(row, fired_at_us=due_us, problem="")
    if isinstance(outcome, ThreadBusy):
        log.info("schedule %s: %s", row.name, outcome)
        return replace(row, problem=f"ThreadBusy: {outcome}")
    if isinstance(outcome, Exception):
        raise outcome
    if outcome.created:
        poke()
    return replace(row, fired_at_us=due_us, fired_run=outcome.row.run_id, problem="")


async def _start(engine: Environment, row: ScheduleRow, due_us: int) -> Started | Exception:
    now_us = engine.now_us()
    run_id = engine.services.ids.new("r", now_us)
    record = rec.RunStarted(
        now_us,
        run_id,
        row.tenant,
        row.thread or run_id,
        row.graph,
        await _version(engine, row),
        _decode_input(row.input_wire),
        start_key(row, due_us),
    )
    new = finish_new_run(
        engine, record, digest=row.input_digest, on_busy=row.on_busy, priority=row.priority
    )
    await engine.capacity.check(new.tenant)
    [outcome] = await engine.store.start([new])
    return outcome


async def _version(engine: Environment, row: ScheduleRow) -> int:
    """Return the newest version of the graph that a live worker executes, else the row's own."""
    served = await served_graphs(engine)
    served.update(engine.graphs() if engine.worker_id else ())
    return max((version for name, version in served if name == row.graph), default=row.version)
