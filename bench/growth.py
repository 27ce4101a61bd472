"""Measure what grows with what is stored: `python -m bench.growth [--quick] [--json FILE]`.

The same work beside 10, 1,000 and 100,000 stored runs that wait, and in runs of 10 and 10,000
steps; then two idle workers over all of them, and a thousand woken at once. All runs are made by
the engine itself, as a user would.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench import growth_worker, machine, ours
from bench.crash_worker import read
from bench.growth_worker import MARK_STEPS, Waiting, marks, waiting
from bench.places import PlaceMissing, PostgresPlace, SqlitePlace
from perdure import Run, Runtime
from perdure.ids import WorkerId

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "go"
STORE = "growth"
CHUNK = 200
WAIT_S = 120.0

AnyPlace = SqlitePlace | PostgresPlace


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much: stored runs, steps of a run, steps measured, wakings, seconds of idling."""

    stored: tuple[int, ...]
    lengths: tuple[int, int]
    steps: int
    tries: int
    woken: int
    idle_s: float


FULL = Size(stored=(10, 1000, 100_000), lengths=(10, 10_000), steps=2000, tries=20, woken=1000,
            idle_s=60.0)  # fmt: skip
QUICK = Size(stored=(10, 100, 1000), lengths=(10, 2000), steps=300, tries=5, woken=100,
             idle_s=3.0)  # fmt: skip


