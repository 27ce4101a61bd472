"""Building and compiling graphs.

Size: one test for each way to build a graph wrongly, beside those for the right ways.
"""

import functools
import itertools
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from perdure.errors import GraphInvalid
from perdure.graph import END, START, Goto, Graph, Retry, Send, append, effect


@dataclass
class Refunds:
    order_id: str
    notes: Annotated[list[str], append] = field(default_factory=list)
    refund_id: str | None = None


class Context:
    """Stands for the context of the engine."""


async def assess(state: Refunds, ctx: Context) -> dict[str, Any]:
    return {"notes": [state.order_id]}


def pay(state: Refunds) -> None:
    return None


def new_graph(**options: Any) -> Graph[Refunds]:
    return Graph(Refunds, **{"name": "refunds", **options})


def line_graph(*nodes: Any, **options: Any) -> Graph[Refunds]:
    graph = new_graph(**options)
    places = [START, *nodes, END]
    for node in nodes:
        graph.node(node)
    for source, target in itertools.pairwise(places):
        graph.edge(source, target)
    return graph


def problems_of(graph: Graph[Any]) -> list[str]:
    with pytest.raises(GraphInvalid) as caught:
        graph.compile()
    lines = caught.value.fields["problems"]
    assert str(caught.value).splitlines() == lines
    assert caught.value.fields["graph"] == graph.name
    assert all(line.startswith(f"graph {graph.name!r}") for line in lines)
    return lines


# ------------------------------------------------------------------------------------ what works


def test_a_line_of_nodes_compiles():
    plan = line_graph(assess, pay, version=3, step_limit=7, compensate_on_failure=True).compile()
    assert (plan.name, plan.version, plan.step_limit) == ("refunds", 3, 7)
    assert plan.compensates_on_failure
    assert not plan.is_function
    assert plan.edges == {START: ("assess",), "assess": ("pay",), "pay": (END,)}
    assert plan.nodes["assess"].is_async
    assert plan.nodes["assess"].takes_context
    assert not plan.nodes["pay"].is_async
    assert not plan.nodes["pay"].takes_context
    assert plan.state_type is Refunds


def test_the_decorator_gives_back_the_function_in_each_form():
    graph = new_graph()

    @graph.node
    def one(state): ...

    @graph.node(name="second", retry=Retry(max_attempts=2), timeout_s=5)
    def two(state): ...

    graph.edge(START, one)
    graph.edge(one, two)
    graph.edge("second", END)
    plan = graph.compile()
    assert one.__name__ == "one"
    assert plan.nodes["second"].retry == Retry(max_attempts=2)
    assert plan.nodes["second"].timeout_s == 5
    assert plan.edges["one"] == ("second",)


def test_edges_may_come_before_their_nodes_and_count_once():
    graph = new_graph()
    graph.edge(START, pay)
    graph.edge(START, "pay")
    graph.node(pay)
    assert graph.compile().edges == {START: ("pay",)}


def test_a_compiled_graph_is_kept_and_closed():
    graph = line_graph(pay)
    assert graph.compile() is graph.compile()
    for change in (
        lambda: graph.node(assess),
        lambda: graph.edge(pay, END),
        lambda: graph.branch(pay, lambda state: END),
        lambda: graph.node(name="later"),
    ):
        with pytest.raises(GraphInvalid, match="is compiled and can't change"):
            change()


def test_a_decorator_made_before_compiling_adds_nothing_after():
    graph = line_graph(pay)
    add = graph.node(name="late")
    graph.compile()
    with pytest.raises(GraphInvalid, match="'late': it is compiled"):
        add(assess)


def test_a_graph_with_problems_can_be_completed():
    graph = new_graph()
    graph.node(pay)
    assert len(problems_of(graph)) == 1
    graph.edge(START, pay)
    assert set(graph.compile().nodes) == {"pay"}


