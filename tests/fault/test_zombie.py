"""A holder that is stopped past its lease and revived writes nothing and starts nothing."""

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

ENDPOINT = {"pure": "reading", "transaction": "reading"}


def _judge(seen, kind):
    endpoint = ENDPOINT.get(kind, kind)
    parts = ["first", "second", "third", "fourth"]
    assert seen["status"] == "succeeded"
    assert seen["log"] == [f"{endpoint}:slow-{part}" for part in parts]
    assert seen["tokens"] == sorted(seen["tokens"])
    assert seen["asked_by_zombie"] == 0
    assert seen["written_after_end"] == 0
    assert set(seen["ledger"]) <= {"confirmed"}
    if kind not in ENDPOINT:
        assert seen["acts"] == {f"{endpoint}/slow-{part}": 1 for part in parts}
    assert seen["lived"]
    assert seen["stops"] == [0, 0]


@pytest.mark.parametrize("revived", ["after", "amid"])
@pytest.mark.parametrize("kind", ["keyed", "lookup", "once", "pure"])
def test_stopped_inside_a_call(play, kind, revived):
    _judge(play("zombie", kind=kind, stopped_at="call", revived=revived), kind)


@pytest.mark.parametrize("kind", ["keyed", "once", "pure", "transaction"])
@pytest.mark.parametrize(
    "point", ["node.finish.before", "step.commit.before", "store.append.before"]
)
def test_stopped_between_nodes(play, point, kind):
    nth = 4 if point == "store.append.before" else 2
    _judge(play("zombie", kind=kind, stopped_at=point, nth=nth), kind)


@pytest.mark.parametrize("kind", ["keyed", "lookup", "once"])
@pytest.mark.parametrize("point", ["effect.intend.queued", "effect.dispatch.before"])
def test_stopped_right_before_a_call(play, point, kind):
    _judge(play("zombie", kind=kind, stopped_at=point, nth=3, revived="amid"), kind)
