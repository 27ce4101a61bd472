"""The end of a step: reducers, conflicts, and inputs that stay as they were."""

import copy
import operator
from types import SimpleNamespace

import pytest

from perdure.core.merge import merge
from perdure.core.plan import Channel
from perdure.errors import UpdateConflict
from perdure.model import WriteOp

R, A, F, M = WriteOp.REPLACE, WriteOp.APPEND, WriteOp.FOLD, WriteOp.FOLD_MANY
PLAN = SimpleNamespace(
    name="g",
    channels={
        "last": Channel(name="last", op=R),
        "notes": Channel(name="notes", op=A),
        "total": Channel(name="total", op=F, reduce=operator.add),
        "odd": Channel(name="odd", op=F),
    },
)


@pytest.mark.parametrize(
    ("values", "updates", "merged", "folded"),
    [
        ({}, [], {}, set()),
        ({"last": 1}, [("a", {})], {"last": 1}, set()),
        ({"last": 1}, [("a", {"last": (R, 2)})], {"last": 2}, set()),
        ({}, [("a", {"notes": (A, [1])}), ("b", {"notes": (A, [2])})], {"notes": [1, 2]}, set()),
        ({"notes": [0]}, [("a", {"notes": (A, [1, 2])})], {"notes": [0, 1, 2]}, set()),
        (
            {"total": 1},
            [("a", {"total": (F, 2)}), ("b", {"total": (F, 3)})],
            {"total": 6},
            {"total"},
        ),
        ({}, [("a", {"total": (F, 2)})], {"total": 2}, {"total"}),
        ({"total": 1}, [("a", {"total": (M, [2, 3])})], {"total": 6}, {"total"}),
        ({}, [("a", {"total": (M, [])})], {}, set()),
        ({"odd": 1}, [("a", {"odd": (F, 2)})], {"odd": 2}, {"odd"}),
        ({"last": 0}, [("a", {"last": (R, 1), "notes": (A, [])})], {"last": 1, "notes": []}, set()),
    ],
)
def test_updates_enter_by_their_operation(values, updates, merged, folded):
    before = copy.deepcopy((values, updates))
    assert merge(PLAN, values, updates) == (merged, folded)
    assert (values, updates) == before


def test_the_old_list_is_not_changed():
    old = [1]
    merged, _ = merge(PLAN, {"notes": old}, [("a", {"notes": (A, [2])})])
    assert merged["notes"] is not old
    assert old == [1]
    given = [3]
    merged, _ = merge(PLAN, {}, [("a", {"notes": (A, given)}), ("b", {"notes": (A, [4])})])
    assert given == [3]


def test_two_that_set_one_field_are_both_named():
    updates = [("1:a", {"last": (R, 1)}), ("1:b", {"last": (R, 1)})]
    with pytest.raises(UpdateConflict, match=r"'1:a' and '1:b' both set field 'last'") as caught:
        merge(PLAN, {"last": 0}, updates)
    assert caught.value.fields["nodes"] == ["1:a", "1:b"]
    assert "The step was not committed" in str(caught.value)
