"""Graphs that the tests of the command line run, in processes of their own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated

from perdure import END, START, Context, Graph, append, effect


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    order_id: str
    at: datetime | None = None
    size: Size = Size.SMALL
    items: Annotated[list[Item], append] = field(default_factory=list)
    notes: Annotated[list[str], append] = field(default_factory=list)


@dataclass
class Approval:
    granted: bool
    limit: int


def _note_down(order_id: str) -> None:
    with Path(os.environ.get("CHARGED", os.devnull)).open("a") as file:
        file.write(f"{order_id}\n")


@effect(kind="once")
async def charge(order_id: str) -> str:
    """Tell the test that it is under way, and stay so while the test wants it."""
    _note_down(order_id)
    await asyncio.sleep(float(os.environ.get("CHARGE_S", "0")))
    return f"paid-{order_id}"


refunds = Graph(Order, name="refunds")


@refunds.node
async def decide(state: Order, ctx: Context) -> dict:
    answer = await ctx.ask(
        f"Refund {state.order_id}?", schema=Approval, expires_in=timedelta(days=2)
    )
    granted = answer.value.granted
    return {"notes": [f"{answer.by}: {granted}", type(state.at).__name__, state.size.name]}


refunds.edge(START, decide)
refunds.edge(decide, END)

charges = Graph(Order, name="charges", version=3)


@charges.node
async def take_money(state: Order, ctx: Context) -> dict:
    return {"notes": [await ctx.call(charge, state.order_id)]}


charges.edge(START, take_money)
charges.edge(take_money, END)

steps = Graph(Order, name="steps")


@steps.node
async def walk(state: Order) -> dict:
    await asyncio.sleep(0.05)
    return {"notes": [f"step {len(state.notes)}"]}


steps.edge(START, walk)
steps.branch(walk, lambda state: END if len(state.notes) >= 40 else walk, [walk, END])


@effect(kind="once")
async def unsure() -> str:
    msg = "connection reset"
    raise ConnectionError(msg)


async def risky(_given: object, ctx: Context) -> str:
    return await ctx.call(unsure)


async def hello(name: str) -> str:
    return f"hello {name}"


async def listen(topic: str, ctx: Context) -> object:
    return await ctx.receive(topic)


async def parent(topic: str, ctx: Context) -> object:
    child = await ctx.spawn(listen, topic)
    return await child.result()


async def ask_shortly(_given: object, ctx: Context) -> object:
    return (await ctx.ask("Now?", schema=bool, expires_in=0.6, default=False)).value


async def nap(seconds: float, ctx: Context) -> str:
    await ctx.sleep(seconds)
    return "slept"


async def burst(_given: object) -> None:
    msg = "out of \x1b[31mluck\x1b[0m [bold]"
    raise RuntimeError(msg)


@effect(kind="keyed")
async def pay(order_id: str, cents: int, *, idempotency_key: str) -> str:
    _note_down(f"{order_id} {cents} {idempotency_key}")
    return f"paid-{order_id}"


@dataclass
class Bill:
    order_id: str = "o-1"
    cents: int = 40
    size: Size = Size.SMALL
    item: Item | None = None
    notes: Annotated[list[str], append] = field(default_factory=list)
    prices: dict[str, int] = field(default_factory=dict)


bills = Graph(Bill, name="bills")


@bills.node
async def check(state: Bill) -> dict:
    return {"notes": [f"checked {state.cents}"], "item": Item("sku", Decimal(3))}


@bills.node
async def settle(state: Bill, ctx: Context) -> dict:
    return {"notes": [await ctx.call(pay, state.order_id, state.cents)]}


bills.edge(START, check)
bills.edge(check, settle)
bills.edge(settle, END)
