"""Where the code does something else than the journal says: named, with both sides."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from perdure import (
    END,
    START,
    Context,
    Graph,
    NotFound,
    add,
)
from perdure.core.merge import merge
from perdure.engine.divergence import DivergenceKind
from perdure.errors import UsageError
from tests.engine.polled import answered
from tests.engine.polled import reached as resting
from tests.engine.replaying import (
    CALLS,
    Log,
    charge,
    check_clean,
    ended,
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


# -- what differs ----------------------------------------------------------------------------------


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


# -- which graph -----------------------------------------------------------------------------------


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


async def test_types_count_and_the_order_of_maps_does_not(open_runtime, changed):
    def giving(value):
        async def assess(state: Log, ctx: Context) -> dict:
            return {"anything": value}

        @dataclass
        class Kept:
            anything: Any = None

        graph = Graph(Kept, name="typed")
        graph.node(name="assess")(assess)
        graph.edge(START, "assess")
        return graph

    first = {"a": 1, "b": {3, 1, 2}, "c": (1,)}
    runtime = await open_runtime(giving(first))
    run = await runtime.start("typed", {})
    await run.result(timeout=10)
    assert await changed(run, giving({"c": (1,), "b": {2, 3, 1}, "a": 1})) == ()
    for other in ({**first, "a": 1.0}, {**first, "a": True}, {**first, "c": [1]}):
        [found] = await changed(run, giving(other))
        assert (found.kind, found.subject) == ("update", "anything")


async def test_updates_of_parallel_nodes_merge_as_they_did(open_runtime, changed, monkeypatch):
    """As LangGraph's issue 8382: the order of a replay differed from the live one."""
    graph = Graph(Log, name="pair")

    @graph.node
    async def slow(state: Log, ctx: Context) -> dict:
        await ctx.sleep(0.02)
        return {"lines": ["slow"]}

    @graph.node
    async def fast(state: Log) -> dict:
        return {"lines": ["fast"]}

    graph.edge(START, slow)
    graph.edge(START, fast)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    assert (await run.result(timeout=10)).lines == ["slow", "fast"]
    await check_clean(runtime, run)

    def reversed_merge(plan, values, updates):
        return merge(plan, values, list(updates)[::-1])

    monkeypatch.setattr("perdure.engine.driver.merge", reversed_merge)
    [found] = await changed(run, graph)
    assert (found.kind, found.subject) == ("state", "lines")
    assert (found.expected, found.got) == (["slow", "fast"], ["fast", "slow"])
