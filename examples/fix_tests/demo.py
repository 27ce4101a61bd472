"""The demo: an agent repairs a project inside a sandbox while its worker is killed.

The work is done twice. Once undisturbed; once by a worker process that is killed with SIGKILL at
random instants, several times, and replaced. Then the tests must pass, and every file, its mode and
its content must be what they are in the undisturbed sandbox. The exit code says whether that is so.

With --model the model of an endpoint works instead of the script, once, and is killed as well; two
trees of a thinking model are not the same, so only the tests are judged.
"""

import argparse
import asyncio
import contextlib
import difflib
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.fix_tests.fixing import Fixing, graph, sandboxes
from examples.fix_tests.script import STEPS
from examples.licences.fleet import Child, ChildFailed, start_child
from perdure import Event, PerdureError, Run, Runtime

RUN_S_MAX = 300.0
KILL_SPAN = (0.1, 0.9)
"""Kills fall in this part of the turns: the work has begun, and has not ended."""
KILL_DELAY_S_MAX = 0.4
"""On top of that, a random delay of about one turn: in a reply, a command, a snapshot."""

NOT_SHOWN = 0
"""Exit code where the host can't isolate: nothing failed, but nothing was shown; a line says so."""


@dataclass
class Kill:
    turn: int
    doing: str
    pid: int
    back_after_ms: float = 0.0


@dataclass
class Outcome:
    state: Fixing
    seconds: float
    kills: list[Kill] = field(default_factory=list)
    is_replayed: bool = False
    undisturbed: Fixing | None = None
    undisturbed_s: float = 0.0
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return all(self.checks.values())

    @property
    def difference(self) -> list[str]:
        """Lines of the trees that are not the same."""
        if self.undisturbed is None:
            return []
        return list(
            difflib.unified_diff(
                self.undisturbed.tree, self.state.tree, "undisturbed", "killed", n=0, lineterm=""
            )
        )


class Progressed:
    """Where a run is, from its events."""

    def __init__(self) -> None:
        self.turn = 0
        self.leases = 0
        self.doing = "nothing yet"
        self.seq = 0
        self._news = asyncio.Event()

    def add(self, event: Event) -> None:
        self.seq = event.seq
        self.leases += event.kind == "lease_taken"
        chunk = event.body.get("chunk") if event.kind == "emitted" else None
        if isinstance(chunk, dict) and "begins" in chunk:
            self.turn = max(self.turn, chunk["turn"])
        node = (event.node or "").rpartition(":")[2]
        if node not in {"", "agent"}:
            self.doing = f"{event.kind.replace('_', ' ')} of {node}"
        self._news.set()

    async def until(self, turn: int, leases: int = 0) -> None:
        while self.turn < turn or self.leases < leases:
            self._news.clear()
            await self._news.wait()