def test_graph_shows_its_settings():
    graph = new_graph(version=2)
    assert repr(graph) == "Graph(name='refunds', version=2)"
    assert (graph.name, graph.version, graph.state_type) == ("refunds", 2, Refunds)


# ------------------------------------------------------------------------------------ signatures


class Answering:
    async def __call__(self, state, ctx):
        return state, ctx


class Service:
    def handle(self, state):
        return self, state


def _keyword_only(state, *, ctx):
    return state, ctx


def _only_context(ctx):
    return ctx


def _only_keyword_context(*, ctx):
    return ctx


def _annotated_context(state, c: "perdure.Context"):  # noqa: F821 - named as a user would
    return state, c


def _optional_context(state, ctx=None):
    return state, ctx


def _loop_variable(state, index=7):
    return state, index


@pytest.mark.parametrize(
    ("function", "takes_context", "expected"),
    [
        (lambda state: state, False, "S"),
        (lambda: "nothing", False, "nothing"),
        (lambda state, other: (state, other), True, ("S", "C")),
        (_keyword_only, True, ("S", "C")),
        (_only_context, True, "C"),
        (_only_keyword_context, True, "C"),
        (_annotated_context, True, ("S", "C")),
        (_optional_context, True, ("S", "C")),
        (_loop_variable, False, ("S", 7)),
        (functools.partial(_loop_variable, index=8), False, ("S", 8)),
    ],
)
def test_nodes_take_what_they_name(function, takes_context, expected):
    graph = new_graph()
    graph.node(function, name="it")
    graph.edge(START, "it")
    node = graph.compile().nodes["it"]
    assert node.takes_context is takes_context
    assert node.call(*(("S", "C") if takes_context else ("S",))) == expected


def test_async_is_seen_through_partials_and_call_methods():
    graph = new_graph()
    graph.node(Answering())
    graph.node(functools.partial(assess), name="partial")
    graph.edge(START, "Answering")
    graph.edge(START, "partial")
    nodes = graph.compile().nodes
    assert nodes["Answering"].is_async
    assert nodes["Answering"].takes_context
    assert nodes["partial"].is_async


def test_a_bound_method_is_the_same_node_each_time_it_is_named():
    service = Service()
    graph = new_graph()
    graph.node(service.handle)
    graph.edge(START, service.handle)
    assert graph.compile().edges == {START: ("handle",)}


def _generator(state):
    yield state


async def _async_generator(state):
    yield state


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda state, ctx, extra: None,
            "it takes (state, ctx, extra); take (state), (state, ctx)",
        ),
        (lambda *args: None, "use functools.wraps in its decorator"),
        (lambda state, *, size: None, "it needs the keyword size; bind it with functools.partial"),
        (lambda state, other, *, ctx: None, "it takes (state, other)"),
        (_generator, "it is a generator"),
        (_async_generator, "it is a generator"),
        (5, "its signature can't be read"),
        (effect(pay), "an effect is no node; call it in one"),
    ],
)
def test_a_node_that_can_not_be_called_is_refused(function, text):
    graph = new_graph()
    graph.node(function, name="it")
    graph.edge(START, "it")
    (line,) = problems_of(graph)
    assert line.startswith("graph 'refunds', node 'it': ")
    assert text in line


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"name": ""}, "name: '' can't name a graph"),
        ({"name": "a/b"}, "name: 'a/b' can't name a graph"),
        ({"name": "x" * 129}, "can't name a graph"),
        ({"version": 0}, "version: 0 is not a whole number from 1"),
        ({"version": True}, "version: True is not"),
        ({"version": "2"}, "version: '2' is not"),
        ({"step_limit": 0}, "step_limit: 0 is not"),
    ],
)
def test_settings_out_of_range_are_refused(options, place):
    (line,) = problems_of(line_graph(pay, **options))
    assert place in line


