"""The same small work on Perdure."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import wal
from perdure import END, START, Context, Graph, Runtime, effect

STEPS_MAX = 1_000_000
NOTE = "x" * 100


@dataclass
class Counter:
    """A small state: a number and 100 characters."""

    left: int = 0
    note: str = ""


def _more(state: Counter) -> str:
    return "step" if state.left > 0 else END


loop = Graph(Counter, name="bench-loop", step_limit=STEPS_MAX)


@loop.node(name="step")
async def _step(state: Counter) -> dict[str, Any]:
    return {"left": state.left - 1, "note": NOTE}


loop.edge(START, "step")
loop.branch("step", _more, targets=["step", END])


@effect(kind="keyed")
async def touch(number: int, *, idempotency_key: str) -> int:
    """Stand for an act on the outside world that takes no time."""
    return number if idempotency_key else 0


acting = Graph(Counter, name="bench-acting", step_limit=STEPS_MAX)


@acting.node(name="step")
async def _act(state: Counter, ctx: Context) -> dict[str, Any]:
    await ctx.call(touch, state.left)
    return {"left": state.left - 1, "note": NOTE}


acting.edge(START, "step")
acting.branch("step", _more, targets=["step", END])


@dataclass(frozen=True)
class Cost:
    """What some steps took: seconds by the clock and by the process's CPUs, each per step."""

    wall_s: float
    cpu_s: float


def open_runtime(folder: Path, *, delay_ms: float = 0.0) -> Runtime:
    """Return a runtime over a database of its own in the folder."""
    option = f"?flush_delay_ms={delay_ms:g}" if delay_ms else ""
    path = folder / f"perdure-{delay_ms:g}.db"
    return Runtime.open(f"sqlite:///{path}{option}", graphs=[loop, acting])


async def sequence(runtime: Runtime, graph: Any, steps: int) -> Cost:
    """Measure one run, from before its start to its result."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    run = await runtime.start(graph, Counter(left=steps))
    await run.result()
    return Cost((time.perf_counter() - wall_s) / steps, (time.process_time() - cpu_s) / steps)


async def at_once(runtime: Runtime, runs: int, steps: int) -> Cost:
    """Measure many runs, from before the first start to the last result."""

    async def one() -> None:
        run = await runtime.start(loop, Counter(left=steps))
        await run.result()

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(runs)))
    count = runs * steps
    return Cost((time.perf_counter() - wall_s) / count, (time.process_time() - cpu_s) / count)


async def log_bytes(runtime: Runtime, database: Path, runs: int, steps: int) -> float:
    """Return the bytes of the write-ahead log per step of many runs; starts and ends included."""
    await at_once(runtime, 1, 1)
    with wal.held(database):
        before = wal.look(database)
        await at_once(runtime, runs, steps)
        return wal.written(before, wal.look(database)) / (runs * steps)
