"""Waiting for writes: a counter that never loses one, and those who wait for it to move."""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from perdure.clock import Clock


class ChangeWatch:
    """Counts the writes that this store object knows of, and wakes who waits for one.

    A waiter compares with the count that it has seen: what it names (`since`), else the count when
    the last call of the same asyncio task returned, else when the last call of anybody returned.
    """

    def __init__(self, clock: Clock, *, waiting: Callable[[], None] | None = None) -> None:
        """Start at zero.

        Args:
            clock: measures timeouts.
            waiting: called each time somebody begins to wait (to look for other processes' writes).
        """
        self._clock = clock
        self._waiting = waiting
        self._count = 0
        self._returned = 0
        self._seen: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        # In order: on virtual time the same history wakes them in the same order.
        self._waiters: dict[asyncio.Future[bool], None] = {}

    @property
    def mark(self) -> int:
        """The count now."""
        return self._count

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def bump(self) -> None:
        """Count a write and wake everybody who waits. Call it in the loop of the waiters."""
        self._count += 1
        for waiter in self._waiters:
            _settle(waiter, changed=True)

    async def wait(self, timeout_s: float, since: int | None) -> bool:
        """Return True once there was a write that the caller has not seen."""
        task = asyncio.current_task()
        if since is None:
            since = self._returned if task is None else self._seen.get(task, self._returned)
        changed = self._count > since or await self._next_bump(timeout_s)
        self._returned = self._count
        if task is not None:
            self._seen[task] = self._count
        return changed

    async def _next_bump(self, timeout_s: float) -> bool:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        timer.add_done_callback(lambda _timer: _settle(waiter, changed=False))
        try:
            if self._waiting is not None:
                self._waiting()
            return await waiter
        finally:
            self._waiters.pop(waiter, None)
            timer.cancel()


def _settle(waiter: asyncio.Future[bool], *, changed: bool) -> None:
    if not waiter.done():
        waiter.set_result(changed)
