"""Virtual time, seeded chance and counted identifiers: the services of a test.

Theory: everything in Perdure asks a `Clock` for the time and for sleep, so time can be a number
that only a test moves. Sleepers wait in a heap, ordered by when they are due, then by arrival.
There are two ways to move time:

- `await clock.advance(seconds)` goes forward by hand. It stops at every sleeper on the way, lets
  everything that this one sets off come to rest, and only then goes on; so a chain of sleeps wakes
  in the order in which it would have in real time.
- `async with clock.autojump():` goes to the next sleeper whenever nothing else can run, so an hour
  of backoff takes no time and nothing needs to be advanced.

"Nothing else can run" is read from the event loop: its queue of ready callbacks is empty several
turns in a row. (A turn also polls sockets and real timers, and so queues what they have ready.)
An event loop that does not show its queue is given BLIND_TURNS turns instead.

Limits, which the loop can't see and you must mind:

- Work on another OS thread (a database driver, `asyncio.to_thread`) looks like rest. Wrap it in
  `with clock.busy():` and time stands still until it is done.
- Answers on their way from another process or host look like rest, too. Same remedy.
- Real timers (`asyncio.timeout`, `loop.call_later`) run on real time. Use the clock's sleep.
- A task that polls with `sleep(0)` never rests: `advance` refuses after SETTLE_TURNS_MAX turns, and
  `autojump` never jumps.
- One virtual clock for each event loop: two that wait for rest at once keep each other awake.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from perdure.clock import Probe, Services, no_probe, spell_id
from perdure.errors import SettingInvalid, UsageError

START_US = 1_893_456_000_000_000
"""Where virtual wall clocks start: 2030-01-01 00:00 UTC."""

DELAY_S_MAX = 1e9
"""Longest virtual sleep, about 31 years; a longer one (infinity, too) is cut to it."""

QUIET_TURNS = 3
"""Turns with an empty queue that count as rest; more than one, as sockets are read in between."""

BLIND_TURNS = 100
"""Turns that count as rest on an event loop that does not show its queue."""

SETTLE_TURNS_MAX = 100_000
"""Turns after which `advance` says that something polls; about a second of real time."""

PRUNE_LENGTH_MIN = 64
"""Sleepers below this number are not worth looking through for cancelled ones."""


class VirtualClock:
    """A clock that stands still until a test moves it. For one event loop, not thread-safe."""

    def __init__(self, start_us: int = START_US) -> None:
        """Start at the given wall-clock time, monotonic second 0."""
        self._start_us = start_us
        self._elapsed_us = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._prune_length = PRUNE_LENGTH_MIN
        self._busy = 0
        self._has_rested = asyncio.Event()
        self._has_sleeper = asyncio.Event()
        self._advancing = asyncio.Lock()
        self._is_autojumping = False

    def now_us(self) -> int:
        """Return the virtual wall-clock time in microseconds since the epoch (UTC)."""
        return self._start_us + self._elapsed_us

    def monotonic_s(self) -> float:
        """Return the virtual seconds since the clock was made; `jump_wall` does not change them."""
        return self._elapsed_us / 1_000_000

    async def sleep(self, delay_s: float) -> None:
        """Return once the clock has been moved on by `delay_s` (0: after one turn of the loop)."""
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        self._prune()
        heapq.heappush(self._sleepers, (self._due_us(delay_s), next(self._order), wake))
        self._has_sleeper.set()
        await wake

    @property
    def sleepers(self) -> int:
        """How many are asleep now."""
        return sum(not wake.done() for _due, _order, wake in self._sleepers)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative; nobody wakes, nothing else changes."""
        self._start_us += round(seconds * 1_000_000)

    async def advance(self, seconds: float = 0.0) -> None:
        """Move time forward and let everything due by then happen, in order.

        Returns when all of it has come to rest; 0 seconds only waits for that. Under `autojump` it
        is a plain sleep, because there time moves by itself.

        Raises:
            SettingInvalid: negative seconds; time did not move.
            UsageError: the loop does not come to rest, because something polls with `sleep(0)`.
        """
        if seconds < 0:
            msg = f"advance({seconds!r}): time runs forward only; use jump_wall for the wall clock"
            raise SettingInvalid(msg)
        if self._is_autojumping:
            await self.sleep(seconds)
            return
        async with self._advancing:
            target_us = self._due_us(seconds) if seconds else self._elapsed_us
            await self._settle(SETTLE_TURNS_MAX)
            while (due_us := self._next_due_us()) is not None and due_us <= target_us:
                self._wake_until(due_us)
                await self._settle(SETTLE_TURNS_MAX)
            self._elapsed_us = target_us

    @asynccontextmanager
    async def autojump(self) -> AsyncIterator[None]:
        """Within the block, jump to the next sleeper whenever nothing else can run.

        Raises:
            UsageError: the clock jumps by itself already.
        """
        if self._is_autojumping:
            msg = "this clock jumps by itself already; one autojump() block at a time"
            raise UsageError(msg)
        self._is_autojumping = True
        jumper = asyncio.create_task(self._jump_for_ever())
        try:
            yield
        finally:
            self._is_autojumping = False
            jumper.cancel()
            await asyncio.wait([jumper])

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Hold time still within the block, for work that the event loop can't see.

        The work must not sleep on this clock: time would wait for it, and it for time.
        """
        self._busy += 1
        self._has_rested.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._has_rested.set()

    async def _jump_for_ever(self) -> None:
        while True:
            if self._next_due_us() is None:
                self._has_sleeper.clear()
                await self._has_sleeper.wait()
            await self._settle(None)
            due_us = self._next_due_us()  # asked again: the sleeper may have been cancelled
            if due_us is not None:
                self._wake_until(due_us)

    async def _settle(self, turns_max: int | None) -> None:
        """Return when nothing else is ready to run and nobody is busy."""
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        quiet_enough = BLIND_TURNS if ready is None else QUIET_TURNS
        quiet = 0
        for turn in count(1):
            await asyncio.sleep(0)
            quiet = 0 if ready else quiet + 1
            if self._busy:
                await self._has_rested.wait()
                quiet = 0
            if quiet >= quiet_enough:
                return
            if turn == turns_max:
                msg = (
                    f"the event loop did not come to rest in {turns_max} turns; "
                    "look for a task that polls with sleep(0)"
                )
                raise UsageError(msg)

    def _wake_until(self, due_us: int) -> None:
        self._elapsed_us = due_us
        while self._sleepers and self._sleepers[0][0] <= due_us:
            _due_us, _order, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)

    def _next_due_us(self) -> int | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _due_us(self, delay_s: float) -> int:
        return self._elapsed_us + max(1, round(min(delay_s, DELAY_S_MAX) * 1_000_000))

    def _prune(self) -> None:
        # A cancelled sleep stays in the heap until it would be due; thousands of cancelled timeouts
        # must not pile up. Doubling the mark keeps the cost of a sleep constant on average.
        if len(self._sleepers) >= self._prune_length:
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
            heapq.heapify(self._sleepers)
            self._prune_length = max(PRUNE_LENGTH_MIN, 2 * len(self._sleepers))


class SeededRng:
    """Chance that is the same every time for the same seed."""

    def __init__(self, seed: int) -> None:
        """Start the sequence that belongs to the seed."""
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        """Return the next float between low and high."""
        return self._random.uniform(low, high)


class CountingIds:
    """Identifiers that count: the same every time, in order, and unlike those of another lane."""

    def __init__(self, lane: int = 0) -> None:
        """Count from 1 in the given lane (0 to 2 ** 40 - 1), one for each process simulated."""
        self._lane = lane
        self._count = count(1)

    def new(self, prefix: str, at_us: int) -> str:
        """Return `prefix_` + 10 digits of milliseconds + 8 of the lane + 8 of the count."""
        return spell_id(prefix, at_us, self._lane << 40 | next(self._count))


def virtual_services(
    seed: int, *, clock: VirtualClock | None = None, lane: int = 0, probe: Probe = no_probe
) -> Services:
    """Return services under which the same seed gives the same run.

    Args:
        seed: seed of the randomness.
        clock: the clock to share, so that the caller can move it; None: a new one.
        lane: number of the process that is simulated; two that share a store need two numbers.
        probe: called at each crash point.
    """
    return Services(
        clock=clock or VirtualClock(),
        rng=SeededRng(seed),
        ids=CountingIds(lane),
        probe=probe,
        entropy=random.Random(f"{seed} {lane}").randbytes,
    )
