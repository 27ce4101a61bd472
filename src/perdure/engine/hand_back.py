"""Give a claimed run back that can't be executed: a write was refused, or it can't be read."""

from perdure.engine.environment import Environment
from perdure.engine.limits import HAND_BACK_DELAY_S
from perdure.engine.queue import RunJournal
from perdure.model import Failure, RunReleased, RunRow, RunStatus
from perdure.model import records as rec


async def hand_back(engine: Environment, row: RunRow, failure: Failure, *, is_parked: bool) -> None:
    """Release a run if this worker still holds it.

    Args:
        engine: the environment.
        row: the run as it was claimed.
        failure: why.
        is_parked: leave it to a person; else it can be claimed again after a moment.

    Raises:
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    current = await engine.store.read_run(row.run_id)
    if current is None or current.token != row.token or current.status is not RunStatus.RUNNING:
        return
    mail = await engine.store.read_mail(row.run_id)
    frames = await engine.store.read_frames(row.run_id, from_seq=current.last_seq)
    journal = RunJournal(engine.queue, current, frames[-1].hash)
    now_us = engine.now_us()
    journal.add(
        rec.Released(now_us, "needs_decision" if is_parked else "store_fault", (), failure),
        RunReleased(
            status=RunStatus.NEEDS_DECISION if is_parked else RunStatus.PENDING,
            ready_at_us=None if is_parked else now_us + round(HAND_BACK_DELAY_S * 1_000_000),
            failure=failure,
            checkpoint=current.checkpoint,
            # What nobody could take in must not wake it again and again; what comes later does.
            mail_seen=max((each.mail_id for each in mail), default=0),
        ),
    )
    await journal.barrier()
