"""Measure what state costs: `python -m bench.state [--quick] [--json FILE]`.

Bytes are those of the database's files after it was closed, so exact; of forks those of its journal
and pages. Times are medians.
"""

import argparse
import asyncio
import base64
import json
import math
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench import machine
from perdure import END, START, Graph, Runtime, append

MESSAGE_BYTES = 1024
LOADS = 7


@dataclass
class Chat:
    """A conversation that grows."""

    messages: Annotated[list[str], append] = field(default_factory=list)
    left: int = 0


@dataclass
class Blob:
    """One large value of which a field changes with each step."""

    fields: dict[str, str] = field(default_factory=dict)
    left: int = 0


@dataclass
class Small:
    """A state that stays as large as it is."""

    left: int = 0
    note: str = ""


def text_of(number: int, size: int = MESSAGE_BYTES) -> str:
    """Return text that compresses no better than base64 does, the same each time."""
    chance = random.Random(number)  # no secret
    return base64.b64encode(chance.randbytes(size * 3 // 4)).decode()[:size]


def _more(state: Any) -> str:
    return "step" if state.left > 0 else END


chat = Graph(Chat, name="bench-chat", step_limit=1_000_000)
blob = Graph(Blob, name="bench-blob", step_limit=1_000_000)
small = Graph(Small, name="bench-small", step_limit=1_000_000)
SPENT: list[float] = []


@chat.node(name="step")
async def _say(state: Chat) -> dict[str, Any]:
    return {"messages": [text_of(len(state.messages))], "left": state.left - 1}


@blob.node(name="step")
async def _edit(state: Blob) -> dict[str, Any]:
    SPENT.append(time.perf_counter())
    name = f"field {random.Random(state.left).randrange(len(state.fields))}"  # no secret
    return {
        "fields": {**state.fields, name: text_of(1_000_000 + state.left)},
        "left": state.left - 1,
    }


@small.node(name="step")
async def _count(state: Small) -> dict[str, Any]:
    return {"left": state.left - 1, "note": "x" * 100}


for graph in (chat, blob, small):
    graph.edge(START, "step")
    graph.branch("step", _more, targets=["step", END])


def size_of(folder: Path) -> int:
    """Return the bytes of all files of the database."""
    return sum(path.stat().st_size for path in folder.iterdir())


def open_in(folder: Path, *, worker: bool = True) -> Runtime:
    """Open a runtime over a database in the folder."""
    return Runtime.open(f"sqlite:///{folder}/state.db", graphs=[chat, blob, small], worker=worker)


async def run_in(folder: Path, graph: Graph[Any], state: Any) -> int:
    """Run a graph on thread `t` and return the bytes on disk, the database closed."""
    async with open_in(folder) as runtime:
        await (await runtime.start(graph, state, thread="t")).result()
    return size_of(folder)


async def load_ms(folder: Path) -> float:
    """Return the median milliseconds of reading the newest state, each time from the store."""
    async with open_in(folder, worker=False) as runtime:
        taken = []
        for _ in range(LOADS):
            begun_s = time.perf_counter()
            await runtime.state("t")
            taken.append((time.perf_counter() - begun_s) * 1000)
    return statistics.median(taken)


def written_in(folder: Path) -> int:
    """Return the bytes of all frames and pages: files grow by whole pages of the database."""
    with closing(sqlite3.connect(folder / "state.db")) as db:
        sums = [
            db.execute(f"SELECT coalesce(sum(length(body)), 0) FROM {table}").fetchone()[0]  # noqa: S608  # no input
            for table in ("perdure_frames", "perdure_pages")
        ]
    return sum(sums)


async def forked_bytes(folder: Path) -> int:
    """Return the bytes of journal and pages that a fork of the newest state adds."""
    before = written_in(folder)
    async with open_in(folder, worker=False) as runtime:
        await runtime.fork("t", to="f")
    return written_in(folder) - before


def in_folder(work: Callable[[Path], Any]) -> Any:
    """Run a coroutine function in a new folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-state-", dir=Path.cwd()) as name:
        return asyncio.run(work(Path(name)))


def measure_chat(counts: list[int]) -> dict[str, Any]:
    """Messages of 1 KB, one in each step: bytes on disk against the payload."""
    sizes: dict[int, int] = {}
    loads: dict[int, float] = {}
    forks: dict[int, int] = {}
    for count in counts:

        async def work(folder: Path, count: int = count) -> None:
            sizes[count] = await run_in(folder, chat, Chat(left=count))
            loads[count] = await load_ms(folder)
            forks[count] = await forked_bytes(folder)

        in_folder(work)
    first, last = counts[0], counts[-1]
    exponent = math.log(sizes[last] / sizes[first]) / math.log(last / first)
    return {
        "bytes": sizes,
        "over_payload": {n: size / (n * MESSAGE_BYTES) for n, size in sizes.items()},
        "exponent": exponent,
        "load_ms": loads,
        "fork_bytes": forks,
    }


def _floor_ms(fields: dict[str, str]) -> float:
    """Return the milliseconds that encoding and hashing the value take: the best of ten."""
    encode = msgspec.msgpack.Encoder().encode
    best = math.inf
    for _ in range(10):
        begun_s = time.perf_counter()
        sha256(encode(fields)).digest()
        best = min(best, (time.perf_counter() - begun_s) * 1000)
    return best


def measure_blob(count: int, edits: int) -> dict[str, Any]:
    """A value of so many fields of 1 KB, one of them edited in each step."""
    fields = {f"field {number}": text_of(number) for number in range(count)}
    found: dict[str, Any] = {"value_bytes": count * MESSAGE_BYTES}

    async def work(folder: Path) -> None:
        SPENT.clear()
        found["bytes"] = await run_in(folder, blob, Blob(fields=fields, left=edits))
        steps = [after - before for before, after in pairwise(SPENT)]
        found["step_ms"] = statistics.median(steps) * 1000
        found["encode_and_hash_ms"] = _floor_ms(fields)
        found["load_ms"] = await load_ms(folder)
        found["fork_bytes"] = await forked_bytes(folder)

    in_folder(work)
    found["over_value"] = found["bytes"] / found["value_bytes"]
    found["step_over_floor"] = found["step_ms"] / found["encode_and_hash_ms"]
    return found


def measure_loads(counts: list[int]) -> dict[str, Any]:
    """Read the newest state of a small, unchanging size after so many steps."""
    found: dict[int, float] = {}
    for count in counts:

        async def work(folder: Path, count: int = count) -> None:
            await run_in(folder, small, Small(left=count))
            found[count] = await load_ms(folder)

        in_folder(work)
    return {"load_ms": found, "ratio": found[counts[-1]] / found[counts[0]]}


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    table = Table("figure", "value", box=None)
    for part, figures in found.items():
        for name, value in figures.items():
            if isinstance(value, dict):
                text = "  ".join(f"{key:,}: {_text(each)}" for key, each in value.items())
            else:
                text = _text(value)
            table.add_row(f"{part}: {name}", text)
    Console(width=160).print(table)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    options = parser.parse_args()
    quick = options.quick
    print(machine.describe(Path.cwd()))
    found = {
        "messages": measure_chat([50, 100] if quick else [100, 250, 500, 1000, 2500, 5000]),
        "value of 1 MB, 100 edits": measure_blob(1000, 10 if quick else 100),
        "small state": measure_loads([10, 100] if quick else [10, 1000, 10_000]),
    }
    if not quick:
        found["value of 10 MB, 100 edits"] = measure_blob(10_000, 100)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
