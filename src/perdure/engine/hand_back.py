"""Give a claimed run back that can't be executed: a write was refused, or it can't be read."""

from perdure.engine.environment import Environment
from perdure.engine.limits import CLAIMS_MAX, HAND_BACK_DELAY_S
from perdure.engine.queue import RunJournal
from perdure.model import Failure, RunReleased, RunRow, RunStatus
from perdure.model import records as rec


async def hand_back(
    engine: Environment,
    row: RunRow,
    failure: Failure,
    *,
    is_parked: bool,
    is_counted: bool = False,
) -> None:
    """Release a run if this worker still holds it.

    Args:
        engine: the environment.
        row: the run as it was claimed.
        failure: why.
        is_parked: leave it to a person; else it can be claimed again after a moment.
        is_counted: the claim counts as one without progress, of which there may be CLAIMS_MAX, and
            the moments grow: the store refuses this very run, and may do so for ever.

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
    delay_s = HAND_BACK_DELAY_S * (2 ** min(row.claims, CLAIMS_MAX) if is_counted else 1)
    journal.add(
        rec.Released(now_us, "needs_decision" if is_parked else "store_fault", (), failure),
        RunReleased(
            status=RunStatus.NEEDS_DECISION if is_parked else RunStatus.PENDING,
            ready_at_us=None if is_parked else now_us + round(delay_s * 1_000_000),
            failure=failure,
            checkpoint=current.checkpoint,
            keep_claims=is_counted,
            # What nobody could take in must not wake it again and again; what comes later does.
            mail_seen=max((each.mail_id for each in mail), default=0),
        ),
    )
    await journal.barrier()
