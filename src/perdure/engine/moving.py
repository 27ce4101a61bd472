"""Move a run to another version of its graph: by migrations, or by a decision where names fit.

A run is taken with the token that was seen, or was claimed; what moves it and its release are one
commit. So a process that is killed leaves the run as it was, or moved.
"""

import logging
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from perdure.codec import encode_record
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.limits import CLAIMS_MAX
from perdure.engine.loading import load_run
from perdure.engine.migrations import (
    FAILED,
    MIGRATION,
    THREAD_NEWER,
    Move,
    failure_of_move,
    plan_move,
    reason_of,
)
from perdure.engine.outlook import served_shapes
from perdure.engine.paging import paged_writes
from perdure.engine.queue import RunJournal
from perdure.engine.shapes import misfits, shape_of
from perdure.errors import MigrationFailed, NotFound, RunFinal, UsageError, VersionMismatch
from perdure.ids import RunId, WorkerId
from perdure.model import (
    Change,
    Failure,
    GraphShape,
    Mail,
    MailKind,
    PagesPut,
    RunReleased,
    RunRow,
    RunStatus,
    ThreadBased,
)
from perdure.model import records as rec

log = logging.getLogger("perdure")

MISMATCH = VersionMismatch.__name__
"""Type of the failure of a run that is parked because nobody executes its version."""


async def write_released(
    engine: Environment, row: RunRow, records: Iterable[rec.Record], *changes: Change
) -> None:
    """Append records to a run that was taken, and let it go, in one commit.

    The first record of it, at `row.last_seq + 1`, is that the run was taken.

    Raises:
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    frames = await engine.store.read_frames(row.run_id, from_seq=row.last_seq)
    journal = RunJournal(engine.queue, row, frames[-1].hash)
    anchor = await _anchor(engine, row)
    taken = rec.LeaseTaken(engine.now_us(), row.holder or "", row.token, row.claims, *anchor)
    *before, last = records
    for record in (taken, *before):
        journal.add_encoded(encode_record(record), ())
    journal.add(last, *changes)
    await journal.barrier()


async def _anchor(engine: Environment, row: RunRow) -> tuple[Any, ...]:
    """Return the fields of `LeaseTaken` that pin what stands before the run on its thread.

    A first holder that goes through no load writes them, too: of a rollback there is no other.
    """
    if row.last_seq != 1:
        return ()
    if row.ordinal == 1:
        return (1,)
    runs = await engine.store.read_thread_runs(row.tenant, row.thread, from_ordinal=row.ordinal - 1)
    before = runs[0]
    frames = await engine.store.read_frames(before.run_id, from_seq=before.last_seq)
    return row.ordinal, before.run_id, before.last_seq, frames[-1].hash.hex()


async def take(engine: Environment, row: RunRow, holder: str) -> RunRow | None:
    """Take a run as it was seen; None: somebody else was first."""
    return await engine.store.take(
        row.run_id,
        WorkerId(holder),
        token=row.token,
        now_us=engine.now_us(),
        lease_until_us=engine.lease_until_us(),
    )


async def write_parked(
    engine: Environment, row: RunRow, failure: Failure, mail: Iterable[Mail]
) -> None:
    """Leave a run that was taken to a person; `mail`: what was there before.

    Raises:
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    change = RunReleased(
        status=RunStatus.NEEDS_DECISION,
        failure=failure,
        checkpoint=row.checkpoint,
        # What was there must not wake it again and again; what comes later does.
        mail_seen=max((each.mail_id for each in mail), default=0),
    )
    record = rec.Released(engine.now_us(), "needs_decision", (), failure)
    await write_released(engine, row, [record], change)
    engine.on_released(row, RunStatus.NEEDS_DECISION, failure)


