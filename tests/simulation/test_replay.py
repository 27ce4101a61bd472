"""Whatever went wrong while a run was executed, its replay is clean."""

import asyncio

import pytest

from perdure.engine.environment import Environment
from perdure.engine.replay import replay
from perdure.testing.clock import virtual_services
from perdure.testing.simulator import Simulation
from perdure.testing.simulator._seeds import undisturbed


async def replayed(seed):
    """Play a seed, then replay every run of it; return what was served and the divergences."""
    simulation = Simulation(seed)
    await simulation.run()
    engine = Environment(simulation.truth, virtual_services(seed))
    engine.register(simulation.graphs)
    served, divergences = {}, []
    for row in list(simulation.truth.tables.runs.values()):
        found = await replay(engine, row, engine.plan_named(row.graph, row.version))
        divergences += [f"{row.graph} ({row.run_id}): {each.message}" for each in found.divergences]
        for kind, count in found.served.items():
            served[kind] = served.get(kind, 0) + count
    return served, divergences


@pytest.mark.parametrize("block", range(2))
@pytest.mark.timeout(120)
def test_every_run_of_a_seed_replays_clean(block):
    undisturbed()
    kinds = set()
    for seed in range(block, 12, 2):
        served, divergences = asyncio.run(replayed(seed))
        assert divergences == [], f"seed {seed}"
        kinds |= set(served)
    assert kinds == {"answers", "children", "effects", "signals", "timers"}
