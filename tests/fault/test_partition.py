"""A worker that is cut off sends nothing once its lease may be over; another goes on in time."""

import pytest

from tests.fault.partitions import SETTINGS
from tests.fault.stores import postgres_url

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

RUNS = 20


@pytest.fixture
def store_url(postgres):
    return postgres_url(postgres, over_tcp=True, sslmode="disable", gssencmode="disable")


def cut_off(play, postgres, stall_s):
    seen = play("partition", server_port=postgres.port, stall_s=stall_s, runs=RUNS)
    assert seen["statuses"] == ["succeeded"]
    assert seen["lost"] == seen["doubled"] == seen["wrong"] == []
    assert seen["booked"] == sorted(f"p{number}-t" for number in range(RUNS))
    assert seen["asked_when_cut_off"] == 0
    assert seen["lived"]
    assert seen["stops"] == [0, 0]
    return seen


def test_shorter_than_its_lease(play, postgres):
    seen = cut_off(play, postgres, SETTINGS.lease_ttl_s * 0.4)
    assert seen["taken_after_s"] is None


def test_longer_than_its_lease(play, postgres):
    seen = cut_off(play, postgres, SETTINGS.lease_ttl_s * 3)
    assert seen["asked_by_other"] > 0
    assert seen["taken_after_s"] <= SETTINGS.lease_ttl_s + 1.0
