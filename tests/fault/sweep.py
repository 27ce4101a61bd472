"""Kill a worker at every crash point, let others finish the run, compare with an undisturbed one.

    python -m tests.fault.sweep                         # first, middle and last time of each name
    python -m tests.fault.sweep --full                  # every point in every variant
    python -m tests.fault.sweep --store postgres        # on a server that it starts
    python -m tests.fault.sweep --play order --variant after --point effect.dispatch.after#3 --keep

Variants: `after`: a second worker is started when the first has died. `peer`: two workers from the
start, who share the work as it comes. `own`: the worker starts the run itself. `starter`, `person`:
who starts the run, and who answers, decides and cancels, is killed. `doubt`: the person is killed
while deciding about an effect whose worker was killed before.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.fault import actors, service, stores
from tests.fault.actors import Scene
from tests.fault.injector import Injector, Point, points_in
from tests.fault.processes import Child, Family, fork

DEADLINE_S = 20.0
STOP_S = 10.0
UNDISTURBED = 3
"""Undisturbed runs that the points are taken from: how commits group varies a little."""

PLAYS = {
    "order": ("after", "peer", "own", "starter", "person", "doubt"),
    "undo": ("after", "peer", "person"),
    "broken": ("after", "peer"),
}
"""What is played, and in which variants."""


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario with one kill (or none)."""

    play: str
    variant: str
    point: Point | None = None

    def __str__(self) -> str:
        return f"{self.play}/{self.variant} {self.point or 'undisturbed'}"


