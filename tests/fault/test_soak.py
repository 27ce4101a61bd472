"""Workers that die at random moments, again and again: nothing lost, nothing doubled."""

import pytest

pytestmark = [pytest.mark.fault]


def judge(seen, *, runs, kills):
    assert seen["lost"] == seen["doubled"] == seen["strange"] == seen["open_effects"] == []
    assert seen["wrong"] == []
    assert seen["runs"] == runs
    assert seen["statuses"] == ["succeeded"]
    assert seen["totals"] == [4]
    assert seen["kills"] == kills
    assert seen["stops"] == [0, 0, 0]


@pytest.mark.timeout(150)
def test_random_kills(play, record_property):
    seen = play("soak", runs=40, kills=10, seed=20261129, deadline_s=90.0, timeout_s=120.0)
    judge(seen, runs=40, kills=10)
    record_property(
        "figure",
        f"soak: {seen['runs']} runs, {seen['kills']} kills, {seen['takeovers']} claims after the "
        f"first, 0 lost, 0 doubled, {seen['seconds']} s",
    )
