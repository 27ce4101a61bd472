"""Waiting: nothing is held while a run waits, and nothing that ran before runs again."""

import asyncio
import datetime as dt
from dataclasses import dataclass
from functools import partial

import pydantic
import pytest

from perdure import (
    START,
    AlreadyAnswered,
    AskExpired,
    ChildFailed,
    Context,
    Graph,
    ReceiveTimedOut,
    RunCancelled,
    RunFailed,
    effect,
)
from perdure.errors import NotFound, RunFinal, StartKeyReused, ThreadBusy, UsageError
from tests.engine.one_node import State
from tests.engine.one_node import one_node as one_node_of
from tests.engine.polled import asked as only_ask
from tests.engine.polled import let_go
from tests.engine.polled import reached as until

one_node = partial(one_node_of, name="waits")


@dataclass
class Verdict:
    granted: bool
    note: str = ""


class Model(pydantic.BaseModel):
    granted: bool


@pytest.mark.parametrize(
    ("schema", "given", "expected"),
    [
        (Verdict, {"granted": True}, Verdict(True)),
        (Verdict, Verdict(False, "no"), Verdict(False, "no")),
        (Model, {"granted": True}, Model(granted=True)),
        (bool, True, True),
        (str, "yes", "yes"),
        (None, {"any": [1]}, {"any": [1]}),
        ({"type": "integer"}, 3, 3),
    ],
)
async def test_an_answer_comes_back_as_the_type_that_was_asked_for(
    open_runtime, schema, given, expected
):
    got = []

    async def body(ctx):
        answer = await ctx.ask("May I?", schema=schema)
        got.append(answer)

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    ask = await only_ask(runtime)
    assert (ask.question, ask.run_id) == ("May I?", run.id)
    await runtime.answer(ask.id, given, by="ann")
    await run.result(timeout=10)
    assert got[-1].value == expected
    assert type(got[-1].value) is type(expected)
    assert got[-1].by == "ann"
    assert got[-1].at.tzinfo is not None


async def test_a_waiting_run_holds_no_lease_and_repeats_nothing(open_runtime):
    calls = []

    @effect(kind="pure")
    async def look() -> int:
        calls.append(1)
        return len(calls)

    async def body(ctx):
        first = await ctx.call(look)
        now = ctx.now()
        chance = ctx.random()
        answer = await ctx.ask("May I?", schema=bool)
        assert ctx.now() >= now
        return first, now.isoformat(), chance, answer.value

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    row = await until(run, "waiting")
    assert row.holder is None
    assert row.waits[0].kind == "approval"
    await let_go(runtime)
    before = [e.body for e in await runtime.events(run.id) if e.kind == "noted"]
    await runtime.answer((await only_ask(runtime)).id, True, by="ann")
    await run.result(timeout=10)
    after = [e.body for e in await runtime.events(run.id) if e.kind == "noted"]
    assert after[0] == before[0]
    assert calls == [1]


async def test_the_second_answer_is_refused_with_the_first_ones_record(open_runtime):
    async def body(ctx):
        return (await ctx.ask("May I?")).value

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    ask = await only_ask(runtime)
    outcomes = await asyncio.gather(
        *(runtime.answer(ask.id, f"answer {n}", by=f"person {n}") for n in range(5)),
        return_exceptions=True,
    )
    refused = [o for o in outcomes if isinstance(o, AlreadyAnswered)]
    assert len(refused) == 4
    result = await run.result(timeout=10)
    assert refused[0].fields["value"] == result.results[0]


async def test_an_answer_that_does_not_fit_leaves_the_ask_open(open_runtime):
    async def body(ctx):
        return (await ctx.ask("May I?", schema=Verdict)).value.granted

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    ask = await only_ask(runtime)
    for bad in ({"granted": "perhaps"}, {}, 5):
        with pytest.raises(UsageError, match="stays open"):
            await runtime.answer(ask.id, bad, by="ann")
    with pytest.raises(UsageError, match="who answers"):
        await runtime.answer(ask.id, {"granted": True}, by="")
    await runtime.answer(ask.id, {"granted": True}, by="ann")
    assert (await run.result(timeout=10)).results == ["True"]


async def test_an_ask_expires_or_takes_its_default(open_runtime):
    async def body(ctx):
        answer = await ctx.ask("First?", expires_in=0.3, default="nobody came")
        try:
            await ctx.ask("Second?", expires_in=dt.timedelta(seconds=0.3))
        except AskExpired as error:
            return answer.value, answer.by, error.fields["question"]

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    assert (await run.result(timeout=10)).results == ["('nobody came', 'default', 'Second?')"]
    states = [ask.state for ask in await runtime.asks(open=False)]
    assert states == ["expired", "expired"]


async def test_an_answer_after_the_expiry_is_refused(open_runtime):
    async def body(ctx):
        return (await ctx.ask("May I?", expires_in=0.01, default="late")).value

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    await run.result(timeout=10)
    [ask] = await runtime.asks(open=False)
    with pytest.raises(AlreadyAnswered, match="expired"):
        await runtime.answer(ask.id, "too late", by="ann")