@pytest.mark.parametrize("name", ["a:b", "a/b", "a#b", "", " a", "x" * 129, "a\nb"])
def test_names_that_are_no_names_are_refused(name):
    graph = new_graph()
    graph.node(pay, name=name)
    graph.edge(START, pay)
    with pytest.raises(GraphInvalid, match=r"can.t be a name.*name="):
        graph.compile()


@pytest.mark.parametrize("name", [START, END])
def test_reserved_names_are_refused(name):
    graph = new_graph()
    graph.node(pay, name=name)
    assert "the name is reserved; give another with name=" in problems_of(graph)[0]


@pytest.mark.parametrize("name", ["ask a person", "v1.2", "naïve", "a-b", "x"])
def test_names_people_use_are_accepted(name):
    graph = new_graph()
    graph.node(pay, name=name)
    graph.edge(START, name)
    assert name in graph.compile().nodes


def test_a_lambda_needs_a_name():
    graph = new_graph()
    graph.node(lambda state: None)
    assert any("'<lambda>': can't be a name" in line for line in problems_of(graph))


def test_several_problems_come_together():
    graph = Graph(int, name="bad name!", version=0)
    graph.node(pay, timeout_s=0)
    graph.node(assess, name="pay", retry=3)
    graph.edge(START, "asess")
    graph.edge(END, pay)
    graph.branch("nowhere", lambda state, ctx, more: END, targets=["pya"])
    lines = problems_of(graph)
    text = "\n".join(lines)
    for part in (
        "name: 'bad name!' can't name a graph",
        "version: 0 is not a whole number",
        "state: state type int is not supported; use a dataclass, a TypedDict",
        "node 'pay': declared twice",
        "node 'pay': timeout_s=0 must be seconds above 0",
        "node 'pay': retry=3 is not a Retry",
        "edge START -> 'asess': no node 'asess'; the nodes are 'pay'.",
        "edge END -> 'pay': nothing follows END",
        "branch of 'nowhere': no node 'nowhere'",
        "branch of 'nowhere': no node 'pya'; the nodes are 'pay'. Did you mean 'pay'?",
        "branch of 'nowhere': router '<lambda>': it takes (state, ctx, more)",
    ):
        assert part in text
    assert len(lines) == 11


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), True, "5"])
def test_timeouts_out_of_range_are_refused(timeout):
    graph = new_graph()
    graph.node(pay, timeout_s=timeout)
    graph.edge(START, pay)
    assert "must be seconds above 0" in problems_of(graph)[0]


def test_an_empty_graph_is_refused():
    assert problems_of(new_graph()) == [
        "graph 'refunds': it has no nodes; add one with @graph.node"
    ]


def test_a_graph_without_a_start_is_refused():
    graph = new_graph()
    graph.node(pay)
    graph.edge(pay, END)
    assert problems_of(graph) == [
        "graph 'refunds', __start__: nothing starts; add graph.edge(START, first_node)"
    ]


def test_unreachable_nodes_are_named_each():
    graph = line_graph(pay)
    graph.node(assess)
    graph.node(lambda state: None, name="lost")
    graph.edge("lost", assess)
    lines = problems_of(graph)
    assert [line.split(":")[0] for line in lines] == [
        "graph 'refunds', node 'assess'",
        "graph 'refunds', node 'lost'",
    ]
    assert "goto=['lost']" in lines[1]


def test_a_function_that_is_no_node_is_named():
    graph = line_graph(pay)
    graph.edge(pay, assess)
    graph.edge(pay, 7)
    lines = problems_of(graph)
    assert "edge 'pay' -> 'assess': assess is not a node of this graph; add it" in lines[0]
    assert "edge 'pay' -> int: int is not a node of this graph" in lines[1]


def test_a_function_that_is_two_nodes_must_be_named():
    graph = new_graph()
    graph.node(pay, name="first")
    graph.node(pay, name="second")
    graph.edge(START, pay)
    graph.edge(START, "first")
    graph.edge("first", "second")
    (line,) = problems_of(graph)
    assert "the same function is the nodes 'first', 'second'; use the name" in line


