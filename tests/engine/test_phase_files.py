"""Files of sandboxes in graphs that checkpoint at phases: one snapshot each, with its state."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, Retry, RunStatus, Runtime, append, effect
from perdure.codec import decode_record, split_frame
from perdure.errors import EffectFailed
from perdure.ids import RunId
from perdure.model import records as rec
from perdure.sandbox import DirectorySandboxes
from tests.engine.polled import PAUSE_S, answered, ended
from tests.engine.polled import reached as resting

SENT: list[str] = []
WRITTEN: list[str] = []
QUICK = Retry(max_attempts=3, base_s=0.001, cap_s=0.002)


@pytest.fixture(autouse=True)
def nothing_done():
    SENT.clear()
    WRITTEN.clear()


@dataclass
class Book:
    turns: int = 0
    log: Annotated[list[str], append] = field(default_factory=list)


@effect(kind="contained")
async def write(line: str, *, sandbox: Any) -> str:
    """Add a line to a file; return all of it."""
    WRITTEN.append(line)
    with (sandbox.path / "log").open("a") as log:
        log.write(line)
    return (sandbox.path / "log").read_text()


@effect(kind="keyed")
async def send(text: str, *, idempotency_key: str) -> str:
    SENT.append(text)
    return f"sent {text}"


def line(*nodes: Any, phases: tuple[str, ...] = (), **options: Any) -> Graph:
    """Return a graph of nodes one after the other."""
    graph = Graph(Book, name="book", checkpoints="phases", **options)
    before: Any = START
    for node in nodes:
        declared = graph.node(phase=node.__name__ in phases, retry=QUICK)(node)
        graph.edge(before, declared)
        before = declared
    graph.edge(before, END)
    return graph


async def one(_state: Book, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(write, "1")]}


async def two(_state: Book, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(write, "2")]}


async def three(_state: Book, ctx: Context) -> dict[str, Any]:
    return {"log": [await ctx.call(write, "3")]}


@pytest.fixture
def boxes(tmp_path):
    return DirectorySandboxes(tmp_path / "boxes")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


def opened(url, graph, boxes, **options):
    return Runtime.open(url, graphs=[graph], sandbox=boxes, **options)


async def records_of(runtime, run) -> list[Any]:
    frames = await runtime.engine.store.read_frames(RunId(run.id))
    return [decode_record(each) for frame in frames for each in split_frame(frame.body)]


async def kinds_of(runtime, run) -> list[str]:
    wanted = (rec.EffectConfirmed, rec.EffectIntended, rec.SandboxTaken, rec.StepCommitted)
    return [type(r).__name__ for r in await records_of(runtime, run) if isinstance(r, wanted)]


async def check_pairs(runtime, boxes, thread="t") -> None:
    """See that the files of every checkpoint are those that its state tells of."""
    for point in await runtime.history(thread):
        state = await runtime.state(thread, at=point.id)
        await boxes.open("default", thread).restore(point.snapshot)
        path = boxes.open("default", thread).path / "log"
        files = path.read_text() if path.exists() else ""
        told = [entry for entry in state.log if entry[:1].isdigit()]
        assert files == (told[-1] if told else ""), point


async def test_a_phase_has_one_snapshot(url, boxes):
    async with opened(url, line(one, two, three, phases=("two",)), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        assert (await run.result(timeout=20)).log == ["1", "12", "123"]
        taken, step, done = "SandboxTaken", "StepCommitted", "EffectConfirmed"
        expected = [step, done, done, taken, step, done, taken, step]
        assert await kinds_of(runtime, run) == expected
        await check_pairs(runtime, boxes)
        assert (await runtime.replay(run.id)).divergences == ()
        fork = await runtime.fork("t", at=2)
        assert (await fork.result(timeout=20)).log == ["1", "12", "123"]


async def test_a_snapshot_comes_before_what_others_see(url, boxes):
    async def tell(_state: Book, ctx: Context) -> dict[str, Any]:
        return {"log": [await ctx.call(send, "told")]}

    async with opened(url, line(one, tell, two), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        await run.result(timeout=20)
        kinds = await kinds_of(runtime, run)
        assert kinds.index("SandboxTaken") < kinds.index("EffectConfirmed", 2)
        assert kinds.count("SandboxTaken") == 2
        await check_pairs(runtime, boxes)


async def test_a_node_that_fails_on_such_files_takes_the_run_back_to_its_checkpoint(url, boxes):
    async def fails(_state: Book, ctx: Context) -> dict[str, Any]:
        written = await ctx.call(write, "x")
        if ctx.attempt < 3:
            msg = f"attempt {ctx.attempt}"
            raise RuntimeError(msg)
        return {"log": [written]}

    async def tell(_state: Book, ctx: Context) -> dict[str, Any]:
        return {"log": [await ctx.call(send, "told")]}

    async with opened(url, line(tell, one, two, fails, three), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        assert (await run.result(timeout=20)).log == ["sent told", "1", "12", "12x", "12x3"]
        assert WRITTEN == ["1", "2", "x"] * 3 + ["3"]
        assert SENT == ["told"]
        back = [r for r in await records_of(runtime, run) if isinstance(r, rec.Released)]
        assert [each.reason for each in back] == ["back", "back"]
        await check_pairs(runtime, boxes)
        assert (await runtime.replay(run.id)).divergences == ()


async def test_a_node_that_fails_without_files_is_tried_again_where_it_stands(url, boxes):
    async def fails(_state: Book, ctx: Context) -> dict[str, Any]:
        if ctx.attempt < 3:
            msg = f"attempt {ctx.attempt}"
            raise RuntimeError(msg)
        return {}

    async with opened(url, line(one, fails, two), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        assert (await run.result(timeout=20)).log == ["1", "12"]
        assert WRITTEN == ["1", "2"]


async def test_a_run_that_fails_on_such_files_leaves_a_state_and_its_files(url, boxes):
    async def fails(_state: Book, ctx: Context) -> dict[str, Any]:
        await ctx.call(write, "x")
        msg = "for good"
        raise RuntimeError(msg)

    graph = line(one, two, fails, phases=("one",))
    async with opened(url, graph, boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        row = await ended(run)
        assert row.status is RunStatus.FAILED
        assert (await runtime.state("t")).log == ["1"]
        await check_pairs(runtime, boxes)


async def test_a_wait_on_changed_files_keeps_them_and_what_was_done(url, boxes):
    async def asks(_state: Book, ctx: Context) -> dict[str, Any]:
        before = await ctx.call(write, "a")
        await ctx.ask(f"Go on with {before}?", schema=bool)
        return {"log": [before, await ctx.call(write, "b")]}

    async with opened(url, line(one, two, asks, three), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        await resting(run)
        assert [each.step for each in await runtime.history("t")] == [0]
        await check_pairs(runtime, boxes)
    async with opened(url, line(one, two, asks, three), boxes) as runtime:
        run = await runtime.get(run.id)
        await answered(runtime, run)
        log = ["1", "12", "12a", "12ab", "12ab3"]
        assert (await run.result(timeout=20)).log == log
        assert WRITTEN == ["1", "2", "a", "b", "3"]
        await check_pairs(runtime, boxes)


async def test_a_wait_beside_the_files_is_a_checkpoint_with_them(url, boxes):
    async def asks(_state: Book, ctx: Context) -> dict[str, Any]:
        await ctx.ask("Go on?", schema=bool)
        return {"log": [await ctx.call(write, "a")]}

    async with opened(url, line(one, two, asks, three), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        await resting(run)
        assert (await runtime.state("t")).log == ["1", "12"]
        await check_pairs(runtime, boxes)
        await answered(runtime, run)
        assert (await run.result(timeout=20)).log == ["1", "12", "12a", "12a3"]
        assert WRITTEN == ["1", "2", "a", "3"]


# -- any course ------------------------------------------------------------------------------------


class Course:
    """Turns that write, send, ask and fail as chance says, and are stopped now and then."""

    def __init__(self, seed: int, *, stops: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # not for secrets
        self.stops = stops
        acts = ["write", "send", "none", "both"]
        self.plan = [
            (self.chance.choice(acts), self.chance.random() < 0.25, self.chance.random() < 0.2)
            for _ in range(12)
        ]
        self.stopped = effect(kind="pure", name="stopped")(self.stop)

    async def stop(self, _place: str) -> None:
        if self.stops and self.chance.random() < 0.15:
            self.stops -= 1
            for _row, execution in list(CURRENT[0].worker._held.values()):
                execution.stop_now()  # as a drain does whose window is over

    async def turn(self, state: Book, ctx: Context) -> dict[str, Any]:
        does, fails, asks = self.plan[state.turns]
        log = []
        if does in {"write", "both"}:
            log.append(await ctx.call(write, f"{state.turns % 10}"))
        await ctx.call(self.stopped, f"a{state.turns}")
        if asks:
            await ctx.ask(f"turn {state.turns}?", schema=bool)
        if does in {"send", "both"}:
            log.append(await ctx.call(send, f"{state.turns}"))
        if fails and ctx.attempt == 1:
            await ctx.call(self.stopped, f"f{state.turns}")
            msg = "the first attempt"
            raise RuntimeError(msg)
        if does == "both":
            log.append(await ctx.call(write, "."))
        await ctx.call(self.stopped, f"b{state.turns}")
        return {"turns": state.turns + 1, "log": log}

    def route(self, state: Book) -> str:
        if state.turns == len(self.plan):
            return END
        return "rest" if state.turns % 4 == 0 else "work"

    def graph(self) -> Graph:
        graph = Graph(Book, name="book", checkpoints="phases")

        @graph.node(retry=QUICK)
        async def work(state: Book, ctx: Context) -> dict[str, Any]:
            return await self.turn(state, ctx)

        @graph.node(phase=True)
        async def rest(_state: Book) -> dict[str, Any]:
            return {}

        graph.edge(START, work)
        graph.branch(work, self.route, targets=["rest", "work", END])
        graph.edge(rest, work)
        return graph


CURRENT: list[Any] = [None]


async def finish(runtime, run) -> Any:
    """Answer whatever is asked until the run has ended."""
    while not (row := await run.row()).status.is_final:
        assert row.status is not RunStatus.NEEDS_DECISION, row
        for ask in await runtime.asks(run_id=run.id):
            await runtime.answer(ask.id, True, by="ada")
        await asyncio.sleep(PAUSE_S)
    return await run.result(timeout=20)


async def forget(_driver) -> None:
    """Write no checkpoint when a run is let go, as a worker that dies."""


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", range(12))
async def test_any_course_ends_as_the_undisturbed_one(tmp_path, monkeypatch, seed, dies):
    results = []
    for is_disturbed in (False, True):
        SENT.clear()
        graph = Course(seed, stops=8 if is_disturbed else 0).graph()
        boxes = DirectorySandboxes(tmp_path / f"boxes{is_disturbed}")
        if dies and is_disturbed:
            monkeypatch.setattr("perdure.engine.driver.GraphDriver.checkpoint", forget)
        async with opened(f"sqlite:///{tmp_path}/{is_disturbed}.db", graph, boxes) as runtime:
            CURRENT[0] = runtime
            run = await runtime.start(graph, {}, thread="t")
            result = await finish(runtime, run)
            assert len(SENT) == len(set(SENT))
            results.append((result, list(SENT)))
            await check_pairs(runtime, boxes)
            assert (await runtime.replay(run.id)).divergences == ()
    assert results[0] == results[1]


async def test_effects_that_fail_in_such_files_are_told_as_ever(url, boxes):
    @effect(kind="contained", retry=Retry(max_attempts=1))
    async def breaks(*, sandbox: Any) -> None:
        (sandbox.path / "half").write_text("x")
        msg = "half done"
        raise ValueError(msg)

    async def tries(_state: Book, ctx: Context) -> dict[str, Any]:
        try:
            await ctx.call(breaks)
        except EffectFailed as error:
            return {
                "log": [f"told: {error.failure.message}" if hasattr(error, "failure") else "told"]
            }
        return {}

    async with opened(url, line(one, tries, two), boxes) as runtime:
        run = await runtime.start("book", {}, thread="t")
        result = await run.result(timeout=20)
        assert result.log[1].startswith("told")
        assert (result.log[0], result.log[2]) == ("1", "12")
