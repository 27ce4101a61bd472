"""The graphs that the sweep kills: every kind of effect, every kind of wait, every shape of a step.

`order` goes through all of it once. `undo` is cancelled half-way and compensates. `broken` fails
and compensates. Final states depend on the input only, so that a disturbed run can be compared with
an undisturbed one.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import (
    END,
    START,
    Absent,
    AskExpired,
    Context,
    Found,
    Graph,
    ReceiveTimedOut,
    Rejected,
    Request,
    Retry,
    Send,
    Unknown,
    add,
    append,
    effect,
)
from tests.fault.outside import OUTSIDE, Lost, Refused

QUICK = Retry(max_attempts=6, base_s=0.02, cap_s=0.1)
NAP_S = 0.25
"""Longer than what a worker waits through, so that the run is released."""

BOOKED = "CREATE TABLE IF NOT EXISTS booked (label TEXT)"
"""The user's own table, in the store's file or database."""


# -- effects ---------------------------------------------------------------------------------------


@effect(kind="pure", retry=QUICK)
async def price(label: str) -> int:
    await OUTSIDE.counts()
    return len(label)


@effect(kind="keyed", retry=QUICK)
async def reserve(label: str, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("keyed", label, key=idempotency_key)


@effect(kind="keyed", retry=QUICK)
async def notify(label: str, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("flaky_keyed", label, key=idempotency_key)


@effect(kind="keyed", retry=QUICK)
async def insist(label: str, *, idempotency_key: str) -> str:
    try:
        return await OUTSIDE.act("busy", label, key=idempotency_key)
    except Refused as error:
        raise Rejected(str(error), retry_after_s=0.02) from error


async def _look(endpoint: str, key: str) -> Found | Absent | Unknown:
    try:
        receipt = await OUTSIDE.find(endpoint, key)
    except Lost as error:
        return Unknown(str(error))
    return Absent() if receipt is None else Found(receipt)


async def find_shipment(_request: Request, key: str) -> Found | Absent | Unknown:
    return await _look("lookup", key)


async def find_letter(_request: Request, key: str) -> Found | Absent | Unknown:
    return await _look("flaky_lookup", key)


@effect(kind="lookup", reconcile=find_shipment, retry=QUICK)
async def ship(label: str, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("lookup", label, key=idempotency_key)


@effect(kind="lookup", reconcile=find_letter, retry=QUICK)
async def write_letter(label: str, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("flaky_lookup", label, key=idempotency_key)


@effect
async def pay(label: str) -> str:
    return await OUTSIDE.act("once", label)


@effect(kind="transaction")
async def book(label: str, *, transaction: Any) -> str:
    await transaction.execute(BOOKED)
    await transaction.execute(f"INSERT INTO booked VALUES ({OUTSIDE.mark})", (label,))
    return f"booked:{label}"


@effect(kind="contained")
async def scribble(name: str, text: str, *, sandbox: Any) -> int:
    path = sandbox.path / name
    with path.open("a", encoding="utf-8") as file:
        return file.write(text + "\n")


@effect(kind="keyed", retry=QUICK)
async def take_back(request: Request, _result: Any, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("undo", request.args[0], key=idempotency_key)


@effect(kind="keyed", retry=QUICK, compensate=take_back)
async def hire(label: str, *, idempotency_key: str) -> str:
    return await OUTSIDE.act("keyed", label, key=idempotency_key)


# -- the child and the subgraph --------------------------------------------------------------------


@dataclass
class Parcel:
    label: str = ""
    receipts: Annotated[list[str], append] = field(default_factory=list)


child = Graph(Parcel, name="parcel")


@child.node
async def wrap(state: Parcel, ctx: Context) -> dict[str, Any]:
    return {"receipts": [await ctx.call(reserve, f"{state.label}-wrap")]}


@child.node
async def stamp(state: Parcel, ctx: Context) -> dict[str, Any]:
    await ctx.sleep(NAP_S)
    return {"receipts": [await ctx.call(ship, f"{state.label}-stamp")]}


child.edge(START, wrap)
child.edge(wrap, stamp)
child.edge(stamp, END)


@dataclass
class Inner:
    label: str = ""
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0


inner = Graph(Inner, name="inner")


@inner.node
async def dig(state: Inner, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(ship, f"{state.label}-dig")], "total": 1}


@inner.node
async def fill(state: Inner, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(reserve, f"{state.label}-fill")], "total": 2}


inner.edge(START, dig)
inner.edge(dig, fill)
inner.edge(fill, END)


# -- the order -------------------------------------------------------------------------------------


@dataclass
class Order:
    label: str
    with_sandbox: bool = False
    log: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    rounds: int = 0
    answered: str = ""
    signalled: str = ""
    parcel: list[str] = field(default_factory=list)


order = Graph(Order, name="order")


@order.node
async def prepare(state: Order, ctx: Context) -> dict[str, Any]:
    ctx.now()
    ctx.random()
    ctx.emit("begun")
    cost = await ctx.call(price, state.label)
    receipt = await ctx.call(reserve, f"{state.label}-first", key=f"business-{state.label}")
    told = await ctx.call(notify, f"{state.label}-told")
    return {"total": cost, "log": [receipt, told]}


def spread(state: Order) -> list[Send]:
    return [Send("part", {"label": state.label, "part": part}) for part in range(3)]


@order.node
async def part(argument: dict[str, Any], ctx: Context) -> dict[str, Any]:
    name = f"{argument['label']}-part-{argument['part']}"
    receipt = await ctx.call([reserve, ship, insist][argument["part"]], name)
    return {"total": argument["part"], "log": [receipt]}


@order.node
async def settle(state: Order, ctx: Context) -> dict[str, Any]:
    paid = await ctx.call(pay, f"{state.label}-pay")
    booked = await ctx.call(book, f"{state.label}-book")
    tip = await ctx.call(pay, f"{state.label}-tip")
    sent = await ctx.call(write_letter, f"{state.label}-letter")
    return {"log": [paid, booked, tip, sent]}


@order.node(retry=QUICK)
async def workshop(state: Order, ctx: Context) -> dict[str, Any]:
    if not state.with_sandbox:
        return {}
    written = [await ctx.call(scribble, "notes.txt", f"line {n}") for n in range(2)]
    if ctx.attempt == 1:
        msg = "the first try of the workshop"
        raise RuntimeError(msg)
    receipt = await ctx.call(reserve, f"{state.label}-workshop")
    written.append(await ctx.call(scribble, "notes.txt", receipt))
    return {"total": sum(written)}


@order.node
async def approve(state: Order, ctx: Context) -> dict[str, Any]:
    answer = await ctx.ask(f"Send {state.label}?", schema=bool)
    try:
        await ctx.ask("Nobody answers this", expires_in=0.05)
    except AskExpired:
        late = "late"
    return {"answered": f"{answer.value} by {answer.by}, {late}"}


@order.node(retry=QUICK)
async def cabinet(state: Order, ctx: Context) -> dict[str, Any]:
    if not state.with_sandbox:
        return {}
    if ctx.attempt == 1:
        await ctx.call(scribble, "notes.txt", "to be dropped with this attempt")
        msg = "the first try of the cabinet"
        raise RuntimeError(msg)
    return {"total": await ctx.call(scribble, "notes.txt", "the last line")}


@order.node
async def rest(_state: Order, ctx: Context) -> dict[str, Any]:
    await ctx.sleep(NAP_S)
    with contextlib.suppress(ReceiveTimedOut):
        await ctx.receive("never", timeout=0.05)
    return {"signalled": await ctx.receive("go")}


@order.node
async def family(state: Order, ctx: Context) -> dict[str, Any]:
    spawned = await ctx.spawn(child, {"label": f"{state.label}-child"})
    parcel: Parcel = await spawned.result()
    return {"parcel": parcel.receipts}


@order.node(name="round", retry=QUICK)
async def one_round(state: Order, ctx: Context) -> dict[str, Any]:
    if state.rounds == 1 and ctx.attempt == 1:
        msg = "the first try of the second round"
        raise RuntimeError(msg)
    receipt = await ctx.call(reserve, f"{state.label}-round-{state.rounds}")
    return {"rounds": state.rounds + 1, "log": [receipt]}


order.node(inner)
order.edge(START, prepare)
order.branch(prepare, spread, targets=[part])
order.edge(part, settle)
order.edge(settle, workshop)
order.edge(workshop, approve)
order.edge(approve, cabinet)
order.edge(cabinet, rest)
order.edge(rest, family)
order.edge(family, one_round)
order.branch(one_round, lambda s: "round" if s.rounds < 3 else "inner", targets=["round", "inner"])
order.edge(inner, END)


# -- runs that are undone --------------------------------------------------------------------------


@dataclass
class Undo:
    label: str
    log: Annotated[list[str], append] = field(default_factory=list)


undo = Graph(Undo, name="undo")


@undo.node
async def hire_all(state: Undo, ctx: Context) -> dict[str, Any]:
    names = [f"{state.label}-hire-{n}" for n in range(3)]
    return {"log": [await ctx.call(hire, name) for name in names]}


@undo.node
async def never(_state: Undo, ctx: Context) -> None:
    spawned = await ctx.spawn(undo_child, {"label": f"{_state.label}-child"})
    await spawned.result()


undo_child = Graph(Undo, name="undo-child")


@undo_child.node
async def hire_one(state: Undo, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(hire, f"{state.label}-hire")]}


@undo_child.node
async def stand_still(_state: Undo, ctx: Context) -> None:
    await ctx.receive("never")


undo_child.edge(START, hire_one)
undo_child.edge(hire_one, stand_still)
undo_child.edge(stand_still, END)
undo.edge(START, hire_all)
undo.edge(hire_all, never)
undo.edge(never, END)


broken = Graph(Undo, name="broken", compensate_on_failure=True)


@broken.node
async def hire_two(state: Undo, ctx: Context) -> dict[str, Any]:
    names = [f"{state.label}-hire-{n}" for n in range(2)]
    return {"log": [await ctx.call(hire, name) for name in names]}


@broken.node
async def break_down(_state: Undo) -> None:
    msg = "it breaks"
    raise ValueError(msg)


broken.edge(START, hire_two)
broken.edge(hire_two, break_down)
broken.edge(break_down, END)

GRAPHS = [order, child, undo, undo_child, broken]
