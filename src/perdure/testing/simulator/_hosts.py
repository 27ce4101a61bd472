"""A host: one simulated process with clocks of its own, that may stop, or vanish.

Whatever can wake its tasks comes through here: answers of the store, of the world, and its timers.
While the host is paused they are held back; after a crash they never come. What was ready to run
at that moment still runs to its next await, as if the fault had come a moment later.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from perdure.clock import Services
from perdure.errors import UsageError
from perdure.testing.clock import CountingIds, SeededRng, VirtualClock
from perdure.testing.simulator._trace import Trace

Result = TypeVar("Result")


_current: ContextVar["Host"] = ContextVar("perdure_simulated_host")


def current_host() -> "Host":
    """Return the host that the running code is on.

    Raises:
        UsageError: it is on none.
    """
    try:
        return _current.get()
    except LookupError as error:
        msg = "this is only for effects and nodes that run in a simulation"
        raise UsageError(msg) from error


class HostClock:
    """The clocks of one host: a wall clock that is wrong and jumps, a monotonic one that drifts."""

    def __init__(self, host: "Host", truth: VirtualClock, drift: float) -> None:
        """Run `1 + drift` times as fast as the truth."""
        self._host = host
        self._truth = truth
        self._rate = 1.0 + drift
        self.error_us = 0

    def now_us(self) -> int:
        """Return the host's wall-clock time."""
        drifted_us = round(self._truth.monotonic_s() * (self._rate - 1.0) * 1_000_000)
        return self._truth.now_us() + drifted_us + self.error_us

    def monotonic_s(self) -> float:
        """Return the host's monotonic time."""
        return self._truth.monotonic_s() * self._rate

    async def sleep(self, delay_s: float) -> None:
        """Sleep by the host's clock; a host that is paused or gone does not wake."""
        await self._truth.sleep(delay_s / self._rate)
        await self._host.gate()


class Host:
    """One simulated process."""

    def __init__(self, name: str, number: int, trace: Trace, clock: VirtualClock) -> None:
        """Name it; `services` are those of its runtime."""
        self.name = name
        self.trace = trace
        self.is_gone = False
        self.is_ready = False
        self.failures = 0
        self.estimate_us = 0
        self.asking: Counter[str] = Counter()
        self.is_torn_down = False
        self.dies_at: int | None = None
        self.runtime: Any = None
        self.clock = HostClock(self, clock, 0.0)
        self.leases: dict[tuple[str, int], float] = {}
        self.claims: dict[int, float] = {}
        self._resumed: asyncio.Event | None = None
        self._hanging: list[asyncio.Future[None]] = []
        self._context = copy_context()
        self._context.run(_current.set, self)
        self.services = Services(
            clock=self.clock, rng=SeededRng(number), ids=CountingIds(number), probe=self.reach
        )

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self._resumed is not None

    def reach(self, name: str) -> None:
        """Vanish at a crash point or around a write, if that is how it is to end."""
        if self.dies_at is not None and not self.is_gone:
            self.dies_at -= 1
            if self.dies_at <= 0:
                self.vanish(f"at {name}")

    def vanish(self, where: str) -> None:
        """Crash: nothing of it ever runs again."""
        if not self.is_gone:
            self.is_gone = True
            self.trace.fault(self.name, "crash", where)

    def pause(self) -> None:
        """Stand still."""
        self._resumed = asyncio.Event()
        self.trace.fault(self.name, "pause")

    def resume(self) -> None:
        """Go on."""
        if self._resumed is not None:
            self.trace.add(self.name, "resumes")
            self._resumed.set()
            self._resumed = None

    async def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something on this host: whatever it sets off is on it, too."""
        return await asyncio.get_running_loop().create_task(work, context=self._context)

    async def gate(self) -> None:
        """Return while the host runs; wait while it is paused; never return once it is gone."""
        while self._resumed is not None and not self.is_gone:
            await self._resumed.wait()
        if self.is_gone:
            await self.hang()

    async def hang(self) -> None:
        """Never return; cancelled when the simulation ends."""
        if not self.is_torn_down:
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hanging.append(never)  # kept, or the garbage collector would end the task
            await never
        raise asyncio.CancelledError

    async def receive(self, answer: "asyncio.Future[Result]") -> Result:
        """Return an answer when it has come and the host runs."""
        await asyncio.wait({answer})
        await self.gate()
        return answer.result()
