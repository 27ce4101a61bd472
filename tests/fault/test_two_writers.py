"""Two processes increment one thread: nothing is lost in silence."""

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
@pytest.mark.parametrize("on_busy", ["queue", "reject"])
def test_every_increment_counts_or_is_refused(play, on_busy, at_once):
    seen = play("two_writers", on_busy=on_busy, at_once=at_once, timeout_s=90.0)
    accepted = sum(part["accepted"] for part in seen["parts"])
    refused = sum(part["refused"] for part in seen["parts"])
    assert accepted + refused == 200
    assert seen["total"] == seen["seen"] == accepted
    assert seen["runs"] == ["succeeded"] * accepted
    assert accepted > 0
    if on_busy == "queue":
        assert refused == 0
