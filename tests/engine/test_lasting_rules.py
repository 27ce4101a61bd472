"""Rules that were once broken: each test failed before its fix."""

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pytest

from perdure import (
    START,
    Absent,
    Context,
    EffectFailed,
    Found,
    Graph,
    GraphInvalid,
    NeedsDecision,
    Retry,
    RunFailed,
    Unknown,
    WorkerSettings,
    append,
    effect,
)
from perdure.sandbox import DirectorySandboxes
from tests.engine.one_node import one_node as one_node_of
from tests.engine.polled import let_go

FAST = Retry(max_attempts=3, base_s=0.001, cap_s=0.002)


@dataclass
class State:
    results: Annotated[list[str], append] = field(default_factory=list)
    note: str = ""


one_node = partial(one_node_of, name="rules", state_type=State)


async def decided_until_end(runtime, run, happened):
    for answer in happened:
        with pytest.raises(NeedsDecision):
            await run.result(timeout=10)
        [entry] = await runtime.effects("uncertain")
        await runtime.resolve(entry.id, happened=answer, result={"told": 1}, by="ann")
    return (await run.result(timeout=10)).results


@pytest.mark.parametrize("annotation", [Any, None, dict, "missing"])
async def test_a_decision_fits_any_annotation(open_runtime, annotation):
    async def act():
        raise ConnectionError

    if annotation != "missing":
        act.__annotations__["return"] = annotation
    runtime = await open_runtime(one_node(lambda ctx: ctx.call(effect(act, name="act"))))
    run = await runtime.start("rules", {})
    assert await decided_until_end(runtime, run, [True]) == ["{'told': 1}"]


async def test_every_attempt_of_an_effect_can_be_decided(open_runtime):
    calls = []

    @effect
    async def act() -> dict:
        calls.append(1)
        raise ConnectionError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(act)))
    run = await runtime.start("rules", {})
    assert await decided_until_end(runtime, run, [False, False, True]) == ["{'told': 1}"]
    assert len(calls) == 3


async def test_a_repeated_start_gives_the_first_run_also_later(open_runtime):
    async def body(ctx):
        return "ok"

    runtime = await open_runtime(one_node(body))
    first = await runtime.start("rules", State(note="o-7"), thread="t", key="k")
    await first.result(timeout=10)
    again = await runtime.start("rules", State(note="o-7"), thread="t", key="k")
    assert again.id == first.id


def contained_graph():
    @effect(kind="contained")
    async def write(line: str, *, sandbox) -> str:
        with (sandbox.path / "log").open("a") as log:
            log.write(line)
        return (sandbox.path / "log").read_text()

    graph = Graph(State, name="contained")

    @graph.node
    async def one(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(write, f"1{state.note}")]}

    @graph.node
    async def two(state: State, ctx: Context) -> dict:
        return {"results": [await ctx.call(write, f"2{state.note}")]}

    graph.edge(START, one)
    graph.edge(one, two)
    return graph


async def test_the_sandbox_goes_on_with_its_thread_and_with_a_fork(open_runtime, tmp_path):
    graph = contained_graph()
    runtime = await open_runtime(graph, sandbox=DirectorySandboxes(tmp_path / "boxes"))
    await (await runtime.start(graph, {"note": "a"}, thread="t")).result(timeout=10)
    second = await (await runtime.start(graph, {"note": "b"}, thread="t")).result(timeout=10)
    assert second.results == ["1a", "1a2a", "1a2a1b", "1a2a1b2b"]
    forked = await runtime.fork("t", at=2, update={"note": "c"})
    assert (await forked.result(timeout=10)).results == ["1a", "1a2c"]


