"""Two points compared: what they have in common is left out, what differs is paired."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, NotFound, UsageError, append, effect
from perdure.model import RunStatus
from tests.engine.polled import answered, reached


@dataclass
class Order:
    order_id: str = "o-1"
    cents: int = 40
    notes: Annotated[list[str], append] = field(default_factory=list)
    is_short: bool = False


@effect(kind="once")
async def pay(order: str, cents: int) -> str:
    if order == "lost":
        raise ConnectionError("reset")
    return f"paid {cents}"


@effect(kind="pure")
async def quote(order: str) -> int:
    return 7


graph = Graph(Order, name="orders")


@graph.node
async def check(state: Order, ctx: Context) -> dict:
    answer = await ctx.ask("Pay?", schema=bool)
    return {"notes": [f"{answer.value} by {answer.by}"]}


@graph.node
async def settle(state: Order, ctx: Context) -> dict:
    price = await ctx.call(quote, state.order_id)
    return {"notes": [await ctx.call(pay, state.order_id, state.cents), str(price)]}


@graph.node
async def tell(state: Order) -> dict:
    return {"notes": ["told"]}


graph.edge(START, check)
graph.edge(check, settle)
graph.branch(settle, lambda state: END if state.is_short else tell, targets=[tell, END])


async def go(runtime, given=None, *, thread=None, value=True, by="ada"):
    """Run `orders` to its end, with an answer."""
    run = await runtime.start(graph, given or {}, thread=thread)
    await answered(runtime, run, value, by)
    await run.result(timeout=10)
    return run


def nodes(steps):
    return [[node.node for node in step.nodes] for step in steps]


async def test_two_checkpoints_of_one_thread(open_runtime):
    runtime = await open_runtime(graph)
    run = await go(runtime, thread="t")
    found = await runtime.compare(("t", 2), "t@4")
    assert (found.a.checkpoint, found.b.checkpoint, found.b.run_id) == (2, 4, run.id)
    assert (found.parted.thread, found.parted.checkpoint) == ("t", 2)
    assert [edit.new for edit in found.edits] == ["paid 40", "7", "told"]
    assert (nodes(found.steps.a), nodes(found.steps.b)) == ([], [["settle"], ["tell"]])
    assert [e.name for e in found.effects.only_b] == ["quote", "pay"]
    assert (found.effects.only_a, found.effects.differing, found.is_same) == ((), (), False)
    back = await runtime.compare("t@4", "t@2")
    assert [edit.op for edit in back.edits] == ["remove"] * 3
    assert nodes(back.steps.a) == [["settle"], ["tell"]]
    assert (await runtime.compare("t", "t@4")).is_same
    assert found.patch == await runtime.diff(2, 4, thread="t")


async def test_a_fork_and_its_origin_part_at_the_checkpoint(open_runtime):
    runtime = await open_runtime(graph)
    await go(runtime, thread="t")
    first = await runtime.fork("t", at=2, update={"cents": 60, "is_short": True}, to="t2")
    await first.result(timeout=10)
    second = await runtime.fork("t2", at=1, update={"cents": 70}, to="t3")
    await second.result(timeout=10)
    found = await runtime.compare("t", "t2")
    assert (found.parted.thread, found.parted.checkpoint) == ("t", 2)
    assert (found.steps.same, nodes(found.steps.a), found.steps.b) == (1, [["tell"]], ())
    [(one, other)] = found.effects.differing
    assert (one.args, other.args) == (["o-1", 40], ["o-1", 60])
    assert found.effects.same == 1, "the same quote"
    assert found.decisions.same == 0, "the answer is before the point: in common"
    nested = await runtime.compare("t3", "t")
    assert nested.parted.thread == "t"
    by_runs = await runtime.compare(first.id, second.id)
    assert (by_runs.parted.thread, by_runs.parted.checkpoint) == ("t2", 1)


async def test_two_runs_are_compared_by_what_each_of_them_did(open_runtime):
    runtime = await open_runtime(graph)
    one = await go(runtime, thread="t")
    two = await go(runtime, {"cents": 50, "is_short": True}, thread="t", value=False, by="bob")
    found = await runtime.compare(one.id, two.id)
    assert found.parted is None
    assert (found.steps.same, nodes(found.steps.a), nodes(found.steps.b)) == (2, [["tell"]], [])
    assert [(a.args, b.args) for a, b in found.effects.differing] == [(["o-1", 40], ["o-1", 50])]
    [(mine, other)] = found.decisions.differing
    assert (mine.about, mine.value, mine.by) == ("Pay?", True, "ada")
    assert (other.value, other.by) == (False, "bob")
    lines = await runtime.compare("t@4", two.id)
    assert (lines.parted.checkpoint, nodes(lines.steps.b)) == (4, [["check"], ["settle"]])


async def test_unlike_threads_and_decided_effects(open_runtime):
    runtime = await open_runtime(graph)
    await go(runtime, thread="t")
    run = await runtime.start(graph, {"order_id": "lost"}, thread="u")
    await answered(runtime, run)
    async with asyncio.timeout(10):
        while await run.status() is not RunStatus.NEEDS_DECISION:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    parked = await runtime.compare("t", run.id)
    [(_paid, uncertain)] = parked.effects.differing[-1:]
    assert (uncertain.name, uncertain.state) == ("pay", "uncertain")
    [entry] = await runtime.effects()
    await runtime.resolve(entry.id, happened=True, result="by hand", by="eve")
    await run.result(timeout=10)
    found = await runtime.compare("t", "u")
    assert found.parted is None
    [decision] = found.decisions.only_b
    assert (decision.kind, decision.about, decision.value, decision.by) == (
        "happened",
        "pay",
        "by hand",
        "eve",
    )
    assert found.decisions.same == 1


async def test_a_moment_has_what_led_to_it(open_runtime):
    runtime = await open_runtime(graph)
    await go(runtime, thread="t")
    forked = await runtime.fork("t", at=3, to="t2")
    await forked.result(timeout=10)
    whole = await runtime.moment("t2")
    assert nodes(step for step in whole.steps if step.nodes) == [["check"], ["settle"], ["tell"]]
    assert [effect.name for effect in whole.effects] == ["quote", "pay"]
    assert [decision.by for decision in whole.decisions] == ["ada"]
    assert whole.state["notes"][-1] == "told"
    early = await runtime.moment(("t", 1))
    assert (early.next, early.effects, early.state["notes"]) == (("check",), [], [])
    own = await runtime.moment(("t2", 1), of_run=True)
    assert own.place.run_id == forked.id


async def test_a_run_that_has_committed_nothing_and_what_is_not_there(open_runtime):
    async def broken(state: Any) -> str:
        raise LookupError

    bad = Graph(Order, name="bad")
    bad.node(name="node")(broken)
    bad.branch(START, lambda state: 1 / 0, targets=["node"])
    runtime = await open_runtime(graph, bad)
    await go(runtime, thread="t")
    run = await runtime.start(bad, {})
    await reached(run, RunStatus.FAILED)
    found = await runtime.compare(run.id, "t")
    assert (found.a.checkpoint, found.a.run_id) == (None, run.id)
    assert found.edits
    with pytest.raises(NotFound, match="no run and no thread 'x'"):
        await runtime.compare("x", "t")
    with pytest.raises(NotFound, match="has no checkpoint 9"):
        await runtime.compare("t", "t@9")
    with pytest.raises(UsageError, match="is no Checkpoint"):
        await runtime.compare(3, "t")