@dataclass(slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        was_killed: whether the point was reached (how commits group varies a little).
        differences: to the undisturbed run, or why it did not end.
    """

    case: Case
    was_killed: bool = False
    seconds: float = 0.0
    seen: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    logs: str = ""


DOUBT = Point("service.once.after", 1)
"""Where the first worker of `doubt` is always killed, so that a person has to decide."""


def play(case: Case, url: str, place: Path) -> Outcome:
    """Play one case in real processes."""
    place.mkdir(parents=True)
    begun_s = time.monotonic()
    outcome = Outcome(case)
    with Family(place, DEADLINE_S) as family:
        listening = service.listen()
        scene = Scene(place, url, case.play, listening.getsockname()[1])
        scene.door.prepare()
        family.fork("service", lambda: service.serve(listening, place / "service.db"))
        listening.close()
        _Play(case, scene, family).run(outcome)
        if outcome.differences:
            outcome.logs = family.logs()
    if not outcome.differences:
        scene.door.drop()
    outcome.seconds = time.monotonic() - begun_s
    return outcome


class _Play:
    """The parent's side of one case."""

    def __init__(self, case: Case, scene: Scene, family: Family) -> None:
        self.case = case
        self.scene = scene
        self.family = family
        self.workers: list[Child] = []

    def injector(self, victims: tuple[str, ...]) -> Injector | None:
        """Return the injector of a process that is (or is not) to be killed."""
        if self.case.variant not in victims:
            return None
        return Injector(self.scene.place / "points", self.case.point)

    def run(self, outcome: Outcome) -> None:
        """Start the processes, replace the one that is killed, stop them, look."""
        variant = self.case.variant
        if variant != "own":
            outcome.was_killed = self.start()
        self.work(is_first=True)
        if variant == "peer":
            self.work(is_first=True)
        person = self.person()
        while person.poll() is None:
            self.replace_dead(outcome)
            if person.was_killed:
                break
            time.sleep(0.002)
        if person.was_killed and self.family.left_s > 0:
            outcome.was_killed = True
            person = self.person(again=True)
            while person.poll() is None:
                self.replace_dead(outcome)
                time.sleep(0.002)
        self.replace_dead(outcome)
        if person.status != 0:
            outcome.differences.append(
                f"not over after {self.family.deadline_s} s (person: {person.status})"
            )
        self.stop(outcome)
        self.look(outcome)

    def start(self) -> bool:
        """Let the run be started; return whether the starter was killed and replaced."""
        injector = self.injector(("starter",))
        child = self.family.fork("starter", lambda: actors.starter(self.scene, injector))
        child.wait(self.family.left_s)
        if child.was_killed:
            again = self.family.fork("starter", lambda: actors.starter(self.scene, None))
            again.wait(self.family.left_s)
        return child.was_killed

    def work(self, *, is_first: bool) -> None:
        injector = None
        if is_first:
            injector = self.injector(("after", "peer", "own"))
            if self.case.variant == "doubt" and not self.workers:
                injector = Injector(self.scene.place / "doubt", DOUBT)
        starts = is_first and self.case.variant == "own"
        name = f"worker-{len(self.workers)}"
        body = lambda: actors.worker(self.scene, injector, starts=starts)  # noqa: E731
        self.workers.append(self.family.fork(name, body))

    def person(self, *, again: bool = False) -> Child:
        injector = None if again else self.injector(("person", "doubt"))
        return self.family.fork("person", lambda: actors.person(self.scene, injector))

    def replace_dead(self, outcome: Outcome) -> None:
        for worker in list(self.workers):
            if worker.poll() is None:
                continue
            self.workers.remove(worker)
            if not worker.was_killed:
                outcome.differences.append(f"{worker.name} ended by itself with {worker.status}")
            outcome.was_killed = outcome.was_killed or self.case.variant != "doubt"
            if self.case.variant == "own":
                self.start()
            if not self.workers:
                self.work(is_first=False)

    def stop(self, outcome: Outcome) -> None:
        for worker in self.workers:
            status = worker.stop(STOP_S)
            if worker.was_killed and self.case.point is not None and not outcome.was_killed:
                outcome.was_killed = True  # at a point that is reached when it drains
            elif status != 0:
                outcome.differences.append(f"{worker.name} drained with status {status}")

    def look(self, outcome: Outcome) -> None:
        observer = self.family.fork("observer", lambda: actors.observer(self.scene))
        seen = self.scene.place / "seen.json"
        if observer.wait(STOP_S) != 0 or not seen.exists():
            outcome.differences.append(f"nothing can be observed (status {observer.status})")
            return
        outcome.seen = json.loads(seen.read_text(encoding="utf-8"))
        outcome.differences += outcome.seen.pop("wrong")


def compare(outcome: Outcome, undisturbed: dict[str, Any]) -> None:
    """Add what differs from the undisturbed run."""
    for name, expected in undisturbed.items():
        found = outcome.seen.get(name)
        if outcome.seen and found != expected:
            outcome.differences.append(f"{name}: {found!r} instead of {expected!r}")


# -- which points ----------------------------------------------------------------------------------


def record(case: Case, url: str, root: Path) -> tuple[list[Point], dict[str, Any]]:
    """Return the points that an undisturbed run reaches, and what is seen at its end."""
    place = root / f"undisturbed-{case.play}-{case.variant}-{random.getrandbits(32):08x}"
    outcome = play(case, url, place)
    if outcome.differences:
        msg = f"{case}: {outcome.differences}\n{outcome.logs}"
        raise RuntimeError(msg)
    log = place / "points"
    return points_in(log) if log.exists() else [], outcome.seen


def plan(
    url: str, root: Path, plays: dict[str, tuple[str, ...]]
) -> tuple[list[Case], dict[str, Any]]:
    """Return a case for every point that undisturbed runs reach, and what these end with."""
    cases: list[Case] = []
    expected: dict[str, Any] = {}
    for name, variants in plays.items():
        for variant in variants:
            points: dict[Point, None] = {}
            for _time in range(UNDISTURBED):
                found, seen = record(Case(name, variant), url, root)
                points.update(dict.fromkeys(found))
                if expected.setdefault(name, seen) != seen:
                    msg = f"two undisturbed runs of {name} differ: {expected[name]!r} and {seen!r}"
                    raise RuntimeError(msg)
            cases += [Case(name, variant, point) for point in points]
    return cases, expected


def sample(cases: list[Case], each: int) -> list[Case]:
    """Return so many cases of each name, first to last; plays and variants in turn."""
    groups: dict[str, dict[tuple[str, str], list[Case]]] = {}
    for case in cases:
        if case.point is not None:
            group = groups.setdefault(case.point.name, {})
            group.setdefault((case.play, case.variant), []).append(case)
    chosen: list[Case] = []
    for turn, group in enumerate(groups.values()):
        lines = list(group.values())
        for position in range(each):
            line = lines[(turn + position) % len(lines)]
            chosen.append(line[(len(line) - 1) * position // max(each - 1, 1)])
    return list(dict.fromkeys(chosen))


# -- all of it -------------------------------------------------------------------------------------


def sweep(
    cases: list[Case], expected: dict[str, Any], url: str, root: Path, jobs: int
) -> list[Outcome]:
    """Play all cases, `jobs` at a time."""
    lanes = []
    for lane in range(jobs):
        body = lambda lane=lane: _lane(cases[lane::jobs], expected, url, root / f"lane-{lane}")  # noqa: E731
        lanes.append(fork(f"lane-{lane}", body, log=root / f"lane-{lane}.log", deadline_s=3600.0))
    for child in lanes:
        if child.wait(3600.0) != 0:
            msg = (root / f"{child.name}.log").read_text(encoding="utf-8")
            raise RuntimeError(msg)
    outcomes = []
    for lane in range(jobs):
        for line in (root / f"lane-{lane}" / "outcomes").read_text(encoding="utf-8").splitlines():
            raw = json.loads(line)
            case, point = raw.pop("case"), raw["point"]
            del raw["point"]
            outcomes.append(Outcome(Case(case["play"], case["variant"], Point(**point)), **raw))
    return outcomes


def _lane(cases: list[Case], expected: dict[str, Any], url: str, root: Path) -> None:
    root.mkdir()
    with (root / "outcomes").open("w", encoding="utf-8") as results:
        for number, case in enumerate(cases):
            outcome = _until_reached(case, url, root / f"case-{number}")
            compare(outcome, expected[case.play])
            raw = {
                **asdict(outcome),
                "point": asdict(case.point) if case.point else None,
                "seen": {},
            }
            results.write(json.dumps(raw) + "\n")
            results.flush()
            for difference in outcome.differences:
                sys.stdout.write(f"{case}: {difference[:1000]}\n")


def _until_reached(case: Case, url: str, place: Path) -> Outcome:
    """Play a case; once more if its point was not reached: how commits group varies a little."""
    outcome = play(case, url, place)
    if not (outcome.was_killed or outcome.differences):
        shutil.rmtree(place)
        outcome = play(case, url, place)
    if not outcome.differences:
        shutil.rmtree(place)
    return outcome


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the figures."""
    reached = [outcome for outcome in outcomes if outcome.was_killed]
    names = sorted({str(o.case.point.name) for o in reached if o.case.point})
    seconds = sorted(o.seconds for o in reached) or [0.0]
    return {
        "cases": len(outcomes),
        "kills": len(reached),
        "not_reached": [str(o.case) for o in outcomes if not o.was_killed],
        "names": names,
        "seconds_median": round(seconds[len(seconds) // 2], 3),
        "seconds_max": round(seconds[-1], 3),
        "differences": [
            {"case": str(o.case), "differences": o.differences, "logs": o.logs}
            for o in outcomes
            if o.differences
        ],
    }


def main(argv: list[str] | None = None) -> int:
    """Run a sweep; exit 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    stores.add_argument(parser)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--full", action="store_true", help="every point, not a sample")
    parser.add_argument("--each", type=int, default=3, help="cases of each name in the sample")
    parser.add_argument(
        "--play", action="append", choices=sorted(PLAYS), help="only this (may be repeated)"
    )
    parser.add_argument("--variant", action="append", help="only this (may be repeated)")
    parser.add_argument("--point", help="only this: NAME or NAME#NTH")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="perdure-sweep-"))
    begun_s = time.monotonic()
    try:
        plays = {
            name: tuple(v for v in variants if v in (options.variant or variants))
            for name, variants in PLAYS.items()
            if name in (options.play or PLAYS)
        }
        with stores.chosen(options) as url:
            cases, expected = plan(url, root, plays)
            if options.point:
                wanted = {options.point}
                cases = [c for c in cases if c.point and wanted & {str(c.point), c.point.name}]
            chosen = cases if options.full or options.point else sample(cases, options.each)
            found = report(sweep(chosen, expected, url, root, options.jobs))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    found["seconds"] = round(time.monotonic() - begun_s, 1)
    found["points"] = len(cases)
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")
    for each in found["differences"]:
        sys.stdout.write(
            f"\n== {each['case']}\n{each['logs']}\n" + "\n".join(each["differences"]) + "\n"
        )
    sys.stdout.write(
        f"sweep on {options.store}: {len(found['names'])} names, {found['points']} points; "
        f"{found['cases']} cases, "
        f"{found['kills']} kills, {len(found['not_reached'])} not reached, "
        f"{len(found['differences'])} with differences; median {found['seconds_median']} s, "
        f"longest {found['seconds_max']} s each; {found['seconds']} s in all\n"
    )
    if options.keep:
        sys.stdout.write(f"kept in {root}\n")
    return 1 if found["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
