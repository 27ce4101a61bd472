"""A run recomputed from its journal: nothing is done again, everything comes from the record."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import pytest

from perdure import (
    END,
    START,
    Context,
    EffectFailed,
    Graph,
    Rejected,
    Retry,
    RunFailed,
    Send,
    append,
    effect,
    merge,
)
from perdure.engine.divergence import DivergenceKind
from perdure.errors import NeedsDecision
from perdure.model import RunStatus
from perdure.sandbox import DirectorySandboxes
from tests.engine.polled import answered
from tests.engine.polled import reached as resting
from tests.engine.replaying import (
    CALLS,
    Log,
    charge,
    check_clean,
    ended,
    lost,
    one,
    quote,
)


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@pytest.fixture
def url(tmp_path):
    """Return a store that several runtimes can open."""
    return f"sqlite:///{tmp_path}/store.db"


# -- everything that can be recorded ---------------------------------------------------------------


async def everything(state: Log, ctx: Context) -> dict:
    cents = await ctx.call(quote, "o-1")
    answer = await ctx.ask("Refund?", schema=bool, expires_in=timedelta(days=1))
    await ctx.sleep(0.3)
    signal = await ctx.receive("go")
    paid = await ctx.map(lambda n: ctx.call(charge, f"o-{n}", cents), [1, 2, 3])
    ctx.emit({"paid": paid})
    stamp, chance = ctx.now().isoformat(), ctx.random()
    return {"lines": [*paid, str(answer.value), str(signal), stamp, str(chance)], "total": 3}


async def test_answers_signals_timers_times_and_effects_are_served(open_runtime):
    runtime = await open_runtime(one(everything))
    run = await runtime.start("one", {})
    await answered(runtime, run)
    await run.signal("go", {"n": 7})
    assert (await run.result(timeout=10)).total == 3
    assert len(CALLS) == 4
    found = await check_clean(runtime, run)
    assert found.served == {"answers": 1, "effects": 4, "signals": 1, "times": 1, "timers": 1}
    assert (found.status, found.steps, found.nodes, found.standing) == ("succeeded", 2, 1, ())


async def test_a_waiting_run_is_replayed_to_where_it_stands(open_runtime):
    runtime = await open_runtime(one(everything))
    run = await runtime.start("one", {})
    await resting(run)
    found = await check_clean(runtime, run)
    assert found.standing == ("1:assess: approval Refund?",)
    await answered(runtime, run)
    async with asyncio.timeout(10):
        while [wait.kind for wait in (await run.row()).waits] != ["signal"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found = await check_clean(runtime, run)
    assert found.served == {"answers": 1, "effects": 1, "timers": 1}
    assert found.standing == ("1:assess: signal go",)


async def test_a_parked_run_is_replayed_to_its_uncertain_effect(open_runtime):
    async def body(state: Log, ctx: Context) -> dict:
        return {"last": await ctx.call(lost)}

    runtime = await open_runtime(one(body))
    run = await runtime.start("one", {})
    assert isinstance(await ended(run), NeedsDecision)
    found = await check_clean(runtime, run)
    assert found.standing == ("1:assess: effect lost (uncertain)",)
    [uncertain] = await runtime.effects()
    await runtime.resolve(uncertain.id, happened=True, result="by hand", by="ada")
    await resting(run, RunStatus.SUCCEEDED)
    await check_clean(runtime, run)


async def test_each_attempt_gets_what_it_had(open_runtime):
    tries = []

    @effect(kind="once", retry=Retry(max_attempts=1))
    async def flaky(n: int) -> int:
        tries.append(n)
        if len(tries) < 2:
            raise Rejected("busy")
        return n

    graph = Graph(Log, name="retried")

    @graph.node(retry=Retry(max_attempts=3, base_s=0.01, cap_s=0.02, on=(EffectFailed,)))
    async def act(state: Log, ctx: Context) -> dict:
        await ctx.call(quote, "o")
        return {"total": await ctx.call(flaky, 5), "lines": [f"attempt {ctx.attempt}"]}

    graph.edge(START, act)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    assert (await run.result(timeout=10)).lines == ["attempt 2"]
    assert (await check_clean(runtime, run)).nodes == 2
    assert tries == [5, 5]


async def test_a_failed_run_replays_to_the_same_failure(open_runtime):
    async def body(state: Log, ctx: Context) -> dict:
        await ctx.call(charge, "o", 1)
        raise LookupError("nothing there")

    runtime = await open_runtime(one(body))
    run = await runtime.start("one", {})
    assert isinstance(await ended(run), RunFailed)
    await check_clean(runtime, run)


def forked(name="parallel"):
    graph = Graph(Log, name=name)

    @graph.node
    async def left(state: Log, ctx: Context) -> dict:
        return {"lines": [await ctx.call(charge, "left", 1)], "total": 1}

    @graph.node
    async def right(state: Log, ctx: Context) -> dict:
        answer = await ctx.ask("Right?", schema=bool)
        return {"lines": [f"right {answer.value}"], "total": 2}

    @graph.node
    def both(state: Log) -> dict:
        return {"last": ",".join(state.lines), "topics": ["a", "b", "c"]}

    @graph.node
    async def look(topic: str, ctx: Context) -> dict:
        return {"lines": [await ctx.call(charge, topic, 3)]}

    graph.edge(START, left)
    graph.edge(START, right)
    graph.edge(left, both)
    graph.edge(right, both)
    graph.branch(both, lambda state: [Send(look, t) for t in state.topics], targets=[look])
    return graph


async def test_parallel_nodes_and_a_fan_out(open_runtime):
    graph = forked()
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    await resting(run)
    found = await check_clean(runtime, run)
    assert found.standing == ("1:right: approval Right?",)
    await answered(runtime, run)
    await run.result(timeout=10)
    found = await check_clean(runtime, run)
    assert (found.nodes, found.steps) == (6, 4)


def outer_graph():
    inner = Graph(Log, name="inner")

    @inner.node
    async def first(state: Log, ctx: Context) -> dict:
        return {"lines": [await ctx.call(charge, "inner", 1)]}

    @inner.node
    async def second(state: Log, ctx: Context) -> dict:
        answer = await ctx.ask("Inner?", schema=bool)
        return {"lines": [f"inner {answer.value}"], "total": 1}

    inner.edge(START, first)
    inner.edge(first, second)
    outer = Graph(Log, name="outer")

    @outer.node
    async def begin(state: Log) -> dict:
        return {"lines": ["begin"]}

    @outer.node
    async def finish(state: Log) -> dict:
        return {"last": "/".join(state.lines)}

    outer.node(inner, name="sub")
    outer.edge(START, begin)
    outer.edge(begin, "sub")
    outer.edge("sub", finish)
    return outer


async def test_a_subgraph_stands_where_it_stood_and_nothing_in_it_is_done_again(open_runtime):
    """As LangGraph's issue 8458 does not: a replay inside a subgraph reran it from its start."""
    graph = outer_graph()
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    await resting(run)
    found = await check_clean(runtime, run)
    assert found.standing == ("2:sub/2:second: approval Inner?",)
    assert CALLS == [("charge", "inner", 1)]
    await answered(runtime, run)
    assert (await run.result(timeout=10)).last == "begin/charged inner 1/inner True"
    found = await check_clean(runtime, run)
    assert found.steps == 7


