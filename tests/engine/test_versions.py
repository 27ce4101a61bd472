"""A run is pinned to its version: deploys, versions that nobody executes, moves, edits."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from perdure import END, START, Graph, RunStatus, append
from perdure.engine.limits import VERSION_GRACE_S
from perdure.engine.outlook import Standing, outlook_of
from perdure.engine.shapes import shape_of
from perdure.engine.timeline import timeline_of
from perdure.engine.versions import VersionWatch, is_mismatched
from perdure.errors import NeedsDecision, RunFinal, UsageError, VersionMismatch

PARKED_S = VERSION_GRACE_S + 60.0
"""A grace, and the looks before and after it."""


@dataclass
class State:
    notes: Annotated[list[str], append] = field(default_factory=list)
    count: int = 0


@dataclass
class Bare:
    notes: Annotated[list[str], append] = field(default_factory=list)


def letters(version, state=State, names=("first", "second", "third"), waits_in="second"):
    """Return a graph of nodes in a row that note `name vN`; one of them waits for a signal."""
    graph = Graph(state, name="letters", version=version)
    before = START
    for name in names:

        async def node(_state, ctx, name=name):
            if name == waits_in:
                await ctx.receive("go")
            return {"notes": [f"{name} v{version}"]}

        graph.node(name=name)(node)
        graph.edge(before, name)
        before = name
    graph.edge(before, END)
    return graph


async def until(clock, row, status):
    """Wait until a run has the status; return its row."""
    for _ in range(1000):
        found = await row()
        if found.status is status and (status is not RunStatus.NEEDS_DECISION or found.failure):
            return found
        await clock.sleep(1.0)
    raise AssertionError(found)


async def deployed(clock, open_workers, new, *, wakes=True):
    """Start a run with v1, replace its worker by one with `new`, wake the run."""
    [old] = await open_workers(1, letters(1))
    run = await old.start("letters")
    await until(clock, run.row, RunStatus.WAITING)
    await old.close()
    [runtime] = await open_workers(1, new)
    run = await runtime.get(run.id)
    if wakes:
        await run.signal("go")
    return runtime, run


async def test_parks_when_only_another_version_is_executed(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2))
        await clock.sleep(VERSION_GRACE_S - 10)
        assert (await run.row()).status is RunStatus.WAITING, "a deploy may still be under way"
        await clock.sleep(70)
        row = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        assert is_mismatched(row)
        assert row.failure.message == (
            "no live worker executes letters v1, which the run is pinned to; live workers execute "
            "v2. Start a worker with v1, which takes the run up by itself (perdure worker "
            f"FILE:GRAPH  # letters v1), or let it go on with another version (perdure resolve "
            f"{run.id} --to-version 2 --by NAME), or cancel it (perdure cancel {run.id})"
        )
        assert (await outlook_of(runtime.engine, row)).standing is Standing.PARKED
        events = await runtime.events(run.id)
        assert events[-1].body["failure"]["type"] == "VersionMismatch"
        story = await timeline_of(runtime.engine, run.id)
        assert [(lease.end, lease.reason) for lease in story.leases] == [
            ("released", "waiting"),
            ("released", "needs_decision"),
        ]
        assert story.takeovers == []
        with pytest.raises(NeedsDecision, match="VersionMismatch"):
            await run.result()


async def test_waits_when_nobody_executes_the_graph(clock, open_workers):
    other = Graph(State, name="other")
    other.node(name="a")(lambda _state: None)
    other.edge(START, "a")
    other.edge("a", END)
    async with clock.autojump():
        _runtime, run = await deployed(clock, open_workers, other)
        await clock.sleep(10 * PARKED_S)
        assert (await run.row()).status is RunStatus.WAITING


async def test_waits_while_an_old_worker_lives(clock, open_workers):
    async with clock.autojump():
        [old] = await open_workers(1, letters(1), concurrency=1)
        first = await old.start("letters")
        await until(clock, first.row, RunStatus.WAITING)
        await open_workers(1, letters(2))
        await first.signal("go")
        await until(clock, first.row, RunStatus.SUCCEEDED)
        second = await old.start("letters")
        await clock.sleep(10 * PARKED_S)
        assert (await second.row()).status is RunStatus.WAITING


async def test_old_version_that_is_back_takes_it_up_by_itself(clock, open_workers):
    async with clock.autojump():
        _runtime, run = await deployed(clock, open_workers, letters(2))
        await until(clock, run.row, RunStatus.NEEDS_DECISION)
        [back, again] = await open_workers(2, letters(1))
        await until(clock, run.row, RunStatus.SUCCEEDED)
        state = await back.state(run.thread)
        assert state.notes == ["first v1", "second v1", "third v1"]
        kinds = [event.kind for event in await again.events(run.id)]
        assert kinds.count("retry_requested") == 1


async def test_moved_run_goes_on_with_the_other_version(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2))
        await until(clock, run.row, RunStatus.NEEDS_DECISION)
        [asking] = await open_workers(1, worker=False)
        await asking.resolve_version(run.id, 2, by="ada")
        row = await until(clock, run.row, RunStatus.SUCCEEDED)
        assert row.version == 2
        state = await run.result()
        assert state.notes == ["first v1", "second v2", "third v2"]
        [moved] = [e for e in await runtime.events(run.id) if e.kind == "version_moved"]
        assert (moved.body["by"], moved.body["from_version"], moved.body["to_version"]) == (
            "ada",
            1,
            2,
        )
        assert len(await runtime.history(run.thread)) == 4
        with pytest.raises(RunFinal):
            await asking.resolve_version(run.id, 3, by="ada")


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (letters(2, names=("first", "third")), "node 'second' is under way and does not exist"),
        (letters(2, state=Bare), "field 'count' has a value and does not exist"),
    ],
)
async def test_move_that_does_not_fit_is_refused(clock, open_workers, new, problem):
    async with clock.autojump():
        _runtime, run = await deployed(clock, open_workers, new)
        before = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        [asking] = await open_workers(1, worker=False)
        with pytest.raises(VersionMismatch, match=problem):
            await asking.resolve_version(run.id, 2, by="ada")
        assert await run.row() == before, "nothing was changed"


async def test_what_can_not_be_moved_is_refused(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2), wakes=False)
        with pytest.raises(UsageError, match="no live worker executes letters v3"):
            await runtime.resolve_version(run.id, 3, by="ada")
        with pytest.raises(UsageError, match="pinned to letters v1 already"):
            await runtime.resolve_version(run.id, 1, by="ada")
        with pytest.raises(UsageError, match="say who"):
            await runtime.resolve_version(run.id, 2, by="")
        await runtime.resolve_version(run.id, 2, by="ada")  # also one that only waits
        await run.signal("go")
        assert (await run.result()).notes == ["first v1", "second v2", "third v2"]


async def test_parked_run_can_be_cancelled_by_a_worker_of_another_version(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2))
        await until(clock, run.row, RunStatus.NEEDS_DECISION)
        await runtime.cancel(run.id, by="ada")
        row = await until(clock, run.row, RunStatus.CANCELLED)
        assert row.version == 1


async def test_retry_without_a_worker_parks_again(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2))
        before = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        await runtime.retry(run.id, by="ada")
        await clock.sleep(PARKED_S)
        row = await run.row()
        assert is_mismatched(row)
        assert row.ready_at_us is None
        assert row.token == before.token + 1


async def test_of_several_that_park_one_does(clock, open_workers):
    async with clock.autojump():
        _runtime, run = await deployed(clock, open_workers, letters(2))
        before = await run.row()
        await open_workers(3, letters(2))
        row = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        await clock.sleep(PARKED_S)
        assert (await run.row()).token == row.token == before.token + 1


async def test_old_worker_that_comes_first_has_the_run(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(2))
        watch = VersionWatch(runtime.engine)
        await watch.look()
        store, read = runtime.engine.store, runtime.engine.store.read_mail

        async def slow(run_id, *, after=0):
            # The parking worker has looked and is about to take the run: the old one is faster.
            store.read_mail = read
            await open_workers(1, letters(1))
            await until(clock, run.row, RunStatus.SUCCEEDED)
            return await read(run_id, after=after)

        await clock.sleep(VERSION_GRACE_S - 1)
        watch._since = dict.fromkeys(watch._since, -VERSION_GRACE_S)
        store.read_mail = slow
        await watch.look()
        assert (await run.row()).status is RunStatus.SUCCEEDED


# -- edits under the same version ------------------------------------------------------------------


async def test_edit_that_keeps_nodes_resumes(clock, open_workers):
    async with clock.autojump():
        new = letters(1, names=("first", "second", "inserted", "third"))
        _runtime, run = await deployed(clock, open_workers, new)
        state = await run.result()
        assert state.notes == ["first v1", "second v1", "inserted v1", "third v1"]


async def test_edit_that_removes_an_open_node_parks(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, letters(1, names=("first", "third")))
        row = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        assert row.failure.type == "ReplayDiverged"
        assert "has no node 'second' any more" in row.failure.message
        await runtime.close()
        [mended] = await open_workers(1, letters(1))
        await mended.retry(run.id, by="ada")
        assert (await (await mended.get(run.id)).result()).notes[-1] == "third v1"


async def test_edit_that_removes_a_field_parks(clock, open_workers):
    async with clock.autojump():
        _runtime, run = await deployed(clock, open_workers, letters(1, state=Bare))
        row = await until(clock, run.row, RunStatus.NEEDS_DECISION)
        assert row.failure.type == "ReplayDiverged"
        assert "it has no field 'count'" in row.failure.message


def test_shape_has_the_nodes_of_subgraphs():
    inner = letters(1, names=("deep",))
    outer = Graph(State, name="outer", version=4)
    outer.node(name="inner")(inner)
    outer.edge(START, "inner")
    outer.edge("inner", END)
    shape = shape_of(outer.compile())
    assert (shape.name, shape.version) == ("outer", 4)
    assert shape.nodes == ("inner", "inner/deep")
    assert shape.fields == ("count", "notes")