class Growth:
    """Fills one store and measures as it grows."""

    def __init__(
        self, place: AnyPlace, folder: Path, size: Size, told: Callable[[str], None]
    ) -> None:
        self._place = place
        self._folder = folder
        self._size = size
        self._told = told
        self._notes = folder / f"{place.prefix}growth.txt"
        self._runs: list[str] = []
        self.figures: dict[str, dict[int, float]] = {}

    def _add(self, name: str, at: int, value: float) -> None:
        self.figures.setdefault(name, {})[at] = value

    async def run(self) -> None:
        for stored in self._size.stored:
            self._told(f"{self._place.prefix or 'sqlite.'} {stored} stored runs")
            await self._fill(stored)
            for name, values in (await self._costs()).items():
                self._add(name, stored, statistics.median(values))
            await self._claims(stored)
            if stored in (self._size.stored[0], self._size.stored[-1]):
                await self._idle(stored)
        await self._wake()
        for length in self._size.lengths:
            self._told(f"{self._place.prefix or 'sqlite.'} run of {length} steps")
            await self._long(length)

    def _open(self, *, worker: bool = True) -> Runtime:
        url = self._place.url(STORE)
        return Runtime.open(url, graphs=[waiting, ours.loop, ours.acting], worker=worker)

    # -- more and more stored runs -----------------------------------------------------------------

    async def _fill(self, stored: int) -> None:
        """Start runs and let them go until so many of them wait."""
        before, had = self._bytes(), len(self._runs)
        started_s = time.perf_counter()
        async with self._open() as runtime:
            while len(self._runs) < stored:
                count = min(CHUNK, stored - len(self._runs))
                state = Waiting(notes=str(self._notes))
                starts = [runtime.start(waiting, state) for _ in range(count)]
                self._runs += [run.id for run in await asyncio.gather(*starts)]
                await let_go(runtime, CHUNK)
            await let_go(runtime)
        added = len(self._runs) - had
        self._add("made", stored, added / (time.perf_counter() - started_s))
        self._add("bytes", stored, (self._bytes() - before) / added)

    def _bytes(self) -> float:
        """Return the bytes on disk, tables and indexes, without the log."""
        if isinstance(self._place, PostgresPlace):
            sql = (
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c "
                "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
                "WHERE n.nspname = %s AND c.relkind = 'r'"
            )
            return float(self._place.query(sql, STORE)[0][0])
        path = self._place.path(STORE)
        return path.stat().st_size if path.exists() else 0.0  # the log is empty: it was closed

    async def _costs(self) -> dict[str, list[float]]:
        """Measure steps and starts beside what is stored."""
        found: dict[str, list[float]] = {}
        place, size = self._place, self._size
        async with self._open() as runtime:
            await ours.sequence(place, runtime, ours.loop, 50)
            await ours.at_once(place, runtime, 64, 10)
            for _ in range(5):
                # Not when SQLite begins its log anew in between: the other tries count it.
                with suppress(RuntimeError), place.logged(STORE) as written:
                    cost = await ours.sequence(place, runtime, ours.loop, size.steps)
                keep(found, "step", cost)
                if written:
                    found.setdefault("step.log", []).append(written[0] / size.steps)
                keep(found, "effect", await ours.sequence(
                    place, runtime, ours.acting, size.steps // 10))  # fmt: skip
                keep(found, "runs", await ours.at_once(place, runtime, 64, 10))
            for _ in range(min(size.tries, len(self._runs) // 2)):
                run = await runtime.get(self._runs.pop())
                await timed(found, "wake", awake(run))
        return found

    async def _claims(self, stored: int) -> None:
        """Measure claims that find nothing, and claims of one run that is due."""
        found: dict[str, list[float]] = {}
        due: list[str] = []
        worker_id = WorkerId("w_bench")
        async with self._open(worker=False) as runtime:
            store, engine = runtime.engine.store, runtime.engine
            graphs = [(ours.loop.name, 1)]

            async def claim() -> None:
                taken.extend(
                    await store.claim(
                        worker_id,
                        graphs,
                        now_us=engine.now_us(),
                        lease_until_us=engine.lease_until_us(),
                        limit=64,
                    )
                )

            for _ in range(self._size.tries):
                taken: list[Any] = []
                await timed(found, "claim.nothing", claim())
                due.append((await runtime.start(ours.loop, ours.Counter(left=1))).id)
                await timed(found, "claim.one", claim())
                assert len(taken) == 1, taken
            await store.forget_worker(worker_id)
        for name, values in found.items():
            self._add(name, stored, statistics.median(values))
        async with self._open() as runtime:
            for run_id in due:
                await (await runtime.get(run_id)).result()

    # -- idle workers, and many woken at once ------------------------------------------------------

    async def _idle(self, stored: int) -> None:
        """Measure two workers that have nothing to do."""
        workers = await self._workers()
        try:
            pids = [worker.pid for worker in workers]
            await asyncio.sleep(1.0)
            cpu_s, server_s = sum(map(cpu_of, pids)), self._place.server_cpu_s()
            await asyncio.sleep(self._size.idle_s)
            idle_s = self._size.idle_s
            self._add("idle.cpu", stored, (sum(map(cpu_of, pids)) - cpu_s) / 2 / idle_s * 1000)
            server_s = self._place.server_cpu_s() - server_s
            self._add("idle.server", stored, server_s / 2 / idle_s * 1000)
            self._add("idle.memory", stored, sum(map(memory_of, pids)) / 2 / 1e6)
        finally:
            stop(workers)

    async def _wake(self) -> None:
        """Measure how long two workers take until many runs work again that are woken at once."""
        count, stored = self._size.woken, self._size.stored[-1]
        workers = await self._workers()
        try:
            async with self._open(worker=False) as runtime:
                before = len(read(self._notes, "woken", 0))
                started_ns = time.monotonic_ns()
                signals = [runtime.signal(self._runs.pop(), TOPIC) for _ in range(count)]
                await asyncio.gather(*signals)
                self._add("woken.sent", stored, (time.monotonic_ns() - started_ns) / 1e6)
                deadline_s = time.monotonic() + WAIT_S
                while len(found := read(self._notes, "woken", 0)) < before + count:
                    assert time.monotonic() < deadline_s, f"{len(found) - before} of {count} woke"
                    await asyncio.sleep(0.05)
            took = sorted((ns - started_ns) / 1e6 for _pid, ns in found[before:])
            self._add("woken.half", stored, took[count // 2])
            self._add("woken.all", stored, took[-1])
        finally:
            stop(workers)

    async def _workers(self) -> "list[subprocess.Popen[bytes]]":
        ready = len(read(self._notes, "ready", 0))
        workers = [self._spawn() for _ in range(2)]
        deadline_s = time.monotonic() + WAIT_S
        while len(read(self._notes, "ready", 0)) < ready + 2:
            assert time.monotonic() < deadline_s, "a worker does not come up"
            await asyncio.sleep(0.05)
        return workers

    def _spawn(self) -> "subprocess.Popen[bytes]":
        url = self._place.url(STORE)
        return subprocess.Popen(
            [sys.executable, "-m", growth_worker.__name__, url, str(self._notes)],
            cwd=ROOT,
            env=machine.environment(self._folder),
        )

    # -- longer and longer runs --------------------------------------------------------------------

    async def _long(self, length: int) -> None:
        """Measure the last steps of a run, and how long it takes to be loaded."""
        found: dict[str, list[float]] = {}
        tries = self._size.tries if length < MARK_STEPS else 3
        for _ in range(tries):
            async with self._open() as runtime:
                meter = ours.Meter(self._place)
                run = await runtime.start(waiting, Waiting(left=length))
                await let_go(runtime)
                if length < MARK_STEPS:
                    keep(found, "long.step", meter.cost(length))
                else:
                    for name, last in (("first", length), ("last", MARK_STEPS * 2)):
                        begun, ended = marks[last], marks[last - MARK_STEPS]
                        cost = ours.Cost(
                            *((b - a) / MARK_STEPS for a, b in zip(begun, ended, strict=True))
                        )
                        keep(found, f"long.{name}", cost)
            async with self._open() as runtime:  # anew: nothing of it is in memory
                await timed(found, "long.state", runtime.state(run.thread))
                await timed(found, "long.wake", awake(await runtime.get(run.id)))
        for name, values in found.items():
            self._add(name, length, statistics.median(values))


async def let_go(runtime: Runtime, most: int = 0) -> None:
    """Return when the worker of this process has at most so many runs in memory."""
    assert runtime.worker is not None
    held = runtime.worker._held  # noqa: SLF001  # no public name says it, and asking would cost
    deadline_s = time.monotonic() + WAIT_S
    while len(held) > most:
        assert time.monotonic() < deadline_s, f"{len(held)} runs don't come to rest"
        await asyncio.sleep(0.002)


async def awake(run: Run) -> None:
    await run.signal(TOPIC)
    await run.result()


async def timed(found: dict[str, list[float]], name: str, work: Awaitable[Any]) -> None:
    """Add the milliseconds that the work takes."""
    started_s = time.perf_counter()
    await work
    found.setdefault(name, []).append((time.perf_counter() - started_s) * 1000)


def keep(found: dict[str, list[float]], name: str, cost: ours.Cost) -> None:
    """Add milliseconds per step."""
    for what, value in (("wall", cost.wall_s), ("cpu", cost.cpu_s), ("server", cost.server_s)):
        if value:  # no server, or not looked at
            found.setdefault(f"{name}.{what}", []).append(value * 1000)


def cpu_of(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process has to itself or shares."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def stop(workers: "list[subprocess.Popen[bytes]]") -> None:
    for worker in workers:
        worker.kill()
        worker.wait()


TITLES = {
    "step.wall": ("step in sequence, time", "ms"),
    "step.cpu": ("step in sequence, CPU", "ms"),
    "step.server": ("step in sequence, CPU of the server", "ms"),
    "step.log": ("step in sequence, log written", "bytes"),
    "effect.wall": ("step with a keyed effect, time", "ms"),
    "effect.cpu": ("step with a keyed effect, CPU", "ms"),
    "effect.server": ("step with a keyed effect, CPU of the server", "ms"),
    "runs.wall": ("64 runs of 10 steps, time per step", "ms"),
    "runs.cpu": ("64 runs of 10 steps, CPU per step", "ms"),
    "runs.server": ("64 runs of 10 steps, CPU of the server per step", "ms"),
    "claim.nothing": ("claim, nothing is due", "ms"),
    "claim.one": ("claim, one run is due", "ms"),
    "wake": ("signal to result of a waiting run", "ms"),
    "made": ("runs started and left waiting, one worker", "runs/s"),
    "bytes": ("on disk per waiting run", "bytes"),
    "idle.cpu": ("idle worker, CPU per second", "ms"),
    "idle.server": ("idle worker, CPU of the server per second", "ms"),
    "idle.memory": ("idle worker, memory", "MB"),
    "woken.sent": ("many woken at once, all signals stored", "ms"),
    "woken.half": ("many woken at once, half of them work again", "ms"),
    "woken.all": ("many woken at once, all of them work again", "ms"),
    "long.step.wall": ("step of a short run, start included, time", "ms"),
    "long.step.cpu": ("step of a short run, start included, CPU", "ms"),
    "long.step.server": ("step of a short run, start included, CPU of the server", "ms"),
    "long.first.wall": ("first steps of a long run, time", "ms"),
    "long.first.cpu": ("first steps of a long run, CPU", "ms"),
    "long.last.wall": ("last steps of a long run, time", "ms"),
    "long.last.cpu": ("last steps of a long run, CPU", "ms"),
    "long.state": ("state of the thread, in a new process", "ms"),
    "long.wake": ("signal to result, in a new process", "ms"),
}

FEW = {"made", "bytes"}
"""Of ten runs they tell nothing: what is made once outweighs them."""


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show(report: dict[str, Any]) -> None:
    console = Console()
    console.width = max(console.width, 130)
    about, load = report["machine"], report["load"]
    console.print(
        f"{about['processor']}, {about['cores']} cores, {about['system']}, {about['file_system']}; "
        f"Python {about['python']}, SQLite {about['sqlite']}, PostgreSQL {about['postgres']}"
    )
    console.print(f"load over one minute: {load['before']:.2f} before, {load['after']:.2f} after")
    for name, figures in report["stores"].items():
        table = Table(box=box.SIMPLE, title=name, title_justify="left")
        for title in ("figure", "unit", "stored runs or steps: measured", "last over first"):
            table.add_column(title, justify="left" if title in {"figure", "unit"} else "right")
        for key, (title, unit) in TITLES.items():
            values = figures.get(key, {})
            if not any(values.values()):
                continue
            shown = "   ".join(f"{int(at):,}: {number(value)}" for at, value in values.items())
            first, *_, last = [*values.values()] * 2 if len(values) == 1 else values.values()
            has_ratio = len(values) > 1 and first and key not in FEW
            ratio = f"{last / first:.2f} x" if has_ratio else ""
            table.add_row(title, unit, shown, ratio)
        console.print(table)
    for name, why in report["skipped"].items():
        console.print(f"[bold red]NOT MEASURED: {name}: {why}")


async def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    size = QUICK if options.quick else FULL
    stores: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    version, before = "-", machine.load()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name:
        folder = Path(name)
        for store in options.only or ("sqlite", "postgres"):
            place: AnyPlace | None = None
            try:
                place = SqlitePlace(folder) if store == "sqlite" else PostgresPlace(folder)
            except PlaceMissing as error:
                skipped[store] = str(error)
                continue
            growth = Growth(place, folder, size, console.print)
            try:
                await growth.run()
            finally:
                stores[store] = growth.figures
                if isinstance(place, PostgresPlace):
                    version = place.version()
                    with suppress(OSError):
                        place.close()
        about = machine.describe(folder) | {"postgres": version}
    load = {"before": before, "after": machine.load()}
    return {
        "format": 1,
        "machine": about,
        "load": load,
        "quick": options.quick,
        "stores": stores,
        "skipped": skipped,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument("--only", action="append", choices=("sqlite", "postgres"))
    parser.add_argument("--folder", type=Path, default=Path.cwd(), metavar="FOLDER")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", str(ROOT / "src"))
    found = asyncio.run(measure(options, Console(stderr=True)))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
