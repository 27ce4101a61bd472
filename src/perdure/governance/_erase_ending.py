"""End the unfinished runs of threads that are to be erased, without any worker.

What nobody holds is taken, as a cancel by a worker would take it, and ended as cancelled: children
first or last does not matter, as each is told of by the row of its parent, which is ended too. A
run that a live worker holds is asked to cancel, and named.
"""

from perdure.engine import Runtime
from perdure.engine.moving import take, write_released
from perdure.engine.outlook import command
from perdure.errors import LeaseLost, ThreadBusy
from perdure.governance.limits import END_TRIES
from perdure.ids import RunId, WorkerId
from perdure.model import Failure, Mail, MailKind, RunEnded, RunRow, RunStatus
from perdure.model import records as rec


async def end_all(runtime: Runtime, run_ids: list[str], *, by: str) -> None:
    """End runs as cancelled.

    Raises:
        ThreadBusy: some are held by a worker; they were asked to cancel.
    """
    engine = runtime.engine
    holder = WorkerId(engine.services.ids.new("w", engine.now_us()))
    left = run_ids
    for _try in range(END_TRIES):
        rows = [await engine.store.read_run(RunId(run_id)) for run_id in left]
        unfinished = [row for row in rows if row is not None and not row.status.is_final]
        ended = 0
        for row in unfinished:
            taken = await take(engine, row, holder)
            if taken is not None:
                ended += await _end(runtime, taken, by)
        left = [row.run_id for row in unfinished]
        if not left or not ended:
            break
    if left:
        raise await _held(runtime, left, by)


async def _end(runtime: Runtime, row: RunRow, by: str) -> bool:
    engine = runtime.engine
    now_us = engine.now_us()
    failure = Failure(type="Cancelled", message=f"by {by}, to be erased")
    mail = None
    if row.parent is not None:
        mail = Mail(
            run_id=row.parent,
            kind=MailKind.CHILD,
            subject=row.run_id,
            sender=row.run_id,
            at_us=now_us,
        )
    status = RunStatus.CANCELLED
    records: list[rec.Record] = [
        rec.CancelRequested(now_us, by, compensate=False),
        rec.RunEnded(now_us, status.value, row.checkpoint, failure),
    ]
    change = RunEnded(
        status=status,
        at_us=now_us,
        failure=failure,
        checkpoint=row.checkpoint,
        mail_to_parent=mail,
    )
    try:
        await write_released(engine, row, records, change)
    except LeaseLost:
        return False
    return True


async def _held(runtime: Runtime, left: list[str], by: str) -> ThreadBusy:
    """Ask runs that somebody holds to cancel, and return the error that names them."""
    for run_id in left:
        row = await runtime.engine.store.read_run(RunId(run_id))
        if row is not None and not row.status.is_final:
            await runtime.cancel(run_id, by=by)
    msg = (
        f"{len(left)} runs are held by workers, {left[0]!r} first; they were asked to cancel, and "
        "nothing was erased. Erase again when they have ended"
    )
    return ThreadBusy(msg, runs=left, next=[command("show", left[0])])
