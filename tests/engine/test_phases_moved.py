"""A run that crashed between two phases is moved to another version: no act is repeated."""

from typing import Any

import pytest

from perdure import END, START, Context, Graph, NeedsDecision, RunStatus, Runtime
from perdure.engine.survey import Fate, survey_runs
from perdure.governance import verify
from tests.engine.polled import answered
from tests.engine.polled import reached as resting
from tests.engine.test_phases import SENT, Work, leave_it, send


@pytest.fixture(autouse=True)
def crashing(monkeypatch):
    """Let no checkpoint be written when a run is let go: as a worker that dies leaves it."""
    SENT.clear()
    with monkeypatch.context() as patched:
        patched.setattr("perdure.engine.driver.GraphDriver.checkpoint", leave_it)
        yield patched


def version_of(number: int, *, act: str = "act", way: str = "same") -> Graph:
    """Return a loop that sends at each turn and asks at the third, as one version has it."""
    graph = Graph(Work, name="moved", version=number, checkpoints="phases")

    async def acts(state: Work, ctx: Context) -> dict[str, Any]:
        sent = await ctx.call(send, state.left)
        if state.left == 4:
            await ctx.ask("Go on?", schema=bool)
        return {"log": [f"{sent} v{number}"], "left": state.left - 1}

    graph.node(acts, name=act)

    @graph.node
    async def note(state: Work) -> dict[str, Any]:
        return {"log": [f"noted {state.left}"]}

    @graph.node(phase=True)
    async def rest(state: Work) -> dict[str, Any]:
        return {"log": ["rest"]}

    graph.edge(START, act)
    graph.branch(
        act, lambda s: END if s.left == 0 or way == "end" else "note", targets=["note", END]
    )
    graph.branch(note, lambda s: "rest" if s.left == 1 else act, targets=["rest", act])
    graph.edge(rest, act)
    if number > 1:
        graph.migration(1, number, nodes={"act": act} if act != "act" else None)(
            lambda state: state
        )
    return graph


async def crashed(url):
    """Return the id of a run of version 1 that asked between two phases, and was let go."""
    async with Runtime.open(url, graphs=[version_of(1)]) as runtime:
        run = await runtime.start("moved", {}, thread="t")
        await resting(run)
        assert len(await runtime.history("t")) == 1
    assert SENT == [6, 5, 4]
    return run.id


async def test_it_goes_on_where_the_nodes_have_their_names(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    run_id = await crashed(url)
    async with Runtime.open(url, graphs=[version_of(2)]) as runtime:
        [found] = [
            each async for each in survey_runs(runtime.engine, runtime.engine.plan_of("moved"))
        ]
        assert (found.fate, found.reason) == (Fate.MIGRATES, "")
        run = await runtime.get(run_id)
        await answered(runtime, run)
        result = await run.result(timeout=20)
        sent = [line for line in result.log if line.startswith("sent")]
        assert sent == [f"sent {number} v2" for number in range(6, 0, -1)]
        assert SENT == [6, 5, 4, 3, 2, 1]
        assert (await verify(runtime)).findings == []
        assert (await runtime.replay(run_id)).is_clean


async def test_another_crash_after_the_move_repeats_nothing_either(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    run_id = await crashed(url)
    async with Runtime.open(url, graphs=[version_of(2)], worker=False) as runtime:
        run = await runtime.get(run_id)
        await answered(runtime, run)
    for _life in range(2):
        async with Runtime.open(url, graphs=[version_of(2)]) as runtime:
            run = await runtime.get(run_id)
            await run.result(timeout=20)
    assert SENT == [6, 5, 4, 3, 2, 1]


async def test_another_way_parks(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    run_id = await crashed(url)
    async with Runtime.open(url, graphs=[version_of(2, way="end")]) as runtime:
        run = await runtime.get(run_id)
        await answered(runtime, run)
        row = await resting(run, RunStatus.NEEDS_DECISION)
        assert row.failure.type == "ReplayDiverged"
    assert SENT == [6, 5, 4]


async def test_other_names_are_refused_and_the_older_version_finishes(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    run_id = await crashed(url)
    async with Runtime.open(url, graphs=[version_of(2, act="act_again")]) as runtime:
        run = await runtime.get(run_id)
        await answered(runtime, run)
        await resting(run, RunStatus.NEEDS_DECISION)
        with pytest.raises(
            NeedsDecision, match=r"next phase with 'perdure worker FILE:GRAPH' of v1"
        ):
            await run.result(timeout=10)
    async with Runtime.open(url, graphs=[version_of(1)]) as runtime:
        run = await runtime.get(run_id)
        await runtime.retry(run_id, by="ada")
        assert (await run.result(timeout=20)).left == 0
    assert SENT == [6, 5, 4, 3, 2, 1]
