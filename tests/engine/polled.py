"""What tests wait for by looking, as another process could bring it about.

No deadline of its own: on a busy machine everything takes longer, and a test that hangs is ended by
the timeout of tests, with the place where it hung.
"""

import asyncio

from perdure import RunStatus

PAUSE_S = 0.01


async def reached(run, *statuses):
    """Wait until a run has one of the statuses (by default: waits); return its row."""
    while (row := await run.row()).status not in (statuses or (RunStatus.WAITING,)):
        assert not row.status.is_final, row
        await asyncio.sleep(PAUSE_S)
    return row


async def asked(runtime, run=None):
    """Wait until somebody asks; return the oldest open question."""
    run_id = None if run is None else run.id
    while not (asks := await runtime.asks(run_id=run_id)):  # noqa: ASYNC110  # the store tells
        await asyncio.sleep(PAUSE_S)
    return asks[0]


async def answered(runtime, run, value=True, by="ada"):
    """Answer the next open question of a run."""
    await runtime.answer((await asked(runtime, run)).id, value, by=by)


async def let_go(runtime):
    """Wait until the worker holds nothing: a run waits, or ends, a moment before it is let go."""
    while runtime.worker.held:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(PAUSE_S)


async def ended(run):
    """Wait until a run has ended, however; return its row."""
    while not (row := await run.row()).status.is_final:  # noqa: ASYNC110  # the store tells
        await asyncio.sleep(PAUSE_S)
    return row
