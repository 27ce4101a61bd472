"""The classes and graphs that wrote the golden files of format 1. To be kept as they are."""

import datetime as dt
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import msgspec
import pydantic

from perdure import END, START, Context, Graph, Send, add, append, effect


@dataclass
class Line:
    item: str
    price: Decimal
    count: int = field(init=False, default=1)


class Size(NamedTuple):
    width: int
    height: int = 2


class Parcel(msgspec.Struct):
    size: Size
    weight: float | None = None


class Customer(pydantic.BaseModel, extra="allow"):
    name: str
    since: dt.date | None = None


class Colour(enum.Enum):
    RED = "r"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Approval:
    granted: bool
    limit: Decimal


@dataclass
class Order:
    order_id: str
    lines: Annotated[list[Line], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    parcel: Parcel | None = None
    approval: Approval | None = None
    child: str = ""
    receipt: str = ""


CLASSES = (Line, Size, Parcel, Customer, Colour, Right, Approval, Order)


def objects() -> dict[str, Any]:
    return {
        "dataclass": Line("pen", Decimal("1.10")),
        "named_tuple": Size(1),
        "struct": Parcel(Size(3, 4)),
        "pydantic": Customer(name="ann", vip=True),
        "enum": Colour.RED,
        "flag": Right.READ | Right.WRITE,
    }


@effect(kind="pure")
async def price(item: str) -> Line:
    return Line(item, Decimal(len(item)))


@effect(kind="keyed")
async def reserve(order_id: str, *, idempotency_key: str) -> Parcel:
    return Parcel(Size(len(order_id)), 1.5)


@effect(kind="keyed")
async def charge(order_id: str, amount: Decimal, *, idempotency_key: str) -> str:
    return f"receipt for {order_id}: {amount}"


@dataclass
class Note:
    text: str = ""
    length: int = 0


notes = Graph(Note, name="golden-notes", version=1)


@notes.node
async def count(state: Note) -> dict[str, Any]:
    return {"length": len(state.text)}


notes.edge(START, count)
notes.edge(count, END)

orders = Graph(Order, name="golden-orders", version=1)


@orders.node
async def assess(state: Order, ctx: Context) -> dict[str, Any]:
    ctx.emit({"seen": state.order_id})
    ctx.now()
    return {"parcel": await ctx.call(reserve, state.order_id)}


@orders.node
async def look(item: str, ctx: Context) -> dict[str, Any]:
    line = await ctx.call(price, item)
    return {"lines": [line], "total": int(line.price)}


@orders.node
async def describe(state: Order, ctx: Context) -> dict[str, Any]:
    child = await ctx.spawn(notes, {"text": state.order_id})
    ended = await child.result()
    return {"child": f"{ended.length} letters"}


@orders.node
async def approve(state: Order, ctx: Context) -> dict[str, Any]:
    answer = await ctx.ask(f"Charge {state.total}?", schema=Approval)
    receipt = await ctx.call(charge, state.order_id, answer.value.limit)
    return {"approval": answer.value, "receipt": receipt}


orders.edge(START, assess)
orders.branch(
    assess,
    lambda _state: [Send("look", item) for item in ("pen", "paper", "ink")],
    targets=["look"],
)
orders.edge(look, describe)
orders.edge(describe, approve)
orders.edge(approve, END)

GRAPHS = [orders, notes]
