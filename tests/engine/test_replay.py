"""A run recomputed from its journal: nothing is done again, and what differs is named."""

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
    NotFound,
    Rejected,
    Retry,
    RunFailed,
    Send,
    add,
    append,
    effect,
)
from perdure.engine.divergence import DivergenceKind
from perdure.errors import NeedsDecision, UsageError
from perdure.model import RunStatus
from perdure.sandbox import DirectorySandboxes


@dataclass
class Log:
    lines: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    last: str = ""
    topics: list[str] = field(default_factory=list)


CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@effect(kind="once")
async def charge(order: str, cents: int) -> str:
    CALLS.append(("charge", order, cents))
    return f"charged {order} {cents}"


@effect(kind="once")
async def lost() -> str:
    CALLS.append("lost")
    raise ConnectionError("reset")


@effect(kind="pure")
async def quote(order: str) -> int:
    CALLS.append(("quote", order))
    return 40


def one(function, name="one", **options):
    """Return a graph whose only node is `assess`."""
    graph = Graph(Log, name=name, **options)
    graph.node(name="assess")(function)
    graph.edge(START, "assess")
    graph.edge("assess", END)
    return graph


async def ended(run):
    """Wait until a run has ended, or rests."""
    try:
        return await run.result(timeout=10)
    except (RunFailed, NeedsDecision) as error:
        return error