async def move_run(engine: Environment, run_id: str, version: int, by: str) -> None:
    """Let an unheld run go on with another version of its graph; see `Runtime.resolve_version`."""
    row = await engine.store.read_run(RunId(run_id))
    if row is None:
        msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
        raise NotFound(msg, run_id=run_id)
    shape = await _target_shape(engine, row, version)
    if row.version in shape.migrates:
        await _move_by_migration(engine, row, version, by)
        return
    loaded = await load_run(engine.store, row)
    problems = misfits(shape, loaded.state)
    if problems:
        msg = (
            f"run {run_id!r} can't go on with {row.graph} v{version}: {'; '.join(problems)}; "
            f"nothing was changed. Start a worker with v{row.version}, or give v{version} what is "
            "missing"
        )
        raise VersionMismatch(msg, run_id=run_id, version=version, problems=problems)
    taken = await take(engine, row, engine.services.ids.new("w", engine.now_us()))
    if taken is None:
        raise _is_executed(row)
    now_us = engine.now_us()
    records: list[rec.Record] = [
        rec.VersionMoved(now_us, by, row.version, version),
        rec.Released(now_us, "version_moved", ()),
    ]
    change = RunReleased(
        status=RunStatus.PENDING,
        ready_at_us=now_us,
        checkpoint=row.checkpoint,
        version=version,
    )
    await write_released(engine, taken, records, change)
    engine.poke()


async def _move_by_migration(engine: Environment, row: RunRow, version: int, by: str) -> None:
    """Move a run where a migration leads to the version: by that, never by names alone."""
    if (row.graph, version) in engine.graphs():
        plan = engine.plan_named(row.graph, version)
        try:
            await move_unheld(engine, row, plan, by=by)
        except MigrationFailed as error:
            raise MigrationFailed(reason_of(error, row, plan), run_id=row.run_id) from error
        return
    msg = (
        f"{row.graph} v{version} has a migration from v{row.version}, which needs its code; "
        "nothing was changed. Its workers move the run by themselves when no live worker executes "
        f"v{row.version}; to do it now: perdure migrate FILE:GRAPH"
    )
    raise UsageError(msg, run_id=row.run_id, version=version)


async def move_unheld(
    engine: Environment, row: RunRow, plan: GraphPlan, *, by: str = MIGRATION
) -> Move:
    """Move a run that nobody executes to the plan's version, by its migrations.

    It waits, is parked or is due as it was, but what was parked for its version is due.

    Raises:
        MigrationFailed, DecodeFailed: it can't be moved; nothing was written.
        UsageError: somebody executes it, or was faster; nothing was written.
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    # Before the row: a message that came between the two has made the run due there.
    mail = await engine.store.read_mail(row.run_id)
    current = await engine.store.read_run(row.run_id)
    if current is None or current.token != row.token or is_executed(engine, current):
        raise _is_executed(current or row)
    move = plan_move(engine, plan, current, await load_run(engine.store, current), by=by)
    holder = engine.worker_id or engine.services.ids.new("w", engine.now_us())
    taken = await take(engine, current, holder)
    if taken is None:
        raise _is_executed(current)
    await write_moved(engine, taken, move, _as_before(engine, current, plan, mail))
    engine.poke()
    return move


_BY_VERSION = frozenset({MISMATCH, FAILED, THREAD_NEWER})
"""Types of failures of runs that a move mends."""


def _as_before(
    engine: Environment, row: RunRow, plan: GraphPlan, mail: Iterable[Mail]
) -> RunReleased:
    """Return the release that lets a moved run wait, or be due, as it did before."""
    was_parked = row.failure is not None and row.failure.type in _BY_VERSION
    is_kept = row.status in {RunStatus.WAITING, RunStatus.NEEDS_DECISION} and not was_parked
    is_pending = row.status is RunStatus.PENDING
    return RunReleased(
        status=row.status if is_kept else RunStatus.PENDING,
        waits=row.waits if is_kept else (),
        ready_at_us=row.ready_at_us if is_kept or is_pending else engine.now_us(),
        failure=row.failure if is_kept else None,
        checkpoint=row.checkpoint,
        mail_seen=max((each.mail_id for each in mail), default=0) if is_kept else 0,
        version=plan.version,
    )


async def write_moved(engine: Environment, row: RunRow, move: Move, change: RunReleased) -> None:
    """Write a move and let the run go, in one commit.

    Raises:
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    records: list[rec.Record] = [move.moved]
    changes: list[Change] = []
    if move.snapshot is not None:
        values, pages = paged_writes(move.snapshot.values)
        records.append(replace(move.snapshot, values=values))
        changes += [PagesPut(pages=pages)] if pages else []
        if move.is_base:
            seq = row.last_seq + 1 + len(records)
            changes.append(ThreadBased(seq=seq, made_at=move.snapshot.checkpoint))
    records.append(rec.Released(engine.now_us(), "version_moved", change.waits, change.failure))
    # One commit: a process that is killed leaves the run as it was, or moved.
    # crash-point: version.move.before
    engine.services.probe("version.move.before")
    await write_released(engine, row, records, *changes, change)
    # crash-point: version.move.after
    engine.services.probe("version.move.after")


