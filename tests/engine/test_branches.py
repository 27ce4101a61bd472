"""Forks and rollbacks: what they start with, what they leave, what they say beforehand."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from perdure import (
    END,
    START,
    Context,
    Graph,
    NotFound,
    RunFailed,
    ThreadBusy,
    UpdateInvalid,
    UsageError,
    add,
    append,
    effect,
)
from perdure.engine import branches
from perdure.errors import Conflict, NeedsDecision
from perdure.ids import TenantId, ThreadId
from perdure.model import RunStatus
from perdure.sandbox import DirectorySandboxes

SENT: list[Any] = []


@pytest.fixture(autouse=True)
def sent():
    SENT.clear()
    return SENT


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


async def answered(runtime, run, value=True, by="ada"):
    async with asyncio.timeout(10):
        while not (asks := await runtime.asks(run_id=run.id)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await runtime.answer(asks[0].id, value, by=by)


@pytest.fixture
async def done(open_runtime):
    """Return a runtime and a run of `orders` on thread t that has ended."""
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await answered(runtime, run)
    await run.result(timeout=10)
    return runtime, run


async def resting(run, *statuses):
    async with asyncio.timeout(10):
        while await run.status() not in (statuses or (RunStatus.WAITING,)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- forks -----------------------------------------------------------------------------------------


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
    assert [effect.args for effect in preview.again][0] == ["o-1", 70]
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
    assert (await runtime.tree("t3")).origin == branches_origin("t2", 2)
    with pytest.raises(NotFound, match="no thread 'nowhere'"):
        await runtime.tree("nowhere")


def branches_origin(thread, checkpoint):
    from perdure.engine.tree import Origin

    return Origin(thread=thread, checkpoint=checkpoint)


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


# -- rollbacks -------------------------------------------------------------------------------------


async def test_a_rollback_puts_the_state_back_and_says_what_it_leaves(done):
    runtime, run = done
    found = await runtime.rollback("t", at=2, by="ada", reason="wrong amount")
    assert (found.checkpoint, found.newest, found.new_checkpoint) == (2, 4, 5)
    assert [(each.effect.name, each.commands) for each in found.not_undone] == [
        ("pay", ()),
        ("mail", ()),
    ]
    assert await runtime.state("t") == await runtime.state("t", at=2)
    assert await runtime.state("t", at=4) != await runtime.state("t", at=2)
    assert (await runtime.read_row(found.run_id)).status is RunStatus.SUCCEEDED
    newest, *older = await runtime.history("t")
    assert (newest.id, newest.rolled_back_to, newest.next) == (5, 2, ())
    assert [each.id for each in older] == [4, 3, 2, 1]
    [first, rolled] = (await runtime.tree("t")).runs
    assert first.rolled is None
    assert (rolled.rolled.checkpoint, rolled.rolled.by, rolled.rolled.reason) == (
        2,
        "ada",
        "wrong amount",
    )
    assert len(SENT) == 2
    events = await runtime.events(found.run_id)
    assert events[0].body["rollback"] == {"checkpoint": 2, "by": "ada", "reason": "wrong amount"}
    again = await runtime.start("orders", {}, thread="t")
    await answered(runtime, again)
    assert (await again.result(timeout=10)).notes == ["ada: True"] * 2 + ["paid o-1", "told"]
    assert (await runtime.replay(again.id)).is_clean
    assert (await runtime.replay(found.run_id)).is_clean
    assert (await runtime.replay(run.id)).is_clean


async def test_uncertain_effects_come_with_their_commands(open_runtime):
    graph = Graph(Order, name="losing")

    @graph.node
    async def act(state: Order, ctx: Context) -> dict:
        await ctx.call(lost, "x")
        return {}

    graph.edge(START, act)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {}, thread="t")
    with pytest.raises(NeedsDecision):
        await run.result(timeout=10)
    with pytest.raises(ThreadBusy, match="needs_decision") as caught:
        await runtime.rollback("t", at=1, by="ada")
    assert f"perdure cancel {run.id}" in caught.value.fields["next"]
    await run.cancel()
    await resting(run, RunStatus.CANCELLED)
    other = await runtime.start(graph, {"total": 1}, thread="t")
    await other.cancel()
    await resting(other, RunStatus.CANCELLED)
    [entry, *_more] = (await runtime.rollback("t", at=1, by="ada")).not_undone
    assert entry.effect.state == "uncertain"
    assert entry.commands[0].startswith(f"perdure resolve {entry.effect.id} --happened")


async def test_rollbacks_that_are_refused_change_nothing(done):
    runtime, _run = done
    with pytest.raises(UsageError, match="is the newest"):
        await runtime.rollback("t", at=4, by="ada")
    with pytest.raises(NotFound, match="it has 1 to 4"):
        await runtime.rollback("t", at=7, by="ada")
    with pytest.raises(UsageError, match="say who wants it"):
        await runtime.rollback("t", at=1, by="")
    waiting = await runtime.start("orders", {}, thread="t")
    await resting(waiting)
    with pytest.raises(ThreadBusy, match="unfinished runs: r_.* \\(waiting\\)"):
        await runtime.preview_rollback("t", at=1)
    assert len(await runtime.runs()) == 2


async def test_the_files_go_back_with_the_state(open_runtime, tmp_path):
    @effect(kind="contained")
    async def note(text: str, *, sandbox: Any) -> str:
        path = sandbox.path / "notes"
        path.write_text((path.read_text() if path.exists() else "") + text)
        return path.read_text()

    graph = Graph(Order, name="noting")

    @graph.node
    async def act(state: Order, ctx: Context) -> dict:
        return {"notes": [await ctx.call(note, state.order_id)]}

    graph.edge(START, act)
    runtime = await open_runtime(graph, sandbox=DirectorySandboxes(tmp_path / "boxes"))
    for letter in "abc":
        await (await runtime.start(graph, {"order_id": letter}, thread="t")).result(timeout=10)
    assert (await runtime.state("t")).notes == ["a", "ab", "abc"]
    found = await runtime.rollback("t", at=2, by="ada")
    assert found.snapshot == (await runtime.history("t"))[-2].snapshot
    await (await runtime.start(graph, {"order_id": "d"}, thread="t")).result(timeout=10)
    assert (await runtime.state("t")).notes == ["a", "ad"]
    await runtime.rollback("t", at=1, by="ada")
    await (await runtime.start(graph, {"order_id": "e"}, thread="t")).result(timeout=10)
    assert (await runtime.state("t")).notes == ["e"], "before the first file there was none"


class Loose(TypedDict):
    step: int
    extra: NotRequired[str]


async def test_a_field_that_came_later_is_gone_after_a_rollback(open_runtime):
    graph = Graph(Loose, name="loose")

    @graph.node
    async def act(state: Loose) -> dict:
        return {"step": state["step"] + 1, "extra": "there"}

    graph.edge(START, act)
    runtime = await open_runtime(graph)
    await (await runtime.start(graph, {"step": 1}, thread="t")).result(timeout=10)
    await runtime.rollback("t", at=1, by="ada")
    assert await runtime.state("t") == {"step": 1}
    run = await runtime.start(graph, {}, thread="t")
    assert await runtime.state("t", at=3) == {"step": 1}
    assert await run.result(timeout=10) == {"step": 2, "extra": "there"}


@pytest.mark.parametrize("is_taken", [False, True])
async def test_whoever_dies_in_between_leaves_a_run_that_a_worker_ends(
    open_runtime, monkeypatch, is_taken
):
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await answered(runtime, run)
    await run.result(timeout=10)

    class Died(Exception):
        pass

    async def die(*_args):
        if is_taken:
            raise Died
        return None

    if is_taken:
        runtime.engine.lease_ttl_s, ttl_s = 0.3, runtime.engine.lease_ttl_s
        monkeypatch.setattr(branches, "write_released", die)
        with pytest.raises(Died):
            await runtime.rollback("t", at=2, by="ada")
        runtime.engine.lease_ttl_s = ttl_s
    else:
        submit = runtime.engine.starts.submit

        async def submit_only(new):
            from msgspec import structs

            return await submit(structs.replace(new, take_for=None))

        monkeypatch.setattr(runtime.engine.starts, "submit", submit_only)
        monkeypatch.setattr(branches, "take", die)
        await runtime.rollback("t", at=2, by="ada")
    rolled = (await runtime.runs())[0]
    await resting(await runtime.get(rolled.run_id), RunStatus.SUCCEEDED)
    assert await runtime.state("t") == await runtime.state("t", at=2)
    assert (await runtime.history("t"))[0].rolled_back_to == 2
    assert (await runtime.replay(rolled.run_id)).is_clean


async def test_a_rollback_that_was_cancelled_before_it_took_the_state_in_changes_nothing(
    open_runtime, monkeypatch
):
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await answered(runtime, run)
    before = await run.result(timeout=10)
    engine = runtime.engine
    _preview, found = await branches.preview_rollback(engine, TenantId("default"), ThreadId("t"), 2)
    new = branches._new_rollback(engine, found, TenantId("default"), by="ada", reason="")  # noqa: SLF001
    from msgspec import structs

    later = structs.replace(new, ready_at_us=engine.now_us() + 60_000_000)
    await engine.starts.submit(later)
    await runtime.cancel(new.run_id)
    await resting(await runtime.get(new.run_id), RunStatus.CANCELLED)
    assert await runtime.state("t") == before
    again = await runtime.start("orders", {}, thread="t")
    await answered(runtime, again)
    assert len((await again.result(timeout=10)).notes) == 6


async def test_a_failed_run_can_be_rolled_back_and_whole_copies_are_right(
    open_runtime, monkeypatch
):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 200)
    graph = Graph(Order, name="growing")

    @graph.node
    async def grow(state: Order) -> dict:
        if state.order_id == "bad":
            raise LookupError("bad")
        return {"notes": ["x" * 50], "total": 1, "details": {str(state.total): [state.total]}}

    graph.edge(START, grow)
    runtime = await open_runtime(graph)
    states = {}

    async def go_on(order_id):
        run = await runtime.start(graph, {"order_id": order_id}, thread="t")
        try:
            await run.result(timeout=10)
        except RunFailed:
            assert order_id == "bad"

    for number in range(12):
        await go_on("bad" if number == 5 else f"o-{number}")
    for each in await runtime.history("t"):
        states[each.id] = await runtime.state("t", at=each.id)
    row = await runtime.engine.store.read_thread(TenantId("default"), ThreadId("t"))
    assert row.base_ordinal > 4
    for at in (3, 9, 11, 2):
        found = await runtime.rollback("t", at=at, by="ada")
        assert await runtime.state("t") == states[at]
        states[found.new_checkpoint] = states[at]
        await go_on("more")
        assert (await runtime.state("t")).total == states[at].total + 1
    for at, state in states.items():
        assert await runtime.state("t", at=at) == state
