"""What tests of forks and of rollbacks share: a graph that asks, pays and tells."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from perdure import (
    END,
    START,
    Context,
    Graph,
    add,
    append,
    effect,
)

SENT: list[Any] = []


@effect(kind="keyed")
async def pay(order: str, cents: int, *, idempotency_key: str) -> str:
    SENT.append((order, cents, idempotency_key))
    return f"paid {order}"


@effect(kind="once")
async def mail(to: str) -> None:
    SENT.append(("mail", to))


@effect(kind="once")
async def lost(to: str) -> None:
    SENT.append(("lost", to))
    raise ConnectionError("reset")


@dataclass
class Order:
    order_id: str = "o-1"
    cents: int = 40
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    details: dict[str, list[int]] = field(default_factory=dict)


def orders(name="orders"):
    graph = Graph(Order, name=name)

    @graph.node
    async def check(state: Order, ctx: Context) -> dict:
        answer = await ctx.ask(f"Pay {state.cents}?", schema=bool)
        return {"notes": [f"{answer.by}: {answer.value}"], "total": 1}

    @graph.node
    async def settle(state: Order, ctx: Context) -> dict:
        return {"notes": [await ctx.call(pay, state.order_id, state.cents)], "total": 2}

    @graph.node
    async def tell(state: Order, ctx: Context) -> dict:
        await ctx.call(mail, f"{state.order_id}@example.com")
        return {"notes": ["told"]}

    graph.edge(START, check)
    graph.edge(check, settle)
    graph.edge(settle, tell)
    graph.edge(tell, END)
    return graph
