"""One simulation: hosts, network, world and faults of one seed, checked after every event."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from perdure.engine.environment import Environment
from perdure.engine.runtime import Runtime
from perdure.engine.worker import Worker
from perdure.testing.clock import SeededRng, VirtualClock, virtual_services
from perdure.testing.simulator._checker import Checker, Violation
from perdure.testing.simulator._default import DefaultScenario
from perdure.testing.simulator._faults import Faults
from perdure.testing.simulator._hosts import Host, HostClock
from perdure.testing.simulator._network import Link, Network
from perdure.testing.simulator._outside import Outside, World
from perdure.testing.simulator._stage import Scenario, Stage
from perdure.testing.simulator._trace import Trace
from perdure.testing.simulator._truth import TruthStore
from perdure.testing.simulator.limits import EVENTS_SHOWN, HORIZON_S, TEARDOWN_ROUNDS


class Report(Struct, frozen=True, kw_only=True):
    """What a simulation was.

    Attributes:
        seed: its seed.
        events: how many events there were: calls, faults, acts.
        states: how many states of the store were checked.
        faults: how many faults of each kind.
        runs: runs that there were, children too.
        hosts: processes that there were.
        virtual_s: how long it took, in virtual seconds.
        digest: of the whole history; the same seed gives the same one.
        results: what the scenario returned.
    """

    seed: int
    events: int
    states: int
    faults: dict[str, int]
    runs: int
    hosts: int
    virtual_s: float
    digest: str
    results: dict[str, Any]


class HostEnvironment(Environment):
    """A host's environment, which knows the graphs of the scenario and no others.

    What else this process has defined must not change the history of a seed.
    """

    def graphs_to_learn(self) -> list[tuple[str, int]]:
        """Return no graphs: there are none to learn."""
        return []


class SimulationFailed(AssertionError):
    """A rule was violated.

    Attributes:
        seed: the seed that shows it.
        step: number of the event at which it showed.
        what: the rule, and how it was violated.
        events: the newest events before it.
    """

    def __init__(
        self, seed: int, step: int, what: str, events: list[str], *, options: str = ""
    ) -> None:
        """Keep what is known, with the command (and its options) that replays it."""
        self.seed = seed
        self.step = step
        self.what = what
        self.events = events
        lines = "\n".join(events)
        super().__init__(
            f"seed {seed}, event {step}: {what}\n{lines}\n"
            f"replay: python -m perdure.testing.simulator --seed {seed}{options}"
        )


class Simulation:
    """The unchanged engine on hosts, a network and a world in which everything goes wrong."""

    def __init__(
        self,
        seed: int,
        *,
        settings: Faults | None = None,
        scenario: Scenario | None = None,
        shown: int = EVENTS_SHOWN,
    ) -> None:
        """Prepare; `run` plays it, once.

        Args:
            seed: decides everything.
            settings: what goes wrong, how often; None: the usual.
            scenario: what is simulated; None: one with every kind of effect, wait and graph.
            shown: newest events that a failure shows.
        """
        self.seed = seed
        self.faults = settings or Faults()
        self.scenario: Scenario = scenario or DefaultScenario()
        self.clock = VirtualClock()
        self.trace = Trace(self.clock, shown)
        services = virtual_services(seed, clock=self.clock)
        self.truth = TruthStore(services)
        self.network = Network(self.truth, self.clock, self.trace, self.faults, f"{seed} network")
        self.world = World(self.network, f"{seed} world")
        ttl_s = self.scenario.settings.lease_ttl_s
        self.checker = Checker(self.truth, self.world, ttl_s)
        self.graphs = self.scenario.graphs(Outside(self.world))
        self.hosts: list[Host] = []
        self._random = random.Random(f"{seed} faults")
        self._failed: asyncio.Future[None]
        self._helpers: list[asyncio.Task[Any]] = []

    async def run(self) -> Report:
        """Play it to its end.

        Raises:
            SimulationFailed: a rule was violated.
        """
        async with self.clock.autojump():
            others = asyncio.all_tasks()
            await self.truth.open()
            self._failed = asyncio.get_running_loop().create_future()
            self._watch()
            try:
                results = await self._play()
                self.checker.at_end()
            except Violation as violation:
                raise self.failure(str(violation)) from violation
            except Exception as error:
                what = f"an exception that nobody expects: {type(error).__name__}: {error}"
                raise self.failure(what) from error
            finally:
                await self._tear_down(others)
        return Report(
            seed=self.seed,
            events=self.trace.count,
            states=self.checker.states,
            faults=dict(sorted(self.trace.faults.items())),
            runs=len(self.truth.tables.runs),
            hosts=len(self.hosts),
            virtual_s=round(self.clock.monotonic_s(), 3),
            digest=self.trace.digest(),
            results=results,
        )

    def failure(self, what: str) -> SimulationFailed:
        """Return the error that tells of a violated rule, with the newest events."""
        kind = type(self.scenario)
        other = f" --scenario {kind.__module__}:{kind.__qualname__}"
        return SimulationFailed(
            self.seed,
            self.trace.count,
            what,
            list(self.trace.newest),
            options="" if kind is DefaultScenario else other,
        )

    def _watch(self) -> None:
        """Check after every event; the first violation ends the simulation."""

        def guarded(check: Callable[..., None]) -> Callable[..., None]:
            def checked(*args: Any) -> None:
                """Check, and keep the violation for the player."""
                try:
                    check(*args)
                except Violation as violation:
                    if not self._failed.done():
                        self._failed.set_exception(violation)

            return checked

        self.network.after = guarded(self.checker.after)
        self.world.dispatching = guarded(self.checker.dispatching)

    async def _play(self) -> dict[str, Any]:
        host = await self._host("desk", worker=False)
        stage = Stage(self.world, host, self.graphs, f"{self.seed} people")
        stage.workers = lambda: [host for host in self._alive() if host.is_ready]
        helpers = [asyncio.ensure_future(work) for work in self._works()]
        playing = asyncio.ensure_future(self.scenario.play(stage))
        ringing = asyncio.ensure_future(self.clock.sleep(self.faults.chaos_s + HORIZON_S))
        watched: set[asyncio.Future[Any]] = {playing, ringing, self._failed, *helpers}
        try:
            while not playing.done():
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if self._failed.done():
                    self._failed.result()
                if ringing.done():
                    self._raise_stuck()
                for each in done:
                    each.result()
            await self._stop_workers()
        finally:
            for each in (playing, ringing, *helpers):
                each.cancel()
        if self._failed.done():
            self._failed.result()
        return playing.result()

    def _raise_stuck(self) -> None:
        rows = [row for row in self.truth.tables.runs.values() if not row.status.is_final]
        shown = "; ".join(f"{row.run_id} {row.status.value} {row.waits}" for row in rows)
        msg = f"not at its end {HORIZON_S:.0f} s after the last fault: {shown or 'all runs ended'}"
        raise Violation(msg)

    # -- hosts -------------------------------------------------------------------------------------

    async def _host(self, name: str, *, worker: bool) -> Host:
        host = Host(name, len(self.hosts) + 1, self.trace, self.clock)
        drift = self._random.uniform(-self.faults.drift, self.faults.drift)
        host.clock = HostClock(host, self.clock, drift)
        host.clock.error_us = self._clock_error_us()
        error_s = self.faults.server_clock_error_s
        host.estimate_us = round(self._random.uniform(-error_s, error_s) * 1_000_000)
        host.services = type(host.services)(
            clock=host.clock,
            rng=SeededRng(self.seed * 1000 + len(self.hosts)),
            ids=host.services.ids,
            probe=host.services.probe,
        )
        self.hosts.append(host)
        link: Any = Link(self.network, host)
        engine = HostEnvironment(link, host.services)
        engine.register(self.graphs_on(name))
        working = Worker(engine, self.scenario.settings) if worker else None
        host.runtime = Runtime(engine, working)
        self.trace.add(name, "comes")
        await host.do(host.runtime.__aenter__())
        host.is_ready = True
        return host

    def graphs_on(self, _name: str) -> list[Any]:
        """Return the graphs that a new host has: all, unless a deploy is simulated."""
        return self.graphs

    def _clock_error_us(self) -> int:
        error_s = self.faults.jump_s if self.network.has_clock else self.faults.clock_error_s
        return round(self._random.uniform(-error_s, error_s) * 1_000_000)

    def _alive(self) -> list[Host]:
        """Return the workers that are neither gone nor draining, oldest first."""
        return [
            host
            for host in self.hosts
            if host.runtime.worker is not None
            and not host.is_gone
            and not host.runtime.worker.is_draining
        ]

    async def _keep_workers(self) -> None:
        """Let a new worker come for each that is gone."""
        while True:
            if len(self._alive()) < max(self.faults.workers, 1):
                number = len(self.hosts)
                self._do_beside(self._come(f"w{number}"))
                await self.clock.sleep(0.01)
            await self.clock.sleep(self._random.uniform(0.2, 2.0))

    async def _come(self, name: str) -> None:
        await self._host(name, worker=True)

    async def _stop_workers(self) -> None:
        """Drain those that are left, on a network that is calm."""
        self.network.is_calm = True
        for host in self.hosts:
            host.resume()
            host.dies_at = None
        for host in self._alive():
            if not host.is_ready:
                host.vanish("before it has come")
                continue
            self.trace.add(host.name, "closes")
            await host.do(host.runtime.close(window_s=5.0))

    # -- faults ------------------------------------------------------------------------------------

    def _works(self) -> list[Awaitable[None]]:
        faults = self.faults
        works: list[Awaitable[None]] = [self._keep_workers()]
        if faults.chaos_s:
            works.append(self._calm_down())
            kinds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
                (faults.stall_every_s, self._stall),
                (faults.store_crash_every_s, self._crash_store),
                (faults.partition_every_s, self._partition),
                (faults.crash_every_s, self._crash),
                (faults.pause_every_s, self._pause),
                (faults.jump_every_s, self._jump),
                (faults.drain_every_s, self._drain),
            ]
            works += [self._repeat(every_s, fault) for every_s, fault in kinds if every_s]
        return works

    async def _calm_down(self) -> None:
        await self.clock.sleep(self.faults.chaos_s)
        self.network.is_calm = True
        self.trace.add("world", "calms down")

    async def _repeat(self, every_s: float, fault: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self.clock.sleep(self._random.expovariate(1.0 / every_s))
            if self.network.is_calm:
                return
            await fault()

    async def _stall(self) -> None:
        self.network.stall()
        try:
            await self.clock.sleep(self._random.uniform(*self.faults.stall_s))
        finally:
            self.network.go_on()

    async def _crash_store(self) -> None:
        self.network.crash()
        try:
            await self.clock.sleep(self._random.uniform(*self.faults.store_down_s))
        finally:
            self.network.restart()

    @asynccontextmanager
    async def _cut_off(self, host: Host) -> AsyncIterator[None]:
        self.network.cut.add(host.name)
        self.trace.fault(host.name, "partition")
        try:
            yield
        finally:
            self.network.cut.discard(host.name)
            self.trace.add(host.name, "is connected again")

    async def _partition(self) -> None:
        host = self._random.choice(self.hosts)
        async with self._cut_off(host):
            await self.clock.sleep(self._random.uniform(*self.faults.partition_s))

    async def _crash(self) -> None:
        host = self._choose()
        if host is None:
            return
        if self._random.random() < 0.5:  # noqa: PLR2004  # half and half
            host.dies_at = self._random.randint(1, 12)
        else:
            host.vanish("between two turns")

    async def _pause(self) -> None:
        host = self._choose()
        if host is None or host.is_paused:
            return
        host.pause()
        try:
            await self.clock.sleep(self._random.uniform(*self.faults.pause_s))
        finally:
            host.resume()

    async def _jump(self) -> None:
        host = self._random.choice(self.hosts)
        host.clock.error_us = self._clock_error_us()
        self.trace.fault(host.name, "clock jump", f"to {host.clock.error_us} us")

    async def _drain(self) -> None:
        host = self._choose(ready=True)
        if host is None:
            return
        self.trace.fault(host.name, "drain")
        self._do_beside(host.do(host.runtime.close(window_s=3.0)))

    def _do_beside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something without waiting for it; its failure is the simulation's."""

        def ended(task: "asyncio.Task[Any]") -> None:
            """Look how it ended."""
            self._helpers.remove(task)
            if not task.cancelled() and task.exception() and not self._failed.done():
                self._failed.set_exception(task.exception() or Violation())

        task = asyncio.create_task(work)
        self._helpers.append(task)
        task.add_done_callback(ended)

    def _choose(self, *, ready: bool = False) -> Host | None:
        alive = [host for host in self._alive() if host.is_ready or not ready]
        return self._random.choice(alive) if alive else None

    # -- the end -----------------------------------------------------------------------------------

    async def _tear_down(self, others: "set[asyncio.Task[Any]]") -> None:
        """Cancel whatever is left: tasks of hosts that are gone, and messages on their way."""
        for host in self.hosts:
            host.is_gone = host.is_torn_down = True
            host.resume()
        for _ in range(TEARDOWN_ROUNDS):
            left = asyncio.all_tasks() - others
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.05)
