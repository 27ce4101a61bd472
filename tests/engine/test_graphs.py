"""Graphs as people write them, executed: order, merging, loops, fan-out, subgraphs, failures."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from perdure import (
    END,
    START,
    Context,
    Goto,
    Graph,
    Retry,
    RunFailed,
    Send,
    add,
    append,
    effect,
    merge,
)


@dataclass
class Log:
    lines: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    facts: Annotated[dict[str, int], merge] = field(default_factory=dict)
    last: str = ""
    limit: int = 3
    anything: Any = None


def linear(name="linear"):
    graph = Graph(Log, name=name)

    @graph.node
    async def first(state: Log) -> dict:
        return {"lines": ["first"], "total": 1, "last": "first"}

    @graph.node
    def second(state: Log) -> dict:
        return {
            "lines": ["second"],
            "total": 2,
            "last": "second",
            "facts": {"seen": len(state.lines)},
        }

    graph.edge(START, first)
    graph.edge(first, second)
    graph.edge(second, END)
    return graph


async def test_nodes_run_in_order_and_updates_are_merged(open_runtime):
    graph = linear()
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, Log(lines=["start"]))
    assert await run.result(timeout=10) == Log(
        ["start", "first", "second"], 3, {"seen": 2}, "second"
    )


@dataclass
class Point:
    x: int


class TypedState(TypedDict):
    items: Annotated[list[int], append]
    point: Point


class ModelState(pydantic.BaseModel):
    items: Annotated[list[int], append] = []
    point: Point | None = None


class StructState(msgspec.Struct):
    items: Annotated[list[int], append] = msgspec.field(default_factory=list)
    point: Point | None = None


@pytest.mark.parametrize("state_type", [TypedState, ModelState, StructState])
async def test_every_kind_of_state_type_works(open_runtime, state_type):
    graph = Graph(state_type, name="typed")

    @graph.node
    async def node(state) -> dict:
        items = state["items"] if isinstance(state, dict) else state.items
        return {"items": [len(items)], "point": Point(7)}

    graph.edge(START, node)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {"items": [5], "point": Point(1)})
    result = await run.result(timeout=10)
    found = result if isinstance(result, dict) else {"items": result.items, "point": result.point}
    assert found == {"items": [5, 1], "point": Point(7)}
    loaded = await runtime.state(run.thread)
    assert type(loaded) is type(result)


async def test_a_loop_runs_until_its_router_ends_it(open_runtime):
    graph = Graph(Log, name="loop")

    @graph.node
    async def turn(state: Log) -> dict:
        return {"total": 1}

    graph.edge(START, turn)
    graph.branch(
        turn, lambda state: turn if state.total < state.limit else END, targets=[turn, END]
    )
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {"limit": 25})
    assert (await run.result(timeout=10)).total == 25


async def test_the_step_limit_fails_the_run_and_says_so(open_runtime):
    graph = Graph(Log, name="endless", step_limit=5)

    @graph.node
    async def turn(state: Log) -> None: ...

    graph.edge(START, turn)
    graph.edge(turn, turn)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match="5 steps") as caught:
        await run.result(timeout=10)
    assert caught.value.fields["type"] == "StepLimitReached"


async def test_parallel_nodes_merge_by_reducer_in_the_order_of_the_graph(open_runtime):
    graph = Graph(Log, name="parallel")

    @graph.node
    async def slow(state: Log) -> dict:
        await asyncio.sleep(0.05)
        return {"lines": ["slow"], "total": 1, "facts": {"slow": 1}}

    @graph.node
    async def fast(state: Log) -> dict:
        return {"lines": ["fast"], "total": 10, "facts": {"fast": 2}}

    @graph.node
    async def after(state: Log) -> dict:
        return {"last": f"{state.total}"}

    for node in (slow, fast):
        graph.edge(START, node)
        graph.edge(node, after)
    runtime = await open_runtime(graph)
    result = await (await runtime.start(graph, {})).result(timeout=10)
    assert result == Log(["slow", "fast"], 11, {"slow": 1, "fast": 2}, "11")


async def test_two_writers_of_one_field_fail_naming_both(open_runtime):
    graph = Graph(Log, name="clash")

    @graph.node
    async def left(state: Log) -> dict:
        return {"last": "left"}

    @graph.node
    async def right(state: Log) -> dict:
        return {"last": "right"}

    graph.edge(START, left)
    graph.edge(START, right)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match=r"1:left.*1:right.*'last'") as caught:
        await run.result(timeout=10)
    assert caught.value.fields["type"] == "UpdateConflict"
    assert (await runtime.state(run.thread)).last == ""


async def test_fan_out_gives_each_execution_its_argument(open_runtime):
    graph = Graph(Log, name="fan")

    @graph.node
    async def plan(state: Log) -> None: ...

    @graph.node
    async def work(item: int) -> dict:
        return {"lines": [f"item {item}"], "total": item}

    @graph.node
    async def collect(state: Log) -> dict:
        return {"last": f"{len(state.lines)} done"}

    graph.edge(START, plan)
    graph.branch(plan, lambda s: [Send(work, n) for n in range(1, s.limit + 1)], targets=[work])
    graph.edge(work, collect)
    runtime = await open_runtime(graph)
    result = await (await runtime.start(graph, {"limit": 20})).result(timeout=10)
    assert result.total == 210
    assert result.lines == [f"item {n}" for n in range(1, 21)]
    assert result.last == "20 done"


async def test_goto_chooses_the_next_node(open_runtime):
    graph = Graph(Log, name="goto")

    @graph.node(goto=["b", "c"])
    async def a(state: Log) -> Goto:
        return Goto("c", {"lines": ["a"]})

    @graph.node
    async def b(state: Log) -> dict:
        return {"lines": ["b"]}

    @graph.node
    async def c(state: Log) -> dict:
        return {"lines": ["c"]}

    graph.edge(START, a)
    runtime = await open_runtime(graph)
    assert (await (await runtime.start(graph, {})).result(timeout=10)).lines == ["a", "c"]


@dataclass
class Inner:
    lines: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    last: str = ""
    own: int = 0


async def test_a_subgraph_shares_fields_and_keeps_its_own(open_runtime):
    inner = Graph(Inner, name="inner")

    @inner.node
    async def one(state: Inner) -> dict:
        return {"lines": [f"one sees {len(state.lines)}"], "total": 5, "own": 1}

    @inner.node
    async def two(state: Inner) -> dict:
        return {
            "lines": [f"two sees {len(state.lines)} own {state.own}"],
            "total": 6,
            "last": "two",
        }

    inner.edge(START, one)
    inner.edge(one, two)
    outer = Graph(Log, name="outer")

    @outer.node
    async def before(state: Log) -> dict:
        return {"lines": ["before"], "total": 100}

    outer.node(inner, name="sub")
    outer.edge(START, before)
    outer.edge(before, "sub")
    outer.edge("sub", END)
    runtime = await open_runtime(outer)
    result = await (await runtime.start(outer, {})).result(timeout=10)
    assert result.lines == ["before", "one sees 1", "two sees 2 own 1"]
    assert result.total == 111
    assert result.last == "two"


async def test_a_node_is_retried_with_its_attempt_number(open_runtime):
    attempts = []
    graph = Graph(Log, name="retried")

    @graph.node(retry=Retry(max_attempts=3, base_s=0.01, cap_s=0.02))
    async def shaky(state: Log, ctx: Context) -> dict:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return {"last": "done"}

    graph.edge(START, shaky)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    assert (await run.result(timeout=10)).last == "done"
    assert attempts == [1, 2, 3]
    kinds = [event.kind for event in await runtime.events(run.id)]
    assert kinds.count("node_failed") == 2


async def test_a_failing_node_fails_the_run_with_type_place_and_reason(open_runtime):
    graph = Graph(Log, name="failing")

    @graph.node
    async def broken(state: Log) -> dict:
        raise KeyError("missing")

    graph.edge(START, broken)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match=r"broken.*KeyError.*missing") as caught:
        await run.result(timeout=10)
    assert caught.value.fields["node"] == "1:broken"
    assert (await run.status()) == "failed"


async def test_a_node_that_takes_too_long_is_stopped(open_runtime):
    graph = Graph(Log, name="late")

    @graph.node(timeout_s=0.05)
    async def late(state: Log) -> dict:
        await asyncio.sleep(30)
        return {}

    graph.edge(START, late)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match="NodeTimedOut"):
        await run.result(timeout=10)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ({"lines": "text"}, "UpdateInvalid"),
        ({"unknown": 1}, "UpdateInvalid"),
        ([1], "UpdateInvalid"),
        ({"last": object()}, "UpdateInvalid"),
        ({"anything": {"a": object()}}, "ValueUnserializable"),
    ],
)
async def test_a_bad_update_fails_the_run_and_leaves_the_state(open_runtime, returned, error):
    graph = Graph(Log, name="bad")

    @graph.node
    async def node(state: Log):
        return returned

    graph.edge(START, node)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {"last": "kept"})
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=10)
    assert caught.value.fields["type"] == error, caught.value
    assert (await runtime.state(run.thread)).last == "kept"


async def test_changing_the_state_in_place_is_refused(open_runtime):
    graph = Graph(Log, name="mutating")

    @graph.node
    async def node(state: Log) -> None:
        state.lines.append("sneaked in")

    graph.edge(START, node)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match="'lines' in place") as caught:
        await run.result(timeout=10)
    assert caught.value.fields["type"] == "StateMutated"


async def test_a_plain_function_runs_durably(open_runtime):
    async def double(number: int, ctx: Context) -> int:
        return number * 2

    runtime = await open_runtime(double)
    assert await (await runtime.start(double, 21)).result(timeout=10) == 42


async def test_a_run_on_a_thread_goes_on_from_its_state(open_runtime):
    graph = linear()
    runtime = await open_runtime(graph)
    await (await runtime.start(graph, {"lines": ["a"]}, thread="t")).result(timeout=10)
    second = await runtime.start(graph, {"lines": ["b"], "total": 10}, thread="t")
    result = await second.result(timeout=10)
    assert result.lines == ["a", "first", "second", "b", "first", "second"]
    assert result.total == 16
    history = await runtime.history("t")
    assert [c.id for c in history] == [6, 5, 4, 3, 2, 1]
    assert history[0].versions["lines"] == 6
    assert (await runtime.state("t", at=3)).lines == ["a", "first", "second"]


async def test_a_long_history_loads_from_its_newest_whole_copy(open_runtime, monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 2000)
    graph = Graph(Log, name="long")

    @graph.node
    async def turn(state: Log) -> dict:
        return {"lines": ["x" * 50], "total": 1}

    graph.edge(START, turn)
    graph.branch(turn, lambda s: turn if s.total < s.limit else END, targets=[turn, END])
    runtime = await open_runtime(graph)
    for limit in (100, 200):
        run = await runtime.start(graph, {"limit": limit}, thread="t")
        await run.result(timeout=10)
    assert (await runtime.engine.store.read_thread("default", "t")).base_seq > 1
    last = await runtime.start(graph, {"limit": 201}, thread="t")
    result = await last.result(timeout=10)
    assert (result.total, len(result.lines)) == (201, 201)
    for checkpoint in (1, 50, 102, 150, 203):
        state = await runtime.state("t", at=checkpoint)
        assert len(state.lines) == state.total


async def test_fork_goes_on_from_an_old_checkpoint_without_repeating_it(open_runtime):
    calls = []

    @effect(kind="pure")
    async def look(n: int) -> int:
        calls.append(n)
        return n

    graph = Graph(Log, name="forked")

    @graph.node
    async def turn(state: Log, ctx: Context) -> dict:
        return {"lines": [f"turn {await ctx.call(look, state.total)}"], "total": 1}

    graph.edge(START, turn)
    graph.branch(turn, lambda s: turn if s.total < s.limit else END, targets=[turn, END])
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {"limit": 3}, thread="t")
    await run.result(timeout=10)
    assert calls == [0, 1, 2]
    forked = await runtime.fork("t", at=2, update={"last": "forked"}, to="t2")
    result = await forked.result(timeout=10)
    assert calls == [0, 1, 2, 1, 2]
    assert result.last == "forked"
    assert result.total == 3
    assert (await runtime.state("t")).last == ""
    assert (await runtime.history("t2"))[-1].parent_thread == "t"
    operations = await runtime.diff(("t", 4), forked.id)
    assert operations == [{"op": "replace", "path": "/last", "value": "forked"}]