async def test_a_lookup_that_can_not_tell_backs_off_and_ends_at_a_person(open_runtime):
    asked = []

    async def reconcile(request, key):
        asked.append(1)
        return Unknown("lagging")

    # The backoff is longer than what stays in memory: the node is executed again each time.
    patient = Retry(max_attempts=3, base_s=0.5, cap_s=0.6)

    @effect(kind="lookup", reconcile=reconcile, retry=patient)
    async def book() -> str:
        raise TimeoutError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(book)))
    run = await runtime.start("rules", {})
    with pytest.raises(NeedsDecision, match="lagging"):
        await run.result(timeout=15)
    assert len(asked) == 3


async def test_a_lookup_that_is_absent_keeps_to_its_retry(open_runtime):
    sent = []

    async def reconcile(request, key):
        return Absent()

    @effect(kind="lookup", reconcile=reconcile, retry=FAST)
    async def book() -> str:
        sent.append(1)
        raise ConnectionError("down")

    async def body(ctx):
        with pytest.raises(EffectFailed, match="down"):
            await ctx.call(book)
        return "handled"

    runtime = await open_runtime(one_node(body))
    assert (await (await runtime.start("rules", {})).result(timeout=10)).results == ["handled"]
    assert len(sent) == 3


async def test_a_reconcile_that_answers_nonsense_is_said_at_once(open_runtime):
    async def reconcile(request, key):
        return "found it"

    @effect(kind="lookup", reconcile=reconcile)
    async def book() -> str:
        raise TimeoutError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(book)))
    run = await runtime.start("rules", {})
    with pytest.raises(NeedsDecision, match=r"must return Found\(result\)"):
        await run.result(timeout=10)


async def test_map_records_a_plain_function_and_not_one_with_ctx(open_runtime):
    plain, composed = [], []

    async def send(item: int) -> int:
        plain.append(item)
        return item

    async def compose(item: int, ctx: Context) -> int:
        composed.append(item)
        return await ctx.call(send, item * 10)

    async def body(ctx):
        first = await ctx.map(send, range(3))
        second = await ctx.map(compose, range(1, 3))
        third = await ctx.map(lambda item: ctx.call(send, item + 100), range(2))
        await ctx.sleep(0.3)
        return first, second, third

    runtime = await open_runtime(one_node(body))
    result = await (await runtime.start("rules", {})).result(timeout=10)
    assert result.results == ["([0, 1, 2], [10, 20], [100, 101])"]
    assert plain == [0, 1, 2, 10, 20, 100, 101]
    assert composed == [1, 2, 1, 2]


async def test_assigning_to_the_state_is_refused(open_runtime):
    graph = Graph(State, name="assigning")

    @graph.node
    async def node(state: State) -> None:
        state.note = "lost at the next crash"

    graph.edge(START, node)
    runtime = await open_runtime(graph)
    with pytest.raises(RunFailed, match="'note' in place"):
        await (await runtime.start(graph, {})).result(timeout=10)


async def test_what_a_node_does_not_await_fails_it(open_runtime):
    is_sent, may_end = asyncio.Event(), asyncio.Event()

    @effect(kind="keyed")
    async def slow(*, idempotency_key: str) -> str:
        is_sent.set()
        await may_end.wait()
        return "done"

    tasks = []

    async def body(ctx):
        tasks.append(asyncio.create_task(ctx.call(slow)))
        await is_sent.wait()
        return "left early"

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("rules", {})
    with pytest.raises(RunFailed, match="await them"):
        await run.result(timeout=10)
    may_end.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    [entry] = await runtime.effects(None, run_id=run.id)
    assert entry.state == "uncertain"
    assert [e.seq for e in await runtime.events(run.id)][-1] == (await run.row()).last_seq


def test_functions_that_are_called_back_must_take_what_they_get():
    async def undo(refund_id):
        return None

    async def reconcile(request):
        return Found(1)

    with pytest.raises(GraphInvalid, match=r"compensate= must take \(request, result\)"):

        @effect(kind="keyed", compensate=undo)
        async def pay(*, idempotency_key: str) -> str:
            return ""

    with pytest.raises(GraphInvalid, match=r"reconcile= must take \(request, key\)"):

        @effect(kind="lookup", reconcile=reconcile)
        async def book() -> str:
            return ""


