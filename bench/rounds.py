"""The rounds: everything in turn, again and again, so that what drifts hits all alike."""

import os
import sys
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import floors, machine, ours, plan
from bench.crash import Trials
from bench.figures import Figure, Spec
from bench.peers import Peer

RUNS = 64
RUN_STEPS = 10

FLOOR_NAMES = {spec.name for spec in plan.FLOORS}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: rounds, and in each round so many of everything.

    Attributes:
        rounds: rounds that count; one more comes before them, to warm up.
        commits, plain_steps, steps, effects: as they say.
        kills: kills of each kind.
        imports: fresh interpreters.
        peer_steps: steps in sequence of another system.
    """

    rounds: int
    commits: int
    plain_steps: int
    steps: int
    effects: int
    kills: int
    imports: int
    peer_steps: int


FULL = Size(rounds=9, commits=300, plain_steps=5000, steps=2000, effects=300, kills=3, imports=2,
            peer_steps=200)  # fmt: skip
QUICK = Size(rounds=3, commits=60, plain_steps=1000, steps=300, effects=50, kills=1, imports=1,
             peer_steps=50)  # fmt: skip


class Rounds:
    """Measures the chosen parts, round by round."""

    def __init__(
        self, folder: Path, size: Size, *, parts: Collection[str], peers: Collection[Peer] = ()
    ) -> None:
        self.figures: dict[str, Figure] = {}
        self._folder = folder
        self._size = size
        self._parts = parts
        self._peers = peers
        self._trials = Trials(folder)
        self._round = 0
        specs = [spec for part in parts for spec in plan.PARTS[part]]
        specs += [spec for peer in peers for spec in plan.peer_specs(peer.system)]
        self._needs_floors = any(spec.floor in FLOOR_NAMES for spec in specs)
        self._declare([*plan.FLOORS, *specs] if self._needs_floors else specs)

    def _declare(self, specs: list[Spec]) -> None:
        self.figures |= {spec.name: Figure(spec) for spec in specs}

    def _add(self, name: str, value: float) -> None:
        if self._round > 0 and name in self.figures:
            self.figures[name].add(self._round, value)

    async def run(self, told: Callable[[int, int], None]) -> None:
        """Measure it all. `told(n, of)` is called before each round, with 0 for the warm-up."""
        acts = self._acts()
        try:
            for number in range(self._size.rounds + 1):
                self._round = number
                told(self._round, self._size.rounds)
                for act in acts:
                    await act()
        finally:
            self._trials.close()

    def _acts(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        by_part: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "log": self._log,
            "takeover": self._takeover,
            "restart": self._restart,
            "import": self._import,
        }
        acts = [self._floors] if self._needs_floors else []
        if {"step", "effect", "runs"} & set(self._parts):
            acts.append(self._steps)
        acts += [act for part, act in by_part.items() if part in self._parts]
        return [*acts, *([self._peer_work] if self._peers else [])]

    async def _floors(self) -> None:
        for suffix, delay_s in (("", 0.0), (plan.SLOW, plan.DELAY_MS / 1000)):
            count = self._size.commits
            one_s = floors.commits(self._folder, count, delay_s=delay_s)
            self._add(f"floor.commit{suffix}", one_s * 1000)
            group_s = floors.commits(self._folder, count // 4, rows=RUNS, delay_s=delay_s)
            self._add(f"floor.group{suffix}", RUNS / group_s)
        self._add("floor.step", await floors.plain_steps(self._size.plain_steps) * 1000)

    async def _steps(self) -> None:
        for suffix, delay_ms in (("", 0.0), (plan.SLOW, plan.DELAY_MS)):
            async with ours.open_runtime(self._folder, delay_ms=delay_ms) as runtime:
                for graph in (ours.loop, ours.acting):
                    await ours.sequence(runtime, graph, RUN_STEPS)
                if "step" in self._parts:
                    self._cost("step", suffix, await ours.sequence(
                        runtime, ours.loop, self._size.steps))  # fmt: skip
                if "effect" in self._parts:
                    self._cost("effect", suffix, await ours.sequence(
                        runtime, ours.acting, self._size.effects))  # fmt: skip
                if "runs" in self._parts:
                    await ours.at_once(runtime, RUNS, RUN_STEPS)
                    self._cost("runs", suffix, await ours.at_once(runtime, RUNS, RUN_STEPS))

    def _cost(self, name: str, suffix: str, cost: ours.Cost) -> None:
        self._add(f"{name}.wall{suffix}", cost.wall_s * 1000)
        self._add(f"{name}.plain{suffix}", cost.wall_s * 1000)
        self._add(f"{name}.cpu{suffix}", cost.cpu_s * 1000)
        self._add(f"{name}.rate{suffix}", 1 / cost.wall_s)

    async def _log(self) -> None:
        async with ours.open_runtime(self._folder) as runtime:
            database = self._folder / "perdure-0.db"
            self._add("log.bytes", await ours.log_bytes(runtime, database, RUNS, RUN_STEPS))

    async def _takeover(self) -> None:
        for _ in range(self._size.kills):
            self._add("takeover", await self._trials.takeover() * 1000)
        self._trials.close()  # idle workers would be measured with what comes next

    async def _restart(self) -> None:
        for _ in range(self._size.kills):
            self._add("restart", await self._trials.restart() * 1000)
        self._trials.close()

    async def _import(self) -> None:
        for _ in range(self._size.imports):
            empty, whole, parts = (
                _interpreter(program, self._folder)
                for program in ("pass", "import perdure", "import asyncio, msgspec")
            )
            for name, cost in (("import", whole), ("floor.import", parts)):
                self._add(name, (cost.wall_s - empty.wall_s) * 1000)
                self._add(f"{name}.cpu", (cost.cpu_s - empty.cpu_s) * 1000)

    async def _peer_work(self) -> None:
        for peer in self._peers:
            name = f"peers.{peer.system}"
            cost = peer.work("sequence", self._size.peer_steps)
            self._add(f"{name}.step.wall", cost["wall_s"] * 1000)
            self._add(f"{name}.step.cpu", cost["cpu_s"] * 1000)
            cost = peer.work("at_once", RUNS)
            self._add(f"{name}.runs.rate", 1 / cost["wall_s"])
            self._add(f"{name}.runs.cpu", cost["cpu_s"] * 1000)


def _interpreter(program: str, folder: Path) -> ours.Cost:
    """Return what a fresh interpreter takes for a program."""
    started_s = time.perf_counter()
    arguments = [sys.executable, "-c", program]
    pid = os.posix_spawn(sys.executable, arguments, machine.environment(folder))
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, program
    return ours.Cost(time.perf_counter() - started_s, usage.ru_utime + usage.ru_stime)
