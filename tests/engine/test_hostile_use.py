"""Hostile use that once broke a guarantee: each test failed before its fix."""

import asyncio
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import pytest

from perdure import (
    START,
    Absent,
    Context,
    EffectFailed,
    Found,
    Graph,
    NeedsDecision,
    Rejected,
    Retry,
    RunCancelled,
    RunFailed,
    Runtime,
    WorkerSettings,
    append,
    effect,
)
from perdure.errors import SettingInvalid, StoreUnavailable, UsageError
from tests.engine.one_node import State
from tests.engine.one_node import one_node as one_node_of

FAST = Retry(max_attempts=4, base_s=0.01, cap_s=0.02)


one_node = partial(one_node_of, name="hostile")


async def test_a_plain_effect_that_outlives_its_timeout_is_not_sent_again(open_runtime):
    booked = []

    async def reconcile(request, key):
        return Found("found") if booked else Absent()

    @effect(kind="lookup", reconcile=reconcile, timeout_s=0.1, retry=FAST)
    def book() -> str:
        time.sleep(0.5)
        booked.append(1)
        return "booked"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(book)))
    result = await (await runtime.start("hostile", {})).result(timeout=15)
    assert result.results == ["booked"]
    assert booked == [1]


@pytest.mark.parametrize("plain", [True, False])
async def test_stop_iteration_fails_the_run(open_runtime, plain):
    graph = Graph(State, name="stopping")

    def body(state: State):
        return {"results": [next(iter([]))]}

    async def async_body(state: State):
        return {"results": [next(iter([]))]}

    graph.node(body if plain else async_body, name="node")
    graph.edge(START, "node")
    runtime = await open_runtime(graph)
    with pytest.raises(RunFailed, match="StopIteration"):
        await (await runtime.start(graph, {})).result(timeout=10)


async def test_a_childs_result_may_be_awaited_twice_at_once(open_runtime):
    kid = one_node(lambda ctx: ctx.receive("go"), name="kid")

    async def body(ctx):
        child = await ctx.spawn(kid, {})
        both = await asyncio.gather(child.result(), child.result())
        return [state.results for state in both]

    runtime = await open_runtime(one_node(body), kid)
    run = await runtime.start("hostile", {})
    while not (waits := (await run.row()).waits):  # noqa: ASYNC110  # another process could do it
        await asyncio.sleep(0.01)
    await (await runtime.get(waits[0].subject)).signal("go", 1)
    assert (await run.result(timeout=10)).results == ["[['1'], ['1']]"]


async def test_texts_that_can_not_be_stored_are_stored_all_the_same(open_runtime):
    @effect
    async def act() -> str:
        raise ConnectionError("lost \udcff")

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(act)))
    run = await runtime.start("hostile", {})
    with pytest.raises(NeedsDecision, match="udcff"):
        await run.result(timeout=10)
    [entry] = await runtime.effects("uncertain", run_id=run.id)
    assert entry.failure.type == "ConnectionError"


async def test_one_business_key_twice_at_once_is_one_effect(open_runtime):
    calls = []

    @effect(kind="keyed")
    async def pay(amount: int, *, idempotency_key: str) -> int:
        calls.append(idempotency_key)
        await asyncio.sleep(0.02)
        return amount

    async def body(ctx):
        return await asyncio.gather(*(ctx.call(pay, 1, key="k") for _ in range(3)))

    runtime = await open_runtime(one_node(body))
    result = await (await runtime.start("hostile", {})).result(timeout=10)
    assert result.results == ["[1, 1, 1]"]
    assert calls == ["k"]


async def test_a_renamed_effect_is_a_divergence(open_runtime):
    sent = []

    def make(name):
        @effect(kind="keyed", name=name)
        async def pay(*, idempotency_key: str) -> str:
            sent.append(name)
            return name

        return pay

    names = ["old", "new", "new"]

    async def body(ctx):
        first = await ctx.call(make(names.pop(0)))
        await ctx.sleep(0.3)
        return first

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("hostile", {})
    with pytest.raises(NeedsDecision, match="ReplayDiverged"):
        await run.result(timeout=10)
    assert sent == ["old"]


async def test_more_effects_than_one_page_are_all_compensated(open_runtime):
    undone = []

    async def undo(request, result):
        undone.append(request.args[0])

    @effect(kind="keyed", compensate=undo)
    async def act(n: int, *, idempotency_key: str) -> int:
        return n

    async def body(ctx):
        await ctx.map(act, range(1050))
        await ctx.receive("never")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("hostile", {})
    while await run.status() != "waiting":  # noqa: ASYNC110  # another process could do it
        await asyncio.sleep(0.02)
    await run.cancel(compensate=True, by="ann")
    with pytest.raises(RunCancelled):
        await run.result(timeout=15)
    assert len(undone) == 1050


