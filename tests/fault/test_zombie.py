"""A holder that is stopped past its lease and revived writes nothing and starts nothing."""

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

ENDPOINT = {"pure": "reading", "transaction": "reading"}

REVIVED = [
    ("keyed", "after"),
    ("keyed", "amid"),
    ("lookup", "after"),
    ("lookup", "amid"),
    # Revived amid, it might claim the run anew when the person has decided: rightly.
    ("once", "after"),
]


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


@pytest.mark.parametrize(("kind", "revived"), [*REVIVED, ("pure", "after"), ("pure", "amid")])
def test_stopped_inside_a_call(play, kind, revived):
    _judge(play("zombie", kind=kind, stopped_at="call", revived=revived), kind)


@pytest.mark.parametrize("kind", ["keyed", "once", "pure", "transaction"])
@pytest.mark.parametrize("point", ["node.finish.before", "step.commit.before"])
def test_stopped_between_nodes(play, point, kind):
    _judge(play("zombie", kind=kind, stopped_at=point, nth=2), kind)


@pytest.mark.parametrize("kind", ["keyed", "once", "transaction"])
def test_stopped_before_a_commit(play, kind):
    # Not for `pure`: it waits for no commit, so that its next call may be under way already.
    _judge(play("zombie", kind=kind, stopped_at="store.append.before", nth=4), kind)


@pytest.mark.parametrize(("kind", "revived"), REVIVED)
@pytest.mark.parametrize("point", ["effect.intend.queued", "effect.dispatch.before"])
def test_stopped_right_before_a_call(play, point, kind, revived):
    _judge(play("zombie", kind=kind, stopped_at=point, nth=3, revived=revived), kind)
