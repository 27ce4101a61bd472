"""Checkpoints at phases under simulated faults: what goes by is done again, and no act twice."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import START, Context, Graph, WorkerSettings, add, append
from perdure.testing.simulator._default import Acts
from perdure.testing.simulator._seeds import play_seed
from perdure.testing.simulator._stage import Stage
from tests.simulation.patience import retry_until


@dataclass
class Job:
    name: str = ""
    turns: Annotated[int, add] = 0
    page: str = ""
    log: Annotated[list[str], append] = field(default_factory=list)


def pipeline(acts: Acts) -> Graph[Any]:
    """Return a loop of nodes, each with an act of another kind; every other turn is a phase."""
    graph = Graph(Job, name="phases.job", checkpoints="phases")

    @graph.node
    async def read(state: Job, ctx: Context) -> dict[str, Any]:
        square = await ctx.call(acts.pure, state.turns)
        return {"page": f"{square} " * 200}

    @graph.node
    async def write(state: Job, ctx: Context) -> dict[str, Any]:
        done = await ctx.call(acts.keyed, f"{state.name} {state.page[:3]} turn {state.turns}")
        return {"log": [done]}

    @graph.node
    async def look(state: Job, ctx: Context) -> dict[str, Any]:
        label = f"{state.name} look {state.turns} {len(state.log)}"
        return {"log": [await ctx.call(acts.lookup, label)], "page": label}

    @graph.node
    async def turn(state: Job, ctx: Context) -> dict[str, Any]:
        if state.turns == 1:
            await ctx.sleep(2.0)
        return {"turns": 1, "log": [f"turned {state.page}"]}

    @graph.node(phase=True)
    async def rest(state: Job) -> dict[str, Any]:
        return {"log": [f"rested {len(state.log)}"]}

    def route(state: Job) -> str:
        if state.turns == 4:
            return "__end__"
        return "rest" if state.turns % 2 == 0 else "read"

    graph.edge(START, read)
    graph.edge(read, write)
    graph.edge(write, look)
    graph.edge(look, turn)
    graph.branch(turn, route, targets=["rest", "read", "__end__"])
    graph.edge(rest, read)
    return graph


class Phased:
    """Jobs over half a minute of faults."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3, drain_window_s=5)

    def graphs(self, outside: Any) -> list[Any]:
        return [pipeline(Acts(outside))]

    async def play(self, stage: Stage) -> dict[str, Any]:
        self._is_over = False
        done = await stage.together(self._jobs(stage), retry_until(lambda: self._is_over, stage))
        return dict(done[0])

    async def _jobs(self, stage: Stage) -> list[tuple[str, Any]]:
        pairs = await stage.together(*(self._job(stage, f"job {n}") for n in range(6)))
        self._is_over = True
        return list(pairs)

    async def _job(self, stage: Stage, name: str) -> tuple[str, Any]:
        await stage.pause(15.0)
        run = await stage.start(stage.graphs[0], {"name": name}, key=name, on_worker=True)
        state = await stage.result(run)
        return name, (state.turns, state.page, state.log)


@pytest.mark.parametrize("block", range(3))
@pytest.mark.timeout(120)
def test_every_rule_holds(block):
    for seed in range(block, 24, 3):
        play_seed(seed, scenario=Phased)
