"""The unchanged engine under simulated faults: seeds, and that they are repeatable."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import START, Absent, Context, Found, Graph, Retry, WorkerSettings, effect
from perdure.errors import SettingInvalid
from perdure.testing.simulator import Faults, Simulation, SimulationFailed, Violation
from perdure.testing.simulator.__main__ import main
from perdure.testing.simulator._seeds import outcomes, play_seed, scenario_named, undisturbed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("SIM_SEEDS", "32"))


@pytest.mark.parametrize("block", range(4))
@pytest.mark.timeout(120)
def test_every_rule_holds(block):
    for seed in range(block, SEEDS, 4):
        play_seed(seed)


def test_nothing_goes_wrong_without_faults():
    report = asyncio.run(Simulation(0, settings=Faults.none()).run())
    assert report.faults == {}
    assert report.results["cancelled"] == "cancelled"
    assert report.results["saga"] == ("EffectFailed", [1, 1])


def test_every_kind_of_fault_happens():
    kinds = set()
    for outcome in outcomes(range(6)):
        kinds |= set(outcome.report.faults)
    assert kinds == {
        "act refused",
        "act's answer lost",
        "answer lost",
        "clock jump",
        "crash",
        "drain",
        "partition",
        "pause",
        "request lost",
        "request repeated",
        "stall",
        "store crash",
    }


def test_same_seed_same_history_in_every_process():
    undisturbed()
    digest = asyncio.run(Simulation(7).run()).digest
    assert digest == asyncio.run(Simulation(7).run()).digest
    assert digest != asyncio.run(Simulation(8).run()).digest
    told = f"import asyncio; from perdure.testing.simulator import Simulation; {SHOW}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest


SHOW = "print(asyncio.run(Simulation(7).run()).digest)"


def test_failure_says_how_to_see_it_again():
    async def broken(stage):
        await stage.sleep(1)
        raise Violation("two and two are five")

    simulation = Simulation(3, shown=5)
    simulation.scenario.play = broken
    with pytest.raises(SimulationFailed) as caught:
        asyncio.run(simulation.run())
    failure = caught.value
    assert (failure.seed, failure.what) == (3, "two and two are five")
    assert 0 < len(failure.events) <= 5
    assert str(failure).endswith("replay: python -m perdure.testing.simulator --seed 3")


@dataclass
class Pair:
    left: str = ""
    right: str = ""


class Own:
    """A scenario of a user: two acts, one after the other, and a rule of its own."""

    settings = WorkerSettings(lease_ttl_s=9, heartbeat_s=3)
    is_sloppy = False

    def graphs(self, outside):
        async def reconcile(request, _key):
            found = await outside.find(request.args[0])
            return Absent() if found is None else Found(found)

        @effect(kind="lookup", reconcile=reconcile, retry=Retry(max_attempts=50, base_s=0.1))
        async def pay(label: str, *, idempotency_key: str) -> str:
            return await outside.act(label, "" if self.is_sloppy else idempotency_key)

        graph = Graph(Pair, name="own")

        @graph.node
        async def both(_state: Pair, ctx: Context) -> dict:
            return {"left": await ctx.call(pay, "left"), "right": await ctx.call(pay, "right")}

        graph.edge(START, both)
        return [graph]

    async def play(self, stage):
        await stage.pause(5)
        run = await stage.start(stage.graphs[0], {}, key="own")
        state = await stage.result(run)
        return {"own": (state.left, state.right)}


class Sloppy(Own):
    is_sloppy = True


def test_own_scenario():
    for seed in range(8):
        report = play_seed(seed, scenario=Own)
        assert report.results == {"own": ("did left", "did right")}


def test_own_scenario_that_breaks_a_rule_is_found():
    with pytest.raises(SimulationFailed) as caught:
        play_seed(0, scenario=Sloppy)
    assert "its intent is not durable" in caught.value.what
    assert str(caught.value).endswith(f"--seed 0 --scenario {Sloppy.__module__}:Sloppy")


def test_unknown_scenario():
    for name in ("nowhere:Class", "perdure:Nothing", ""):
        with pytest.raises(SettingInvalid):
            scenario_named(name)


def test_command_line(capsys):
    assert main(["--seeds", "2", "--json"]) == 0
    assert '"seeds": 2' in capsys.readouterr().out
    assert main(["--seed", "1"]) == 0
    assert "seed 1: 13 runs" in capsys.readouterr().out
