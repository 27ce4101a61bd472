"""Graphs of several versions, and a deploy that replaces workers of one by workers of the other."""

from dataclasses import dataclass, field
from typing import Annotated

from perdure import END, START, Graph, RunStatus, add, append, effect

SENT: list[tuple[str, str]] = []


@effect(kind="once", name="pay")
async def pay(what: str, *, idempotency_key: str) -> str:
    SENT.append((what, idempotency_key))
    return f"paid {what}"


@dataclass
class Old:
    amount: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0


@dataclass
class New:
    cents: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    currency: str = "?"


def old(wait="review", version=1):
    """Return v1: `pay_it` pays and waits, `finish` notes the amount."""
    graph = Graph(Old, name="bills", version=version)

    @graph.node
    async def begin(_state):
        return {"notes": ["begun"], "total": 1}

    @graph.node
    async def pay_it(state, ctx):
        receipt = await ctx.call(pay, "rent")
        if wait == "review":
            answer = await ctx.ask("Fine?", schema=bool)
            return {"notes": [f"{receipt} {answer.value} v{version}"], "total": 1}
        await ctx.receive(wait)
        return {"notes": [receipt], "total": 1}

    @graph.node
    async def finish(state):
        return {"notes": [f"amount {state.amount} v{version}"]}

    graph.edge(START, begin)
    graph.edge(begin, pay_it)
    graph.edge(pay_it, finish)
    graph.edge(finish, END)
    return graph


def to_cents(state):
    state["cents"] = state.pop("amount", 0) * 100
    state["currency"] = "EUR"
    return state


def new(upgrade=to_cents, *, nodes=None, version=2, name="settle", hops=None):
    """Return v2: the node is called `settle`, the amount is in cents."""
    graph = Graph(New, name="bills", version=version)

    @graph.node
    async def begin(_state):
        return {"notes": ["begun v2"], "total": 1}

    @graph.node(name=name)
    async def settle(state, ctx):
        receipt = await ctx.call(pay, "rent")
        answer = await ctx.ask("Fine?", schema=bool)
        return {"notes": [f"{receipt} {answer.value} v{version}"], "total": 1}

    @graph.node
    async def finish(state):
        return {"notes": [f"{state.cents} {state.currency} v{version}"]}

    graph.edge(START, begin)
    graph.edge(begin, name)
    graph.edge(name, finish)
    graph.edge(finish, END)
    if hops is not None:
        hops(graph)
    elif upgrade is not None:
        graph.migration(1, version, nodes={"pay_it": name} if nodes is None else nodes)(upgrade)
    return graph


async def until(clock, run, *statuses):
    for _ in range(500):
        row = await run.row()
        if row.status in statuses and (row.status is not RunStatus.NEEDS_DECISION or row.failure):
            return row
        await clock.sleep(1.0)
    raise AssertionError(row)


async def deployed(clock, open_workers, newer, older=None, *, given=None):
    """Start a run with v1 that waits, replace its worker by one of v2; return both."""
    [worker] = await open_workers(1, older or old())
    run = await worker.start("bills", given or {"amount": 7}, thread="t")
    await until(clock, run, RunStatus.WAITING)
    await worker.close()
    [runtime] = await open_workers(1, newer)
    return runtime, await runtime.get(run.id)


async def approve(runtime):
    [ask] = await runtime.asks()
    await runtime.answer(ask.id, True, by="ada")


async def kinds(runtime, run):
    return [event.kind for event in await runtime.events(run.id)]
