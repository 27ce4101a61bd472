"""Forks and trees: what a fork starts with, what it would do again, where it is found."""

import pytest

from perdure import (
    START,
    Context,
    Graph,
    NotFound,
    UpdateInvalid,
)
from perdure.engine import branches
from perdure.engine.tree import Origin
from perdure.errors import Conflict
from tests.engine.orders import SENT, Order, orders, pay
from tests.engine.polled import answered
from tests.engine.polled import reached as resting


@pytest.fixture(autouse=True)
def sent():
    SENT.clear()
    return SENT


@pytest.fixture
async def done(open_runtime):
    """Return a runtime and a run of `orders` on thread t that has ended."""
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await answered(runtime, run)
    await run.result(timeout=10)
    return runtime, run


async def test_a_preview_says_what_would_be_sent_again(done):
    runtime, run = done
    found = await runtime.preview_fork("t", at=2, update={"cents": 60})
    assert (found.checkpoint, found.run_id, found.next) == (2, run.id, ("settle",))
    assert found.state["cents"] == 60
    assert found.state["notes"] == ["ada: True"]
    assert [(e.name, e.kind, e.args, e.state) for e in found.again] == [
        ("pay", "keyed", ["o-1", 40], "confirmed"),
        ("mail", "once", ["o-1@example.com"], "confirmed"),
    ]
    assert found.again[0].key == SENT[0][2]
    assert (found.reused, found.children, found.running) == ((), (), ())
    assert len(SENT) == 2
    assert len(await runtime.runs()) == 1
    [only] = (await runtime.preview_fork("t", at=3)).again
    assert only.name == "mail"
    last = await runtime.preview_fork("t")
    assert (last.next, last.again) == ((), ())


async def test_a_fork_does_what_the_preview_says_and_asks_nothing_that_was_answered(done):
    runtime, _run = done
    forked = await runtime.fork("t", at=2, update={"cents": 60}, to="t2")
    result = await forked.result(timeout=10)
    assert result.notes == ["ada: True", "paid o-1", "told"]
    assert [each[:2] for each in SENT[2:]] == [("o-1", 60), ("mail", "o-1@example.com")]
    assert SENT[2][2] != SENT[0][2]
    assert await runtime.asks(run_id=forked.id) == []


async def test_a_fork_before_an_answer_asks_again_and_knows_nothing_of_the_first_one(done):
    """As LangGraph's PR 7038: stale resume values must not leak into a fork."""
    runtime, _run = done
    forked = await runtime.fork("t", at=1, to="t2")
    await answered(runtime, forked, value=False, by="bob")
    assert (await forked.result(timeout=10)).notes[0] == "bob: False"
    assert (await runtime.state("t")).notes[0] == "ada: True"


async def test_a_fork_never_sees_what_the_abandoned_branch_wrote(done):
    """As LangGraph's issue 8443: a fork replayed the abandoned branch's writes."""
    runtime, _run = done
    again = await runtime.start("orders", {}, thread="t")
    await answered(runtime, again)
    await again.result(timeout=10)
    forked = await runtime.fork("t", at=3, to="t2")
    assert (await forked.result(timeout=10)).notes == ["ada: True", "paid o-1", "told"]
    assert (await runtime.state("t2", at=1)).total == 3
    assert (await runtime.state("t")).total == 6
    later = await runtime.start("orders", {}, thread="t2")
    await answered(runtime, later)
    assert len((await later.result(timeout=10)).notes) == 6


async def test_checkpoint_ids_of_a_fork_move_on(done):
    """As LangGraph's issue 4987: after a fork the checkpoint id no longer moved."""
    runtime, _run = done
    forked = await runtime.fork("t", at=2, to="t2")
    await forked.result(timeout=10)
    assert [each.id for each in await runtime.history("t2")] == [3, 2, 1]


async def test_a_rerun_begins_where_the_run_began_with_its_input(done):
    runtime, _run = done
    again = await runtime.start("orders", {"cents": 70}, thread="t")
    await answered(runtime, again)
    await again.result(timeout=10)
    preview = await runtime.preview_fork("t", at=7, rerun=True)
    assert (preview.checkpoint, preview.next, preview.is_rerun) == (5, ("check",), True)
    assert preview.again[0].args == ["o-1", 70]
    forked = await runtime.fork("t", at=7, rerun=True)
    await answered(runtime, forked)
    result = await forked.result(timeout=10)
    assert (result.total, len(result.notes)) == (6, 6)


async def test_a_business_key_is_reused_and_children_are_named(open_runtime):
    async def child(order: str, ctx: Context) -> str:
        return await ctx.call(pay, order, 7)

    graph = Graph(Order, name="keyed")

    @graph.node
    async def act(state: Order, ctx: Context) -> dict:
        await ctx.call(pay, "o-1", 40, key="order-1")
        spawned = await ctx.spawn(child, "o-2")
        return {"notes": [await spawned.result()]}

    graph.edge(START, act)
    runtime = await open_runtime(graph, child)
    run = await runtime.start(graph, {}, thread="t")
    await run.result(timeout=10)
    found = await runtime.preview_fork("t", at=1)
    assert [effect.args for effect in found.reused] == [["o-1", 40]]
    assert [effect.args for effect in found.again] == [["o-2", 7]]
    assert len(found.children) == 1
    forked = await runtime.fork("t", at=1)
    await forked.result(timeout=10)
    assert [each[:2] for each in SENT] == [("o-1", 40), ("o-2", 7), ("o-2", 7)]


