"""A run whose node kills its workers is parked after some claims, and goes on when repaired."""

import pytest

from perdure.engine.limits import CLAIMS_MAX

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]


def test_poison_is_parked_and_can_be_repaired(play):
    seen = play("poisoned")
    assert seen["status"] == "needs_decision"
    assert seen["failure"] == "AttemptsExhausted"
    assert seen["deaths"] <= CLAIMS_MAX + 1
    assert str(max(seen["claims"])) in seen["message"]
    assert seen["claims"][-1] == CLAIMS_MAX + 1
    assert "AttemptsExhausted" in seen["reason"]
    assert seen["log"] == ["keyed:poison-before", "keyed:poison-after"]
    assert set(seen["acts"].values()) == {1}
    assert seen["stops"] == [0, 0]
