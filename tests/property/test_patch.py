"""A JSON Patch turns one value exactly into the other, and says no more than it must."""

import copy
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.engine import patch as module
from perdure.engine.patch import edits, patch

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 2.5]), st.text("ab/~")
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("ab/~", max_size=2), inner),
    max_leaves=12,
)


def applied(operations, document):
    """Apply a JSON Patch as RFC 6902 says, written apart from the code under test."""
    document = copy.deepcopy(document)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~")
            for part in ["", *operation["path"].split("/")[1:]]
        )
        if not parents:
            document = operation["value"]
            continue
        target = document
        for part in parents[1:]:
            target = target[int(part)] if isinstance(target, list) else target[part]
        apply_one(operation, target, last)
    return document


def apply_one(operation, target, last):
    if isinstance(target, dict):
        assert (last in target) == (operation["op"] != "add")
        if operation["op"] == "remove":
            del target[last]
        else:
            target[last] = copy.deepcopy(operation["value"])
        return
    index = len(target) if last == "-" else int(last)
    assert 0 <= index < len(target) + (operation["op"] == "add")
    if operation["op"] == "add":
        target.insert(index, copy.deepcopy(operation["value"]))
    elif operation["op"] == "remove":
        del target[index]
    else:
        target[index] = copy.deepcopy(operation["value"])


def exact(value):
    """Return a text that differs for 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)


@given(VALUES, VALUES)
def test_a_patch_is_exact(before, after):
    assert exact(applied(patch(before, after), before)) == exact(after)


@given(VALUES)
def test_equal_values_need_no_patch(value):
    assert patch(value, copy.deepcopy(value)) == []


@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=30))
@pytest.mark.parametrize("edits_max", [0, 3, module.EDITS_MAX])
def test_lists_are_exact_whether_the_shortest_script_is_found_or_not(edits_max, before, after):
    was, module.EDITS_MAX = module.EDITS_MAX, edits_max
    try:
        operations = patch(before, after)
    finally:
        module.EDITS_MAX = was
    assert applied(operations, before) == after


@given(st.lists(VALUES, max_size=8), st.data())
def test_an_item_that_is_added_or_removed_is_one_operation(items, data):
    index = data.draw(st.integers(0, len(items)))
    more = [*items[:index], {"new": "item"}, *items[index:]]
    [added] = patch(items, more)
    assert (added["op"], added["value"]) == ("add", {"new": "item"})
    [removed] = patch(more, items)
    assert removed["op"] == "remove"


def test_a_change_inside_an_item_is_named_by_its_path():
    before = [{"id": n, "name": "x"} for n in range(20)]
    after = [*before[:7], {"id": 7, "name": "y"}, *before[8:]]
    [edit] = edits(before, after)
    assert (edit.path, edit.old, edit.new) == ("/7/name", "x", "y")


def test_paths_are_escaped():
    assert patch({"a/b~c": 1}, {"a/b~c": 2}) == [{"op": "replace", "path": "/a~1b~0c", "value": 2}]


@pytest.mark.parametrize("shift", [1, 3000])
def test_the_cost_is_bounded_however_much_differs(shift):
    before = [f"item {n}" for n in range(6000)]
    after = [f"item {n}" for n in range(shift, 6000, 2)]
    started_s = time.perf_counter()
    operations = patch(before, after)
    assert time.perf_counter() - started_s < 5
    assert applied(operations, before) == after
    assert {operation["op"] for operation in operations} == {"remove"}, "anchors: nothing rewritten"