async def resting(run, *statuses):
    async with asyncio.timeout(10):
        while await run.status() not in (statuses or (RunStatus.WAITING,)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def journal_of(runtime, run):
    return [event.seq for event in await runtime.events(run.id)], await run.row()


async def check_clean(runtime, run, graph=None):
    """Replay a run and check that it is clean, that nothing was done, and nothing written."""
    before, calls = await journal_of(runtime, run), list(CALLS)
    found = await runtime.replay(run.id, graph)
    assert [each.message for each in found.divergences] == []
    assert found.is_clean
    assert await journal_of(runtime, run) == before
    assert calls == CALLS
    return found


@pytest.fixture
def url(tmp_path):
    """Return a store that several runtimes can open."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def changed(open_runtime):
    """Return a function that replays a run with other code and gives the divergences."""

    async def replay(run, graph):
        calls = list(CALLS)
        runtime = await open_runtime(graph, worker=False)
        found = await runtime.replay(run.id)
        assert calls == CALLS
        return found.divergences

    return replay


# -- everything that can be recorded ----------------------------------------------------------------


async def everything(state: Log, ctx: Context) -> dict:
    cents = await ctx.call(quote, "o-1")
    answer = await ctx.ask("Refund?", schema=bool, expires_in=timedelta(days=1))
    await ctx.sleep(0.3)
    signal = await ctx.receive("go")
    paid = await ctx.map(lambda n: ctx.call(charge, f"o-{n}", cents), [1, 2, 3])
    ctx.emit({"paid": paid})
    stamp, chance = ctx.now().isoformat(), ctx.random()
    return {"lines": [*paid, str(answer.value), str(signal), stamp, str(chance)], "total": 3}


async def answered(runtime, run, value=True):
    """Answer the open question of a run."""
    async with asyncio.timeout(10):
        while not (asks := await runtime.asks(run_id=run.id)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await runtime.answer(asks[0].id, value, by="ada")


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
    await resting(run)
    found = await check_clean(runtime, run)
    assert "answers" in found.served


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


async def test_a_node_timeout_while_it_waited_for_an_effect(open_runtime):
    @effect(kind="lookup", reconcile=lambda request, key: None)
    async def slow() -> None:
        await asyncio.sleep(60)

    graph = Graph(Log, name="slow")

    @graph.node(timeout_s=0.05)
    async def act(state: Log, ctx: Context) -> dict:
        await ctx.call(slow)
        return {}

    graph.edge(START, act)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    assert isinstance(await ended(run), RunFailed)
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


# -- what differs ------------------------------------------------------------------------------------


def assessing(cents=40, writes=40, question="Refund?", order="o-1", more=None):
    async def assess(state: Log, ctx: Context) -> dict:
        answer = await ctx.ask(question, schema=bool)
        paid = await ctx.call(charge, order, cents)
        if more is not None:
            await ctx.call(more, "o-9")
        return {"lines": [paid], "total": writes, "last": str(answer.value)}

    return one(assess)


@pytest.fixture
async def done(open_runtime):
    runtime = await open_runtime(assessing())
    run = await runtime.start("one", {})
    await answered(runtime, run)
    await run.result(timeout=10)
    return run


async def test_another_update_is_named_with_both_values(done, changed):
    [found] = await changed(done, assessing(writes=60))
    assert (found.kind, found.node, found.attempt) == (DivergenceKind.UPDATE, "1:assess", 1)
    assert (found.subject, found.expected, found.got) == ("total", 40, 60)
    assert found.message == "code changed: node `1:assess` now writes total=60, recorded 40"


async def test_an_effect_with_other_arguments_is_never_dispatched(done, changed):
    [found] = await changed(done, assessing(cents=60))
    assert found.kind is DivergenceKind.ASKED
    assert (found.subject, found.expected, found.got) == ("charge", ["o-1", 40], ["o-1", 60])
    assert "asks for effect charge with ['o-1', 60], recorded effect charge with ['o-1', 40]" in (
        found.message
    )


async def test_a_new_effect_and_another_question(done, changed):
    [found] = await changed(done, assessing(more=quote))
    assert (found.kind, found.subject, found.expected) == (DivergenceKind.ASKED, "quote", None)
    assert found.message.endswith("asks for effect quote with ['o-9'], not recorded")
    [found] = await changed(done, assessing(question="Really?"))
    assert (found.expected, found.got) == ("Refund?", "Really?")


async def test_what_is_not_asked_for_any_more(done, changed):
    async def assess(state: Log, ctx: Context) -> dict:
        answer = await ctx.ask("Refund?", schema=bool)
        return {"lines": ["charged o-1 40"], "total": 40, "last": str(answer.value)}

    [found] = await changed(done, one(assess))
    assert found.kind is DivergenceKind.NOT_ASKED
    assert (found.subject, found.expected) == ("charge", ["o-1", 40])


async def test_an_error_instead_of_an_update_and_the_other_way_round(done, changed, open_runtime):
    async def broken(state: Log, ctx: Context) -> dict:
        raise LookupError("gone")

    [found] = await changed(done, one(broken))
    assert found.kind is DivergenceKind.OUTCOME
    assert found.got == {"type": "LookupError", "message": "gone"}
    runtime = await open_runtime(one(broken, name="two"))
    run = await runtime.start("two", {})
    await ended(run)

    async def mended(state: Log, ctx: Context) -> dict:
        return {"total": 1}

    [found] = await changed(run, one(mended, name="two"))
    assert found.expected == {"type": "LookupError", "message": "gone"}
    assert found.got == {"total": 1}


def chain(names, writes):
    graph = Graph(Log, name="chain")
    for name in names:

        async def node(state: Log, ctx: Context, name=name) -> dict:
            return {"lines": [f"{name} after {len(state.lines)}"], "total": writes.get(name, 1)}

        graph.node(name=name)(node)
    for source, target in zip([START, *names], [*names, END], strict=True):
        graph.edge(source, target)
    return graph


async def test_later_nodes_get_what_was_recorded_so_that_one_change_is_one_divergence(
    open_runtime, changed
):
    runtime = await open_runtime(chain(["a", "b", "c"], {}))
    run = await runtime.start("chain", {})
    await run.result(timeout=10)
    [found] = await changed(run, chain(["a", "b", "c"], {"b": 5}))
    assert (found.node, found.subject, found.expected, found.got) == ("2:b", "total", 1, 5)


async def test_another_order_and_a_node_that_is_gone(open_runtime, changed):
    runtime = await open_runtime(chain(["a", "b", "c"], {}))
    run = await runtime.start("chain", {})
    await run.result(timeout=10)
    found = await changed(run, chain(["a", "c", "b"], {}))
    assert [(each.kind, each.node) for each in found] == [
        ("next", "1"),
        ("next", "2"),
        ("next", "3"),
    ]
    assert found[0].message == "code changed: after step 1 comes c, recorded b"
    found = await changed(run, chain(["a", "b"], {}))
    assert [each.kind for each in found] == ["next", "node"]


async def test_a_waiting_run_whose_code_now_asks_for_something_else(open_runtime, changed):
    runtime = await open_runtime(assessing())
    run = await runtime.start("one", {})
    await resting(run)
    await check_clean(runtime, run)
    [found] = await changed(run, assessing(question="Refund 50?"))
    assert (found.kind, found.expected, found.got) == ("asked", "Refund?", "Refund 50?")

    async def assess(state: Log, ctx: Context) -> dict:
        return {"total": 2}

    [found] = await changed(run, one(assess))
    assert (found.kind, found.got) == ("outcome", {"total": 2})


async def test_a_changed_reducer_is_seen_at_the_step(open_runtime, changed):
    def summing(reduce):
        @dataclass
        class Sum:
            total: Annotated[int, reduce] = 0

        graph = Graph(Sum, name="sum")

        @graph.node
        async def more(state: Sum) -> dict:
            return {"total": 5}

        graph.edge(START, more)
        return graph

    def most(old: int, new: int) -> int:
        return max(old, new)

    runtime = await open_runtime(summing(add))
    run = await runtime.start("sum", {"total": 2})
    await run.result(timeout=10)
    [found] = await changed(run, summing(most))
    assert (found.kind, found.expected, found.got) == ("state", 7, 5)


async def test_a_state_type_that_does_not_fit_any_more(open_runtime, changed):
    def keeping(kind):
        @dataclass
        class Kept:
            note: kind = None

        graph = Graph(Kept, name="kept")

        @graph.node
        async def keep(state: Kept) -> dict:
            return {}

        graph.edge(START, keep)
        return graph

    runtime = await open_runtime(keeping(str | None))
    for note in ("a", "b"):
        run = await runtime.start("kept", {"note": note}, thread="t")
        await run.result(timeout=10)
    [found] = await changed(run, keeping(int | None))
    assert found.kind == "state"
    assert "note" in found.message


# -- which graph -------------------------------------------------------------------------------------


async def test_a_newer_version_can_replay_a_run_of_an_older(open_runtime, done):
    async def assess(state: Log, ctx: Context) -> dict:
        answer = await ctx.ask("Refund?", schema=bool)
        paid = await ctx.call(charge, "o-1", 40)
        return {"lines": [paid], "total": 40, "last": f"{answer.value}!"}

    newer = one(assess, version=2)
    runtime = await open_runtime(newer, worker=False)
    with pytest.raises(NotFound, match="one v1"):
        await runtime.replay(done.id)
    found = await runtime.replay(done.id, newer)
    assert (found.version, found.recorded_version) == (2, 1)
    [divergence] = found.divergences
    assert (divergence.subject, divergence.expected, divergence.got) == ("last", "True", "True!")


async def test_another_graph_and_an_unknown_run_are_refused(open_runtime, done):
    async def other(_given: Any) -> None:
        return None

    runtime = await open_runtime(other, worker=False)
    with pytest.raises(UsageError, match="is of graph 'one', not"):
        await runtime.replay(done.id, other)
    with pytest.raises(NotFound, match="perdure ps"):
        await runtime.replay("r_none")
