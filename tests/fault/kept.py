"""A thread whose large fields come and go, and a process that prunes and dies where it is told.

python -m tests.fault.kept URL prune POINT NTH | python -m tests.fault.kept URL loop
"""

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import END, START, Graph, Runtime, append, effect
from perdure.clock import Services, system_services
from perdure.errors import Conflict
from perdure.governance import _collect, _prune, prune

BIG = 20_000


def text_of(number: int) -> str:
    """Return a long text of several pages; the same for the same number."""
    return " ".join(f"{number}.{part * part}" for part in range(BIG // 8))


@dataclass
class Shelf:
    todo: list[int] = field(default_factory=list)
    log: Annotated[list[str], append] = field(default_factory=list)
    book: str = ""


@effect(kind="pure")
async def fetch(number: int) -> str:
    """Return what a step adds to the log."""
    return f"read {number}"


graph = Graph(Shelf, name="shelf", step_limit=100_000)


@graph.node
async def read(state: Shelf, ctx: Any) -> dict[str, Any]:
    """Take the next book."""
    number = state.todo[0]
    line = await ctx.call(fetch, number)
    return {"todo": state.todo[1:], "log": [line], "book": text_of(number)}


graph.branch(START, lambda state: "read" if state.todo else END, targets=["read", END])
graph.branch("read", lambda state: "read" if state.todo else END, targets=["read", END])


def states_of(line: list[list[int]]) -> list[Shelf]:
    """Return the state at every checkpoint of a thread whose runs had these to read."""
    states: list[Shelf] = []
    shelf = Shelf()
    for todo in line:
        shelf = Shelf(list(todo), list(shelf.log), shelf.book)
        states.append(shelf)
        for at, number in enumerate(todo, 1):
            shelf = Shelf(list(todo[at:]), [*shelf.log, f"read {number}"], text_of(number))
            states.append(shelf)
    return states


def dying(point: str, nth: int) -> Services:
    """Return services that kill this process when a point is reached for the n-th time."""
    left = nth

    def probe(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    known = system_services()
    return Services(clock=known.clock, rng=known.rng, ids=known.ids, probe=probe)


async def prune_once(url: str, point: str, nth: str) -> None:
    """Prune in small transactions, and die at the point."""
    _prune.ERASE_FRAMES, _collect.SWEEP_PAGES = 3, 1  # type: ignore[misc,attr-defined]
    async with Runtime.open(url, worker=False, services=dying(point, int(nth))) as runtime:
        await prune(runtime, keep=2)


def lingering() -> Services:
    """Return services under which a collection takes long between its marks and its sweep."""

    def probe(name: str) -> None:
        if name == "collect.marked":
            time.sleep(0.1)

    known = system_services()
    return Services(clock=known.clock, rng=known.rng, ids=known.ids, probe=probe)


async def prune_all_the_time(url: str) -> None:
    """Prune again and again, until killed."""
    _prune.ERASE_FRAMES = 3  # type: ignore[misc,attr-defined]
    async with Runtime.open(url, worker=False, services=lingering()) as runtime:
        while True:
            try:
                await prune(runtime, keep=1, rewrite=False)
            except Conflict:
                continue


async def fork_once(url: str, point: str, nth: str) -> None:
    """Fork a thread, and die at the point."""
    services = dying(point, int(nth))
    async with Runtime.open(url, [graph], worker=False, services=services) as runtime:
        await runtime.fork("a", at=2, to="f")


if __name__ == "__main__":
    import asyncio

    url_, what_, *rest_ = sys.argv[1:]
    does_ = {"prune": prune_once, "fork": fork_once, "loop": prune_all_the_time}
    asyncio.run(does_[what_](url_, *rest_))
