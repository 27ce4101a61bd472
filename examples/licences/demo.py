"""The demo: a licence audit whose workers are killed while it acts on the outside world.

Two tracker processes, two worker processes on one SQLite file, and one run. Whichever worker holds
the run is killed with SIGKILL at random instants, several times. At the end the trackers are asked
what they have: every finding once. The exit code says whether that is so.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.licences import http_json
from examples.licences.audit import Audit, Tracker, Verdict, graph, list_distributions
from examples.licences.classify import CATEGORIES
from examples.licences.fleet import Child, ChildFailed, Fleet, start_child
from examples.licences.story import Story
from perdure import PerdureError, Run, Runtime

WORKERS = 2
RUN_S_MAX = 120.0
ANSWER_POLL_S = 0.1
KILL_SPAN = (0.05, 0.7)
"""Kills fall in this part of the filings: the run has begun to act, and has not finished."""
KILL_DELAY_S_MAX = 0.15
"""On top of that, a random delay of up to about one filing: before, during or after it."""

MODES = {"both": (True, False), "dedupe": (True,), "no-dedupe": (False,)}

ANSWERS = {
    "apsw": Verdict("permissive", "any OSI licence, at the user's choice"),
}
"""What the scripted answerer knows. Of everything else it says that it stays unclear."""


@dataclass
class Kill:
    at: datetime
    worker: str
    pid: int
    filed: int
    taken_over_after_ms: float | None = None


@dataclass
class Outcome:
    run: str
    seconds: float
    state: Audit
    story: Story
    kills: list[Kill]
    counts: dict[str, dict[str, Any]]
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return all(self.checks.values())


class Demo:
    """One demonstration in one folder."""

    def __init__(self, options: argparse.Namespace, folder: Path, console: Console) -> None:
        self._options = options
        self._folder = folder
        self._console = console
        self._random = random.Random(options.seed)
        self._kills: list[Kill] = []
        self._began_s = time.monotonic()

    async def run(self) -> Outcome:
        """Start everything, run the audit, stop everything, and judge."""
        store = f"sqlite:///{self._folder / 'audit.db'}"
        async with contextlib.AsyncExitStack() as stack:
            trackers = [
                await stack.enter_async_context(self._tracker(dedupes=d)) for d in self._modes
            ]
            fleet = Fleet(store, self._folder, self._say)
            stack.push_async_callback(fleet.stop)
            await fleet.start(WORKERS)
            self._say(f"{WORKERS} workers on {store}")
            runtime = await stack.enter_async_context(
                Runtime.open(store, graphs=[graph], worker=False)
            )
            return await self._audit(runtime, fleet, trackers)

    @property
    def _modes(self) -> tuple[bool, ...]:
        return MODES[self._options.mode]

    @contextlib.asynccontextmanager
    async def _tracker(self, *, dedupes: bool) -> AsyncIterator[Child]:
        mode = _mode(dedupes=dedupes)
        child = await start_child(
            f"tracker {mode}",
            self._folder / f"tracker-{mode}.log",
            "examples.licences.tracker",
            f"--{mode}",
            "--database",
            str(self._folder / f"tracker-{mode}.db"),
            "--latency-ms",
            self._options.latency_ms,
        )
        self._say(f"{child.name} (pid {child.pid}) on {child.hello['url']}")
        try:
            yield child
        finally:
            await child.stop()

    async def _audit(self, runtime: Runtime, fleet: Fleet, trackers: list[Child]) -> Outcome:
        urls = {
            _mode(dedupes=d): child.hello["url"]
            for d, child in zip(self._modes, trackers, strict=True)
        }
        start = Audit(
            path=str(self._options.path),
            report_path=str(self._folder / "report.md"),
            trackers=[
                Tracker(urls[_mode(dedupes=d)], d or self._options.naive) for d in self._modes
            ],
        )
        started_s = time.monotonic()
        run = await runtime.start(graph, start)
        story = Story(len(trackers), lambda worker: fleet.names.get(worker, worker))
        state = await self._accompany(runtime, run, fleet, story)
        seconds = time.monotonic() - started_s
        async for event in run.events(after=story.seq):
            story.add(event)
        counts = {
            mode: await asyncio.to_thread(http_json.call, "GET", f"{url}/count?run={run.id}")
            for mode, url in urls.items()
        }
        outcome = Outcome(run.id, seconds, state, story, self._kills, counts)
        outcome.checks = self._judge(outcome)
        return outcome

    async def _accompany(self, runtime: Runtime, run: Run, fleet: Fleet, story: Story) -> Audit:
        """Follow the run, answer for it and kill its workers, until it has a result."""
        background = [
            asyncio.create_task(self._follow(run, story)),
            asyncio.create_task(self._answer(runtime)),
            asyncio.create_task(self._kill(run, fleet, story)),
        ]
        result = asyncio.create_task(run.result(timeout=RUN_S_MAX))
        try:
            waiting = {result, fleet.failed, *background}
            while not result.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()  # raises what went wrong in the background
            state: Audit = result.result()
            return state
        finally:
            for task in (result, *background):
                task.cancel()
            await asyncio.gather(result, *background, return_exceptions=True)

    async def _follow(self, run: Run, story: Story) -> None:
        columns = (
            TextColumn("filing findings"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("held by {task.fields[holder]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task("", total=None, holder="nobody")
            async for event in run.events(after=0):
                story.add(event)
                progress.update(
                    bar, total=story.filings, completed=story.filed, holder=story.holder
                )

    async def _answer(self, runtime: Runtime) -> None:
        """Answer every question from the table, as a person would from memory."""
        while True:
            for ask in await runtime.asks(open=True):
                name = ask.question.split(" has the licence of ", 1)[-1].split(" ", 1)[0]
                verdict = ANSWERS.get(name, Verdict("unclear", "nobody asked knows it"))
                with contextlib.suppress(PerdureError):  # answered or expired since
                    await runtime.answer(ask.id, verdict, by="scripted answerer")
                    self._say(f"answered for {name}: {verdict.category}")
            await asyncio.sleep(ANSWER_POLL_S)

    async def _kill(self, run: Run, fleet: Fleet, story: Story) -> None:
        """Kill the holder at random instants, spread over the filings."""
        least, most = KILL_SPAN
        width = (most - least) / max(self._options.kills, 1)
        for number in range(self._options.kills):
            part = least + width * (number + self._random.random())
            await story.until(partial(_has_filed, story, part))
            await asyncio.sleep(self._random.uniform(0, KILL_DELAY_S_MAX))
            await self._kill_holder(run, fleet, story)

    async def _kill_holder(self, run: Run, fleet: Fleet, story: Story) -> None:
        while True:
            worker = fleet.worker((await run.row()).holder)
            if worker is not None:
                break
            await asyncio.sleep(0.005)
        before = story.leases
        worker.process.kill()
        killed_s = time.monotonic()
        kill = Kill(datetime.now(UTC), worker.name, worker.pid, story.filed)
        self._kills.append(kill)
        filings = f"{kill.filed} of {story.filings} findings filed"
        story.tell(kill.at, f"SIGKILL to {kill.worker}, pid {kill.pid}: {filings}")
        self._say(f"[bold red]SIGKILL[/] to {kill.worker} (pid {kill.pid}), {filings}")
        await story.until(lambda: story.leases > before)
        kill.taken_over_after_ms = (time.monotonic() - killed_s) * 1000
        self._say(f"{story.holder} took the run over {kill.taken_over_after_ms:.0f} ms later")

    def _judge(self, outcome: Outcome) -> dict[str, bool]:
        story, state = outcome.story, outcome.state
        expected = len(state.distributions)
        names = {finding.name for finding in state.findings}
        checks = {
            f"the run was killed {self._options.kills} times": (
                len(outcome.kills) == self._options.kills
            ),
            f"{expected} distributions, {expected} findings in the state": (
                expected == len(state.findings) == len(names) > 0
            ),
            "no finished node was executed again": not story.repeated,
            "the report is written": Path(state.report_path).is_file(),
        }
        for mode, count in outcome.counts.items():
            checks[f"tracker {mode}: {expected} findings, each once"] = (
                expected == count["rows"] == count["keys"] == count["names"]
            )
        return checks

    def _say(self, line: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(f"[dim]{elapsed_s:6.2f} s[/]  {line}", highlight=False)


def _has_filed(story: Story, part: float) -> bool:
    return story.filings is not None and story.filed >= part * story.filings


def _mode(*, dedupes: bool) -> str:
    return "dedupe" if dedupes else "no-dedupe"


# -- showing the outcome -------------------------------------------------------------------------


def show(outcome: Outcome, console: Console) -> None:
    """Print timeline, trackers, categories and verdict for people."""
    timeline = Table("after", "what", title=f"Timeline of run {outcome.run}", title_justify="left")
    for at_s, line in outcome.story.timeline():
        timeline.add_row(f"{at_s:.2f} s", line, style="red" if "SIGKILL" in line else None)
    console.print(timeline)
    trackers = Table("tracker", "rows", "distinct keys", "requests", "duplicates")
    for mode, count in outcome.counts.items():
        cells = (count["rows"], count["keys"], count["requests"], len(count["duplicates"]))
        trackers.add_row(mode, *map(str, cells))
    console.print(trackers)
    categories = Table("category", "distributions")
    for category in CATEGORIES:
        categories.add_row(category, str(outcome.state.counts.get(category, 0)))
    console.print(categories)
    story = outcome.story
    console.print(
        f"{len(outcome.kills)} kills, {story.takeovers} takeovers. {story.uncertain} times nobody "
        f"knew whether a filing had happened: {story.found} times it was looked up and found, "
        f"{story.resent} times sent again under the same key. {outcome.seconds:.1f} s."
    )
    for check, is_good in outcome.checks.items():
        console.print(f"{'[green]ok    [/]' if is_good else '[bold red]FAILED[/]'} {check}")
    console.print(f"report: {outcome.state.report_path}", highlight=False, soft_wrap=True)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome for programs."""
    story = outcome.story
    kills = [{**asdict(kill), "at": kill.at.isoformat()} for kill in outcome.kills]
    return {
        "ok": outcome.is_good,
        "run": outcome.run,
        "seconds": round(outcome.seconds, 3),
        "distributions": len(outcome.state.distributions),
        "categories": outcome.state.counts,
        "kills": kills,
        "takeovers": story.takeovers,
        "uncertain": story.uncertain,
        "found": story.found,
        "resent": story.resent,
        "asked": story.asked,
        "trackers": outcome.counts,
        "checks": outcome.checks,
        "timeline": [{"at_s": at_s, "what": line} for at_s, line in story.timeline()],
        "report": outcome.state.report_path,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.licences.demo", description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of the instants of the kills")
    parser.add_argument("--mode", choices=MODES, default="both", help="which trackers")
    parser.add_argument(
        "--path",
        type=lambda text: Path(text).resolve(),
        default=Path(sysconfig.get_path("purelib")),
        help="site-packages to audit (default: of this Python)",
    )
    parser.add_argument("--store", type=Path, help="folder of all files (default: a new one)")
    parser.add_argument("--latency-ms", default="40-160", help="of the trackers")
    parser.add_argument(
        "--naive",
        action="store_true",
        help="believe that every tracker drops repeated keys; with no-dedupe this must fail",
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON on stdout")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if everything happened once, 1 if not."""
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.randrange(2**32)
    folder = options.store or Path(tempfile.mkdtemp(prefix="perdure-licences-"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=options.json)
    if not list_distributions(str(options.path)):
        console.print(f"[bold red]FAILED[/] no distributions in {options.path}; see --path")
        return 1
    console.print(
        f"seed {options.seed}; all files are in {folder}", highlight=False, soft_wrap=True
    )
    try:
        outcome = asyncio.run(Demo(options, folder, console).run())
    except (PerdureError, ChildFailed) as error:
        console.print(f"[bold red]FAILED[/] {type(error).__name__}: {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print("stopped; every process of the demo has ended")
        return 130
    if options.json:
        print(json.dumps(as_json(outcome), indent=2))
    else:
        show(outcome, console)
    if not outcome.is_good:
        console.print(f"[bold red]Not as promised.[/] Again with: --seed {options.seed}")
        return 1
    console.print("[bold green]Every finding was filed once.[/]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
