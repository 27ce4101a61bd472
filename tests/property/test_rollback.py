"""Whatever runs a thread has had, a rollback gives exactly the state of the checkpoint."""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import END, START, Graph, RunFailed, Runtime, add, append, merge
from perdure.engine import driver

NAMES = count()


@dataclass
class State:
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    facts: Annotated[dict[str, int], merge] = field(default_factory=dict)
    last: str | None = None
    steps: int = 1


graph = Graph(State, name="walk")


@graph.node
async def walk(state: State) -> dict:
    if state.steps == 0:
        raise LookupError("no steps")
    number = len(state.notes)
    return {"notes": [f"note {number}"], "total": 1, "facts": {f"f{number % 3}": number}}


@graph.node
async def stop(state: State) -> dict:
    return {"last": f"after {len(state.notes)}", "steps": state.steps - 1}


graph.edge(START, walk)
graph.edge(walk, stop)
graph.branch(stop, lambda state: walk if state.steps > 0 else END, targets=[walk, END])

RUNS = st.tuples(st.just("run"), st.integers(0, 3))
ROLLBACKS = st.tuples(st.just("rollback"), st.integers(0, 1000))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def urls(request, tmp_path):
    """Return a function that gives the URL of a fresh store."""
    if request.param == "postgres":
        server, schema = (request.getfixturevalue(name) for name in ("postgres", "schema"))
        return lambda: server.url(schema)
    if request.param == "memory":
        return lambda: f"memory://rollback-{next(NAMES)}"
    return lambda: f"sqlite:///{tmp_path}/store-{next(NAMES)}.db"


@given(
    actions=st.lists(st.one_of(RUNS, ROLLBACKS), min_size=2, max_size=8),
    copies=st.sampled_from([1, 300, 10**9]),
)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_state_after_a_rollback_is_that_of_the_checkpoint(urls, actions, copies):
    asyncio.run(play(urls(), f"t-{next(NAMES)}", actions, copies))


async def play(url, thread, actions, copies):
    """Play runs and rollbacks; whole copies of the state are written after so many bytes."""
    was, driver.SNAPSHOT_BYTES_MIN = driver.SNAPSHOT_BYTES_MIN, copies
    known = {}
    try:
        async with Runtime.open(url, [graph]) as runtime:
            for kind, number in [("run", 2), *actions]:
                if kind == "run":
                    await run_once(runtime, thread, number)
                else:
                    await roll_back(runtime, thread, number, known)
                await learn(runtime, thread, known)
        async with Runtime.open(url, [graph], worker=False) as runtime:
            for at, state in known.items():
                assert await runtime.state(thread, at=at) == state
            await fork_everywhere(runtime, thread, known)
    finally:
        driver.SNAPSHOT_BYTES_MIN = was


async def fork_everywhere(runtime, thread, known):
    """Fork at every checkpoint: the preview has its state, and the origin finds the forks."""
    for at, state in known.items():
        fork = await runtime.fork(thread, at=at)
        preview = await runtime.preview_fork(thread, at=at)
        assert preview.state == {**preview.state, "notes": state.notes, "total": state.total}
        assert (await runtime.tree(fork.thread)).origin.checkpoint == at
    forks = (await runtime.tree(thread)).forks
    assert [fork.checkpoint for fork in forks] == sorted(known)


async def run_once(runtime, thread, steps):
    run = await runtime.start(graph, {"steps": steps}, thread=thread)
    try:
        await run.result(timeout=10)
    except RunFailed:
        assert steps == 0
    assert (await runtime.replay(run.id)).is_clean


async def roll_back(runtime, thread, number, known):
    older = sorted(known)[:-1]
    at = older[number % len(older)]
    found = await runtime.rollback(thread, at=at, by="ada")
    assert found.new_checkpoint == max(known) + 1
    assert await runtime.state(thread) == known[at]
    known[found.new_checkpoint] = known[at]


async def learn(runtime, thread, known):
    """Note the state at each new checkpoint; the old ones stay what they were."""
    ids = [each.id for each in await runtime.history(thread)]
    assert ids == list(range(len(ids), 0, -1))
    for at in ids:
        state = await runtime.state(thread, at=at)
        assert known.setdefault(at, state) == state