async def test_signals_are_kept_in_order_even_if_they_come_early(open_runtime):
    async def body(ctx):
        await ctx.receive("go")
        return [await ctx.receive("item") for _ in range(3)]

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    for n in range(3):
        await run.signal("item", n)
    await run.signal("go")
    assert (await run.result(timeout=10)).results == ["[0, 1, 2]"]


async def test_receive_times_out(open_workers, clock):
    async def body(ctx):
        try:
            await ctx.receive("never", timeout=300)
        except ReceiveTimedOut:
            return "gave up"

    [runtime] = await open_workers(1, one_node(body))
    run = await runtime.start("waits", {})
    row = await until(run, "waiting")
    assert row.waits[0].kind == "signal"
    async with clock.autojump():
        assert (await run.result()).results == ["gave up"]


@pytest.mark.parametrize("length", [0, 0.01, 0.3])
async def test_sleep_of_any_length(open_runtime, length):
    loop = asyncio.get_running_loop()
    begun = []

    async def body(ctx):
        begun.append(loop.time())
        await ctx.sleep(length)
        return loop.time() - begun[0]

    runtime = await open_runtime(one_node(body))
    result = await (await runtime.start("waits", {})).result(timeout=10)
    assert float(result.results[0]) >= length


async def test_waits_of_one_node_may_overlap(open_runtime):
    async def body(ctx):
        async def ask(n):
            return (await ctx.ask(f"Question {n}?", schema=int)).value

        return await asyncio.gather(ask(1), ask(2), ctx.receive("s"))

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    await until(run, "waiting")
    asks = await runtime.asks()
    assert len(asks) == 2
    await runtime.answer(asks[1].id, 20, by="ann")
    await run.signal("s", 30)
    await asyncio.sleep(0.05)
    await runtime.answer(asks[0].id, 10, by="ann")
    assert (await run.result(timeout=10)).results == ["[10, 20, 30]"]


async def test_a_question_in_one_parallel_node_repeats_none_of_the_others(open_runtime):
    calls = []

    @effect(kind="keyed")
    async def act(*, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        return "acted"

    graph = Graph(State, name="parallel")

    @graph.node
    async def asks(state: State, ctx: Context) -> dict:
        return {"results": [(await ctx.ask("May I?")).value]}

    @graph.node
    async def acts(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(act)]}

    graph.edge(START, asks)
    graph.edge(START, acts)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    await until(run, "waiting")
    await runtime.answer((await only_ask(runtime)).id, "yes", by="ann")
    assert (await run.result(timeout=10)).results == ["yes", "acted"]
    assert len(calls) == 1


async def test_a_child_run_gives_its_state_to_its_parent(open_runtime):
    child_graph = one_node(lambda ctx: ctx.receive("go"), name="child")

    async def body(ctx):
        child = await ctx.spawn(child_graph, {"results": ["given"]})
        return child.id, (await child.result()).results

    runtime = await open_runtime(one_node(body), child_graph)
    run = await runtime.start("waits", {})
    row = await until(run, "waiting")
    assert row.waits[0].kind == "child"
    child = await runtime.get(row.waits[0].subject)
    assert (await child.row()).parent == run.id
    await child.signal("go", "went")
    assert (await run.result(timeout=10)).results == [str((child.id, ["given", "went"]))]


async def test_a_failed_child_is_an_error_in_its_parent(open_runtime):
    async def fails(ctx):
        raise ValueError("broken")

    child_graph = one_node(fails, name="child")

    async def body(ctx):
        try:
            await (await ctx.spawn(child_graph, {})).result()
        except ChildFailed as error:
            return error.fields["status"]

    runtime = await open_runtime(one_node(body), child_graph)
    assert (await (await runtime.start("waits", {})).result(timeout=10)).results == ["failed"]


async def test_cancelling_a_parent_cancels_its_children(open_runtime):
    child_graph = one_node(lambda ctx: ctx.receive("never"), name="child")

    async def body(ctx):
        return await (await ctx.spawn(child_graph, {})).result()

    runtime = await open_runtime(one_node(body), child_graph)
    run = await runtime.start("waits", {})
    row = await until(run, "waiting")
    child = await runtime.get(row.waits[0].subject)
    await until(child, "waiting")
    await run.cancel(by="ann")
    with pytest.raises(RunCancelled):
        await run.result(timeout=10)
    await until(child, "cancelled")


async def test_one_thread_runs_one_run_at_a_time(open_runtime):
    graph = one_node(lambda ctx: ctx.receive("go"))
    runtime = await open_runtime(graph)
    first = await runtime.start(graph, {}, thread="t")
    second = await runtime.start(graph, {}, thread="t")
    await until(first, "waiting")
    assert (await second.row()).waits[0].kind == "thread"
    with pytest.raises(ThreadBusy, match="t"):
        await runtime.start(graph, {}, thread="t", on_busy="reject")
    await second.signal("go", 2)
    await first.signal("go", 1)
    assert (await first.result(timeout=10)).results == ["1"]
    assert (await second.result(timeout=10)).results == ["1", "2"]