async def move_claimed(engine: Environment, row: RunRow, plan: GraphPlan) -> bool:
    """Move a run that was claimed for it, or park it; return False: it is to be cancelled.

    Raises:
        StoreError, LeaseLost, DecodeFailed: nothing was written; the lease ends by itself.
    """
    mail = await engine.store.read_mail(row.run_id)
    if any(each.kind is MailKind.CANCEL for each in mail):
        return False
    if row.claims > CLAIMS_MAX:
        await write_parked(engine, row, _exhausted(row, plan), mail)
        return True
    loaded = await load_run(engine.store, row)
    if loaded.state.cancel is not None:
        return False
    try:
        move = plan_move(engine, plan, row, loaded)
    except MigrationFailed as error:
        failure = failure_of_move(error, row, plan)
        log.warning("run %s parked: %s", row.run_id, failure.message)
        await write_parked(engine, row, failure, mail)
        return True
    change = RunReleased(
        status=RunStatus.PENDING,
        ready_at_us=engine.now_us(),
        checkpoint=row.checkpoint,
        version=plan.version,
    )
    await write_moved(engine, row, move, change)
    log.info("run %s moved from v%d to v%d", row.run_id, row.version, plan.version)
    return True


def _exhausted(row: RunRow, plan: GraphPlan) -> Failure:
    message = (
        f"claimed {row.claims} times to be moved from v{row.version} to v{plan.version} without an "
        f"end; the migration may kill the worker. Mend it, then: perdure resolve {row.run_id} "
        "--retry --by NAME"
    )
    return Failure(type="AttemptsExhausted", message=message)


def is_executed(engine: Environment, row: RunRow) -> bool:
    """Return whether a worker holds the run, or it stands behind another one of its thread."""
    is_held = row.status is RunStatus.RUNNING and (row.ready_at_us or 0) > engine.now_us()
    return is_held or (row.status is RunStatus.PENDING and row.ready_at_us is None)


async def _target_shape(engine: Environment, row: RunRow, version: int) -> GraphShape:
    """Return the shape of the graph to go on with, after what can be said without the journal."""
    run_id = row.run_id
    if row.status.is_final:
        msg = f"run {run_id!r} has ended ({row.status.value}); nothing was changed"
        raise RunFinal(msg, run_id=run_id, status=row.status.value)
    if row.version == version:
        msg = f"run {run_id!r} is pinned to {row.graph} v{version} already; nothing was changed"
        raise UsageError(msg, run_id=run_id)
    if is_executed(engine, row):
        raise _is_executed(row)
    own = [graph for graph in engine.graphs() if graph == (row.graph, version)]
    if own:
        return shape_of(engine.plan_named(row.graph, version))
    found = (await served_shapes(engine)).get((row.graph, version))
    if found is None:
        msg = (
            f"no live worker executes {row.graph} v{version}, so nobody can say whether run "
            f"{run_id!r} fits; nothing was changed. Start one first: perdure worker FILE:GRAPH"
        )
        raise UsageError(msg, run_id=run_id, version=version)
    return found


def _is_executed(row: RunRow) -> UsageError:
    what = f"held by {row.holder}" if row.holder else "queued, or was just taken"
    msg = (
        f"run {row.run_id!r} is {what}; nothing was changed. Only a run that nobody executes can "
        f"be moved to another version: perdure show {row.run_id}"
    )
    return UsageError(msg, run_id=row.run_id)
