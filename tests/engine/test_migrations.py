"""Runs and threads of older versions go on with newer ones: state, effects, waits, deploys."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Graph, NeedsDecision, RunStatus, Send, add, append, effect
from perdure.engine.migrations import THREAD_NEWER
from perdure.engine.outlook import moved_graphs
from perdure.errors import MigrationFailed, UsageError

SENT: list[tuple[str, str]] = []


@pytest.fixture(autouse=True)
def _nothing_sent():
    SENT.clear()


@effect(kind="once", name="pay")
async def pay(what: str, *, idempotency_key: str) -> str:
    SENT.append((what, idempotency_key))
    return f"paid {what}"


@dataclass
class Old:
    amount: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0


@dataclass
class New:
    cents: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    currency: str = "?"


def old(wait="review", version=1):
    """Return v1: `pay_it` pays and waits, `finish` notes the amount."""
    graph = Graph(Old, name="bills", version=version)

    @graph.node
    async def begin(_state):
        return {"notes": ["begun"], "total": 1}

    @graph.node
    async def pay_it(state, ctx):
        receipt = await ctx.call(pay, "rent")
        if wait == "review":
            answer = await ctx.ask("Fine?", schema=bool)
            return {"notes": [f"{receipt} {answer.value} v{version}"], "total": 1}
        await ctx.receive(wait)
        return {"notes": [receipt], "total": 1}

    @graph.node
    async def finish(state):
        return {"notes": [f"amount {state.amount} v{version}"]}

    graph.edge(START, begin)
    graph.edge(begin, pay_it)
    graph.edge(pay_it, finish)
    graph.edge(finish, END)
    return graph


def to_cents(state):
    state["cents"] = state.pop("amount", 0) * 100
    state["currency"] = "EUR"
    return state


def new(upgrade=to_cents, *, nodes=None, version=2, name="settle", hops=None):
    """Return v2: the node is called `settle`, the amount is in cents."""
    graph = Graph(New, name="bills", version=version)

    @graph.node
    async def begin(_state):
        return {"notes": ["begun v2"], "total": 1}

    @graph.node(name=name)
    async def settle(state, ctx):
        receipt = await ctx.call(pay, "rent")
        answer = await ctx.ask("Fine?", schema=bool)
        return {"notes": [f"{receipt} {answer.value} v{version}"], "total": 1}

    @graph.node
    async def finish(state):
        return {"notes": [f"{state.cents} {state.currency} v{version}"]}

    graph.edge(START, begin)
    graph.edge(begin, name)
    graph.edge(name, finish)
    graph.edge(finish, END)
    if hops is not None:
        hops(graph)
    elif upgrade is not None:
        graph.migration(1, version, nodes={"pay_it": name} if nodes is None else nodes)(upgrade)
    return graph


async def until(clock, run, *statuses):
    for _ in range(500):
        row = await run.row()
        if row.status in statuses and (row.status is not RunStatus.NEEDS_DECISION or row.failure):
            return row
        await clock.sleep(1.0)
    raise AssertionError(row)


async def deployed(clock, open_workers, newer, older=None, *, given=None):
    """Start a run with v1 that waits, replace its worker by one of v2; return both."""
    [worker] = await open_workers(1, older or old())
    run = await worker.start("bills", given or {"amount": 7}, thread="t")
    await until(clock, run, RunStatus.WAITING)
    await worker.close()
    [runtime] = await open_workers(1, newer)
    return runtime, await runtime.get(run.id)


async def approve(runtime):
    [ask] = await runtime.asks()
    await runtime.answer(ask.id, True, by="ada")


async def kinds(runtime, run):
    return [event.kind for event in await runtime.events(run.id)]


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
        await clock.sleep(300)
        assert (await late.row()).token == row.token
        [newer] = await open_workers(1, new())  # both live: it is the newer one's all the same
        late = await newer.get(late.id)
        await until(clock, late, RunStatus.WAITING)
        await approve(newer)
        assert (await late.result()).cents == 500


# -- nodes at once ---------------------------------------------------------------------------------


def wide(state_type, version, *, names=("quick", "slow"), migrate=None):
    """Return a graph with nodes at once: one ends, the other one waits."""
    quick, slow = names
    graph = Graph(state_type, name="wide", version=version)

    async def first(_state):
        return {"notes": ["quick"], "total": 5}

    async def second(_state, ctx):
        receipt = await ctx.call(pay, "slow")
        await ctx.receive("go")
        return {"notes": [f"{receipt} v{version}"], "total": 1}

    async def join(state):
        return {"notes": [f"joined {state.total} v{version}"]}

    graph.node(name=quick)(first)
    graph.node(name=slow)(second)
    graph.node(join)
    for name in names:
        graph.edge(START, name)
        graph.edge(name, join)
    graph.edge(join, END)
    if migrate is not None:
        migrate(graph)
    return graph


async def moved_wide(clock, open_workers, newer, older=None):
    [worker] = await open_workers(1, older or wide(Old, 1))
    run = await worker.start("wide", {"amount": 1, "total": 100})
    await until(clock, run, RunStatus.WAITING)
    await worker.close()
    [runtime] = await open_workers(1, newer)
    run = await runtime.get(run.id)
    await run.signal("go")
    return runtime, run


async def test_what_a_node_of_the_step_has_returned_is_carried_over(clock, open_workers):
    def migrate(graph):
        graph.migration(1, 2, nodes={"slow": "patient", "quick": "swift"})(to_cents)

    async with clock.autojump():
        newer = wide(New, 2, names=("swift", "patient"), migrate=migrate)
        _runtime, run = await moved_wide(clock, open_workers, newer)
        state = await run.result()
        assert state == New(100, ["quick", "paid slow v2", "joined 106 v2"], 106, "EUR")
        assert [what for what, _key in SENT] == ["slow"]


async def test_nodes_that_swap_their_names_keep_what_they_did(clock, open_workers):
    def migrate(graph):
        graph.migration(1, 2, nodes={"slow": "quick", "quick": "slow"}, fields={"amount": "cents"})

    async with clock.autojump():
        newer = wide(New, 2, names=("slow", "quick"), migrate=migrate)
        runtime, run = await moved_wide(clock, open_workers, newer)
        state = await run.result()
        assert state.notes == ["quick", "paid slow v2", "joined 106 v2"]
        assert len(SENT) == 1
        assert len(await runtime.history(run.thread)) == 3


async def test_an_update_that_can_not_be_told_is_refused(clock, open_workers):
    def doubled(state):
        return {"cents": state["amount"], "notes": state["notes"], "total": state["total"] * 2}

    async with clock.autojump():
        newer = wide(New, 2, migrate=lambda graph: graph.migration(1, 2)(doubled))
        _runtime, run = await moved_wide(clock, open_workers, newer)
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "would change field 'total'" in row.failure.message
        assert "Let a worker of the older version finish the step" in row.failure.message


async def test_two_nodes_that_became_one_are_refused(clock, open_workers):
    def one(graph):
        graph.migration(1, 2, nodes={"quick": "join", "slow": "join"})(to_cents)

    async with clock.autojump():
        newer = wide(New, 2, migrate=one)
        _runtime, run = await moved_wide(clock, open_workers, newer)
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "nodes 'quick', 'slow' are under way and all became 'join'" in row.failure.message


@pytest.mark.parametrize("name", ["look", "see"])
async def test_a_fan_out_is_moved_with_its_arguments(clock, open_workers, name):
    def graph_of(state_type, version, node, upgrade=None):
        graph = Graph(state_type, name="fan", version=version)

        async def look(item: str, ctx):
            receipt = await ctx.call(pay, item)
            if item == "b":
                await ctx.receive("go")
            return {"notes": [f"{receipt} v{version}"]}

        graph.node(name=node)(look)
        graph.branch(START, lambda _state: [Send(node, each) for each in "abc"], targets=[node])
        graph.edge(node, END)
        if upgrade is not None:
            graph.migration(1, 2, nodes={"look": node})(upgrade)
        return graph

    async with clock.autojump():
        [worker] = await open_workers(1, graph_of(Old, 1, "look"))
        run = await worker.start("fan", {"amount": 1})
        await until(clock, run, RunStatus.WAITING)
        await worker.close()
        [runtime] = await open_workers(1, graph_of(New, 2, name, to_cents))
        run = await runtime.get(run.id)
        await run.signal("go")
        state = await run.result()
        assert state.notes == ["paid a v1", "paid b v2", "paid c v1"]
        assert sorted(what for what, _key in SENT) == ["a", "b", "c"]


# -- values of classes that are gone ---------------------------------------------------------------


@dataclass
class Euro:
    amount: int


@dataclass
class HasPrice:
    price: Any = None
    text: str = ""


@dataclass
class HasText:
    text: str = ""


def priced(state_type, version, upgrade=None, first=None):
    graph = Graph(state_type, name="priced", version=version)

    @graph.node
    async def set_price(_state):
        return first() if first else None

    @graph.node
    async def wait(_state, ctx):
        await ctx.receive("go")

    graph.edge(START, set_price)
    graph.edge(set_price, wait)
    graph.edge(wait, END)
    if upgrade is not None:
        graph.migration(1, 2)(upgrade)
    return graph


async def test_values_of_classes_that_are_gone_are_dicts(clock, open_workers):
    @dataclass
    class Gone:
        amount: int
        parts: Any = ()

    def upgrade(state):
        price = state.pop("price")
        parts = [part["amount"] for part in price["parts"]]
        return {"text": f"{price['$type']} {price['amount']} {parts}"}

    @dataclass
    class State:
        price: Gone | None = None

    older = priced(State, 1, first=lambda: {"price": Gone(4, (Gone(5),))})
    async with clock.autojump():
        [worker] = await open_workers(1, older)
        run = await worker.start("priced")
        await until(clock, run, RunStatus.WAITING)
        await worker.close()
        [runtime] = await open_workers(1, priced(HasText, 2, upgrade))
        run = await runtime.get(run.id)
        await run.signal("go")
        name = "test_values_of_classes_that_are_gone_are_dicts.Gone"
        assert (await run.result()).text == f"{name} 4 [5]"


async def test_what_stays_unreadable_is_refused(clock, open_workers):
    @dataclass
    class Gone:
        amount: int

    @dataclass
    class State:
        price: Gone | None = None

    older = priced(State, 1, first=lambda: {"price": Gone(4)})
    async with clock.autojump():
        [worker] = await open_workers(1, older)
        run = await worker.start("priced")
        await until(clock, run, RunStatus.WAITING)
        await worker.close()
        [runtime] = await open_workers(1, priced(HasPrice, 2, lambda state: state))
        run = await runtime.get(run.id)
        await run.signal("go")
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "field 'price' still holds a stored" in row.failure.message


# -- subgraphs -------------------------------------------------------------------------------------


@dataclass
class Inner:
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    private: int = 0


@dataclass
class Inner2:
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    hidden: str = ""


def nested(state_type, version, inner, *, node="inner", migrate=None):
    graph = Graph(state_type, name="outer", version=version)
    graph.node(inner, name=node)

    @graph.node
    async def after(state):
        return {"notes": [f"after {state.total} v{version}"]}

    graph.edge(START, node)
    graph.edge(node, after)
    graph.edge(after, END)
    if migrate is not None:
        migrate(graph)
    return graph


def inner_graph(state_type, version, *, names=("one", "two"), update=None, migrate=None):
    graph = Graph(state_type, name="inner", version=version)
    one, two = names

    async def first(_state):
        return {"notes": ["one"], "total": 1, **(update or {})}

    async def second(state, ctx):
        receipt = await ctx.call(pay, "inside")
        await ctx.receive("go")
        shown = getattr(state, "private", None) or getattr(state, "hidden", None)
        return {"notes": [f"{receipt} {shown} v{version}"], "total": 1}

    graph.node(name=one)(first)
    graph.node(name=two)(second)
    graph.edge(START, one)
    graph.edge(one, two)
    graph.edge(two, END)
    if migrate is not None:
        migrate(graph)
    return graph


async def moved_nested(clock, open_workers, newer, older):
    [worker] = await open_workers(1, older)
    run = await worker.start("outer", {"amount": 1, "notes": ["given"]})
    await until(clock, run, RunStatus.WAITING)
    await worker.close()
    [runtime] = await open_workers(1, newer)
    run = await runtime.get(run.id)
    await run.signal("go")
    return runtime, run


async def test_a_run_inside_a_subgraph_is_moved(clock, open_workers):
    def migrate(graph):
        graph.migration(1, 2, nodes={"inner": "deep"})(to_cents)

    inner = inner_graph(Inner, 1, update={"private": 3})
    older = nested(Old, 1, inner)
    newer = nested(New, 2, inner, node="deep", migrate=migrate)
    async with clock.autojump():
        _runtime, run = await moved_nested(clock, open_workers, newer, older)
        state = await run.result()
        assert state.notes == ["given", "one", "paid inside 3 v1", "after 2 v2"]
        assert (state.cents, state.total, len(SENT)) == (100, 2, 1)


async def test_a_subgraphs_own_migrations_apply_inside_it(clock, open_workers):
    def migrate(graph):
        graph.migration(1, 2)(to_cents)

    def inner_migrate(graph):
        @graph.migration(1, 3, nodes={"two": "zwei"}, fields={"private": "hidden"})
        def upgrade(state):
            state["hidden"] = f"was {state['hidden']}"
            return state

    inner = inner_graph(Inner2, 3, names=("one", "zwei"), migrate=inner_migrate)
    older = nested(Old, 1, inner_graph(Inner, 1, update={"private": 3}))
    newer = nested(New, 2, inner, migrate=migrate)
    async with clock.autojump():
        _runtime, run = await moved_nested(clock, open_workers, newer, older)
        state = await run.result()
        assert state.notes == ["given", "one", "paid inside was 3 v3", "after 2 v2"]
        assert len(SENT) == 1


async def test_a_subgraph_without_a_way_is_refused(clock, open_workers):
    newer = nested(
        New, 2, inner_graph(Inner, 2), migrate=lambda graph: graph.migration(1, 2)(to_cents)
    )
    async with clock.autojump():
        _runtime, run = await moved_nested(
            clock, open_workers, newer, nested(Old, 1, inner_graph(Inner, 1))
        )
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "stands inside subgraph 'inner' v1, and no migration of it" in row.failure.message


async def test_what_a_subgraph_was_given_is_not_changed_under_its_feet(clock, open_workers):
    def louder(state):
        return {**to_cents(state), "notes": [each.upper() for each in state["notes"]]}

    inner = inner_graph(Inner, 1)
    newer = nested(New, 2, inner, migrate=lambda graph: graph.migration(1, 2)(louder))
    async with clock.autojump():
        _runtime, run = await moved_nested(clock, open_workers, newer, nested(Old, 1, inner))
        row = await until(clock, run, RunStatus.NEEDS_DECISION)
        assert "inside subgraph 'inner', and the migration changes field 'notes'" in (
            row.failure.message
        )


# -- children --------------------------------------------------------------------------------------


@dataclass
class Family:
    notes: Annotated[list[str], append] = field(default_factory=list)


def parent_and_child(version, *, migrate=False):
    child = Graph(Old if version == 1 else New, name="child", version=version)

    @child.node
    async def work(_state, ctx):
        await ctx.receive("go")
        return {"notes": [f"worked v{version}"]}

    child.edge(START, work)
    child.edge(work, END)
    parent = Graph(Family, name="parent", version=version)

    @parent.node
    async def spawn(_state, ctx):
        run = await ctx.spawn(child, {"notes": ["x"]})
        ended = await run.result()
        return {"notes": [*ended.notes, f"parent v{version}"]}

    parent.edge(START, spawn)
    parent.edge(spawn, END)
    if migrate:
        parent.migration(1, 2)
        child.migration(1, 2)(to_cents)
    return parent, child


async def test_parent_and_child_are_moved_and_the_child_is_not_spawned_again(clock, open_workers):
    async with clock.autojump():
        [worker] = await open_workers(1, *parent_and_child(1))
        run = await worker.start("parent")
        await until(clock, run, RunStatus.WAITING)
        [child] = await worker.runs(graph="child")
        await worker.close()
        [runtime] = await open_workers(1, *parent_and_child(2, migrate=True))
        await (await runtime.get(child.run_id)).signal("go")
        state = await (await runtime.get(run.id)).result()
        assert state.notes == ["x", "worked v2", "parent v2"]
        assert [row.run_id for row in await runtime.runs(graph="child")] == [child.run_id]


async def test_a_childs_result_of_an_older_version_is_migrated(clock, open_workers):
    async with clock.autojump():
        [worker] = await open_workers(1, *parent_and_child(1))
        run = await worker.start("parent")
        await until(clock, run, RunStatus.WAITING)
        await worker.close()
        [only_child] = await open_workers(1, parent_and_child(1)[1])
        [child] = await only_child.runs(graph="child")
        child_run = await only_child.get(child.run_id)
        await child_run.signal("go")
        await until(clock, child_run, RunStatus.SUCCEEDED)
        await only_child.close()
        [runtime] = await open_workers(1, *parent_and_child(2, migrate=True))
        state = await (await runtime.get(run.id)).result()
        assert state.notes == ["x", "worked v1", "parent v2"]


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
