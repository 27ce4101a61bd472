"""Runs and threads of older versions go on with newer ones: state, effects, waits, deploys."""

from dataclasses import dataclass, field

import pytest

from perdure import END, START, Graph, NeedsDecision, RunFailed, RunStatus, UpdateInvalid
from perdure.engine.migrations import THREAD_NEWER
from perdure.engine.outlook import moved_graphs
from perdure.engine.survey import Fate, survey_runs
from perdure.engine.versions import ways_out
from perdure.errors import MigrationFailed, UsageError
from perdure.graph import _checks
from tests.engine.bills import (
    SENT,
    New,
    Old,
    approve,
    deployed,
    kinds,
    new,
    old,
    pay,
    to_cents,
    until,
)


@pytest.fixture(autouse=True)
def _nothing_sent():
    SENT.clear()


# -- moving ----------------------------------------------------------------------------------------


async def test_waiting_run_goes_on_with_the_new_version(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        await clock.sleep(300)
        assert (await run.row()).version == 1, "what waits is not touched"
        await approve(runtime)
        state = await run.result()
        assert state == New(700, ["begun", "paid rent True v2", "700 EUR v2"], 2, "EUR")
        assert [what for what, _key in SENT] == ["rent"], "a confirmed effect is not sent again"
        [moved] = [e.body for e in await runtime.events(run.id) if e.kind == "version_moved"]
        assert (moved["by"], moved["via"]) == ("migration", "migration")
        assert (moved["from_version"], moved["to_version"]) == (1, 2)
        assert [c.graph_version for c in await runtime.history("t")] == [2, 2, 1, 1]
        assert await runtime.state("t", at=1) == New(700, [], 0, "EUR"), "read by the migration"


async def test_what_asks_and_answers_is_the_same_across_the_move(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        [before] = await runtime.asks()
        await approve(runtime)
        await run.result()
        assert await runtime.asks() == [], "the question is answered, and not asked again"
        [asked] = await runtime.asks(open=False)
        assert (asked.id, asked.node) == (before.id, "2:pay_it")
        found = await kinds(runtime, run)
        assert found.count("asked") == found.count("answered") == 1


async def test_a_chain_of_migrations_is_one_move(clock, open_workers):
    seen = []

    def hops(graph):
        @graph.migration(1, 2, nodes={"pay_it": "charge"}, fields={"amount": "euros"})
        def first(state):
            seen.append(("first", dict(state)))
            return state

        graph.migration(2, 3, fields={"euros": "cents"})

        @graph.migration(3, 4, nodes={"charge": "settle"})
        def last(state):
            state["cents"] *= 100
            return {**state, "currency": "EUR"}

    async with clock.autojump():
        newer = new(hops=hops, version=4)
        runtime, run = await deployed(clock, open_workers, newer)
        await approve(runtime)
        state = await run.result()
        assert (state.cents, state.notes[-1]) == (700, "700 EUR v4")
        assert seen[0] == ("first", {"euros": 7, "notes": ["begun"], "total": 1})
        assert (await kinds(runtime, run)).count("version_moved") == 1


async def test_nothing_is_migrated_twice(clock, open_workers):
    calls = []

    def counted(state):
        calls.append(1)
        return to_cents(state)

    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(counted))
        await approve(runtime)
        await run.result()
        moved = len(calls)
        await runtime.close()
        [again] = await open_workers(1, new(counted))
        later = await again.start("bills", {"cents": 5}, thread="t")
        await until(clock, later, RunStatus.WAITING)
        await approve(again)
        assert (await later.result()).cents == 5
        assert len(calls) == moved
        assert (await again.state("t")).notes[:2] == ["begun", "paid rent True v2"]


async def test_a_run_that_has_not_begun_is_moved_with_its_input(clock, open_workers):
    async with clock.autojump():
        [asking] = await open_workers(1, old(), worker=False)
        run = await asking.start("bills", {"amount": 3, "notes": ["given"]}, thread="t")
        await asking.close()
        [runtime] = await open_workers(1, new())
        run = await runtime.get(run.id)
        await until(clock, run, RunStatus.WAITING)
        await approve(runtime)
        state = await run.result()
        assert state.notes == ["given", "begun v2", "paid rent True v2", "300 EUR v2"]
        assert (state.total, state.cents) == (2, 300)


async def test_a_new_run_takes_its_threads_older_state_on(clock, open_workers):
    async with clock.autojump():
        [worker] = await open_workers(1, old())
        run = await worker.start("bills", {"amount": 2}, thread="t")
        await until(clock, run, RunStatus.WAITING)
        await approve(worker)
        await run.result()
        await worker.close()
        [runtime] = await open_workers(1, new())
        again = await runtime.start("bills", {"notes": ["more"]}, thread="t")
        await until(clock, again, RunStatus.WAITING)
        assert (await again.row()).version == 2
        await approve(runtime)
        state = await again.result()
        assert (state.cents, state.currency, state.total) == (200, "EUR", 4)
        assert state.notes[:4] == ["begun", "paid rent True v1", "amount 2 v1", "more"]
        assert (await runtime.state("t", at=4)).cents == 200
        runs = [await runtime.get(row.run_id) for row in await runtime.runs(thread="t")]
        assert [(await kinds(runtime, each)).count("version_moved") for each in runs] == [1, 0]


async def test_queued_runs_follow_the_thread_to_the_new_version(clock, open_workers):
    async with clock.autojump():
        [worker] = await open_workers(1, old())
        first = await worker.start("bills", {"amount": 1}, thread="t")
        await until(clock, first, RunStatus.WAITING)
        second = await worker.start("bills", {"amount": 9, "total": 10}, thread="t")
        third = await worker.start("bills", {"notes": ["third"]}, thread="t")
        await worker.close()
        [runtime] = await open_workers(1, new())
        for run_id in (first.id, second.id, third.id):
            run = await runtime.get(run_id)
            await until(clock, run, RunStatus.WAITING)
            await approve(runtime)
            state = await run.result()
            assert (await run.row()).version == 2
        # The input of the second was for v1, the thread's state of v2 by then.
        assert (state.cents, state.total, state.currency) == (900, 16, "EUR")
        assert state.notes.count("third") == 1
        assert len(SENT) == 3


# -- two versions at once --------------------------------------------------------------------------


async def test_old_workers_keep_their_runs_while_they_live(clock, open_workers):
    async with clock.autojump():
        [older] = await open_workers(1, old())
        runs = [await older.start("bills", {"amount": n}) for n in range(4)]
        for run in runs:
            await until(clock, run, RunStatus.WAITING)
        [newer] = await open_workers(1, new())
        for ask in (await newer.asks())[:2]:
            await newer.answer(ask.id, True, by="ada")
        await clock.sleep(300)
        done = [run for run in runs if (await run.row()).status is RunStatus.SUCCEEDED]
        assert [(await run.row()).version for run in done] == [1, 1]
        await older.close()
        for ask in await newer.asks():
            await newer.answer(ask.id, True, by="ada")
        for run in runs:
            row = await until(clock, await newer.get(run.id), RunStatus.SUCCEEDED)
            assert row.version == (1 if run in done else 2)
        assert len(SENT) == 4


async def test_an_old_worker_that_comes_back_has_its_runs_again(clock, open_workers):
    async with clock.autojump():
        newer, run = await deployed(clock, open_workers, new())
        assert newer.engine.movable == (("bills", 1),)
        await open_workers(1, old())
        await clock.sleep(10)
        assert newer.engine.movable == ()
        await approve(newer)
        assert (await until(clock, run, RunStatus.SUCCEEDED)).version == 1


async def test_what_can_be_moved_is_not_parked_and_not_unserved(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        assert await moved_graphs(runtime.engine) == {("bills", 1)}
        await open_workers(2, new(upgrade=None))  # v2 without migrations would park it
        await clock.sleep(600)
        await approve(runtime)
        assert (await until(clock, run, RunStatus.SUCCEEDED)).version == 2


async def test_of_many_workers_one_moves(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        await open_workers(3, new())
        await approve(runtime)
        await run.result()
        assert (await kinds(runtime, run)).count("version_moved") == 1


# -- what is refused -------------------------------------------------------------------------------


def broken(state):
    raise ValueError("a bug in the migration")


REFUSED = [
    (broken, None, "migration 1 -> 2 raised ValueError: a bug in the migration"),
    (lambda state: None, None, "returned None; return the dict of fields"),
    (lambda state: {**state, "dollars": 1}, None, "has no field 'dollars'"),
    (lambda state: {"cents": "many"}, None, "field 'cents': expected int, got str"),
    (lambda state: {"cents": state["euros"]}, None, "KeyError: 'euros'; the stored fields are"),
    (to_cents, {"pay_it": None}, "stands at node 'pay_it', which is gone in bills v2"),
    (to_cents, {}, "bills v2 has no node 'pay_it'; say in the migration's nodes="),
]


@pytest.mark.parametrize(("upgrade", "nodes", "reason"), REFUSED)
async def test_what_can_not_be_moved_is_parked_untouched(
    clock, open_workers, upgrade, nodes, reason
):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(upgrade, nodes=nodes))
        before = await run.row()
        frames = await runtime.engine.store.read_frames(run.id)
        await approve(runtime)
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert row.failure.type == "MigrationFailed"
        assert reason in row.failure.message
        assert "nothing was changed" in row.failure.message
        ways = await ways_out(runtime.engine, row)
        assert f"perdure resolve {run.id} --retry --by NAME" in ways
        assert "perdure worker FILE:GRAPH  # bills v1" in ways
        assert (row.version, row.checkpoint) == (before.version, before.checkpoint)
        assert (await runtime.engine.store.read_frames(run.id))[: len(frames)] == frames
        with pytest.raises(NeedsDecision, match="MigrationFailed"):
            await run.result()
        await clock.sleep(600)
        assert (await run.row()).token == row.token, "no loop"
        await runtime.close()
        [mended] = await open_workers(1, new())
        await clock.sleep(60)
        run = await mended.get(run.id)
        assert (await run.row()).token == row.token, "only a person lets it try again"
        await mended.retry(run.id, by="ada")
        state = await run.result()
        assert state.notes[1:] == ["paid rent True v2", "700 EUR v2"]
        assert len(SENT) == 1


def paying(version, argument):
    """Return a graph whose node pays what `argument(state)` says, asks, and pays again."""
    graph = Graph(Old if version == 1 else New, name="bills", version=version)

    async def pay_it(state, ctx):
        receipt = await ctx.call(pay, argument(state))
        await ctx.ask("Fine?", schema=bool)
        return {"notes": [receipt, await ctx.call(pay, "tip")]}

    graph.node(pay_it)
    graph.edge(START, "pay_it")
    graph.edge("pay_it", END)
    if version > 1:
        graph.migration(1, version)(to_cents)
    return graph


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_dry_run_says_whether_a_node_under_way_would_park(clock, open_workers, is_same):
    new_amount = (lambda state: str(state.cents // 100)) if is_same else lambda s: str(s.cents)
    async with clock.autojump():
        older = paying(1, lambda state: str(state.amount))
        runtime, run = await deployed(clock, open_workers, paying(2, new_amount), older)
        engine = runtime.engine
        frames = await engine.store.read_frames(run.id)
        plan = engine.plan_of("bills")
        [found] = [each async for each in survey_runs(engine, plan)]
        assert await engine.store.read_frames(run.id) == frames, "nothing is written"
        assert [("7", SENT[0][1])] == SENT, "nothing is sent"
        await approve(runtime)
        row = await until(clock, run, RunStatus.SUCCEEDED, RunStatus.NEEDS_DECISION)
        if is_same:
            assert (found.fate, found.reason) == (Fate.MIGRATES, "")
            assert row.status is RunStatus.SUCCEEDED
        else:
            assert (found.fate, found.path) == (Fate.PARKS, "1->2")
            assert "would send effect pay with ['700'], while effect pay with ['7']" in found.reason
            assert row.failure.type == "ReplayDiverged"


@dataclass
class Row:
    cents: int


@dataclass
class Rows:
    rows: list[Row] = field(default_factory=list)


def of_rows(version, upgrade=None, cents=7):
    graph = Graph(Rows, name="rows", version=version)

    @graph.node
    async def wait(_state, ctx):
        await ctx.receive("go")
        return {"rows": [Row(cents)]}

    graph.edge(START, wait)
    graph.edge(wait, END)
    if upgrade is not None:
        graph.migration(1, version)(upgrade)
    return graph


async def test_what_a_migration_gives_is_checked_inside_its_objects(clock, open_workers):
    def to_euros(state):
        return {"rows": [Row(row.cents / 2) for row in state["rows"]]}

    async with clock.autojump():
        [worker] = await open_workers(1, of_rows(1))
        run = await worker.start("rows", {"rows": [Row(201)]}, thread="t")
        await until(clock, run, RunStatus.WAITING)
        await worker.close()
        [runtime] = await open_workers(1, of_rows(2, to_euros))
        await runtime.signal(run.id, "go")
        row = await until(clock, await runtime.get(run.id), RunStatus.NEEDS_DECISION)
        assert "got float at [0].cents; nothing was" in row.failure.message


async def test_updates_and_inputs_are_checked_inside_their_objects(open_workers, clock):
    async with clock.autojump():
        [runtime] = await open_workers(1, of_rows(1, cents=100.5))
        with pytest.raises(UpdateInvalid, match=r"got float at \[0\].cents"):
            await runtime.start("rows", {"rows": [Row(1.5)]})
        run = await runtime.start("rows", {})
        await run.signal("go")
        with pytest.raises(RunFailed, match=r"got float at \[0\].cents"):
            await run.result()


async def test_what_older_versions_stored_in_objects_goes_on(clock, open_workers, monkeypatch):
    async with clock.autojump():
        [worker] = await open_workers(1, of_rows(1))
        with monkeypatch.context() as older:
            older.setattr(_checks, "_check_fields", lambda _value: None)
            run = await worker.start("rows", {"rows": [Row(1.5)]})
            await until(clock, run, RunStatus.WAITING)
        await run.signal("go")
        assert (await run.result()).rows == [Row(7)]


async def test_a_migration_that_exits_parks(clock, open_workers):
    def exits(state):
        raise SystemExit(3)

    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(exits))
        await approve(runtime)
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "SystemExit: 3" in row.failure.message


async def test_a_failed_migration_can_be_cancelled(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(broken))
        await approve(runtime)
        await until(clock, run, RunStatus.NEEDS_DECISION)
        await runtime.cancel(run.id, by="ada")
        row = await until(clock, run, RunStatus.CANCELLED)
        assert row.version == 1


async def test_names_alone_never_move_what_has_a_migration(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        [asking] = await open_workers(1, worker=False)
        with pytest.raises(UsageError, match="has a migration from v1, which needs its code"):
            await asking.resolve_version(run.id, 2, by="ada")
        await runtime.resolve_version(run.id, 2, by="ada")
        row = await run.row()
        assert (row.version, row.status) == (2, RunStatus.WAITING), "it waits as it did"
        assert row.waits[0].subject == (await runtime.asks())[0].id
        [moved] = [e.body for e in await runtime.events(run.id) if e.kind == "version_moved"]
        assert (moved["by"], moved["via"]) == ("ada", "migration")
        await approve(runtime)
        assert (await run.result()).cents == 700


async def test_a_decision_that_fails_says_why(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(broken))
        before = await run.row()
        with pytest.raises(MigrationFailed, match=r"a bug in the migration.*nothing was changed"):
            await runtime.resolve_version(run.id, 2, by="ada")
        assert await run.row() == before


async def test_older_code_does_not_read_a_newer_thread(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        await approve(runtime)
        await run.result()
        await runtime.close()
        [older] = await open_workers(1, old())
        late = await older.start("bills", {"amount": 5}, thread="t")
        row = await until(clock, late, RunStatus.NEEDS_DECISION)
        assert row.failure.type == THREAD_NEWER
        assert "was written by bills v2, which is newer than v1" in row.failure.message
        assert (await ways_out(older.engine, row))[0] == "perdure migrate FILE:GRAPH"
        await clock.sleep(300)
        assert (await late.row()).token == row.token
        [newer] = await open_workers(1, new())  # both live: it is the newer one's all the same
        late = await newer.get(late.id)
        await until(clock, late, RunStatus.WAITING)
        await approve(newer)
        assert (await late.result()).cents == 500


# -- forks -----------------------------------------------------------------------------------------


async def test_a_fork_from_an_older_checkpoint_is_of_the_new_version(clock, open_workers):
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new())
        await approve(runtime)
        await run.result()
        fork = await runtime.fork("t", at=2, update={"cents": 1}, to="f")
        row = await until(clock, fork, RunStatus.WAITING)
        assert row.version == 2
        await approve(runtime)
        state = await fork.result()
        assert (state.cents, state.notes) == (1, ["begun", "paid rent True v2", "1 EUR v2"])


# -- large fields ----------------------------------------------------------------------------------


async def test_large_fields_are_moved_and_read_again(clock, open_workers):
    given = {"amount": 7, "notes": ["x" * 100_000, *map(str, range(20_000))]}
    async with clock.autojump():
        runtime, run = await deployed(clock, open_workers, new(), given=given)
        await approve(runtime)
        state = await run.result()
        assert state.notes[: len(given["notes"])] == given["notes"]
        again = await runtime.start("bills", {"notes": ["more"]}, thread="t")
        await until(clock, again, RunStatus.WAITING)
        assert len((await runtime.state("t")).notes) == len(given["notes"]) + 5


async def test_a_large_state_of_an_older_thread_is_adopted(clock, open_workers):
    given = {"amount": 7, "notes": ["x" * 100_000, *map(str, range(20_000))]}
    async with clock.autojump():
        [worker] = await open_workers(1, old())
        run = await worker.start("bills", given, thread="t")
        await until(clock, run, RunStatus.WAITING)
        await approve(worker)
        await run.result()
        await worker.close()
        [runtime] = await open_workers(1, new())
        again = await runtime.start("bills", {"cents": 5}, thread="t")
        await until(clock, again, RunStatus.WAITING)
        await approve(runtime)
        state = await again.result()
        assert (state.cents, state.notes[:2]) == (5, given["notes"][:2])
