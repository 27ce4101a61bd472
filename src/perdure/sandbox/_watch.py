"""Looks at how much room a sandbox takes while something executes, and says when it is too much.

Theory: a walk of what changed is exact, and slow where there are many files; the free room of the
file system is known at once, and everybody takes part of it. So the second says when the first is
worth while: when the file system lost, since the last walk, what is left of the room; or after a
while, as others may have made room meanwhile. A walk is followed by a pause of several times what
it took, so that it costs a small part of one processor.

Where something is there that can't be measured, what the file system lost since the beginning
counts as taken by it. Where it was too much before the beginning, only what grows is too much: a
command that removes things is what is wanted then. Between commands nobody removes anything, and
what has no name is ended with who has it.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from perdure.clock import Clock
from perdure.sandbox._measure import Usage
from perdure.sandbox.limits import (
    OVER_BYTES,
    OVER_FILES,
    REST_AGE_S,
    REST_S,
    WATCH_AGE_S,
    WATCH_S,
    WATCH_SHARE,
)


class Seen(Struct, frozen=True):
    """What a look found.

    Attributes:
        usage: what is taken.
        nameless: of that, what is of files without a name, which end with who has them open.
        free: of the file system, then.
        is_hiding: there is more, which can't be measured.
    """

    usage: Usage
    free: Usage
    nameless: Usage = Usage()
    is_hiding: bool = False


class Pace(Struct, frozen=True):
    """How often it is looked, in seconds: at the free room, and at all."""

    look_s: float
    age_s: float


RUNNING = Pace(WATCH_S, WATCH_AGE_S)
RESTING = Pace(REST_S, REST_AGE_S)


def free_room(folder: Path) -> Usage:
    """Return what is free on the file system of a folder."""
    found = os.statvfs(folder)
    return Usage(bytes=found.f_bfree * found.f_frsize, entries=found.f_ffree)


def fits(seen: Seen, now: Usage, most: Usage) -> bool:
    """Return whether it is at most so much, if what was taken since a look was taken by this."""
    is_small = seen.usage.bytes + seen.free.bytes - now.bytes <= most.bytes
    return is_small and seen.usage.entries + seen.free.entries - now.entries <= most.entries


def allowed(left: Usage, before: Usage) -> Usage:
    """Return what may be taken where so much is left, and so much was taken at the beginning."""
    is_large, is_many = before.bytes > left.bytes, before.entries > left.entries
    return Usage(
        bytes=before.bytes + OVER_BYTES if is_large else left.bytes,
        entries=before.entries + OVER_FILES if is_many else left.entries,
        is_deep=before.is_deep,
    )


class Watch:
    """A look-out for what executes; for the event loop that it is made in.

    Attributes:
        full: is done when it takes too much.
        seen: what was found last.
    """

    def __init__(
        self,
        folder: Path,
        left: Usage,
        look: Callable[[Usage], Seen],
        clock: Clock,
        *,
        before: Seen,
        pace: Pace = RUNNING,
    ) -> None:
        """Look for nothing yet.

        Args:
            folder: on the file system.
            left: room that is left for what changes.
            look: returns how much what changed takes; need not look further than at so much.
            clock: to sleep by.
            before: what was taken at the beginning.
            pace: of looks.
        """
        self._folder = folder
        named = before.usage.minus(before.nameless)
        self._most = allowed(left, named if pace is RESTING else before.usage)
        self._look = look
        self._clock = clock
        self._pace = pace
        self._before = before
        self.seen = before
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._watch())

    def end(self) -> None:
        """Look no more. Idempotent."""
        self._task.cancel()
        if not self.full.done():
            self.full.cancel()

    async def _watch(self) -> None:
        with suppress(OSError):  # what can't be looked at is refused when a snapshot is taken
            await self._look_again()

    async def _look_again(self) -> None:
        is_known = False
        walked_s = pause_s = 0.0
        while not self.full.done():
            await self._clock.sleep(self._pace.look_s)
            now_s = self._clock.monotonic_s()
            if is_known and now_s - walked_s < pause_s:
                continue
            is_young = is_known and now_s - walked_s < self._pace.age_s
            if is_young and fits(self.seen, free_room(self._folder), self._most):
                continue
            self.seen = await asyncio.to_thread(self._look, self._most)
            is_known = True
            walked_s = self._clock.monotonic_s()
            pause_s = WATCH_SHARE * (walked_s - now_s)
            if self._is_too_much():
                self.full.set_result(None)

    def _is_too_much(self) -> bool:
        usage, most = self.seen.usage, self._most
        if usage.bytes > most.bytes or usage.entries > most.entries:
            return True
        if usage.is_deep and not most.is_deep:
            return True
        cannot_be_told = usage.is_deep or self.seen.is_hiding
        return cannot_be_told and not fits(self._before, self.seen.free, most)
