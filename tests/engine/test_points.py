"""A checkpoint is named by its id or by a tag, wherever one is asked for."""

import pytest

from perdure import NotFound, UsageError
from tests.engine.orders import orders
from tests.engine.polled import answered


@pytest.fixture
async def tagged(open_runtime):
    """Return a runtime with an ended run on thread t, two of whose checkpoints have tags."""
    runtime = await open_runtime(orders())
    run = await runtime.start("orders", {}, thread="t")
    await answered(runtime, run)
    await run.result(timeout=10)
    await runtime.tag("t", 2, "before-paying", by="ada")
    await runtime.tag("t", 3, "p@id")
    return runtime, run


async def test_a_tag_is_a_point_wherever_an_id_is(tagged):
    runtime, run = tagged
    assert await runtime.state("t", at="before-paying") == await runtime.state("t", at=2)
    for point in ("t@before-paying", ("t", "before-paying")):
        found = await runtime.moment(point)
        assert (found.place.thread, found.place.checkpoint) == ("t", 2)
    by_tag = await runtime.diff(("t", "before-paying"), ("t", 4))
    assert by_tag == await runtime.diff(("t", 2), ("t", 4)) != []
    compared = await runtime.compare("t@before-paying", "t@4")
    assert compared.edits == (await runtime.compare("t@2", "t@4")).edits
    preview = await runtime.preview_fork("t", at="before-paying")
    assert preview == await runtime.preview_fork("t", at=2)
    fork = await runtime.fork("t", at="before-paying", to="forked")
    assert (await runtime.tree("forked")).origin.checkpoint == 2
    await fork.cancel()
    replay = await runtime.replay("t@before-paying")
    assert (replay.run_id, replay.is_clean) == (run.id, True)
    assert (await runtime.preview_rollback("t", at="before-paying")).checkpoint == 2
    done = await runtime.rollback("t", at="before-paying", by="ada")
    assert (done.checkpoint, done.newest) == (2, 4)
    assert await runtime.state("t") == await runtime.state("t", at="before-paying")


async def test_a_name_with_an_at_sign_is_the_longest_thread_that_is_there(tagged):
    runtime, _run = tagged
    assert (await runtime.moment("t@p@id")).place.checkpoint == 3
    other = await runtime.start("orders", {}, thread="t@p")
    await answered(runtime, other)
    await other.result(timeout=10)
    with pytest.raises(NotFound, match="thread 't@p' has no tag 'id'"):
        await runtime.moment("t@p@id")
    assert (await runtime.moment("t@p")).place.thread == "t@p"
    assert (await runtime.moment("t@p@2")).place.checkpoint == 2


async def test_a_tag_that_is_not_there_names_those_that_are_near(tagged):
    runtime, _run = tagged
    with pytest.raises(NotFound, match=r"did you mean: 'before-paying'.*perdure history t"):
        await runtime.state("t", at="before-payin")
    with pytest.raises(NotFound, match="tags of it: 'before-paying', 'p@id'"):
        await runtime.moment("t@nothing-alike-xyz")
    with pytest.raises(NotFound, match="no thread 'nobody'"):
        await runtime.rollback("nobody", at="before-paying", by="ada")
    with pytest.raises(NotFound):
        await runtime.replay("nobody@tag")


async def test_a_tag_can_not_look_like_an_id(tagged):
    runtime, _run = tagged
    with pytest.raises(UsageError, match="id of a checkpoint"):
        await runtime.tag("t", 2, "7")
    assert [tag.name for tag in await runtime.tags("t")] == ["before-paying", "p@id"]


async def test_a_pin_of_a_fork_is_no_point(tagged):
    runtime, _run = tagged
    fork = await runtime.fork("t", at=4, to="pinned")
    with pytest.raises(NotFound, match="has no tag"):
        await runtime.state("t", at=f"fork:{fork.id}")