async def test_a_running_thread_can_be_forked_and_is_named(open_runtime):
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await resting(run)
    found = await runtime.preview_fork("t", at=1)
    [running] = found.running
    assert (running.run_id, running.status) == (run.id, "waiting")
    assert [node.path for node in running.nodes] == ["1:check"]
    forked = await runtime.fork("t", at=1)
    await answered(runtime, forked)
    await forked.result(timeout=10)
    await answered(runtime, run)
    await run.result(timeout=10)
    assert [each[:2] for each in SENT] == [("o-1", 40), ("mail", "o-1@example.com")] * 2


async def test_parallel_outcomes_of_an_unfinished_step_are_not_in_a_fork(open_runtime):
    graph = Graph(Order, name="pair")

    @graph.node
    async def fast(state: Order, ctx: Context) -> dict:
        return {"notes": [await ctx.call(pay, "fast", 1)]}

    @graph.node
    async def slow(state: Order, ctx: Context) -> dict:
        return {"notes": [str((await ctx.ask("Slow?", schema=bool)).value)]}

    graph.edge(START, fast)
    graph.edge(START, slow)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {}, thread="t")
    await resting(run)
    found = await runtime.preview_fork("t", at=1)
    assert found.next == ("fast", "slow")
    assert [effect.args for effect in found.again] == [["fast", 1]]
    forked = await runtime.fork("t", at=1)
    await answered(runtime, forked)
    assert (await forked.result(timeout=10)).notes == ["paid fast", "True"]
    assert [each[0] for each in SENT] == ["fast", "fast"]


async def test_forks_that_are_refused(done):
    runtime, _run = done
    with pytest.raises(NotFound, match="has no checkpoint 9; it has 1 to 4"):
        await runtime.fork("t", at=9)
    with pytest.raises(UpdateInvalid, match="'cent'"):
        await runtime.fork("t", at=2, update={"cent": 3})
    with pytest.raises(UpdateInvalid, match="cents"):
        await runtime.preview_fork("t", at=2, update={"cents": "many"})
    with pytest.raises(Conflict, match="thread 't' exists"):
        await runtime.fork("t", at=2, to="t")
    assert len(await runtime.runs()) == 1


async def test_without_an_update_a_fork_needs_no_code(open_runtime, done):
    runtime, _run = done
    if "memory" in runtime.engine.store.place:
        pytest.skip("one process only")
    stranger = await open_runtime(worker=False)
    forked = await stranger.fork("t", at=2)
    with pytest.raises(NotFound, match="no graph 'orders v1' is known here"):
        await stranger.fork("t", at=2, update={"cents": 3})
    found = await (await runtime.get(forked.id)).result(timeout=10)
    assert found.notes == ["ada: True", "paid o-1", "told"]


# -- trees -----------------------------------------------------------------------------------------


async def test_a_tree_shows_origins_and_forks_both_ways_and_nested(done):
    runtime, run = done
    second = await runtime.fork("t", at=2, to="t2")
    await second.result(timeout=10)
    third = await runtime.fork("t2", at=2, to="t3")
    await third.result(timeout=10)
    await (await runtime.fork("t", at=1, to="t4")).cancel()
    tree = await runtime.tree("t")
    assert (tree.origin, tree.is_complete) == (None, True)
    assert [(fork.checkpoint, fork.row.thread) for fork in tree.forks] == [(1, "t4"), (2, "t2")]
    inner = tree.forks[1].tree
    assert (inner.origin.thread, inner.origin.checkpoint) == ("t", 2)
    assert [(fork.checkpoint, fork.row.run_id) for fork in inner.forks] == [(2, third.id)]
    [story] = tree.runs
    assert story.row.run_id == run.id
    assert [[node.node for node in step.nodes] for step in story.steps] == [
        [],
        ["check"],
        ["settle"],
        ["tell"],
    ]
    assert (await runtime.tree("t3")).origin == Origin(thread="t2", checkpoint=2)
    with pytest.raises(NotFound, match="no thread 'nowhere'"):
        await runtime.tree("nowhere")


async def test_forks_that_an_older_perdure_made_are_found_by_their_start_records(done, monkeypatch):
    runtime, _run = done
    finish = branches.finish_new_run
    monkeypatch.setattr(
        branches,
        "finish_new_run",
        lambda *args, **kwargs: finish(*args, **{**kwargs, "digest": ""}),
    )
    await (await runtime.fork("t", at=2, to="old")).result(timeout=10)
    [fork] = (await runtime.tree("t")).forks
    assert (fork.checkpoint, fork.row.thread) == (2, "old")


async def test_subgraph_steps_and_parallel_nodes_are_under_their_step(open_runtime):
    inner = Graph(Order, name="inner")

    @inner.node
    async def first(state: Order) -> dict:
        return {"notes": ["first"]}

    @inner.node
    async def second(state: Order, ctx: Context) -> dict:
        return {"notes": [str((await ctx.ask("In?", schema=bool)).value)]}

    inner.edge(START, first)
    inner.edge(first, second)
    outer = Graph(Order, name="outer")
    outer.node(inner, name="sub")

    @outer.node
    async def beside(state: Order) -> dict:
        return {"total": 1}

    outer.edge(START, "sub")
    outer.edge(START, beside)
    runtime = await open_runtime(outer)
    run = await runtime.start(outer, {}, thread="t")
    await resting(run)
    [story] = (await runtime.tree("t")).runs
    sub, other = story.under_way
    assert (sub.node, sub.is_finished, other.node, other.is_finished) == (
        "sub",
        False,
        "beside",
        True,
    )
    assert [[(n.path, n.is_finished) for n in step.nodes] for step in sub.steps] == [
        [("1:sub/1:first", True)],
        [("1:sub/2:second", False)],
    ]
    await answered(runtime, run)
    await run.result(timeout=10)
    [story] = (await runtime.tree("t")).runs
    [sub, _beside] = story.steps[1].nodes
    assert [step.nodes[0].node for step in sub.steps] == ["first", "second"]
    assert story.steps[1].changed == ("notes", "total")
