"""What migrations make of states, updates and input."""

import operator
from types import SimpleNamespace

import pytest

from perdure.core.migration import (
    both_became,
    carried,
    contributed,
    fitted,
    upgraded,
    with_writes,
)
from perdure.core.plan import Channel, Migration
from perdure.errors import MigrationFailed
from perdure.model import WriteOp

PLAN = SimpleNamespace(
    name="g",
    version=3,
    channels={
        "cents": Channel(name="cents", op=WriteOp.REPLACE, default=lambda: 0),
        "notes": Channel(name="notes", op=WriteOp.APPEND, default=list),
        "total": Channel(name="total", op=WriteOp.FOLD, reduce=operator.add, default=lambda: 0),
        "must": Channel(name="must", op=WriteOp.REPLACE),
        "may": Channel(name="may", op=WriteOp.REPLACE, is_optional=True),
    },
)


def hop(upgrade=None, low=1, high=2, **names):
    return Migration(from_version=low, to_version=high, upgrade=upgrade, **names)


def cents(state):
    state["cents"] = state.pop("amount", 0) * 100
    return state


CENTS = (hop(cents),)


def test_hops_are_composed_in_order():
    chain = (
        hop(fields={"a": "b"}),
        hop(lambda state: {**state, "b": state["b"] + 1}, 2, 3),
        hop(None, 3, 4, fields={"b": "c", "x": None}),
    )
    assert upgraded(chain, {"a": 1, "x": 2}) == {"c": 2}


def test_fields_can_swap_but_not_collide():
    assert upgraded((hop(fields={"a": "b", "b": "a"}),), {"a": 1, "b": 2}) == {"b": 1, "a": 2}
    with pytest.raises(MigrationFailed, match="'a' becomes 'b', which is stored already"):
        upgraded((hop(fields={"a": "b"}),), {"a": 1, "b": 2})


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raising(error):
    def upgrade(_state):
        raise error

    return upgrade


@pytest.mark.parametrize(
    ("upgrade", "reason"),
    [
        (raising(ValueError("x")), "migration 1 -> 2 raised ValueError: x"),
        (raising(SystemExit(1)), "raised SystemExit: 1"),
        (raising(Unreadable()), "its text can't be read: RuntimeError"),
        (lambda state: state["b"], "KeyError: 'b'; the stored fields are 'a'"),
        (lambda _state: None, "returned None"),
        (lambda _state: [1], "returned list"),
        (lambda _state: {1: 2}, "returned dict"),
    ],
)
def test_what_a_function_does_wrong_is_named(upgrade, reason):
    with pytest.raises(MigrationFailed) as caught:
        upgraded((hop(upgrade),), {"a": 1})
    assert reason in str(caught.value)


def test_a_state_is_fitted_with_defaults():
    assert fitted(PLAN, {"must": 1}) == {"cents": 0, "notes": [], "total": 0, "must": 1}
    with pytest.raises(MigrationFailed) as caught:
        fitted(PLAN, {"other": 1})
    assert caught.value.fields["problems"] == [
        "the state has no field 'other'",
        "field 'must' is missing and has no default",
    ]


def test_updates_that_pass_untouched_stay_as_they_are():
    writes = {"notes": ("a", ["x"]), "total": ("f", 2)}
    state = {"amount": 1, "notes": ["a"], "total": 5}
    assert carried(PLAN, CENTS, lambda: dict(state), writes, "n") == writes


def test_updates_that_are_changed_are_found_by_their_difference():
    def louder(state):
        return {**cents(state), "notes": [each.upper() for each in state["notes"]]}

    writes = {"amount": ("r", 3), "notes": ("a", ["x"])}
    state = {"amount": 1, "notes": ["a"], "total": 5}
    found = carried(PLAN, (hop(louder),), lambda: dict(state), writes, "n")
    assert found == {"cents": ("r", 300), "notes": ("a", ["X"])}


def test_an_equal_value_that_was_written_stays_written():
    found = carried(PLAN, (hop(),), lambda: {"cents": 1}, {"cents": ("r", 1)}, "n")
    assert found == {"cents": ("r", 1)}


@pytest.mark.parametrize(
    ("upgrade", "writes"),
    [
        (lambda state: {"total": state["total"] * 2}, {"total": ("f", 1)}),
        (lambda state: {"notes": state["notes"][::-1]}, {"notes": ("a", ["x"])}),
        (lambda state: {"other": state["amount"]}, {"amount": ("r", 9)}),
    ],
)
def test_updates_that_can_not_be_told_are_refused(upgrade, writes):
    state = {"amount": 1, "notes": ["a", "b"], "total": 5}
    with pytest.raises(MigrationFailed, match="older version"):
        carried(PLAN, (hop(upgrade),), lambda: dict(state), writes, "n")


def test_input_is_merged_by_the_present_reducers():
    given = {"amount": ("r", 2), "notes": ("a", ["b"]), "total": ("f", 3)}
    state = {"amount": 1, "notes": ["a"], "total": 5}
    assert with_writes(PLAN, state, given) == {"amount": 2, "notes": ["a", "b"], "total": 8}
    with pytest.raises(MigrationFailed, match="'sum' was merged by a function of the older"):
        with_writes(PLAN, {"sum": 1}, {"sum": ("f", 1)})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"amount": 3}, {"cents": ("r", 300)}),
        ({"amount": 0}, {"cents": ("r", 0)}),
        ({"notes": ["x"]}, {"notes": ("a", ["x"])}),
        ({"total": 0}, {"total": ("f", 0)}),
        ({}, {}),
    ],
)
def test_input_for_a_newer_state_is_what_was_given_and_no_more(given, expected):
    def upgrade(state):
        return {**cents(state), "may": "EUR"}

    assert contributed(PLAN, (hop(upgrade),), lambda: dict(given)) == expected


def test_input_that_can_not_be_told_is_refused():
    def total_only(state):
        return {"cents": len(state.get("parts", ()))}

    with pytest.raises(MigrationFailed, match="it can't be told what the migrations make of"):
        contributed(PLAN, (hop(total_only),), lambda: {"parts": {}})
    with pytest.raises(MigrationFailed, match="with an empty dict"):
        contributed(PLAN, (hop(lambda s: {"cents": s["a"]}),), lambda: {"a": 1})
    with pytest.raises(MigrationFailed, match="'cts', which v3 does not have"):
        contributed(PLAN, (hop(lambda s: {"cts": s.get("a")}),), lambda: {"a": 1})


def test_nodes_that_become_one_are_named():
    assert both_became([("a", "c"), ("b", "c"), ("d", "d"), ("a", "c")]) == [
        "nodes 'a', 'b' are under way and all became 'c'"
    ]
