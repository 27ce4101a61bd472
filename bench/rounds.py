"""The rounds: everything in turn, again and again, so that what drifts hits all alike."""

import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import floors, machine, ours, plan
from bench.crash import Trials
from bench.figures import Figure, Spec
from bench.peers import ON_POSTGRES, Peer
from bench.places import PostgresPlace, SqlitePlace

RUNS = 64
RUN_STEPS = 10

FLOOR_NAMES = {spec.name for spec in (*plan.FLOORS, *plan.POSTGRES_FLOORS)}

Act = Callable[[], Awaitable[None]]
AnyPlace = SqlitePlace | PostgresPlace


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: rounds, and in each round so many of everything.

    Attributes:
        rounds: rounds that count; one more comes before them, to warm up.
        commits, plain_steps, steps, effects: as they say.
        kills: kills of each kind.
        losses: lost hosts.
        imports: fresh interpreters.
        peer_steps: steps in sequence of another system.
    """

    rounds: int
    commits: int
    plain_steps: int
    steps: int
    effects: int
    kills: int
    losses: int
    imports: int
    peer_steps: int


FULL = Size(rounds=9, commits=300, plain_steps=5000, steps=2000, effects=300, kills=3, losses=1,
            imports=2, peer_steps=200)  # fmt: skip
QUICK = Size(rounds=3, commits=60, plain_steps=1000, steps=300, effects=50, kills=1, losses=1,
             imports=1, peer_steps=50)  # fmt: skip


class Rounds:
    """Measures the chosen parts, round by round."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        *,
        parts: Collection[str],
        postgres: PostgresPlace | None = None,
        peers: Collection[Peer] = (),
    ) -> None:
        self.figures: dict[str, Figure] = {}
        self._folder = folder
        self._size = size
        self._parts = parts
        self._peers = peers
        self._postgres = postgres
        self._trials: list[Trials] = []
        self._round = 0
        specs = [spec for part in parts for spec in plan.PARTS[part]]
        specs += [spec for peer in peers for spec in plan.peer_specs(peer.system)]
        wanted = {spec.floor for spec in specs} & FLOOR_NAMES
        self._needs_floors = any(not name.startswith(plan.POSTGRES) for name in wanted)
        self._needs_postgres_floors = any(name.startswith(plan.POSTGRES) for name in wanted)
        self._declare(plan.FLOORS if self._needs_floors else [])
        self._declare([spec for spec in specs if not spec.name.startswith(("postgres.", "peers."))])
        self._declare(plan.POSTGRES_FLOORS if self._needs_postgres_floors else [])
        self._declare(specs)

    def _declare(self, specs: list[Spec]) -> None:
        for spec in specs:
            self.figures.setdefault(spec.name, Figure(spec))

    def _add(self, name: str, value: float) -> None:
        if self._round > 0 and name in self.figures:
            self.figures[name].add(self._round, value)

    async def run(self, told: Callable[[int, int], None]) -> None:
        """Measure it all. `told(n, of)` is called before each round, with 0 for the warm-up."""
        sqlite = SqlitePlace(self._folder)
        acts = self._acts_at(sqlite, needs_floors=self._needs_floors)
        if self._postgres is not None:
            acts += self._acts_at(self._postgres, needs_floors=self._needs_postgres_floors)
        acts += [self._import] if "import" in self._parts else []
        acts += [self._import_of_postgres] if "postgres.import" in self._parts else []
        acts += [partial(self._peer_work, peer) for peer in self._peers]
        try:
            for number in range(self._size.rounds + 1):
                self._round = number
                told(self._round, self._size.rounds)
                for act in acts:
                    await act()
        finally:
            for trials in self._trials:
                trials.close()

    def _acts_at(self, place: AnyPlace, *, needs_floors: bool) -> list[Act]:
        """Return what each round does at one place."""
        parts = {
            part.removeprefix(place.prefix)
            for part in self._parts
            if part.startswith(plan.POSTGRES) == bool(place.prefix)
        }
        trials = Trials(self._folder, place.url("crash"), f"{place.prefix}crash")
        self._trials.append(trials)
        acts: list[Act] = []
        steps = parts & {"step", "effect", "runs"}
        for suffix, delay_ms in (("", 0.0), (plan.SLOW, plan.DELAY_MS)):
            if needs_floors:
                acts.append(partial(self._floors, place, suffix, delay_ms))
            if steps:
                acts.append(partial(self._steps, place, suffix, delay_ms, steps))
        if needs_floors and not place.prefix:
            acts.append(self._floor_of_steps)
        if "log" in parts:
            acts.append(partial(self._log, place))
        if isinstance(place, PostgresPlace) and "log" in parts:
            acts.append(partial(self._log_of_pages, place))
        if "takeover" in parts:
            acts.append(partial(self._kills, f"{place.prefix}takeover", trials, trials.takeover))
        if isinstance(place, PostgresPlace) and "lost" in parts:
            acts.append(partial(self._losses, place, trials))
        if "restart" in parts:
            acts.append(partial(self._kills, f"{place.prefix}restart", trials, trials.restart))
        return acts

    async def _floors(self, place: AnyPlace, suffix: str, delay_ms: float) -> None:
        count = self._size.commits
        one_s = place.commits(count, delay_ms=delay_ms)
        self._add(f"{place.prefix}floor.commit{suffix}", one_s * 1000)
        group_s = place.commits(count // 4, rows=RUNS, delay_ms=delay_ms)
        self._add(f"{place.prefix}floor.group{suffix}", RUNS / group_s)

    async def _floor_of_steps(self) -> None:
        self._add("floor.step", await floors.plain_steps(self._size.plain_steps) * 1000)

    async def _steps(
        self, place: AnyPlace, suffix: str, delay_ms: float, parts: Collection[str]
    ) -> None:
        name = place.prefix
        async with ours.open_runtime(place, delay_ms=delay_ms) as runtime:
            for graph in (ours.loop, ours.acting):
                await ours.sequence(place, runtime, graph, RUN_STEPS)
            if "step" in parts:
                cost = await ours.sequence(place, runtime, ours.loop, self._size.steps)
                self._cost(f"{name}step", suffix, cost)
            if "effect" in parts:
                cost = await ours.sequence(place, runtime, ours.acting, self._size.effects)
                self._cost(f"{name}effect", suffix, cost)
            if "runs" in parts:
                await ours.at_once(place, runtime, RUNS, RUN_STEPS)
                cost = await ours.at_once(place, runtime, RUNS, RUN_STEPS)
                self._cost(f"{name}runs", suffix, cost)

    def _cost(self, name: str, suffix: str, cost: ours.Cost) -> None:
        self._add(f"{name}.wall{suffix}", cost.wall_s * 1000)
        self._add(f"{name}.plain{suffix}", cost.wall_s * 1000)
        self._add(f"{name}.cpu{suffix}", cost.cpu_s * 1000)
        self._add(f"{name}.rate{suffix}", 1 / cost.wall_s)
        self._add(f"{name}.server{suffix}", cost.server_s * 1000)
        quick = self.figures.get(f"{name}.wall")
        if suffix and quick is not None and self._round > 0:
            self._add(f"{name}.disk", cost.wall_s * 1000 / quick.values[self._round][-1])

    async def _log(self, place: AnyPlace) -> None:
        """Count the bytes of the log for many runs; starts and ends included."""
        name = ours.name_of(0)
        async with ours.open_runtime(place) as runtime:
            await ours.at_once(place, runtime, RUNS, 1)
            with place.logged(name) as written:
                await ours.at_once(place, runtime, RUNS, RUN_STEPS)
            self._add(f"{place.prefix}log.bytes", written[0] / (RUNS * RUN_STEPS))

    async def _log_of_pages(self, place: PostgresPlace) -> None:
        size = self._size
        async with ours.open_runtime(place) as runtime:
            for what, graph, steps in (
                ("sequence", ours.loop, size.steps),
                ("effect", ours.acting, size.effects),
            ):
                await ours.sequence(place, runtime, graph, RUN_STEPS)
                with place.logged("") as written:
                    await ours.sequence(place, runtime, graph, steps)
                self._add(f"{place.prefix}log.{what}", written[0] / steps)
            place.query("CHECKPOINT")
            with place.logged("") as written:
                await ours.at_once(place, runtime, RUNS, RUN_STEPS)
            self._add(f"{place.prefix}log.pages", written[0] / (RUNS * RUN_STEPS))

    async def _kills(
        self, name: str, trials: Trials, trial: Callable[[], Awaitable[float]]
    ) -> None:
        for _ in range(self._size.kills):
            self._add(name, await trial() * 1000)
        trials.close()  # idle workers would be measured with what comes next

    async def _losses(self, place: PostgresPlace, trials: Trials) -> None:
        for _ in range(self._size.losses):
            gone_s = await trials.lost(place.url_through, place.server.port, plan.TTL_S)
            self._add(f"{place.prefix}lost", gone_s * 1000)
            trials.close()

    async def _import(self) -> None:
        for _ in range(self._size.imports):
            empty, whole, parts = (
                _interpreter(program, self._folder)
                for program in ("pass", "import perdure", "import asyncio, msgspec")
            )
            for name, cost in (("import", whole), ("floor.import", parts)):
                self._add(name, (cost.wall_s - empty.wall_s) * 1000)
                self._add(f"{name}.cpu", (cost.cpu_s - empty.cpu_s) * 1000)

    async def _import_of_postgres(self) -> None:
        for _ in range(self._size.imports):
            whole, without = (
                _interpreter(program, self._folder)
                for program in ("import perdure, perdure.store.postgres", "import perdure")
            )
            self._add("postgres.import", (whole.wall_s - without.wall_s) * 1000)
            self._add("postgres.import.cpu", (whole.cpu_s - without.cpu_s) * 1000)

    async def _peer_work(self, peer: Peer) -> None:
        name = f"peers.{peer.system}"
        cost = peer.work("sequence", self._size.peer_steps)
        self._add(f"{name}.step.wall", cost["wall_s"] * 1000)
        self._add(f"{name}.step.cpu", cost["cpu_s"] * 1000)
        server = self._postgres if peer.system in ON_POSTGRES else None
        before_s = server.server_cpu_s() if server else 0.0
        cost = peer.work("at_once", RUNS)
        self._add(f"{name}.runs.rate", 1 / cost["wall_s"])
        self._add(f"{name}.runs.cpu", cost["cpu_s"] * 1000)
        if server:
            spent_s = server.server_cpu_s() - before_s
            self._add(f"{name}.runs.server", spent_s * 1000 / (RUNS * RUN_STEPS))


def _interpreter(program: str, folder: Path) -> ours.Cost:
    """Return what a fresh interpreter takes for a program."""
    started_s = time.perf_counter()
    arguments = [sys.executable, "-c", program]
    pid = os.posix_spawn(sys.executable, arguments, machine.environment(folder))
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, program
    return ours.Cost(time.perf_counter() - started_s, usage.ru_utime + usage.ru_stime)