async def test_a_compensation_keeps_to_its_kind_and_timeout(open_runtime):
    sent, asked = [], []

    async def reconcile(request, key):
        asked.append(key)
        return Found()

    @effect(kind="lookup", reconcile=reconcile, timeout_s=0.05, retry=FAST)
    async def undo(request, result):
        sent.append(1)
        await asyncio.sleep(30)

    @effect(kind="keyed", compensate=undo)
    async def act(*, idempotency_key: str) -> int:
        return 1

    async def body(ctx):
        await ctx.call(act)
        await ctx.receive("never")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("hostile", {})
    while await run.status() != "waiting":  # noqa: ASYNC110  # another process could do it
        await asyncio.sleep(0.01)
    await run.cancel(compensate=True, by="ann")
    with pytest.raises(RunCancelled):
        await run.result(timeout=15)
    assert (len(sent), len(asked)) == (1, 1)
    [entry] = await runtime.effects(None, run_id=run.id)
    assert entry.state == "compensated"


async def test_a_state_that_does_not_fit_any_more_is_parked(open_runtime, tmp_path):
    url = f"sqlite:///{tmp_path}/edited.db"

    @dataclass
    class Edited:
        needed: int
        results: Annotated[list[str], append] = field(default_factory=list)

    def graph(state_type):
        made = Graph(state_type, name="edited")

        @made.node
        async def node(state, ctx: Context) -> dict:
            await ctx.receive("go")
            return {"results": ["went"]}

        made.edge(START, node)
        return made

    first = await open_runtime(graph(State), url=url)
    run = await first.start("edited", {})
    while await run.status() != "waiting":  # noqa: ASYNC110  # another process could do it
        await asyncio.sleep(0.01)
    await first.close()
    second = await open_runtime(graph(Edited), url=url)
    again = await second.get(run.id)
    await again.signal("go")
    with pytest.raises(NeedsDecision, match="'needed' has no stored value"):
        await again.result(timeout=10)
    await second.close()
    third = await open_runtime(graph(State), url=url)
    await third.retry(run.id, by="ann")
    assert (await (await third.get(run.id)).result(timeout=10)).results == ["went"]


async def test_a_node_that_never_gives_up_does_not_keep_the_worker(open_runtime, monkeypatch):
    monkeypatch.setattr("perdure.engine.worker.CLOSE_S", 0.2)
    release, begun = threading.Event(), asyncio.Event()

    async def stubborn(given: object) -> None:
        begun.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    runtime = await open_runtime(
        stubborn, worker=WorkerSettings(drain_window_s=0.1, heartbeat_s=0.2, lease_ttl_s=1)
    )
    run = await runtime.start(stubborn)
    await begun.wait()
    await asyncio.wait_for(runtime.close(), 15)
    release.set()
    await asyncio.sleep(0.1)
    assert run.id


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"lease_ttl_s": 0.0},
        {"lease_ttl_s": float("inf")},
        {"heartbeat_s": 20.0},
        {"heartbeat_s": 0.0},
    ],
)
def test_settings_with_which_nothing_would_run_are_refused(settings):
    with pytest.raises(SettingInvalid):
        WorkerSettings(**settings)


async def test_a_priority_out_of_range_is_refused(open_runtime):
    runtime = await open_runtime(one_node(lambda ctx: ctx.receive("x")))
    with pytest.raises(SettingInvalid, match="priority"):
        await runtime.start("hostile", {}, priority=2**70)


async def test_a_removed_file_is_noticed_before_anything_is_acknowledged(open_runtime, tmp_path):
    path = tmp_path / "removed.db"
    runtime = await open_runtime(one_node(lambda ctx: ctx.receive("x")), url=f"sqlite:///{path}")
    await runtime.start("hostile", {})
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        await runtime.start("hostile", {})
    (tmp_path / "elsewhere.db").rename(path)
    await runtime.start("hostile", {})


async def test_an_effect_error_of_the_late_call_is_known(open_runtime):
    @effect(kind="keyed", timeout_s=0.05, retry=FAST)
    def slow(*, idempotency_key: str) -> str:
        time.sleep(0.3)
        raise Rejected("refused after all")

    async def body(ctx):
        with pytest.raises(EffectFailed, match="refused after all"):
            await ctx.call(slow)
        return "known"

    runtime = await open_runtime(one_node(body))
    assert (await (await runtime.start("hostile", {})).result(timeout=10)).results == ["known"]


async def test_a_runtime_is_entered_once(tmp_path):
    runtime = Runtime.open(
        f"sqlite:///{tmp_path / 'once.db'}", [one_node(lambda ctx: ctx.sleep(0))]
    )
    async with runtime:
        with pytest.raises(UsageError, match="entered once"):
            async with runtime:
                pass
        await (await runtime.start("hostile", {})).result(timeout=10)  # it still works
    with pytest.raises(UsageError, match="entered once"):
        async with runtime:
            pass


@pytest.mark.parametrize("key", ["k" * 201, "a\0b", "", 12345])
async def test_a_business_key_is_checked_as_names_are(open_runtime, key):
    sent = []

    @effect(kind="keyed")
    async def send(*, idempotency_key: str) -> str:
        sent.append(idempotency_key)
        return "sent"

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(send, key=key)))
    with pytest.raises(RunFailed, match="printable characters"):
        await (await runtime.start("hostile", {})).result(timeout=15)
    assert sent == []
