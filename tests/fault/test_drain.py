"""SIGTERM: a worker lets nodes reach a boundary in time, releases everything and exits 0."""

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

PARTS = ["first", "second", "third", "fourth"]


def _judge(seen, kind):
    assert seen["status"] == 0
    assert seen["run"] == ["pending", None]
    assert seen["waiting"] == ["waiting", None]
    assert seen["acts"] == {f"{kind}/slow-{part}": 1 for part in PARTS}
    assert seen["finish_s"] < 10  # released, not left to its lease of 30 s
    assert seen["stops"] == [0]


@pytest.mark.parametrize("kind", ["keyed", "once"])
def test_effect_under_way_ends_within_the_window(play, kind):
    seen = play("drain", kind=kind, call_s=0.6, window_s=8.0)
    _judge(seen, kind)
    assert seen["took_s"] < 4  # it does not wait for the window when nothing is left
    assert set(seen["asked"].values()) == {1}


@pytest.mark.parametrize("kind", ["keyed", "lookup"])
def test_effect_longer_than_the_window_is_taken_up_by_another(play, kind):
    seen = play("drain", kind=kind, call_s=3.0, window_s=0.4)
    _judge(seen, kind)
    assert seen["took_s"] < 2.5
