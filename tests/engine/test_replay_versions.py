"""Replays and old states: classes that are gone, renamed fields, runs that changed versions."""

from dataclasses import dataclass, field, make_dataclass
from typing import Annotated

import pytest

from perdure import END, START, Graph, RunStatus, append
from perdure.engine.divergence import DivergenceKind
from perdure.errors import TypeUnknown
from tests.engine.bills import until


def rows(version, state_type, first, *, migrate=None):
    """Return a graph that writes what `first()` gives, waits, and notes that."""
    graph = Graph(state_type, name="rows", version=version)

    @graph.node
    async def one(_state):
        return first()

    @graph.node
    async def two(_state, ctx):
        await ctx.receive("go")
        return {"notes": ["went"]}

    graph.edge(START, one)
    graph.edge(one, two)
    graph.edge(two, END)
    if migrate is not None:
        graph.migration(1, version)(migrate)
    return graph


def with_class():
    """Return v1: a field holds an object of a class that nothing else knows."""

    @dataclass
    class Gone:
        cents: int

    @dataclass
    class State:
        row: Gone | None = None
        notes: Annotated[list[str], append] = field(default_factory=list)

    return rows(1, State, lambda: {"row": Gone(5), "notes": ["one"]})


def without_class():
    """Return v2: the object became a number."""

    @dataclass
    class State:
        cents: int = 0
        notes: Annotated[list[str], append] = field(default_factory=list)

    def upgrade(state):
        row = state.pop("row", None)
        return {**state, "cents": row["cents"] if row else 0}

    return rows(2, State, lambda: {"cents": 5, "notes": ["one"]}, migrate=upgrade)


async def moved(clock, open_workers):
    """Return a runtime of v2 and the id of a run that v1 began and v2 ended."""
    [older] = await open_workers(1, with_class())
    run = await older.start("rows", {}, thread="t")
    await until(clock, run, RunStatus.WAITING)
    await older.close()
    [newer] = await open_workers(1, without_class())
    await newer.signal(run.id, "go")
    await (await newer.get(run.id)).result()
    return newer, run.id


async def test_of_a_moved_run_each_version_recomputes_its_part(clock, open_workers):
    async with clock.autojump():
        runtime, run_id = await moved(clock, open_workers)
        later = await runtime.replay(run_id)
        assert (later.is_clean, later.steps, later.nodes) == (True, 1, 1)
        assert later.part == "from checkpoint 2 on, where it was moved to v2"
        assert later.served == {"signals": 1}
        [older] = await open_workers(1, with_class(), worker=False)
        earlier = await older.replay(run_id, "rows")
        assert (earlier.is_clean, earlier.steps, earlier.version) == (True, 2, 1)
        assert earlier.part == "up to checkpoint 2, where it was moved to v2"
        assert earlier.served == {}


async def test_all_that_needs_no_class_is_shown_without_it(clock, open_workers):
    async with clock.autojump():
        runtime, run_id = await moved(clock, open_workers)
        assert [(await runtime.state("t", at=at)).cents for at in (1, 2, 3)] == [0, 5, 5]
        assert (await runtime.moment(run_id)).state == {"cents": 5, "notes": ["one", "went"]}
        assert not (await runtime.compare(("t", 1), ("t", 3))).is_same
        assert (await runtime.preview_fork("t", at=1)).state == {"cents": 0, "notes": []}


async def test_where_a_class_is_needed_the_error_says_where_and_what_to_type(clock, open_workers):
    plain = make_dataclass("Plain", [("row", dict | None, None), ("notes", list, None)])
    async with clock.autojump():
        [older] = await open_workers(1, with_class())
        run = await older.start("rows", {}, thread="t")
        await until(clock, run, RunStatus.WAITING)
        await older.close()
        changed = rows(1, plain, lambda: {"row": None, "notes": []})
        [runtime] = await open_workers(1, changed, worker=False)
        with pytest.raises(TypeUnknown) as caught:
            await runtime.state("t", at=2)
        for word in ("thread 't', checkpoint 2", "field 'row'", "'perdure show t --at 2'"):
            assert word in str(caught.value)
        assert caught.value.fields["channel"] == "row"
        with pytest.raises(TypeUnknown, match=f"'perdure show {run.id}', which needs no class"):
            await runtime.replay(run.id)
        assert (await runtime.moment(("t", 2))).state["row"]["cents"] == 5


def noting(*fields):
    """Return a graph of three nodes that write the first of these fields."""
    name = fields[0]
    kinds = [(each, Annotated[list[str], append], field(default_factory=list)) for each in fields]
    graph = Graph(make_dataclass("State", [*kinds, ("count", int, 0)]), name="noting")
    for place, node in enumerate(("one", "two", "three")):
        graph.node(lambda _state, place=place: {name: [str(place)], "count": place}, name=node)
    graph.edge(START, "one")
    graph.edge("one", "two")
    graph.edge("two", "three")
    graph.edge("three", END)
    return graph


async def replayed(clock, open_workers, before, after):
    async with clock.autojump():
        [older] = await open_workers(1, before)
        first = await older.start("noting", {}, thread="t")
        await first.result()
        again = await older.start("noting", {"notes": ["x"]}, thread="t")
        await again.result()
        await older.close()
        [newer] = await open_workers(1, after, worker=False)
        return [await newer.replay(run.id) for run in (first, again)]


async def test_a_renamed_field_is_said_once(clock, open_workers):
    for found in await replayed(clock, open_workers, noting("notes"), noting("lines")):
        [only] = found.divergences
        assert (only.kind, only.expected, only.got) == (DivergenceKind.STATE, "notes", "lines")
        assert "no field `notes`, which is recorded; it is called `lines` now" in only.message
        assert found.nodes == 3


async def test_a_field_that_is_gone_is_said_once_where_nothing_says_what_became_of_it(
    clock, open_workers
):
    after = noting("lines", "words")
    for found in await replayed(clock, open_workers, noting("notes"), after):
        gone = [each for each in found.divergences if each.subject == "notes"]
        assert [(each.expected, each.got) for each in gone] == [("notes", None)]
        assert "the state has: lines, words, count" in gone[0].message


async def test_an_open_question_is_no_answer_served(clock, open_workers):
    async with clock.autojump():
        graph = Graph(make_dataclass("State", [("said", str, "")]), name="asking")

        @graph.node
        async def ask(_state, ctx):
            first = await ctx.ask("First?")
            return {"said": f"{first.value} {(await ctx.ask('Second?')).value}"}

        graph.edge(START, ask)
        graph.edge(ask, END)
        [runtime] = await open_workers(1, graph)
        run = await runtime.start("asking", {})
        await until(clock, run, RunStatus.WAITING)
        assert (await runtime.replay(run.id)).served == {}
        [first] = await runtime.asks()
        await runtime.answer(first.id, "yes", by="ada")
        await clock.sleep(1)
        await until(clock, run, RunStatus.WAITING)
        found = await runtime.replay(run.id)
        assert (found.served, found.is_clean, len(found.standing)) == ({"answers": 1}, True, 1)
