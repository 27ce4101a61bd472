"""`python -m perdure.testing.simulator`: play seeds, say what failed and how to see it again."""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.testing.simulator._seeds import Outcome, Total, outcome_of, outcomes
from perdure.testing.simulator.limits import EVENTS_SHOWN

PROGRESS_EVERY = 25
"""Seeds between two lines of progress."""


def main(given: Sequence[str] | None = None) -> int:
    """Play the seeds that the command line names; return 1 if any failed."""
    options = _parser().parse_args(given)
    logger = logging.getLogger("perdure")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # faults are what this is about
    try:
        return _play(options)
    finally:
        logger.setLevel(level)


def _play(options: argparse.Namespace) -> int:
    if options.seed is not None:
        return _show_one(
            outcome_of(options.seed, scenario=options.scenario, shown=options.events),
            as_json=options.json,
        )
    total = Total(faults=Counter(), failures={})
    seeds = range(options.first, options.first + options.seeds)
    for outcome in outcomes(seeds, jobs=options.jobs, scenario=options.scenario):
        total.add(outcome)
        if outcome.failure is not None and not options.json:
            print(f"FAILED: {outcome.failure}\n", flush=True)
        elif total.seeds % PROGRESS_EVERY == 0 and not options.json:
            print(_progress(total), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(msgspec.to_builtins(total, str_keys=True)))
    else:
        print(_progress(total))
        print("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(total.faults.items())))
    return 1 if total.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perdure.testing.simulator",
        description="Play the default scenario under faults, one history for each seed.",
    )
    parser.add_argument("--seed", type=int, help="play this seed alone: replays a failure")
    parser.add_argument("--scenario", help="MODULE:CLASS of your own (the one with everything)")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play them (1)")
    parser.add_argument(
        "--events", type=int, default=EVENTS_SHOWN, help="with --seed: events shown of a failure"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    return parser


def _show_one(outcome: Outcome, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(msgspec.to_builtins(outcome)))
    elif outcome.failure is not None:
        print(f"FAILED: {outcome.failure}")
    elif outcome.report is not None:
        report = outcome.report
        print(
            f"seed {outcome.seed}: {report.runs} runs on {report.hosts} hosts, "
            f"{report.events} events, {report.states} states checked, "
            f"{report.virtual_s:.0f} virtual s, digest {report.digest[:16]}"
        )
        print("faults: " + ", ".join(f"{n} {kind}" for kind, n in report.faults.items()))
    return 1 if outcome.failure is not None else 0


def _progress(total: Total) -> str:
    return (
        f"{total.seeds} seeds: {len(total.failures)} failed, {total.events} events, "
        f"{total.states} states checked, {total.virtual_s / 3600:.1f} virtual h"
    )


if __name__ == "__main__":
    sys.exit(main())
