"""Many seeds, one after the other or in several processes."""

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from msgspec import Struct

from perdure.errors import SettingInvalid
from perdure.testing.simulator._faults import Faults
from perdure.testing.simulator._simulation import Report, Simulation, SimulationFailed
from perdure.testing.simulator._stage import Scenario
from perdure.testing.simulator.limits import EVENTS_SHOWN


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one seed: a report, or what failed."""

    seed: int
    report: Report | None = None
    failure: str | None = None


class Total(Struct, kw_only=True):
    """The sum over seeds."""

    seeds: int = 0
    events: int = 0
    states: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = Counter()  # given anew by each caller
    failures: dict[int, str] = {}  # as above

    def add(self, outcome: Outcome) -> None:
        """Take one seed in."""
        self.seeds += 1
        if outcome.failure is not None:
            self.failures[outcome.seed] = outcome.failure
        if outcome.report is not None:
            self.events += outcome.report.events
            self.states += outcome.report.states
            self.virtual_s += outcome.report.virtual_s
            self.faults.update(outcome.report.faults)


def play_seed(
    seed: int,
    *,
    settings: Faults | None = None,
    scenario: Callable[[], Scenario] | None = None,
    shown: int = EVENTS_SHOWN,
) -> Report:
    """Play one seed and compare its results with those of an undisturbed run.

    Raises:
        SimulationFailed: a rule was violated, or the results differ.
    """
    made = scenario() if scenario else None
    simulation = Simulation(seed, settings=settings, scenario=made, shown=shown)
    report = asyncio.run(simulation.run())
    expected = undisturbed(scenario)
    wrong = [name for name in expected if report.results.get(name) != expected[name]]
    if wrong:
        told = "; ".join(
            f"{name}: {report.results.get(name)!r} instead of {expected[name]!r}" for name in wrong
        )
        what = f"other results: {told}"
        raise simulation.failure(what)
    return report


_undisturbed: dict[Any, dict[str, Any]] = {}


def undisturbed(scenario: Callable[[], Scenario] | None = None) -> dict[str, Any]:
    """Return the results of a scenario in which nothing goes wrong; played once a process."""
    if scenario not in _undisturbed:
        made = scenario() if scenario else None
        report = asyncio.run(Simulation(0, settings=Faults.none(), scenario=made).run())
        _undisturbed[scenario] = report.results
    return _undisturbed[scenario]


def scenario_named(name: str) -> Callable[[], Scenario]:
    """Return what makes a scenario, from `module:name`.

    Raises:
        SettingInvalid: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Callable[[], Scenario] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"scenario {name!r}: write MODULE:CLASS, as one imports it here ({error})"
        raise SettingInvalid(msg) from error
    return found


def outcome_of(seed: int, *, scenario: str | None = None, shown: int = EVENTS_SHOWN) -> Outcome:
    """Play one seed; a failure is part of what is returned. `scenario`: `module:name`."""
    made = scenario_named(scenario) if scenario else None
    try:
        return Outcome(seed=seed, report=play_seed(seed, scenario=made, shown=shown))
    except SimulationFailed as failure:
        return Outcome(seed=seed, failure=str(failure))


def outcomes(
    seeds: Iterable[int], *, jobs: int = 1, scenario: str | None = None
) -> Iterator[Outcome]:
    """Yield what becomes of each seed, in order."""
    play = partial(outcome_of, scenario=scenario)
    if jobs <= 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, seeds, chunksize=4)