class Demo:
    """One demonstration in one folder."""

    def __init__(self, options: argparse.Namespace, folder: Path, console: Console) -> None:
        self._options = options
        self._folder = folder
        self._console = console
        self._random = random.Random(options.seed)
        self._began_s = time.monotonic()
        self._worker: Child | None = None
        self._is_over = False

    async def run(self) -> Outcome:
        outcome = await self._repair("killed", self._options.kills)
        if self._options.model is None:
            undisturbed = await self._repair("undisturbed", 0)
            outcome.undisturbed, outcome.undisturbed_s = undisturbed.state, undisturbed.seconds
        outcome.checks = self._judge(outcome)
        return outcome

    async def _repair(self, name: str, kills: int) -> Outcome:
        """Do the work once, with a store and sandboxes of its own."""
        store = f"sqlite:///{self._folder / name}.db"
        self._is_over = False
        keeping = asyncio.create_task(self._keep_worker(name, store))
        try:
            async with Runtime.open(store, graphs=[graph], worker=False) as runtime:
                started_s = time.monotonic()
                run = await runtime.start(graph, Fixing(), thread=name)
                self._say(f"{name}: {kills} kills; run {run.id}")
                state, done = await self._accompany(run, name, kills, keeping)
                seconds = time.monotonic() - started_s
                replayed = await runtime.replay(run.id, graph=graph)
                return Outcome(state, seconds, done, is_replayed=replayed.is_clean)
        finally:
            self._is_over = True
            if self._worker is not None:
                await self._worker.stop()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_worker(self, name: str, store: str) -> None:
        """Start a worker, and another whenever it is dead."""
        options = self._options
        arguments = ["--store", store, "--boxes", str(self._folder / f"{name}-sandboxes")]
        arguments += ["--pause-s", str(options.pause_s)]
        if options.model is not None:
            arguments += ["--model", options.model, "--model-name", options.model_name]
        while not self._is_over:
            log = self._folder / f"{name}-worker.log"
            self._worker = await start_child("worker", log, "examples.fix_tests.worker", *arguments)
            await self._worker.process.wait()

    async def _accompany(
        self, run: Run, name: str, kills: int, keeping: "asyncio.Task[None]"
    ) -> tuple[Fixing, list[Kill]]:
        progressed, done = Progressed(), []
        background = [
            asyncio.create_task(self._follow(run, name, progressed)),
            asyncio.create_task(self._kill(progressed, kills, done)),
        ]
        result = asyncio.create_task(run.result(timeout=RUN_S_MAX))
        try:
            waiting: set[Any] = {result, keeping, *background}
            while not result.done():
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in ended:
                    each.result()  # raises what went wrong in the background
            return result.result(), done
        finally:
            for task in (result, *background):
                task.cancel()
            await asyncio.gather(result, *background, return_exceptions=True)

    async def _follow(self, run: Run, name: str, progressed: Progressed) -> None:
        columns = (
            TextColumn(name),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("turns, {task.fields[doing]}"),
            TimeElapsedColumn(),
        )
        total = len(STEPS) if self._options.model is None else None
        with Progress(*columns, console=self._console, transient=True) as progress:
            bar = progress.add_task("", total=total, doing="")
            async for event in run.events(after=0):
                progressed.add(event)
                progress.update(bar, completed=progressed.turn, doing=progressed.doing)

    async def _kill(self, progressed: Progressed, kills: int, done: list[Kill]) -> None:
        """Kill the worker at random instants, spread over the turns."""
        least, most = KILL_SPAN
        width = (most - least) / max(kills, 1)
        for number in range(kills):
            part = least + width * (number + self._random.random())
            await progressed.until(max(round(part * len(STEPS)), 1))
            await asyncio.sleep(self._random.uniform(0, KILL_DELAY_S_MAX))
            await self._kill_worker(progressed, done)

    async def _kill_worker(self, progressed: Progressed, done: list[Kill]) -> None:
        worker = self._worker
        if worker is None or worker.process.returncode is not None:
            return
        leases = progressed.leases
        kill = Kill(progressed.turn, progressed.doing, worker.pid)
        worker.process.kill()
        done.append(kill)
        killed_s = time.monotonic()
        self._say(
            f"[bold red]SIGKILL[/] to pid {kill.pid} in turn {kill.turn}, after: {kill.doing}"
        )
        await progressed.until(0, leases + 1)
        kill.back_after_ms = (time.monotonic() - killed_s) * 1000
        self._say(f"another worker has the run, {kill.back_after_ms:.0f} ms later")

    def _judge(self, outcome: Outcome) -> dict[str, bool]:
        checks = {
            "all tests of the project pass": outcome.state.tests_pass,
            f"the worker was killed {self._options.kills} times": (
                len(outcome.kills) == self._options.kills
            ),
            "replayed from its journal it does the same": outcome.is_replayed,
        }
        before = outcome.undisturbed
        if before is not None:
            checks["all tests pass in the undisturbed sandbox"] = before.tests_pass
            checks["as many turns"] = before.turns == outcome.state.turns == len(STEPS)
            files = len(before.tree)
            checks[f"names, modes and contents of {files} files and folders are the same"] = (
                before.tree == outcome.state.tree and files > 0
            )
        return checks

    def _say(self, line: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(f"[dim]{elapsed_s:6.2f} s[/]  {line}", highlight=False)


# -- showing the outcome -------------------------------------------------------------------------


def show(outcome: Outcome, console: Console) -> None:
    """Print kills, answer and verdict for people."""
    kills = Table(
        "turn", "last heard of", "pid", "another after", title="Kills", title_justify="left"
    )
    for kill in outcome.kills:
        kills.add_row(str(kill.turn), kill.doing, str(kill.pid), f"{kill.back_after_ms:.0f} ms")
    console.print(kills)
    console.print(f"The agent: {escape(outcome.state.answer)}")
    undisturbed = f", undisturbed in {outcome.undisturbed_s:.1f} s" if outcome.undisturbed else ""
    console.print(f"{outcome.state.turns} turns in {outcome.seconds:.1f} s{undisturbed}.")
    for check, is_good in outcome.checks.items():
        console.print(f"{'[green]ok    [/]' if is_good else '[bold red]FAILED[/]'} {check}")
    for line in outcome.difference[:40]:
        console.print(escape(line), highlight=False)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome for programs."""
    state = outcome.state
    return {
        "shown": True,
        "ok": outcome.is_good,
        "seconds": round(outcome.seconds, 3),
        "turns": state.turns,
        "ended": state.ended.value if state.ended else None,
        "answer": state.answer,
        "kills": [asdict(kill) for kill in outcome.kills],
        "checks": outcome.checks,
        "files": len(state.tree),
        "difference": outcome.difference,
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.fix_tests.demo", description=__doc__)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="of the instants of the kills")
    parser.add_argument("--store", type=Path, help="folder of all files (default: a new one)")
    parser.add_argument(
        "--pause-s", type=float, default=0.1, help="of the scripted model's replies"
    )
    parser.add_argument(
        "--model", metavar="URL", help="a real model: the base URL of its endpoint, as .../v1"
    )
    parser.add_argument("--model-name", default="", help="its name there")
    parser.add_argument("--json", action="store_true", help="the outcome as JSON on stdout")
    options = parser.parse_args(arguments)
    if options.model is not None and not options.model_name:
        parser.error("--model needs --model-name; a key is taken from OPENAI_API_KEY")
    return options


async def lacking(folder: Path) -> str:
    """Return what this host lacks for the demo, or nothing."""
    backend = sandboxes(folder / "probe-sandboxes")
    try:
        await backend.capabilities()
        ran = await backend.open("demo", "probe").run("python3 -m pip --version && tar --version")
    except PerdureError as error:
        return str(error)
    finally:
        backend.close()
    return "" if ran.code == 0 else f"python3 with pip, or tar, is not below /usr: {ran.errors}"


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if all is as promised (or can't be shown here), 1 if not."""
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.randrange(2**32)
    folder = (options.store or Path(tempfile.mkdtemp(prefix="perdure-fix-tests-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=options.json)
    if why := asyncio.run(lacking(folder)):
        console.print(f"[bold red]NOT SHOWN[/]: {escape(why)}")
        if options.json:
            print(json.dumps({"shown": False, "why": why}))
        return NOT_SHOWN
    console.print(
        f"seed {options.seed}; all files are in {folder}", highlight=False, soft_wrap=True
    )
    with contextlib.suppress(KeyboardInterrupt):
        return _run(options, folder, console)
    console.print("stopped; every process of the demo has ended")
    return 130


def _run(options: argparse.Namespace, folder: Path, console: Console) -> int:
    try:
        outcome = asyncio.run(Demo(options, folder, console).run())
    except (PerdureError, ChildFailed) as error:
        console.print(f"[bold red]FAILED[/] {type(error).__name__}: {escape(str(error))}")
        return 1
    if options.json:
        print(json.dumps(as_json(outcome), indent=2))
    else:
        show(outcome, console)
    if not outcome.is_good:
        console.print(f"[bold red]Not as promised.[/] Again with: --seed {options.seed}")
        return 1
    console.print("[bold green]The tests pass, and no kill left a trace.[/]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
