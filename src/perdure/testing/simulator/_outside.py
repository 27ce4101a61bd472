"""The outside world: it does what effects ask of it, and counts what it really did.

A request is on its way, is done once it arrives, and its answer is on its way back; either may get
lost. What was sent arrives even if its sender is cancelled, or gone.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from perdure.errors import Rejected
from perdure.testing.simulator._hosts import Host, current_host
from perdure.testing.simulator._network import Network
from perdure.testing.simulator.limits import TRANSIT_S_MAX


class Done(Struct):
    """What the world knows of one thing that was asked of it.

    Attributes:
        label: what it is, said by the scenario: one logical act.
        keys: idempotency keys that it was asked for under.
        count: how often it was really done.
        host: who asked first.
    """

    label: str
    keys: dict[str, None] = {}  # msgspec copies it
    count: int = 0
    asked: int = 0


class Act(Struct, frozen=True):
    """One request to the world; see `Outside.act`."""

    label: str
    key: str
    deduplicates: bool
    may_refuse: bool


class World:
    """The one outside world of a simulation."""

    def __init__(self, network: Network, seed: str) -> None:
        """Begin with nothing done."""
        self.network = network
        self.done: dict[str, Done] = {}
        self.dispatching: Callable[[Host, str, str], None] = lambda _host, _label, _key: None
        self.random = random.Random(seed)

    def count(self, label: str) -> int:
        """Return how often a thing was really done."""
        found = self.done.get(label)
        return found.count if found is not None else 0

    def transit_s(self) -> float:
        """Return how long a message takes."""
        return self.random.uniform(0.001, TRANSIT_S_MAX)

    def hits(self, rate: float) -> bool:
        """Return whether a fault of this rate happens now."""
        return not self.network.is_calm and self.random.random() < rate

    async def serve(self, act: Act, answer: "asyncio.Future[Any]") -> None:
        """Do what a request asks for, and answer it."""
        label = act.label
        clock, faults, trace = self.network.clock, self.network.faults, self.network.trace
        await clock.sleep(self.transit_s())
        thing = self.done.setdefault(label, Done(label=label, keys={}))
        thing.keys[act.key] = None
        thing.asked += 1
        if act.may_refuse and self.hits(faults.act_refused):
            trace.fault("world", "act refused", label)
            answer.set_exception(Rejected("not now", retry_after_s=0.2))
        else:
            if not (act.deduplicates and thing.count):
                thing.count += 1
            trace.add("world", f"did {label} ({thing.count})")
            await clock.sleep(self.transit_s())
            if self.hits(faults.act_lost):
                trace.fault("world", "act's answer lost", label)
                answer.set_exception(ConnectionError("the answer got lost"))
            else:
                answer.set_result(f"did {label}")
        answer.exception()  # a caller that is gone does not ask for it


class Outside:
    """The outside world, as effects of a scenario reach it: each from the host that it runs on."""

    def __init__(self, world: World) -> None:
        """Reach the world."""
        self._world = world

    async def sleep(self, delay_s: float) -> None:
        """Sleep in the host's virtual time."""
        await current_host().clock.sleep(delay_s)

    async def act(
        self, label: str, key: str, *, deduplicates: bool = False, may_refuse: bool = True
    ) -> str:
        """Do the thing called `label`, and return its result.

        Args:
            label: one logical act, the same however often it is tried: it must be done once.
            key: the idempotency key that the effect was given.
            deduplicates: whether the other side does a thing once for each key by itself.
            may_refuse: whether it may refuse, for the effect to be tried again.

        Raises:
            Rejected: the other side refused; nothing was done.
            ConnectionError: the answer was lost; it was done.
        """
        world, host = self._world, current_host()
        if host.is_gone:
            await host.hang()
        world.network.trace.add(host.name, f"dispatch {label}")
        world.dispatching(host, label, key)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = Act(label, key, deduplicates, may_refuse)
        world.network.spawn(world.serve(request, answer))
        result: str = await host.receive(answer)
        return result

    async def find(self, label: str) -> str | None:
        """Return the result of a thing if it was done, else None: a lookup at the other side."""
        await current_host().clock.sleep(self._world.transit_s())
        return f"did {label}" if self._world.count(label) else None

    async def read(self, value: Any) -> Any:
        """Return the value after a while: an act that reads only."""
        await current_host().clock.sleep(self._world.transit_s())
        return value
