"""A run that is moved anywhere ends as one that was not: with what migrations make of its end.

Random histories: steps of several nodes at once that replace, append and add; some of them wait.
The run is moved at waits that chance chooses, once or twice, while other nodes of the same step
have ended. Every act outside happens once.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import END, START, Graph, RunStatus, Runtime, Send, WorkerSettings, add, append, effect
from perdure.core.migration import chain_of, upgraded
from perdure.engine import driver
from perdure.testing.clock import VirtualClock, virtual_services

_numbers = count()
SENT: list[str] = []


@effect(kind="once", name="property.act")
async def act(label: str) -> str:
    SENT.append(label)
    return label


@dataclass
class One:
    last: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    index: Annotated[int, add] = 0


@dataclass
class Two:
    cents: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    index: Annotated[int, add] = 0
    kind: str = "two"


@dataclass
class Three:
    money: dict[str, int] = field(default_factory=dict)
    remarks: Annotated[list[str], append] = field(default_factory=list)
    total: Annotated[int, add] = 0
    index: Annotated[int, add] = 0
    kind: str = "three"


def to_two(state):
    state["cents"] = state.pop("last", 0) * 100
    return {**state, "kind": "two"}


def to_three(state):
    return {**state, "money": {"cents": state.pop("money", 0)}, "kind": "three"}


STATES = {1: One, 2: Two, 3: Three}
NODES = {1: "act", 2: "do", 3: "do it"}


def update_of(version, item):
    """Return an update as the version's nodes write it."""
    update: dict[str, Any] = {"index": 1} if item["is_first"] else {}
    if "total" in item:
        update["total"] = item["total"]
    if "note" in item:
        update["remarks" if version == 3 else "notes"] = [item["note"]]
    if "last" in item:
        value = item["last"]
        update |= {1: {"last": value}, 2: {"cents": value * 100}}.get(
            version, {"money": {"cents": value * 100}}
        )
    return update


def graph_of(version, steps):
    graph = Graph(STATES[version], name="random", version=version)
    node = NODES[version]

    async def work(item: dict, ctx):
        await ctx.call(act, item["label"])
        if item["waits"]:
            await ctx.receive(item["label"])
        return update_of(version, item)

    graph.node(name=node)(work)

    def route(state):
        return (
            [Send(node, item) for item in steps[state.index]] if state.index < len(steps) else END
        )

    graph.node(name="join")(lambda _state: None)
    graph.branch(START, route, targets=[node, END])
    graph.edge(node, "join")
    graph.branch("join", route, targets=[node, END])
    if version >= 2:
        graph.migration(1, 2, nodes={"act": "do"})(to_two)
    if version == 3:
        names = {"nodes": {"do": "do it"}, "fields": {"cents": "money", "notes": "remarks"}}
        graph.migration(2, 3, **names)(to_three)
    return graph


@st.composite
def histories(draw):
    """Return steps of items, the versions of the workers, and whether copies are written often.

    There is a worker for each wait and one more.
    """
    steps, labels = [], 0
    for _ in range(draw(st.integers(1, 4))):
        width = draw(st.integers(1, 3))
        replaces = draw(st.integers(0, width - 1))
        step = []
        for place in range(width):
            labels += 1
            item: dict[str, Any] = {
                "label": f"a{labels}",
                "is_first": place == 0,
                "waits": draw(st.booleans()),
            }
            if draw(st.booleans()):
                item["note"] = f"n{labels}"
            if draw(st.booleans()):
                item["total"] = draw(st.integers(-3, 3))
            if place == replaces:
                item["last"] = draw(st.integers(0, 9))
            step.append(item)
        steps.append(step)
    waits = sum(item["waits"] for step in steps for item in step)
    versions = [draw(st.integers(1, 3)) for _ in range(waits + 1)]
    return steps, sorted(versions), draw(st.booleans())


async def played(steps, versions):
    """Execute a run; after each wait by a worker of the next of the versions."""
    clock, url = VirtualClock(), f"memory://property-{next(_numbers)}"

    async def opened(lane, version):
        runtime = Runtime.open(
            url,
            [graph_of(version, steps)],
            worker=WorkerSettings(),
            services=virtual_services(lane, clock=clock, lane=lane),
        )
        return await runtime.__aenter__()

    async with clock.autojump():
        runtime = await opened(0, versions[0])
        run = await runtime.start("random", {"total": 1})
        for lane, version in enumerate(versions[1:], 1):
            row = await still(clock, run)
            await runtime.close(window_s=1.0)
            runtime = await opened(lane, version)
            run = await runtime.get(run.id)
            await run.signal(row.waits[0].subject)
        state = await run.result(timeout=3600)
        row = await run.row()
        older = [
            await runtime.state(run.thread, at=c.id) for c in await runtime.history(run.thread)
        ]
        await runtime.close(window_s=1.0)
    assert older[0] == state, "the newest checkpoint"
    totals = [each.index for each in older[::-1]]
    assert totals == sorted(totals), "every checkpoint is read as one of this version"
    return state, row.version


async def still(clock, run):
    for _ in range(200):
        row = await run.row()
        if row.status is RunStatus.WAITING and row.ready_at_us is None:
            return row
        assert not row.status.is_final, row
        await clock.sleep(0.5)
    raise AssertionError(row)


def fields(state):
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_a_moved_run_ends_as_the_migrations_of_its_end(history):
    steps, versions, copies = history
    SENT.clear()
    whole, _version = asyncio.run(played(steps, [1] * len(versions)))
    acts = sorted(SENT)
    SENT.clear()
    with pytest.MonkeyPatch.context() as patch:
        if copies:  # the whole state is written after every step
            patch.setattr(driver, "SNAPSHOT_BYTES_MIN", 0)
            patch.setattr(driver, "WHOLE_COPY_SHARE", 0)
        state, version = asyncio.run(played(steps, versions))
    plan = graph_of(version, steps).compile()
    chain = chain_of(plan, 1)
    assert chain is not None
    assert fields(state) == fields(plan.build_state(upgraded(chain, fields(whole))))
    assert sorted(SENT) == acts == sorted({*acts}), "every act once"
