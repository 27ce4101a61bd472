"""What a scenario plays on: a desk to start runs and to act as people do, that outlasts faults."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from perdure.engine.runtime import Run, Runtime
from perdure.engine.worker import WorkerSettings
from perdure.errors import (
    CommitUncertain,
    NeedsDecision,
    ResultTimedOut,
    StoreLocked,
    StoreUnavailable,
)
from perdure.testing.simulator._hosts import Host
from perdure.testing.simulator._outside import Outside, World

Result = TypeVar("Result")


class Scenario(Protocol):
    """What is simulated: graphs, and what people do with them.

    Attributes:
        settings: of every worker.
    """

    settings: WorkerSettings

    def graphs(self, outside: Outside) -> list[Any]:
        """Return the graphs, whose effects reach the world by `outside`."""

    async def play(self, stage: "Stage") -> dict[str, Any]:
        """Start runs, act as people do, and return what came of it, by name.

        The returned must be what it is without faults: a simulation compares the two.
        """


class Stage:
    """The desk of one simulation: a host without a worker, and what happens around it."""

    def __init__(self, world: World, host: Host, graphs: list[Any], seed: str) -> None:
        """Set it up."""
        self.world = world
        self.runtime: Runtime = host.runtime
        self.graphs = graphs
        self.random = random.Random(seed)
        self.workers: Callable[[], list[Host]] = list
        self._host = host

    async def sleep(self, delay_s: float) -> None:
        """Sleep in virtual time."""
        await self._host.clock.sleep(delay_s)

    async def pause(self, longest_s: float) -> None:
        """Sleep for a while that the seed says, at most `longest_s`."""
        await self.sleep(self.random.uniform(0.0, longest_s))

    async def insist(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return a call's result, and make it again while the store can't be reached.

        A call that is no repeated one by itself (a start without a key) must not be made so.
        """
        while True:
            try:
                return await call()
            except (CommitUncertain, StoreUnavailable, StoreLocked):
                await self.sleep(1.0)

    async def start(self, *args: Any, on_worker: bool = False, **kwargs: Any) -> Run:
        """Start a run: at the desk, or on a worker, which takes it at once.

        A worker may vanish meanwhile; with a key, the start is then made at the desk.
        """
        workers = self.workers() if on_worker else []
        host = self.random.choice(workers) if workers else self._host
        if host is not self._host:
            started = asyncio.ensure_future(host.do(host.runtime.start(*args, **kwargs)))
            started.add_done_callback(lambda task: task.cancelled() or task.exception())
            ringing = asyncio.ensure_future(self.sleep(30.0))
            await asyncio.wait({started, ringing}, return_when=asyncio.FIRST_COMPLETED)
            ringing.cancel()
            if started.done() and not started.exception():
                return await self.runtime.get(started.result().id)
        return await self.insist(lambda: self.runtime.start(*args, **kwargs))

    async def result(self, run: Run) -> Any:
        """Return a run's result; a parked run is waited for: somebody decides about it."""

        async def once() -> Any:
            """Wait a while."""
            return await run.result(timeout=60)

        while True:
            try:
                return await self.insist(once)
            except (NeedsDecision, ResultTimedOut):
                await self.sleep(1.0)

    async def together(self, *works: Awaitable[Any]) -> list[Any]:
        """Do several things at once; the first that fails fails all."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
