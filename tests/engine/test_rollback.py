"""Rollbacks: what they put back, what they leave, and whoever dies in between."""

from typing import Any, NotRequired, TypedDict

import pytest
from msgspec import structs

from perdure import (
    START,
    Context,
    Graph,
    NotFound,
    RunFailed,
    ThreadBusy,
    UsageError,
    effect,
)
from perdure.codec import erase_frame
from perdure.engine import branches
from perdure.errors import NeedsDecision
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import Erased, Erasure, FrameErasure, RunStatus
from perdure.sandbox import DirectorySandboxes
from tests.engine.orders import SENT, Order, lost, orders
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
    await resting(other, RunStatus.NEEDS_DECISION)
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
    with pytest.raises(ThreadBusy, match=r"unfinished runs: r_.* \(waiting\)"):
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

    if is_taken:
        runtime.engine.lease_ttl_s, ttl_s = 0.3, runtime.engine.lease_ttl_s
        monkeypatch.setattr(branches, "write_released", die)
        with pytest.raises(Died):
            await runtime.rollback("t", at=2, by="ada")
        runtime.engine.lease_ttl_s = ttl_s
    else:
        submit = runtime.engine.starts.submit

        async def submit_only(new):
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
    new = branches._new_rollback(engine, found, TenantId("default"), by="ada", reason="")
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


async def test_an_effect_whose_outcome_was_pruned_is_shown_as_it_stands(done):
    """Its intent is in the journal still; the ledger knows what became of it."""
    runtime, run = done
    store = runtime.engine.store
    confirmed = [e.seq for e in await runtime.events(run.id) if e.kind == "effect_confirmed"]
    frames = await store.read_frames(RunId(run.id))
    gone = [frame for frame in frames if frame.first_seq <= confirmed[0] < after(frame)]
    intents = [e.seq for e in await runtime.events(run.id) if e.kind == "effect_intended"]
    assert not any(gone[0].first_seq <= intents[0] < after(frame) for frame in gone)
    row = await runtime.read_row(run.id)
    outcome = await store.erase(
        Erasure(
            run_id=row.run_id,
            tenant=row.tenant,
            thread=row.thread,
            at_us=runtime.engine.now_us(),
            frames=tuple(
                FrameErasure(frame.first_seq, frame.hash, erase_frame(frame.body)) for frame in gone
            ),
        )
    )
    assert isinstance(outcome, Erased)
    fork = await runtime.preview_fork("t", at=2)
    assert {each.name: each.state for each in fork.again}["pay"] == "confirmed"
    back = await runtime.preview_rollback("t", at=2)
    states = {each.effect.name: each.effect.state for each in back.not_undone}
    assert states["pay"] == "confirmed"


def after(frame):
    return frame.first_seq + frame.count
