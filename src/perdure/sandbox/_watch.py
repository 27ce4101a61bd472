"""Looks at how much room a command takes, and says when it is too much.

Theory: a walk of what changed is exact, and slow where there are many files; the free room of the
file system is known at once, and everybody takes part of it. So the second says when the first is
worth while: when the file system lost, since the last walk, what is left of the room; or after a
while, as others may have made room meanwhile. A walk is followed by a pause of several times what
it took, so that it costs a small part of one processor.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from perdure.clock import Clock
from perdure.sandbox._measure import Usage
from perdure.sandbox.limits import WATCH_AGE_S, WATCH_S, WATCH_SHARE


class Watch:
    """A look-out for one command; for the event loop that it is made in.

    Attributes:
        full: is done when it takes too much.
    """

    def __init__(
        self, folder: Path, left: Usage, measure: Callable[[Usage], Usage], clock: Clock
    ) -> None:
        """Look for nothing yet.

        Args:
            folder: on the file system.
            left: room that is left for what changes.
            measure: returns how much what changed takes; need not look further than at so much.
            clock: to sleep by.
        """
        self._folder = folder
        self._left = left
        self._measure = measure
        self._clock = clock
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._look())

    def end(self) -> None:
        """Look no more. Idempotent."""
        self._task.cancel()
        if not self.full.done():
            self.full.cancel()

    async def _look(self) -> None:
        with suppress(OSError):  # what can't be looked at is refused when a snapshot is taken
            await self._look_again()

    async def _look_again(self) -> None:
        known: Usage | None = None
        free = self._free()
        walked_s = pause_s = 0.0
        while not self.full.done():
            await self._clock.sleep(WATCH_S)
            now_s = self._clock.monotonic_s()
            if known is not None and now_s - walked_s < pause_s:
                continue
            if known is not None and now_s - walked_s < WATCH_AGE_S and self._fits(known, free):
                continue
            free = self._free()
            known = await asyncio.to_thread(self._measure, self._left)
            walked_s = self._clock.monotonic_s()
            pause_s = WATCH_SHARE * (walked_s - now_s)
            if known.is_cut or known.is_deep:
                self.full.set_result(None)

    def _free(self) -> Usage:
        found = os.statvfs(self._folder)
        return Usage(bytes=found.f_bfree * found.f_frsize, entries=found.f_ffree)

    def _fits(self, known: Usage, free: Usage) -> bool:
        """Return whether it fits, if all that was taken of the file system was taken by this."""
        now = self._free()
        is_small = known.bytes + free.bytes - now.bytes <= self._left.bytes
        return is_small and known.entries + free.entries - now.entries <= self._left.entries