async def test_checkpoint_ids_can_be_compared(open_runtime):
    async def body(ctx):
        return "x"

    runtime = await open_runtime(one_node(body))
    await (await runtime.start("rules", {}, thread="t")).result(timeout=10)
    added = [{"op": "add", "path": "/results/-", "value": "x"}]
    assert await runtime.diff(1, 2, thread="t") == added


async def test_timeouts_are_timeout_errors(open_runtime):
    async def body(ctx):
        with pytest.raises(TimeoutError):
            await ctx.receive("never", timeout=0.01)
        await ctx.receive("never")

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("rules", {})
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.3)


async def test_state_is_readable_without_its_graph(open_runtime, tmp_path):
    url = f"sqlite:///{tmp_path}/plain.db"

    @dataclass
    class Point:
        x: int

    @dataclass
    class Typed:
        at: Point | None = None

    graph = Graph(Typed, name="typed")

    @graph.node
    async def node(state: Typed) -> dict:
        return {"at": Point(3)}

    graph.edge(START, node)
    runtime = await open_runtime(graph, url=url)
    await (await runtime.start(graph, {}, thread="t")).result(timeout=10)
    other = await open_runtime(url=url, worker=False)
    assert (await other.state("t"))["at"]["x"] == 3


async def test_a_worker_that_blocks_beyond_its_lease_takes_over_from_itself(open_runtime):
    sent, executions = [], []

    @effect(kind="keyed")
    async def send(*, idempotency_key: str) -> str:
        sent.append(idempotency_key)
        return "sent"

    async def body(ctx):
        executions.append(1)
        if len(executions) == 1:
            time.sleep(1.0)  # noqa: ASYNC251  # what this is about: nothing else can run
        return await ctx.call(send)

    settings = WorkerSettings(lease_ttl_s=0.4, heartbeat_s=0.1)
    runtime = await open_runtime(one_node(body), worker=settings)
    run = await runtime.start("rules", {})
    assert (await run.result(timeout=15)).results == ["sent"]
    assert len(sent) == 1
    await let_go(runtime)


async def test_a_due_run_of_a_version_nobody_executes_is_said(open_runtime, tmp_path, caplog):
    url = f"sqlite:///{tmp_path}/versions.db"
    old = Graph(State, name="versioned", version=1)
    new = Graph(State, name="versioned", version=2)
    for graph in (old, new):

        @graph.node
        async def act(state: State) -> dict:
            return {}

        graph.edge(START, act)
    starter = await open_runtime(old, url=url, worker=False)
    await starter.start(old, {})
    settings = WorkerSettings(heartbeat_s=0.05, lease_ttl_s=1)
    await open_runtime(new, url=url, worker=settings)
    while "versioned v1" not in caplog.text:  # noqa: ASYNC110  # a log tells no event
        await asyncio.sleep(0.02)
    assert caplog.text.count("versioned v1") == 1


async def test_a_decision_that_does_not_fit_asks_again(open_runtime):
    @effect
    async def act() -> int:
        raise ConnectionError

    runtime = await open_runtime(one_node(lambda ctx: ctx.call(act)))
    run = await runtime.start("rules", {})
    for result in ("abc", None, 7):
        with pytest.raises(NeedsDecision):
            await run.result(timeout=10)
        [entry] = await runtime.effects("uncertain")
        await runtime.resolve(entry.id, happened=True, result=result, by="ann")
    assert (await run.result(timeout=10)).results == ["7"]


async def test_a_failure_says_where_in_the_users_code(open_runtime):
    class Unreadable(Exception):
        def __str__(self):
            raise RuntimeError

    async def body(ctx):
        raise Unreadable

    runtime = await open_runtime(one_node(body))
    run = await runtime.start("rules", {})
    with pytest.raises(RunFailed, match=r"test_lasting_rules\.py:\d+ in body.*can't be read"):
        await run.result(timeout=10)