def test_an_edge_takes_one_source_and_one_target():
    graph = line_graph(pay)
    graph.edge(pay, [END])
    graph.edge(pay, START)
    lines = problems_of(graph)
    assert "add one edge for each" in lines[0]
    assert "START is no target" in lines[1]


# -------------------------------------------------------------------------- branches, Send, Goto


def branched(router: Any, targets: Any = None) -> Graph[Refunds]:
    graph = new_graph()
    graph.node(assess)
    graph.node(pay)
    graph.node(lambda item: None, name="each")
    graph.edge(START, assess)
    graph.branch(assess, router, targets)
    return graph


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (pay, ("pay",)),
        ("pay", ("pay",)),
        (END, (END,)),
        ([pay, "each", END], ("pay", "each", END)),
        ((pay, "pay"), ("pay",)),
        (Send(pay, 1), (Send("pay", 1),)),
        ([Send("each", 1), Send("each", 1)], (Send("each", 1), Send("each", 1))),
        ([], ()),
    ],
)
def test_a_router_may_return(returned, expected):
    plan = branched(lambda state: returned).compile()
    (branch,) = plan.branches["assess"]
    assert branch.route(None) == expected
    assert branch.source == "assess"
    assert not branch.is_async
    assert branch.targets == {"assess", "pay", "each", END}
    assert plan.resolve(returned) == expected
    assert plan.resolve(returned, "assess") == expected


async def test_a_router_may_be_async():
    async def router(state):
        return [pay, Send("each", state)]

    (branch,) = branched(router).compile().branches["assess"]
    assert branch.is_async
    assert await branch.route("S") == ("pay", Send("each", "S"))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("pya", "no node 'pya'; the nodes are 'assess', 'each', 'pay'. Did you mean 'pay'?"),
        (None, "got None; return END to end this path"),
        (START, "START is no target"),
        (Send(END, 1), "a Send goes to a node, not to END"),
        (Send(START, 1), "a Send goes to a node, not to START"),
        ([5], "int is not a node of this graph"),
    ],
)
def test_a_router_may_not_return(returned, text):
    plan = branched(lambda state: returned).compile()
    with pytest.raises(GraphInvalid) as caught:
        plan.branches["assess"][0].route(None)
    assert str(caught.value).startswith("graph 'refunds', branch '<lambda>' of 'assess': ")
    assert text in str(caught.value)
    with pytest.raises(GraphInvalid) as caught:
        plan.resolve(returned, "assess")
    assert str(caught.value).startswith("graph 'refunds', Goto of 'assess': ")
    with pytest.raises(GraphInvalid, match="graph 'refunds', Goto: "):
        plan.resolve(returned)


@pytest.mark.parametrize("returned", [pay, [END, pay], Send(pay, 1)])
def test_a_router_may_only_return_what_was_declared(returned):
    graph = branched(lambda state: returned, targets=["each", END])
    graph.edge("each", pay)
    route = graph.compile().branches["assess"][0].route
    with pytest.raises(GraphInvalid) as caught:
        route(None)
    assert (
        "branch '<lambda>' of 'assess': 'pay' is not among the declared targets '__end__', 'each'"
        in str(caught.value)
    )


def test_one_target_need_not_be_a_list():
    graph = new_graph()
    graph.node(pay)
    graph.branch(START, lambda state: END, targets="pay")
    graph.branch(START, lambda state: END, targets=pay)
    graph.branch(pay, lambda state: END, targets=END)
    plan = graph.compile()
    assert [branch.targets for branch in plan.branches[START]] == [{"pay"}, {"pay"}]
    assert plan.branches["pay"][0].targets == {END}


