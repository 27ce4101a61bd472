"""What is under way when a run is moved: nodes at once, subgraphs, children, gone classes."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure import END, START, Graph, RunStatus, Send, add, append
from tests.engine.bills import SENT, New, Old, pay, to_cents, until


@pytest.fixture(autouse=True)
def _nothing_sent():
    SENT.clear()


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
