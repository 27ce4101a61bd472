"""`migrate`: what becomes of runs of older versions, and moving them now."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._executing import Interrupts
from perdure.cli._options import AsJson, StoreUrl, Target, await_
from perdure.cli._output import note, print_json, say, table
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.cli._targets import load_target
from perdure.engine.outlook import command
from perdure.engine.survey import Fate, Finding, survey_runs, survey_threads

PARKED = 15
"""Exit code where some runs or threads can't go on with the code that was given."""

INTERRUPTED = 130


@dataclass(slots=True)
class Told:
    """What a survey found, in order."""

    graph: str
    version: int
    findings: list[Finding] = field(default_factory=list)
    is_interrupted: bool = False

    def counts(self) -> dict[str, int]:
        """Return how many there are of each fate."""
        counted = Counter(finding.fate for finding in self.findings)
        return {fate.value: counted[fate] for fate in Fate}

    @property
    def exit_code(self) -> int:
        """0: all go on; `PARKED`: some don't; `INTERRUPTED`: it was stopped."""
        if self.is_interrupted:
            return INTERRUPTED
        return PARKED if any(each.fate is Fate.PARKS for each in self.findings) else 0


def migrate(
    *,
    target: Target,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try the migrations; write nothing.")
    ] = False,
    threads: Annotated[
        bool,
        typer.Option("--threads", help="Also threads that no run is on, for their next run."),
    ] = False,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Move the unfinished runs of older versions of a graph to the version in this file.

    Only runs that nobody executes now; workers do the same by themselves when no live worker
    executes the old version any more. With --dry-run the migrations are called and what comes of
    them is checked, nodes under way are executed up to where their records end, and nothing is
    written or sent. Each run is one commit: Ctrl-C leaves it as it was, or
    moved.

    Exit code 0: all of them go on; 15: some would be parked, which are left as they are.

    \b
    Examples:
      perdure migrate refunds.py:graph --dry-run
      perdure migrate refunds.py:graph --dry-run --threads --json
      perdure migrate refunds.py:graph --store sqlite:///agents.db
    """
    graph = load_target(target)
    told = await_(_survey(store, graph, moves=not dry_run, threads=threads))
    if as_json:
        body = {
            "graph": told.graph,
            "version": told.version,
            "is_dry_run": dry_run,
            "is_interrupted": told.is_interrupted,
            "counts": told.counts(),
            "runs": [shapes.fate_json(each) for each in told.findings if each.run_id is not None],
            "threads": [shapes.fate_json(each) for each in told.findings if each.run_id is None],
        }
        print_json(body)
    else:
        _print(told, store)
    raise typer.Exit(told.exit_code)


async def _survey(url: str, graph: object, *, moves: bool, threads: bool) -> Told:
    interrupts = Interrupts()
    interrupts.watch()
    async with existing(url) as runtime:
        engine = runtime.engine
        plan = engine.plan_of(graph)
        told = Told(plan.name, plan.version)
        async for finding in survey_runs(engine, plan, moves=moves):
            told.findings.append(finding)
            if finding.fate is Fate.MIGRATED:
                note(f"moved run {finding.run_id} by {finding.path}")
            if interrupts.first.is_set():
                told.is_interrupted = True
                return told
        if threads:
            async for finding in survey_threads(engine, plan):
                told.findings.append(finding)
                if interrupts.first.is_set():
                    told.is_interrupted = True
                    return told
    return told


def _print(told: Told, url: str) -> None:
    rows = [
        (
            each.run_id or "-",
            each.thread,
            f"v{each.version}",
            _in_words(each),
        )
        for each in told.findings
    ]
    table(("run", "thread", "version", "what becomes of it"), rows, empty="nothing unfinished")
    counts = {name: count for name, count in told.counts().items() if count}
    summary = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to do"
    say(f"{told.graph} v{told.version}: {summary}")
    if told.is_interrupted:
        note("stopped: what was moved stays moved; the same command goes on")
    for each in told.findings:
        if each.fate is Fate.PARKS and each.run_id is not None:
            say(f"  {with_store(command('show', each.run_id), url)}")


def _in_words(finding: Finding) -> str:
    path = f" by {finding.path}" if finding.path else ""
    reason = f": {finding.reason}" if finding.reason else ""
    return f"{finding.fate.value}{path}{reason}"