@pytest.mark.parametrize(
    ("router", "targets", "text"),
    [
        (lambda state, ctx: END, None, "router '<lambda>': it must take the state"),
        (_generator, None, "router '_generator': it must take the state and return targets"),
        (5, None, "router int: its signature can't be read"),
        (lambda state: END, [], "targets is empty; name what the router may return"),
        (lambda state: END, [START, "pay", "each"], "START is no target"),
    ],
)
def test_a_branch_that_can_not_work_is_refused(router, targets, text):
    graph = branched(router, targets)
    assert text in problems_of(graph)[0]


def test_goto_takes_two_positions():
    goto = Goto(pay, {"refund_id": "r"})
    assert (goto.node, goto.update) == (pay, {"refund_id": "r"})
    assert Goto("pay").update is None
    assert Send("pay", 1) == Send(node="pay", argument=1)


def test_a_declared_goto_counts_as_a_way_and_as_a_limit():
    graph = new_graph()

    @graph.node(goto=[pay])
    def first(state):
        return Goto(pay)

    graph.node(pay)
    graph.edge(START, first)
    plan = graph.compile()
    assert plan.nodes["first"].goto == {"pay"}
    assert plan.nodes["pay"].goto is None
    assert plan.resolve(pay, "first") == ("pay",)
    with pytest.raises(GraphInvalid, match="Goto of 'first': '__end__' is not among the declared"):
        plan.resolve(END, "first")


def test_a_node_that_speaks_of_goto_may_go_anywhere():
    graph = new_graph()

    @graph.node
    async def first(state):
        async def inner():
            return Goto("pay")

        return await inner()

    graph.node(pay)
    graph.edge(START, first)
    assert set(graph.compile().nodes) == {"first", "pay"}


def test_a_wrong_goto_is_refused():
    graph = line_graph(assess)
    graph.node(pay, goto=["asses", START])
    graph.edge(assess, pay)
    lines = problems_of(graph)
    assert "goto= of node 'pay': no node 'asses'" in lines[0]
    assert "START is no target" in lines[1]


# ------------------------------------------------------------------------------------- subgraphs


def test_a_graph_can_be_a_node():
    inner = line_graph(pay, name="inner")
    outer = new_graph()
    assert outer.node(inner) is inner
    outer.node(line_graph(assess, name="other"), name="renamed")
    outer.edge(START, inner)
    outer.edge(inner, "renamed")
    plan = outer.compile()
    assert plan.nodes["inner"].subgraph is inner.compile()
    assert plan.nodes["inner"].call is None
    assert plan.edges == {START: ("inner",), "inner": ("renamed",)}


def test_the_problems_of_a_subgraph_are_reported_with_its_place():
    inner = Graph(Refunds, name="inner")
    outer = new_graph()
    outer.node(inner, goto=[END])
    outer.edge(START, inner)
    assert problems_of(outer) == [
        "graph 'refunds', node 'inner': a graph gives no Goto; leave goto= out and add an edge",
        "graph 'refunds', node 'inner': graph 'inner': it has no nodes; add one with @graph.node",
    ]


def test_a_graph_can_not_contain_itself():
    graph = new_graph()
    graph.node(graph, name="again")
    graph.edge(START, "again")
    (line,) = problems_of(graph)
    assert "it contains itself" in line


# ----------------------------------------------------------------------------------------- types


@dataclass
class Item:
    text: str


def test_the_plan_knows_the_classes_that_are_stored():
    @dataclass
    class Inner:
        item: "Item | None"

    @dataclass
    class State:
        inner: list[Inner] | None = None

    @dataclass
    class Argument:
        number: int

    def work(argument: Argument):
        return None

    sub: Graph[Any] = Graph(State, name="sub")
    sub.node(work)
    sub.edge(START, work)
    graph = new_graph()
    graph.node(sub)
    graph.node(pay)
    graph.edge(START, sub)
    graph.edge(START, pay)
    assert set(graph.compile().types) == {Refunds, State, Inner, Item, Argument}