async def test_a_run_that_waits_inside_a_subgraph_holds_no_worker(open_runtime):
    graph = outer_graph()
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    await resting(run)
    row = await run.row()
    assert row.holder is None
    assert [wait.node for wait in row.waits] == ["2:sub/2:second"]
    await answered(runtime, run)
    assert (await run.result(timeout=10)).total == 1
    assert CALLS == [("charge", "inner", 1)]


async def test_children_are_served_and_not_replayed(open_runtime):
    async def child(n: int, ctx: Context) -> int:
        await ctx.call(charge, "child", n)
        return n + 1

    async def body(state: Log, ctx: Context) -> dict:
        spawned = await ctx.spawn(child, 4)
        return {"total": await spawned.result()}

    runtime = await open_runtime(one(body), child)
    run = await runtime.start("one", {})
    assert (await run.result(timeout=10)).total == 5
    assert (await check_clean(runtime, run)).served == {"children": 1}


async def test_a_child_that_is_not_over_is_where_the_replay_stands(open_runtime):
    async def child(_given: Any, ctx: Context) -> Any:
        return await ctx.receive("never")

    async def body(state: Log, ctx: Context) -> dict:
        return {"last": await (await ctx.spawn(child)).result()}

    runtime = await open_runtime(one(body), child)
    run = await runtime.start("one", {})
    await resting(run)
    [standing] = (await check_clean(runtime, run)).standing
    assert standing.startswith("1:assess: child r_")