async def test_on_busy_cancel_cancels_the_first(open_runtime):
    graph = one_node(lambda ctx: ctx.receive("go"))
    runtime = await open_runtime(graph)
    first = await runtime.start(graph, {}, thread="t")
    await until(first, "waiting")
    second = await runtime.start(graph, {}, thread="t", on_busy="cancel")
    with pytest.raises(RunCancelled):
        await first.result(timeout=10)
    await second.signal("go", 2)
    assert (await second.result(timeout=10)).results == ["2"]


async def test_a_start_key_starts_once(open_runtime):
    graph = one_node(lambda ctx: ctx.receive("go"))
    runtime = await open_runtime(graph)
    runs = await asyncio.gather(*(runtime.start(graph, {}, key="k") for _ in range(10)))
    assert len({run.id for run in runs}) == 1
    with pytest.raises(StartKeyReused):
        await runtime.start(graph, {"results": ["other"]}, key="k")
    assert len(await runtime.runs()) == 1


async def test_a_delayed_start_is_not_early(open_runtime):
    graph = one_node(lambda ctx: asyncio.sleep(0))
    runtime = await open_runtime(graph)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    run = await runtime.start(graph, {}, delay=0.3)
    assert await run.status() == "pending"
    await run.result(timeout=10)
    assert loop.time() - begun >= 0.29


async def test_cancel_ends_a_waiting_a_queued_and_a_running_run(open_runtime):
    begun = asyncio.Event()

    async def body(ctx):
        begun.set()
        await asyncio.sleep(30)

    waiting_graph = one_node(lambda ctx: ctx.receive("never"), name="waiting")
    running_graph = one_node(body, name="running")
    runtime = await open_runtime(waiting_graph, running_graph)
    waiting = await runtime.start(waiting_graph, {}, thread="t")
    queued = await runtime.start(waiting_graph, {}, thread="t")
    running = await runtime.start(running_graph, {})
    await until(waiting, "waiting")
    await begun.wait()
    for run in (queued, running, waiting):
        await run.cancel(by="ann")
    for run in (running, waiting, queued):
        with pytest.raises(RunCancelled, match="ann"):
            await run.result(timeout=10)
    with pytest.raises(RunFinal):
        await waiting.cancel()
    with pytest.raises(RunFinal):
        await waiting.signal("x")


async def test_unknown_things_are_named(open_runtime):
    runtime = await open_runtime(one_node(lambda ctx: ctx.receive("x")))
    for call in (
        runtime.get("r_none"),
        runtime.state("nowhere"),
        runtime.history("nowhere"),
        runtime.answer("a_none", 1, by="x"),
        runtime.resolve("e_none", happened=True, by="x"),
        runtime.signal("r_none", "t"),
        runtime.cancel("r_none"),
        runtime.start("no-such-graph", {}),
    ):
        with pytest.raises(NotFound, match=r"none|nowhere|no-such-graph"):
            await call


async def test_emitted_chunks_are_in_the_stream(open_runtime):
    async def body(ctx):
        for n in range(3):
            await ctx.emit({"n": n})
        ctx.emit("last")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("waits", {})
    chunks = [event.chunk async for event in run.events() if event.kind == "emitted"]
    assert chunks == [{"n": 0}, {"n": 1}, {"n": 2}, "last"]
    seqs = [event.seq for event in await runtime.events(run.id)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert [e.seq for e in await runtime.events(run.id, after=3)] == seqs[3:]


async def test_a_run_goes_on_in_another_runtime_after_a_drain(open_runtime, url, tmp_path):
    if url.startswith("memory"):
        url = f"memory://{tmp_path.name}"
    begun = asyncio.Event()
    calls = []

    @effect(kind="keyed")
    async def act(n: int, *, idempotency_key: str) -> int:
        calls.append(n)
        return n

    graph = Graph(State, name="drained")

    @graph.node
    async def first(state: State, ctx: Context) -> dict:
        await ctx.call(act, 1)
        begun.set()
        await asyncio.sleep(0.05)
        return {"results": ["first"]}

    @graph.node
    async def second(state: State, ctx: Context) -> dict:
        await ctx.call(act, 2)
        return {"results": ["second"]}

    graph.edge(START, first)
    graph.edge(first, second)
    one = await open_runtime(graph, url=url)
    two = await open_runtime(graph, url=url, worker=False)
    run = await one.start(graph, {})
    await begun.wait()
    await one.worker.drain(5)
    row = await two.read_row(run.id)
    assert (row.status, row.holder) == ("pending", None)
    three = await open_runtime(graph, url=url)
    result = await (await three.get(run.id)).result(timeout=10)
    assert result.results == ["first", "second"]
    assert calls == [1, 2]


async def test_a_failure_in_one_parallel_node_fails_the_run(open_runtime):
    graph = Graph(State, name="halffail")

    @graph.node
    async def fails(state: State) -> dict:
        raise ValueError("broken")

    @graph.node
    async def waits(state: State, ctx: Context) -> dict:
        await ctx.receive("never")
        return {}

    graph.edge(START, fails)
    graph.edge(START, waits)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {})
    with pytest.raises(RunFailed, match="broken"):
        await run.result(timeout=10)
