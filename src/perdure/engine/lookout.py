"""Who waits for the end of a run, and the one task that looks for all of them.

Most runs end in the process that waits for them, which tells. For the others any change of the
store is a reason to look, a few times a second at most, with one query however many wait.
"""

import asyncio
from typing import Any

from perdure.clock import Clock
from perdure.engine.limits import LOOK_PAUSE_S, LOOK_S_MAX, LOOKED_AT_MAX
from perdure.errors import PerdureError
from perdure.ids import RunId
from perdure.model import FINAL_STATUSES, RunStatus
from perdure.store.api import RunQuery, Store

_NEWS = (*sorted(FINAL_STATUSES), RunStatus.NEEDS_DECISION)


class Lookout:
    """The waiters of one process."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Serve the waiters of one store; nothing runs until somebody waits."""
        self._store = store
        self._clock = clock
        self._waiters: dict[str, list[asyncio.Future[Any]]] = {}
        self._looking: asyncio.Task[None] | None = None

    def add(self, run_id: str) -> "asyncio.Future[Any]":
        """Return a future that is told when the run ends, or is parked, in this process."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_id, []).append(waiter)
        return waiter

    def drop(self, run_id: str, waiter: "asyncio.Future[Any]") -> None:
        """Forget a future of `add`."""
        waiters = self._waiters.get(run_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiters.pop(run_id, None)

    def tell(self, run_id: str, news: Any) -> None:
        """Tell those who wait for a run; None: they should look at it."""
        for waiter in self._waiters.get(run_id, []):
            if not waiter.done():
                waiter.set_result(news)

    async def wait(self, waiter: "asyncio.Future[Any]", mark: int) -> Any:
        """Return what the waiter is told, or None: look at the run again.

        Args:
            waiter: of `add`, from before the run was looked at.
            mark: the store's change mark from before that look.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(mark), name="perdure-lookout")
        return await waiter

    async def close(self) -> None:
        """Stop looking; whoever still waits looks for himself. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._tell_all()

    async def _look(self, mark: int) -> None:
        """Look after every change while somebody waits.

        Invariant: the mark is from before the newest look, so a change after the look of a waiter
        who came meanwhile is a change after the mark.
        """
        try:
            while self._waiters:
                await self._clock.sleep(LOOK_PAUSE_S)
                await self._store.wait_for_change(LOOK_S_MAX, since=mark)
                mark = self._store.change_mark()
                await self._look_once()
        except PerdureError:
            self._tell_all()  # each finds the error by a look of his own

    async def _look_once(self) -> None:
        waited_for = tuple(RunId(run_id) for run_id in self._waiters)
        for start in range(0, len(waited_for), LOOKED_AT_MAX):
            part = waited_for[start : start + LOOKED_AT_MAX]
            query = RunQuery(run_ids=part, statuses=_NEWS, limit=len(part))
            for row in await self._store.find_runs(query):
                # A parked run that was decided only waits for a worker to take it up again.
                if row.status.is_final or row.ready_at_us is None:
                    self.tell(row.run_id, None)

    def _tell_all(self) -> None:
        for run_id in list(self._waiters):
            self.tell(run_id, None)
