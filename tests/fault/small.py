"""Small graphs for what is not a sweep: zombies, two writers, soak, poison, drain."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from perdure import END, START, Context, Graph, add, append, effect
from tests.fault.outside import OUTSIDE
from tests.fault.reference import BOOKED, QUICK, find_shipment

# -- slow: an effect that takes its time, between others -------------------------------------------


@dataclass
class Slow:
    kind: str = "keyed"
    before_s: float = 0.0
    after_s: float = 0.0
    log: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="keyed", retry=QUICK)
async def slow_keyed(label: str, before_s: float, after_s: float, *, idempotency_key: str) -> str:
    return await OUTSIDE.act(
        "keyed", label, key=idempotency_key, before_s=before_s, after_s=after_s
    )


@effect(kind="lookup", reconcile=find_shipment, retry=QUICK)
async def slow_lookup(label: str, before_s: float, after_s: float, *, idempotency_key: str) -> str:
    return await OUTSIDE.act(
        "lookup", label, key=idempotency_key, before_s=before_s, after_s=after_s
    )


@effect
async def slow_once(label: str, before_s: float, after_s: float) -> str:
    return await OUTSIDE.act("once", label, before_s=before_s, after_s=after_s)


@effect(kind="pure", retry=QUICK)
async def slow_pure(label: str, before_s: float, after_s: float) -> str:
    return await OUTSIDE.act("reading", label, before_s=before_s, after_s=after_s)


@effect(kind="transaction")
async def slow_book(label: str, before_s: float, after_s: float, *, transaction: Any) -> str:
    receipt = await OUTSIDE.act("reading", label, before_s=before_s, after_s=after_s)
    await transaction.execute(BOOKED)
    await transaction.execute(f"INSERT INTO booked VALUES ({OUTSIDE.mark})", (label,))
    return receipt


SLOW = {
    "keyed": slow_keyed,
    "lookup": slow_lookup,
    "once": slow_once,
    "pure": slow_pure,
    "transaction": slow_book,
}
slow = Graph(Slow, name="slow")


def _slow_node(name: str) -> None:
    @slow.node(name=name)
    async def node(state: Slow, ctx: Context) -> dict[str, Any]:
        waits = (state.before_s, state.after_s) if name == "second" else (0.0, 0.0)
        return {"log": [await ctx.call(SLOW[state.kind], f"slow-{name}", *waits)]}


for _name in ("first", "second", "third", "fourth"):
    _slow_node(_name)
slow.edge(START, "first")
slow.edge("first", "second")
slow.edge("second", "third")
slow.edge("third", "fourth")
slow.edge("fourth", END)

# -- count: one thread, many runs ------------------------------------------------------------------


@dataclass
class Count:
    total: Annotated[int, add] = 0
    seen: Annotated[int, add] = 0


count = Graph(Count, name="count")


@count.node
async def see(_state: Count) -> dict[str, Any]:
    return {"seen": 1}


count.edge(START, see)
count.edge(see, END)

# -- soak: effects, waits and steps, many at once --------------------------------------------------


@dataclass
class Soak:
    label: str
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0


soak = Graph(Soak, name="soak")


@soak.node
async def first_of_all(state: Soak, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(slow_keyed, f"{state.label}-a", 0.0, 0.01)], "total": 1}


@soak.node
async def both(state: Soak, ctx: Context) -> dict[str, Any]:
    found = await ctx.call(slow_lookup, f"{state.label}-b", 0.0, 0.01)
    paid = await ctx.call(slow_once, f"{state.label}-c", 0.0, 0.005)
    return {"log": [found, paid], "total": 1}


@soak.node
async def nap(_state: Soak, ctx: Context) -> dict[str, Any]:
    await ctx.sleep(0.25)
    return {"total": 1}


@soak.node
async def last_of_all(state: Soak, ctx: Context) -> dict[str, Any]:
    names = [f"{state.label}-d{n}" for n in range(3)]
    found = await ctx.map(lambda name: ctx.call(slow_keyed, name, 0.0, 0.005), names)
    return {"log": found, "total": 1}


soak.edge(START, first_of_all)
soak.edge(first_of_all, both)
soak.edge(both, nap)
soak.edge(nap, last_of_all)
soak.edge(last_of_all, END)

# -- poison: a node that takes its process along ---------------------------------------------------


@dataclass
class Poison:
    fixed: str = ""
    log: Annotated[list[str], append] = field(default_factory=list)


poison = Graph(Poison, name="poison")


@poison.node
async def before(_state: Poison, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(slow_keyed, "poison-before", 0.0, 0.0)]}


@poison.node
async def swallow(state: Poison, ctx: Context) -> dict[str, Any]:
    if not Path(state.fixed).exists():  # noqa: ASYNC240  # it dies here anyway
        os._exit(3)
    return {"log": [await ctx.call(slow_keyed, "poison-after", 0.0, 0.0)]}


poison.edge(START, before)
poison.edge(before, swallow)
poison.edge(swallow, END)


# -- rest: a long wait -----------------------------------------------------------------------------


@dataclass
class Rest:
    told: str = ""


rest = Graph(Rest, name="rest")


@rest.node
async def listen(_state: Rest, ctx: Context) -> dict[str, Any]:
    return {"told": await ctx.receive("tell")}


rest.edge(START, listen)
rest.edge(listen, END)

GRAPHS = [slow, count, soak, poison, rest]
