"""Migrations as declared: what is refused, and what comes of them."""

from dataclasses import dataclass

import pytest

from perdure import END, START, Graph, GraphInvalid
from perdure.core.migration import chain_of, node_after, shown, versions_of


@dataclass
class State:
    cents: int = 0


def graph(version=3, declare=lambda _graph: None):
    made = Graph(State, name="bills", version=version)
    made.node(name="settle")(lambda _state: None)
    made.edge(START, "settle")
    made.edge("settle", END)
    declare(made)
    return made


async def later(state):
    return state


def generated(state):
    yield state


WRONG = [
    (lambda g: g.migration(2, 2), "migration 2 -> 2: it leads back to where it begins (a cycle)"),
    (lambda g: (g.migration(1, 2), g.migration(2, 1)), "migration 2 -> 1: it leads to an older"),
    (lambda g: g.migration(1, 4), "migration 1 -> 4: it leads beyond this graph's version=3"),
    (lambda g: g.migration(0, 3), "migration 0 -> 3: 0 is no version"),
    (lambda g: g.migration(True, 3), "True is no version"),
    (lambda g: g.migration("1", 3), "'1' is no version"),
    (lambda g: g.migration(1, 2), "migration 1 -> 2: no migration leads on from v2 to v3"),
    (
        lambda g: (g.migration(1, 3), g.migration(1, 3)),
        "migration 1 -> 3: v1 leads to v3 already; leave one of the two out",
    ),
    (
        lambda g: (g.migration(1, 3), g.migration(1, 2), g.migration(2, 3)),
        "migration 1 -> 2: v1 leads to v3 already",
    ),
    (lambda g: g.migration(1, 3)(later), "its function must be a plain def"),
    (lambda g: g.migration(1, 3)(generated), "its function must be a plain def"),
    (lambda g: g.migration(1, 3)(7), "7 is no function"),
    (lambda g: g.migration(1, 3)(lambda state, ctx: state), "takes (state) alone"),
    (lambda g: g.migration(1, 3)(lambda a, b, c: a), "it takes (a, b, c)"),
    (lambda g: g.migration(1, 3, nodes={"pay": "setle"}), "Did you mean 'settle'?"),
    (lambda g: g.migration(1, 3, nodes={"pay": ""}), "nodes: '' is no name"),
    (lambda g: g.migration(1, 3, nodes={None: "settle"}), "nodes: None is no name"),
    (lambda g: g.migration(1, 3, fields={"amount": "cent"}), "field 'amount' becomes 'cent'"),
    (
        lambda g: g.migration(1, 3, fields={"a": "cents", "b": "cents"}),
        "fields: two become 'cents'; join them in a function",
    ),
    (
        lambda g: (g.migration(1, 2, nodes={"pay": "charge"}), g.migration(2, 3)),
        "migration 1 -> 2: node 'pay' becomes 'charge', which is no node of this graph",
    ),
]


@pytest.mark.parametrize(("declare", "reason"), WRONG)
def test_what_is_wrong_is_named(declare, reason):
    with pytest.raises(GraphInvalid) as caught:
        graph(declare=declare).compile()
    assert reason in str(caught.value)
    assert "graph 'bills', migration " in str(caught.value)


def test_two_functions_of_one_migration_are_refused():
    made = graph()
    decorate = made.migration(1, 3)
    decorate(lambda state: state)
    decorate(lambda state: state)
    with pytest.raises(GraphInvalid, match="decorates two functions"):
        made.compile()


def test_everything_wrong_is_told_at_once():
    with pytest.raises(GraphInvalid) as caught:
        graph(declare=lambda g: (g.migration(2, 2), g.migration(1, 9))).compile()
    assert len(caught.value.fields["problems"]) == 2


def test_a_compiled_graph_takes_no_more():
    made = graph()
    decorate = made.migration(1, 3)
    made.compile()
    with pytest.raises(GraphInvalid, match="can't change any more"):
        made.migration(2, 3)
    with pytest.raises(GraphInvalid, match="can't change any more"):
        decorate(lambda state: state)


def test_chains_are_one_way_from_each_version():
    def declare(made):
        made.migration(1, 3, nodes={"pay": "charge", "old": None})
        made.migration(2, 3, nodes={"pay2": "charge"})
        made.migration(3, 5, nodes={"charge": "settle"})

    plan = graph(5, declare).compile()
    chain = chain_of(plan, 1)
    assert (versions_of(chain), shown(chain)) == ((1, 3, 5), "1->3->5")
    assert [node_after(chain, name) for name in ("pay", "old", "other")] == [
        "settle",
        None,
        "other",
    ]
    assert versions_of(chain_of(plan, 2)) == (2, 3, 5)
    assert versions_of(chain_of(plan, 1, 3)) == (1, 3)
    assert chain_of(plan, 5) == ()
    assert chain_of(plan, 4) is None
    assert chain_of(plan, 1, 2) is None, "2 is not on the way"


def test_the_decorated_function_stays_itself():
    made = graph()

    @made.migration(1, 3)
    def upgrade(state):
        return {"cents": state["amount"]}

    assert upgrade({"amount": 1}) == {"cents": 1}
    assert made.compile().migrations[1].upgrade({"amount": 2}) == {"cents": 2}