async def test_files_are_not_touched(open_runtime, tmp_path):
    @effect(kind="contained")
    async def write(text: str, *, sandbox: Any) -> int:
        CALLS.append("write")
        path = sandbox.path / "notes"
        path.write_text(text)
        return len(text)

    async def body(state: Log, ctx: Context) -> dict:
        return {"total": await ctx.call(write, "hello")}

    runtime = await open_runtime(one(body), sandbox=DirectorySandboxes(tmp_path / "boxes"))
    run = await runtime.start("one", {}, thread="t")
    await run.result(timeout=10)
    before = sorted(path for path in (tmp_path / "boxes").rglob("*"))
    await check_clean(runtime, run)
    assert sorted(path for path in (tmp_path / "boxes").rglob("*")) == before


async def test_a_later_run_of_a_thread_starts_from_what_was_there_then(open_runtime):
    async def body(state: Log, ctx: Context) -> dict:
        return {"lines": [f"{len(state.lines)} before"], "total": 1}

    runtime = await open_runtime(one(body))
    runs = [await runtime.start("one", {}, thread="t") for _ in range(3)]
    for run in runs:
        await run.result(timeout=10)
    for run in runs:
        await check_clean(runtime, run)


async def test_a_node_timeout_while_it_waited_for_an_effect(open_workers, clock):
    is_sent = asyncio.Event()

    @effect(kind="lookup", reconcile=lambda request, key: None)
    async def slow() -> None:
        is_sent.set()
        await asyncio.Event().wait()

    graph = Graph(Log, name="slow")

    @graph.node(timeout_s=60)
    async def act(state: Log, ctx: Context) -> dict:
        await ctx.call(slow)
        return {}

    graph.edge(START, act)
    [runtime] = await open_workers(1, graph)
    run = await runtime.start(graph, {})
    await is_sent.wait()
    async with clock.autojump():
        with pytest.raises(RunFailed):
            await run.result()
        await check_clean(runtime, run)


async def test_a_failing_router_and_a_step_limit_are_as_recorded(open_runtime):
    def route(state: Log) -> str:
        raise ZeroDivisionError("no way")

    def graphs(limit, router):
        graph = Graph(Log, name="loop", step_limit=limit)

        @graph.node
        async def turn(state: Log) -> dict:
            return {"total": 1}

        graph.edge(START, turn)
        graph.branch(turn, router, targets=[turn, END])
        return graph

    runtime = await open_runtime(graphs(3, lambda state: "turn"))
    run = await runtime.start("loop", {})
    assert isinstance(await ended(run), RunFailed)
    await check_clean(runtime, run)
    other = await open_runtime(graphs(3, route), worker=False)
    found = await other.replay(run.id)
    assert [each.kind for each in found.divergences] == [DivergenceKind.OUTCOME] * 3
    longer = await open_runtime(graphs(5, lambda state: "turn"), worker=False)
    [divergence] = (await longer.replay(run.id)).divergences
    assert "StepLimitReached" in divergence.message


@dataclass
class Large:
    text: str = ""
    lines: Annotated[list[str], append] = field(default_factory=list)
    facts: Annotated[dict[str, str], merge] = field(default_factory=dict)


def large(end="."):
    graph = Graph(Large, name="large", step_limit=5)

    @graph.node
    async def grow(state: Large) -> dict:
        more = f"{len(state.lines)} " * 20_000
        return {"text": more + end, "lines": [more], "facts": {f"f{len(state.lines)}": more}}

    graph.edge(START, grow)
    graph.branch(grow, lambda state: grow if len(state.lines) < 4 else END, targets=[grow, END])
    return graph


async def test_large_fields_are_compared_as_values(open_runtime):
    runtime = await open_runtime(large())
    given = {"text": "x" * 50_000, "lines": ["y" * 50_000]}
    run = await runtime.start("large", given, thread="t")
    await run.result(timeout=10)
    await check_clean(runtime, run)
    other = await open_runtime(large("!"), worker=False)
    found = (await other.replay(run.id)).divergences
    assert [(each.node, each.subject) for each in found] == [
        (f"{step}:grow", "text") for step in (1, 2, 3)
    ]
    assert (found[0].expected[-2:], found[0].got[-2:]) == (" .", " !")
    state = await runtime.state("t", at=2)
    await runtime.rollback("t", at=2, by="ada")
    assert await runtime.state("t") == state
    forked = await runtime.fork("t", at=3)
    assert len((await forked.result(timeout=10)).lines) == 4
    await check_clean(runtime, forked)
    edits = (await runtime.compare("t@1", "t")).edits
    assert {edit.path.split("/")[1] for edit in edits} == {"text", "lines", "facts"}
