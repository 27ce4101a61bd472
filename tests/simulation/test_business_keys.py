"""Runs that share a business key under simulated faults: one act, one result, for all of them."""

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import START, Context, Graph, WorkerSettings
from perdure.testing.simulator._checker import require
from perdure.testing.simulator._default import Acts
from perdure.testing.simulator._seeds import play_seed
from perdure.testing.simulator._stage import Stage
from tests.simulation.patience import retry_until


@dataclass
class Claim:
    name: str = ""
    group: int = 0
    done: str = ""


def claims(acts: Acts) -> Graph[Any]:
    """Return a graph of one node: an act that its group does once, which is refused at times."""
    graph = Graph(Claim, name="keys.claim")

    @graph.node
    async def claim(state: Claim, ctx: Context) -> dict[str, Any]:
        act = acts.keyed if state.group % 2 == 0 else acts.lookup
        return {"done": await ctx.call(act, f"group {state.group}", key=f"group {state.group}")}

    graph.edge(START, claim)
    graph.edge(claim, "__end__")
    return graph


class Shared:
    """Runs of two groups, each of which has one act to do."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3, drain_window_s=5)

    def graphs(self, outside: Any) -> list[Any]:
        return [claims(Acts(outside))]

    async def play(self, stage: Stage) -> dict[str, Any]:
        self._is_over = False
        done = await stage.together(self._claims(stage), retry_until(lambda: self._is_over, stage))
        return dict(done[0])

    async def _claims(self, stage: Stage) -> list[tuple[str, Any]]:
        pairs = await stage.together(*(self._claim(stage, n) for n in range(8)))
        for group in range(2):
            count = stage.world.count(f"group {group}")
            require(count == 1, f"group {group}: its act was done {count} times")
        self._is_over = True
        return list(pairs)

    async def _claim(self, stage: Stage, n: int) -> tuple[str, Any]:
        await stage.pause(6.0)
        name, group = f"claim {n}", n % 2
        given = {"name": name, "group": group}
        run = await stage.start(stage.graphs[0], given, key=name, on_worker=True)
        state = await stage.result(run)
        require(state.done == f"did group {group}", f"{name}: {state.done}")
        return name, state.done


@pytest.mark.parametrize("block", range(3))
@pytest.mark.timeout(120)
def test_every_rule_holds(block):
    for seed in range(block, 18, 3):
        play_seed(seed, scenario=Shared)
