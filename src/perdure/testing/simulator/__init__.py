"""A simulator of networks, machines and people: the unchanged engine under every fault, by seed.

    report = await Simulation(seed=7).run()

The same seed gives the same history; a violated rule raises `SimulationFailed`, with the command
that replays it. `python -m perdure.testing.simulator --help` runs many. See docs/simulator.md.
"""

from perdure.testing.simulator._checker import Violation
from perdure.testing.simulator._default import DefaultScenario
from perdure.testing.simulator._faults import Faults
from perdure.testing.simulator._outside import Outside
from perdure.testing.simulator._seeds import play_seed
from perdure.testing.simulator._simulation import Report, Simulation, SimulationFailed
from perdure.testing.simulator._stage import Scenario, Stage

__all__ = [
    "DefaultScenario",
    "Faults",
    "Outside",
    "Report",
    "Scenario",
    "Simulation",
    "SimulationFailed",
    "Stage",
    "Violation",
    "play_seed",
]
