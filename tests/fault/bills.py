"""A graph of two versions, and a worker of the second one that is killed at a point of a move."""

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from perdure import END, START, Graph, Runtime, append, effect
from perdure.clock import Services, system_services


@effect(kind="once", name="bills.pay")
async def pay(what: str) -> str:
    """Pay, and note it where every process sees it."""
    with Path(os.environ["PAID"]).open("a", encoding="utf-8") as file:  # noqa: ASYNC230  # one line
        file.write(f"{what}\n")
    return f"paid {what}"


@dataclass
class Old:
    amount: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)


@dataclass
class New:
    cents: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)


def graph_of(version: int) -> Graph:
    """Return a version of the graph; the second one has another name for the node that waits."""
    graph = Graph(Old if version == 1 else New, name="bills", version=version)
    name = "review" if version == 1 else "check"

    @graph.node(name=name)
    async def review(_state, ctx):
        receipt = await ctx.call(pay, "rent")
        await ctx.receive("go")
        return {"notes": [f"{receipt} v{version}"]}

    graph.edge(START, name)
    graph.edge(name, END)
    if version == 2:

        @graph.migration(1, 2, nodes={"review": "check"})
        def upgrade(state):
            return {"cents": state["amount"] * 100, "notes": state["notes"]}

    return graph


async def work(url: str, point: str) -> None:
    """Be a worker of the second version until the point is reached, then die there."""

    def probe(name: str) -> None:
        """Die at the point."""
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    known = system_services()
    services = Services(clock=known.clock, rng=known.rng, ids=known.ids, probe=probe)
    async with Runtime.open(url, [graph_of(2)], services=services):
        await known.clock.sleep(30)


if __name__ == "__main__":
    import asyncio

    asyncio.run(work(*sys.argv[1:]))
