"""The graph that outages hit: every kind of effect, every kind of wait, a child."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import END, START, Context, Graph, add, append, effect
from tests.fault.outside import OUTSIDE
from tests.fault.reference import BOOKED, price, reserve, scribble, ship
from tests.fault.small import slow_keyed, slow_lookup, slow_once

PARTS = 3
TOTAL = 6


@dataclass
class Storm:
    label: str
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0


@effect(kind="transaction")
async def book_once(label: str, *, transaction: Any) -> str:
    """Write to the user's table, in two statements with a pause between."""
    await transaction.execute(BOOKED)
    await OUTSIDE.counts()
    await transaction.execute(f"INSERT INTO booked VALUES ({OUTSIDE.mark})", (label,))
    return f"booked:{label}"


drop = Graph(Storm, name="drop")


@drop.node
async def fall(state: Storm, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(reserve, f"{state.label}-fall")], "total": 1}


drop.edge(START, fall)
drop.edge(fall, END)

storm = Graph(Storm, name="storm")


@storm.node
async def gather(state: Storm, ctx: Context) -> dict[str, Any]:
    await ctx.call(price, state.label)
    return {"log": [await ctx.call(slow_keyed, f"{state.label}-a", 0.0, 0.01)], "total": 1}


@storm.node
async def blow(state: Storm, ctx: Context) -> dict[str, Any]:
    found = await ctx.call(slow_lookup, f"{state.label}-b", 0.0, 0.01)
    paid = await ctx.call(slow_once, f"{state.label}-c", 0.0, 0.005)
    booked = await ctx.call(book_once, f"{state.label}-t")
    return {"log": [found, paid, booked], "total": 1}


@storm.node
async def soak_in(state: Storm, ctx: Context) -> dict[str, Any]:
    await ctx.call(scribble, "rain.txt", state.label)
    await ctx.sleep(0.25)
    return {"total": 1}


@storm.node
async def hear(_state: Storm, ctx: Context) -> dict[str, Any]:
    return {"total": await ctx.receive("thunder")}


@storm.node
async def shed(state: Storm, ctx: Context) -> dict[str, Any]:
    spawned = await ctx.spawn(drop, {"label": state.label})
    fallen: Storm = await spawned.result()
    return {"log": fallen.log, "total": fallen.total}


@storm.node
async def calm(state: Storm, ctx: Context) -> dict[str, Any]:
    names = [f"{state.label}-d{n}" for n in range(PARTS)]
    found = await ctx.map(lambda name: ctx.call(slow_keyed, name, 0.0, 0.005), names)
    return {"log": [*found, await ctx.call(ship, f"{state.label}-e")], "total": 1}


storm.edge(START, gather)
storm.edge(gather, blow)
storm.edge(blow, soak_in)
storm.edge(soak_in, hear)
storm.edge(hear, shed)
storm.edge(shed, calm)
storm.edge(calm, END)

GRAPHS = [storm, drop]


def expected_acts(labels: list[str]) -> set[str]:
    """Return what the outside has to have been asked for, once each."""
    parts = [("keyed", "a"), ("lookup", "b"), ("once", "c"), ("keyed", "fall"), ("lookup", "e")]
    parts += [("keyed", f"d{n}") for n in range(PARTS)]
    return {f"{endpoint}/{label}-{part}" for label in labels for endpoint, part in parts}
