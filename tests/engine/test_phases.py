"""Checkpoints at phases: what goes by, what a takeover does again, and what it never does."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Goto, Graph, RunStatus, Runtime, Send, append, effect
from perdure.codec import decode_record, split_frame
from perdure.errors import GraphInvalid
from perdure.ids import RunId
from perdure.model import records as rec
from perdure.sandbox import DirectorySandboxes
from tests.engine.polled import answered
from tests.engine.polled import reached as resting


def largest(one: int, other: int) -> int:
    return max(one, other)


@dataclass
class Work:
    left: int = 6
    text: str = ""
    log: Annotated[list[str], append] = field(default_factory=list)
    top: Annotated[int, largest] = 0


SENT: list[int] = []
RAN: list[int] = []


@pytest.fixture(autouse=True)
def nothing_sent():
    SENT.clear()
    RAN.clear()


@effect(kind="keyed")
async def send(number: int, *, idempotency_key: str) -> str:
    SENT.append(number)
    return f"sent {number}"


def graph_of(
    checkpoints: str = "phases", *, asks_at: int | None = None, name: str = "work"
) -> Graph:
    """Return a loop of `act`, which sends, and `note`; every third `note` goes through `phase`."""
    graph = Graph(Work, name=name, checkpoints=checkpoints, step_limit=10_000)

    @graph.node
    async def act(state: Work, ctx: Context) -> dict[str, Any]:
        RAN.append(state.left)
        sent = await ctx.call(send, state.left)
        if state.left == asks_at:
            sent += f" {(await ctx.ask('Go on?', schema=bool)).value}"
        return {"text": sent * 100, "log": [sent], "top": state.left}

    @graph.node
    async def note(state: Work) -> dict[str, Any]:
        return {"left": state.left - 1, "log": [f"noted {state.left}"]}

    phase = {"phase": True} if checkpoints == "phases" else {}

    @graph.node(**phase)
    async def rest(state: Work) -> dict[str, Any]:
        return {"log": ["rest"]}

    def route(state: Work) -> str:
        if state.left == 0:
            return END
        return "rest" if state.left % 3 == 0 else "act"

    graph.edge(START, act)
    graph.edge(act, note)
    graph.branch(note, route, targets=["act", "rest", END])
    graph.edge(rest, act)
    return graph


async def leave_it(_driver) -> None:
    """Write no checkpoint when a run is let go."""


async def records_of(runtime, run_id: str) -> list[Any]:
    frames = await runtime.engine.store.read_frames(RunId(run_id))
    return [decode_record(each) for frame in frames for each in split_frame(frame.body)]


async def test_the_end_is_the_same_and_the_journal_is_smaller(open_runtime):
    every, phased = graph_of("every_step", name="every"), graph_of(name="phased")
    runtime = await open_runtime(every, phased)
    one = await runtime.start(every, {}, thread="e")
    other = await runtime.start(phased, {}, thread="p")
    assert await one.result(timeout=20) == await other.result(timeout=20)
    found = await runtime.history("p")
    assert [each.step for each in found[::-1]] == [0, 7, 13]
    assert found[0].changed == ("left", "log", "text", "top")
    kinds = [type(record) for record in await records_of(runtime, other.id)]
    assert (kinds.count(rec.NodeFinished), kinds.count(rec.EffectConfirmed)) == (0, 6)
    [_input, first, last] = (await runtime.tree("p")).runs[0].steps
    assert [node.node for node in first.nodes] == ["act", "note"] * 3 + ["rest"]
    assert len(last.nodes) == 6
    costs = [await runtime.costs(thread) for thread in ("e", "p")]
    assert sum(cost.journal_bytes for cost in costs[1]) < sum(c.journal_bytes for c in costs[0])
    assert costs[1][1].nodes == ("act", "note") * 3 + ("rest",)
    assert costs[1][1].again == ("send",) * 3


async def test_states_replays_and_forks_of_phases(open_runtime):
    runtime = await open_runtime(graph_of())
    run = await runtime.start("work", {}, thread="t")
    result = await run.result(timeout=20)
    middle = await runtime.state("t", at=2)
    assert (middle.left, middle.log[-1], middle.top) == (3, "rest", 6)
    replay = await runtime.replay(run.id)
    assert (replay.divergences, replay.nodes) == ((), 13)
    fork = await runtime.fork("t", at=2)
    assert await fork.result(timeout=20) == result
    assert SENT == [6, 5, 4, 3, 2, 1, 3, 2, 1]
    assert (await runtime.replay(fork.id)).divergences == ()
    again = await runtime.start("work", {"left": 1}, thread="t")
    assert len((await again.result(timeout=20)).log) == len(result.log) + 2


async def test_a_replay_with_other_code_says_so(open_runtime):
    runtime = await open_runtime(graph_of())
    if "memory" in runtime.engine.store.place:
        pytest.skip("one process only")
    run = await runtime.start("work", {}, thread="t")
    await run.result(timeout=20)
    other = graph_of(name="work")
    declared = next(node for node in other._declared.nodes if node.name == "note")

    async def note(state: Work) -> dict[str, Any]:
        return {"left": state.left - 1, "log": [f"NOTED {state.left}"]}

    other._declared.nodes[other._declared.nodes.index(declared)] = type(declared)(
        **{name: getattr(declared, name) for name in declared.__struct_fields__} | {"thing": note}
    )
    other._declared.edges = [
        (note if a is declared.thing else a, note if b is declared.thing else b)
        for a, b in other._declared.edges
    ]
    other._declared.branches = [
        type(each)(source="note", router=each.router, targets=each.targets)
        for each in other._declared.branches
    ]
    stranger = await open_runtime(worker=False)
    found = (await stranger.replay(run.id, other)).divergences
    assert {(each.kind.value, each.subject) for each in found} == {("state", "log")}


async def test_a_question_is_a_checkpoint_and_nothing_before_it_runs_again(open_runtime):
    runtime = await open_runtime(graph_of(asks_at=5))
    run = await runtime.start("work", {}, thread="t")
    await resting(run)
    assert RAN == [6, 5]
    state = await runtime.state("t")
    assert (state.left, state.log) == (5, ["sent 6", "noted 6"])
    assert [each.step for each in await runtime.history("t")] == [2, 0]
    await answered(runtime, run)
    result = await run.result(timeout=20)
    assert result.log[2] == "sent 5 True"
    assert RAN == [6, 5, 5, 4, 3, 2, 1]
    assert SENT == [6, 5, 4, 3, 2, 1]
    assert (await runtime.replay(run.id)).divergences == ()


async def test_a_failure_is_a_checkpoint(open_runtime):
    graph = Graph(Work, name="failing", checkpoints="phases")

    @graph.node
    async def first(state: Work) -> dict[str, Any]:
        return {"log": ["first"]}

    @graph.node
    async def second(state: Work) -> dict[str, Any]:
        message = "no"
        raise ValueError(message)

    graph.edge(START, first)
    graph.edge(first, second)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {}, thread="t")
    while not (await run.status()).is_final:  # the store tells
        await runtime.engine.services.clock.sleep(0.01)
    assert await run.status() is RunStatus.FAILED
    assert (await runtime.state("t")).log == ["first"]


async def test_parallel_nodes_and_subgraphs_begin_at_a_checkpoint(open_runtime):
    inner = Graph(Work, name="inner", checkpoints="phases")

    @inner.node
    async def inside(state: Work) -> dict[str, Any]:
        return {"log": ["inside"]}

    inner.edge(START, inside)
    graph = Graph(Work, name="wide", checkpoints="phases")

    @graph.node
    async def one(state: Work) -> dict[str, Any]:
        return {"log": ["one"]}

    @graph.node
    async def two(state: Work) -> Goto:
        return Goto("spread", {"log": ["two"]})

    @graph.node
    async def spread(state: Work) -> dict[str, Any]:
        return {"log": ["spread"]}

    @graph.node
    async def part(number: int) -> dict[str, Any]:
        return {"log": [f"part {number}"]}

    @graph.node
    async def three(state: Work) -> dict[str, Any]:
        return {"log": ["three"]}

    graph.node(inner, name="sub")
    graph.edge(START, one)
    graph.edge(one, two)
    graph.branch(spread, lambda _state: [Send("part", n) for n in range(2)], targets=["part"])
    graph.edge(part, three)
    graph.edge(three, "sub")
    graph.edge("sub", END)
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {}, thread="t")
    result = await run.result(timeout=20)
    assert result.log == ["one", "two", "spread", "part 0", "part 1", "three", "inside"]
    assert [each.step for each in (await runtime.history("t"))[::-1]] == [0, 3, 4, 5, 6]
    assert (await runtime.replay(run.id)).divergences == ()


async def test_a_long_way_without_a_phase_has_checkpoints_all_the_same(open_runtime, monkeypatch):
    monkeypatch.setattr("perdure.engine.phases.PHASE_STEPS_MAX", 4)
    runtime = await open_runtime(graph_of())
    run = await runtime.start("work", {"left": 2}, thread="t")
    await run.result(timeout=20)
    assert [each.step for each in (await runtime.history("t"))[::-1]] == [0, 4]
    run = await runtime.start("work", {"left": 5}, thread="u")
    await run.result(timeout=20)
    assert [each.step for each in (await runtime.history("u"))[::-1]] == [0, 4, 5, 9, 11]


def test_declarations_that_mean_nothing_are_refused():
    with pytest.raises(GraphInvalid, match="'often' is not 'every_step' or 'phases'"):
        graph_of("often").compile()
    graph = Graph(Work, name="plain")

    @graph.node(phase=True)
    async def only(state: Work) -> dict[str, Any]:
        return {}

    graph.edge(START, only)
    with pytest.raises(GraphInvalid, match="phase=True of node 'only' means nothing"):
        graph.compile()


# -- takeovers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies_at", [6, 5, 4, 3, 2, 1])
async def test_a_takeover_executes_what_went_by_again_and_repeats_no_effect(
    tmp_path, monkeypatch, dies_at
):
    """As a worker that dies leaves it: let go without the checkpoint that is written then."""
    monkeypatch.setattr("perdure.engine.driver.GraphDriver.checkpoint", leave_it)
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs=[graph_of(asks_at=dies_at)]) as runtime:
        run = await runtime.start("work", {}, thread="t")
        await resting(run)
        assert len(await runtime.history("t")) == (1 if dies_at > 3 else 2)
        assert (await runtime.replay(run.id)).divergences == ()
        story = (await runtime.tree("t")).runs[0]
        assert [node.node for node in story.under_way][-1] == "act"
        if dies_at not in {6, 3}:
            assert (await runtime.costs("t"))[-1].again == ("send",) * (3 - (dies_at - 1) % 3)
    RAN.clear()
    async with Runtime.open(url, graphs=[graph_of(asks_at=dies_at)]) as runtime:
        run = await runtime.get(run.id)
        await answered(runtime, run)
        result = await run.result(timeout=20)
        assert (result.left, result.top, len(result.log)) == (0, 6, 13)
        assert list(range(6 if dies_at > 3 else 3, 0, -1)) == RAN
        assert (await runtime.replay(run.id)).divergences == ()
        assert len(await runtime.history("t")) == 3
    assert SENT == [6, 5, 4, 3, 2, 1]


async def test_files_of_steps_that_went_by_are_there_after_a_takeover(tmp_path, monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.GraphDriver.checkpoint", leave_it)
    url, ran = f"sqlite:///{tmp_path}/store.db", []

    @effect(kind="contained")
    async def write(line: str, *, sandbox: Any) -> str:
        ran.append(line)
        with (sandbox.path / "log").open("a") as log:
            log.write(line)
        return (sandbox.path / "log").read_text()

    graph = Graph(Work, name="files", checkpoints="phases")

    @graph.node
    async def one(state: Work, ctx: Context) -> dict[str, Any]:
        return {"log": [await ctx.call(write, "1")]}

    @graph.node
    async def two(state: Work, ctx: Context) -> dict[str, Any]:
        written = await ctx.call(write, "2")
        await ctx.ask("Go on?", schema=bool)
        return {"log": [written, await ctx.call(write, "3")]}

    graph.edge(START, one)
    graph.edge(one, two)
    boxes = DirectorySandboxes(tmp_path / "boxes")
    async with Runtime.open(url, graphs=[graph], sandbox=boxes) as runtime:
        run = await runtime.start(graph, {}, thread="t")
        await resting(run)
    boxes = DirectorySandboxes(tmp_path / "boxes")
    async with Runtime.open(url, graphs=[graph], sandbox=boxes) as runtime:
        run = await runtime.get(run.id)
        await answered(runtime, run)
        assert (await run.result(timeout=20)).log == ["1", "12", "123"]
        assert ran == ["1", "2", "3"]


@pytest.mark.parametrize("way", ["other", "end"])
async def test_another_way_after_a_takeover_is_a_divergence(tmp_path, monkeypatch, way):
    monkeypatch.setattr("perdure.engine.driver.GraphDriver.checkpoint", leave_it)
    url = f"sqlite:///{tmp_path}/store.db"
    turns = {"to": "act"}

    def graph() -> Graph:
        made = Graph(Work, name="turning", checkpoints="phases")

        @made.node
        async def begin(state: Work) -> dict[str, Any]:
            return {"log": ["begin"]}

        @made.node
        async def act(state: Work, ctx: Context) -> dict[str, Any]:
            sent = await ctx.call(send, 1)
            await ctx.ask("Go on?", schema=bool)
            return {"log": [sent]}

        @made.node
        async def other(state: Work, ctx: Context) -> dict[str, Any]:
            return {"log": [await ctx.call(send, 1)]}

        made.edge(START, begin)
        made.branch(begin, lambda _state: turns["to"], targets=[act, other, END])
        return made

    async with Runtime.open(url, graphs=[graph()]) as runtime:
        run = await runtime.start("turning", {}, thread="t")
        await resting(run)
    turns["to"] = END if way == "end" else way
    async with Runtime.open(url, graphs=[graph()]) as runtime:
        run = await runtime.get(run.id)
        [question] = await runtime.asks()
        await runtime.answer(question.id, True, by="ada")
        await resting(run, RunStatus.NEEDS_DECISION)
        failure = (await run.row()).failure
        assert failure.type == "ReplayDiverged"
        assert "node '2:act' had sent send" in failure.message
        turns["to"] = "act"
        await runtime.retry(run.id, by="ada")
        assert (await run.result(timeout=20)).log == ["begin", "sent 1"]
    assert SENT == [1]


async def test_a_run_that_stands_between_phases_goes_on_when_every_step_is_a_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("perdure.engine.driver.GraphDriver.checkpoint", leave_it)
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs=[graph_of(asks_at=5)]) as runtime:
        run = await runtime.start("work", {}, thread="t")
        await resting(run)
    async with Runtime.open(url, graphs=[graph_of("every_step", asks_at=5)]) as runtime:
        run = await runtime.get(run.id)
        await answered(runtime, run)
        assert len((await run.result(timeout=20)).log) == 13
        assert len(await runtime.history("t")) == 14
        assert (await runtime.replay(run.id)).divergences == ()
    assert SENT == [6, 5, 4, 3, 2, 1]
