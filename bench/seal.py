"""Measure what encryption costs: `python -m bench.seal [--quick] [--json FILE]`.

The same run on an encrypted and on a plain SQLite store, in turn, round by round. Figures are the
CPU of the process per step (user and system, all OS threads) and the time that a step takes, the
commits that it waits for among it; ratios are the medians of those of the rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.state import text_of
from perdure import END, START, Context, Graph, Runtime, effect
from perdure.clock import system_services
from perdure.codec import DataKey
from perdure.sealing import LocalKeys


@dataclass
class State:
    """A state that is rewritten in part with each step."""

    left: int = 0
    fields: dict[str, str] = field(default_factory=dict)


@effect(kind="keyed")
async def send(number: int, *, idempotency_key: str) -> str:
    return f"sent {number} {idempotency_key[:4]}"


def small() -> Graph:
    """Return a graph whose steps change a counter."""
    graph = Graph(State, name="small", step_limit=100_000)

    @graph.node
    async def count(state: State) -> dict:
        return {"left": state.left - 1}

    graph.edge(START, count)
    graph.branch(count, lambda state: "count" if state.left > 0 else END, targets=["count", END])
    return graph


def sending() -> Graph:
    """Return a graph whose steps have an effect each."""
    graph = Graph(State, name="sending", step_limit=100_000)

    @graph.node
    async def act(state: State, ctx: Context) -> dict:
        await ctx.call(send, state.left)
        return {"left": state.left - 1}

    graph.edge(START, act)
    graph.branch(act, lambda state: "act" if state.left > 0 else END, targets=["act", END])
    return graph


def editing() -> Graph:
    """Return a graph whose steps replace all of a value of 1 MB."""
    graph = Graph(State, name="editing", step_limit=100_000)

    @graph.node
    async def edit(state: State) -> dict:
        fields = {f"{n}": text_of(state.left * 1000 + n) for n in range(0, 1000, 10)}
        return {"left": state.left - 1, "fields": {**state.fields, **fields}}

    graph.edge(START, edit)
    graph.branch(edit, lambda state: "edit" if state.left > 0 else END, targets=["edit", END])
    return graph


PARTS = {
    "small step": (small, State),
    "step with an effect": (sending, State),
    "step that edits a value of 1 MB": (
        editing,
        lambda left: State(left, {f"{n}": text_of(n) for n in range(1000)}),
    ),
}


def step_us(make_graph: Any, state: State, *, is_sealed: bool) -> tuple[float, float]:
    """Return microseconds of CPU, and of time, per step of one run on a new store."""
    steps = state.left
    entropy = system_services().entropy
    keys = LocalKeys("bench", [("k1", entropy(32))], entropy) if is_sealed else None

    async def work(folder: str) -> tuple[float, float]:
        graph = make_graph()
        url = f"sqlite:///{folder}/seal.db"
        async with Runtime.open(url, [graph], keys=keys) as runtime:
            began, began_at = time.process_time(), time.perf_counter()
            await (await runtime.start(graph, state)).result()
            cpu, wall = time.process_time() - began, time.perf_counter() - began_at
            return cpu * 1e6 / steps, wall * 1e6 / steps

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        return asyncio.run(work(folder))


def measure(part: str, steps: int, rounds: int) -> dict[str, float]:
    """Return the figures of one part."""
    make_graph, make_state = PARTS[part]
    pairs = []
    for number in range(rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        found = {
            is_sealed: step_us(make_graph, make_state(steps), is_sealed=is_sealed)
            for is_sealed in order
        }
        if number:  # the first round warms up
            pairs.append((found[False], found[True]))
    figures = {}
    for at, name in enumerate(("cpu", "time")):
        ratios = sorted(sealed[at] / plain[at] for plain, sealed in pairs)
        figures |= {
            f"plain_{name}_us": statistics.median(plain[at] for plain, _ in pairs),
            f"sealed_{name}_us": statistics.median(sealed[at] for _, sealed in pairs),
            f"{name}_ratio": statistics.median(ratios),
            f"{name}_ratio_min": ratios[0],
            f"{name}_ratio_max": ratios[-1],
        }
    return figures


def measure_seal(size: int) -> float:
    """Return microseconds of one seal of so many bytes."""
    entropy = system_services().entropy
    key, place, plain = DataKey(bytes(12), entropy(32)), ("t", "thread", "x", ("r", 1)), bytes(size)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(2000):
            key.seal(plain, place, entropy(24))
        times.append((time.perf_counter() - began) / 2000 * 1e6)
    return min(times)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.seal", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    options = parser.parse_args()
    print(machine.describe(Path.cwd()), f"load {os.getloadavg()[0]:.1f}")
    rounds, factor = (1, 10) if options.quick else (7, 1)
    found: dict[str, Any] = {
        "small step": measure("small step", 1000 // factor, rounds),
        "step with an effect": measure("step with an effect", 500 // factor, rounds),
        "step that edits a value of 1 MB": measure(
            "step that edits a value of 1 MB", 20 // factor, rounds
        ),
        "one seal": {f"{size}_bytes_us": measure_seal(size) for size in (200, 8192)},
    }
    for part, figures in found.items():
        print(part, " ".join(f"{name}={value:.4g}" for name, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
