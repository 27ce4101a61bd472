"""The same small work on Perdure."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from bench.places import Place
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
    """Seconds per step: by the clock, by the CPUs of this process and by those of the server."""

    wall_s: float
    cpu_s: float
    server_s: float = 0.0


class Meter:
    """Counts from when it was made."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server_s = place.server_cpu_s()
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def cost(self, steps: int) -> Cost:
        """Return what each of so many steps took."""
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        server_s = self._place.server_cpu_s() - self._server_s
        return Cost(wall_s / steps, cpu_s / steps, server_s / steps)


def name_of(delay_ms: float) -> str:
    """Return the name of the store that works with this delay."""
    return f"perdure-{delay_ms:g}"


def open_runtime(place: Place, *, delay_ms: float = 0.0) -> Runtime:
    """Return a runtime over a store of its own at the place."""
    url = place.url(name_of(delay_ms), delay_ms=delay_ms)
    return Runtime.open(url, graphs=[loop, acting])


async def sequence(place: Place, runtime: Runtime, graph: Any, steps: int) -> Cost:
    """Measure one run, from before its start to its result."""
    meter = Meter(place)
    run = await runtime.start(graph, Counter(left=steps))
    await run.result()
    return meter.cost(steps)


async def at_once(place: Place, runtime: Runtime, runs: int, steps: int) -> Cost:
    """Measure many runs, from before the first start to the last result."""

    async def one() -> None:
        run = await runtime.start(loop, Counter(left=steps))
        await run.result()

    meter = Meter(place)
    await asyncio.gather(*(one() for _ in range(runs)))
    return meter.cost(runs * steps)
