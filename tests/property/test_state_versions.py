"""Every version of a thread's state loads as a full copy taken at the time says.

Random runs on one thread (appends, replacements, reductions, edits of large fields, parallel nodes,
subgraphs), with whole copies far more often than in life, forks in between, and a new runtime for
some runs, which must load what the one before wrote.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import END, START, Graph, Runtime, Send, append

pytestmark = pytest.mark.timeout(90)  # much work, where others work too

NAMES = itertools.count()
BIG = 20_000


def largest(one: int, other: int) -> int:
    return max(one, other)


@dataclass
class Box:
    todo: list[dict[str, Any]] = field(default_factory=list)
    items: Annotated[list[str], append] = field(default_factory=list)
    more: Annotated[list[int], append] = field(default_factory=list)
    top: Annotated[int, largest] = 0
    name: str = ""
    large: dict[str, str] = field(default_factory=dict)


def applied(box: Box, update: dict[str, Any]) -> dict[str, Any]:
    """Return what a node writes for an update."""
    writes = {
        key: value for key, value in update.items() if key in {"items", "more", "top", "name"}
    }
    if "edit" in update:
        key, text = update["edit"]
        writes["large"] = {**box.large, key: text * BIG}
    return writes


def after(box: Box, writes: dict[str, Any], todo: list[dict[str, Any]]) -> Box:
    """Return the state after a step: the model."""
    return Box(
        todo=todo,
        items=box.items + writes.get("items", []),
        more=box.more + writes.get("more", []),
        top=max(box.top, writes.get("top", box.top)),
        name=writes.get("name", box.name),
        large=writes.get("large", box.large),
    )


inner = Graph(Box, name="inner")


@inner.node
async def inside(state: Box) -> dict[str, Any]:
    return applied(state, state.todo[0])


inner.edge(START, inside)
inner.edge(inside, END)

graph = Graph(Box, name="box", step_limit=10_000)


@graph.node
async def plain(state: Box) -> dict[str, Any]:
    return {**applied(state, state.todo[0]), "todo": state.todo[1:]}


graph.node(inner, name="sub")


@graph.node
async def part(number: int) -> dict[str, Any]:
    return {"items": [f"part {number}"], "top": number}


@graph.node
async def drop(state: Box) -> dict[str, Any]:
    return {"todo": state.todo[1:]}


def route(state: Box) -> Any:
    if not state.todo:
        return END
    kind = state.todo[0].get("kind", "plain")
    if kind == "fan":
        return [Send("part", number) for number in range(state.todo[0]["wide"])]
    return kind


for source in ("plain", "drop"):
    graph.branch(source, route, targets=["plain", "sub", "part", END])
graph.branch(START, route, targets=["plain", "sub", "part", END])
graph.edge("sub", "drop")
graph.edge("part", "drop")


def expected(box: Box, todo: list[dict[str, Any]], given: dict[str, Any]) -> list[Box]:
    """Return the state at every checkpoint of a run."""
    states = [after(box, given, todo)]
    while todo:
        kind = todo[0].get("kind", "plain")
        box = states[-1]
        if kind == "plain":
            states.append(after(box, applied(box, todo[0]), todo[1:]))
        else:
            writes = applied(box, todo[0])
            if kind == "fan":
                wide = todo[0]["wide"]
                writes = {"items": [f"part {n}" for n in range(wide)], "top": wide - 1}
            states.append(after(box, writes, todo))
            states.append(after(states[-1], {}, todo[1:]))
        todo = todo[1:]
    return states


texts = st.text("abc", max_size=3)
updates = st.fixed_dictionaries(
    {},
    optional={
        "items": st.lists(texts, max_size=3),
        "more": st.lists(st.integers(0, 9), max_size=2),
        "top": st.integers(0, 99),
        "name": texts,
        "edit": st.tuples(texts, st.sampled_from("xyz")).map(list),
    },
)
steps = st.one_of(
    updates,
    updates.map(lambda update: {**update, "kind": "sub"}),
    st.integers(1, 3).map(lambda wide: {"kind": "fan", "wide": wide}),
)
runs = st.lists(
    st.tuples(st.lists(steps, max_size=6), st.lists(texts, max_size=2), st.booleans()),
    min_size=1,
    max_size=5,
)


async def play(
    plan: list[tuple[list[dict[str, Any]], list[str], bool]], check: Callable[[int], bool]
) -> None:
    url = f"memory://versions-{next(NAMES)}"
    states: list[Box] = []
    box = Box()
    runtime = Runtime.open(url, graphs=[graph])
    await runtime.__aenter__()
    try:
        for number, (todo, items, is_new_process) in enumerate(plan):
            if is_new_process:
                await runtime.__aexit__(None, None, None)
                runtime = Runtime.open(url, graphs=[graph])
                await runtime.__aenter__()
            run = await runtime.start(graph, {"todo": todo, "items": items}, thread="t")
            result = await run.result()
            states += expected(box, todo, {"items": items})
            box = states[-1]
            assert result == box
            for checkpoint, state in enumerate(states, 1):
                if check(checkpoint) or number == len(plan) - 1:
                    assert await runtime.state("t", at=checkpoint) == state
            assert await runtime.state("t") == box
            fork = await runtime.fork("t", at=len(states), update={"name": "fork"}, to=f"f{number}")
            assert (await fork.result()).items == box.items
        assert len(await runtime.history("t")) == len(states)
    finally:
        await runtime.__aexit__(None, None, None)


@given(runs, st.integers(0, 3), st.sampled_from([0, 200, 1500]))
@settings(max_examples=80, deadline=None)
def test_every_version_loads_as_it_was(plan, rest, journal_bytes):
    with (
        patch("perdure.engine.driver.SNAPSHOT_BYTES_MIN", journal_bytes),
        patch("perdure.engine.driver.WHOLE_COPY_SHARE", 0),
        patch("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000),
    ):
        asyncio.run(play(plan, lambda checkpoint: checkpoint % 4 == rest))
