"""The person who lets runs go on whose workers died too often."""

from collections.abc import Callable

from perdure.errors import RunFinal, StoreError, UsageError
from perdure.testing.simulator._checker import require
from perdure.testing.simulator._stage import Stage


async def retry_until(is_over: Callable[[], bool], stage: Stage) -> None:
    """Retry parked runs until it is over; one that is parked for another reason is a fault."""
    while not is_over():
        await stage.pause(3.0)
        try:
            for row in await stage.runtime.runs(status="needs_decision"):
                kind = row.failure.type if row.failure is not None else ""
                require(kind == "AttemptsExhausted", f"{row.run_id} is parked: {row.failure}")
                await stage.runtime.retry(row.run_id, by="ann")
        except (StoreError, UsageError, RunFinal):
            continue
