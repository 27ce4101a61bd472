"""Every version of a thread's state loads as a full copy taken at the time says.

Random runs on a thread and on its forks (appends, replacements, reductions, edits of large fields,
parallel nodes, subgraphs), with whole copies far more often than in life, forks of forks at any
checkpoint in between, and a new runtime for some runs, which must load what the one before wrote.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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


phased = Graph(Box, name="phased", checkpoints="phases", step_limit=10_000)
phased.node(plain)
phased.node(inner, name="sub")
phased.node(part)
phased.node(phase=True)(drop)
for source in ("plain", "drop"):
    phased.branch(source, route, targets=["plain", "sub", "part", END])
phased.branch(START, route, targets=["plain", "sub", "part", END])
phased.edge("sub", "drop")
phased.edge("part", "drop")


Version = tuple[Box, bool]
"""State at a checkpoint; whether `drop` comes next."""


def expected(box: Box, todo: list[dict[str, Any]], given: dict[str, Any]) -> list[Version]:
    """Return what is at every checkpoint of a run."""
    return rest_of((after(box, given, todo), False))


def rest_of(version: Version) -> list[Version]:
    """Return what is at a checkpoint, and at all that follow in its run."""
    versions = [version]
    while versions[-1][0].todo:
        box, is_drop_next = versions[-1]
        todo = box.todo
        kind = todo[0].get("kind", "plain")
        if is_drop_next:
            versions.append((after(box, {}, todo[1:]), False))
        elif kind == "plain":
            versions.append((after(box, applied(box, todo[0]), todo[1:]), False))
        else:
            writes = applied(box, todo[0])
            if kind == "fan":
                wide = todo[0]["wide"]
                writes = {"items": [f"part {n}" for n in range(wide)], "top": wide - 1}
            versions.append((after(box, writes, todo), True))
    return versions


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
numbers = st.integers(0, 1000)
runs = st.lists(
    st.tuples(
        st.lists(steps, max_size=6),
        st.lists(texts, max_size=2),
        st.booleans(),
        st.tuples(numbers, numbers, numbers, updates.filter(lambda each: "edit" not in each)),
    ),
    min_size=1,
    max_size=5,
)


async def play(plan: list[Any], check: Callable[[int], bool]) -> None:
    url = f"memory://versions-{next(NAMES)}"
    threads: dict[str, list[Version]] = {"t": []}
    runtime = Runtime.open(url, graphs=[graph])
    await runtime.__aenter__()
    try:
        for number, (todo, items, is_new_process, fork) in enumerate(plan):
            if is_new_process:
                await runtime.__aexit__(None, None, None)
                runtime = Runtime.open(url, graphs=[graph])
                await runtime.__aenter__()
            thread = list(threads)[fork[0] % len(threads)]
            versions = threads[thread]
            run = await runtime.start(graph, {"todo": todo, "items": items}, thread=thread)
            result = await run.result()
            versions += expected(versions[-1][0] if versions else Box(), todo, {"items": items})
            assert result == versions[-1][0]
            for checkpoint, (state, _is_drop_next) in enumerate(versions, 1):
                if check(checkpoint):
                    assert await runtime.state(thread, at=checkpoint) == state
            assert await runtime.state(thread) == versions[-1][0]
            origin = list(threads)[fork[1] % len(threads)]
            if threads[origin]:
                threads[f"f{number}"] = await forked(
                    runtime, (origin, threads[origin]), fork[2], fork[3], f"f{number}"
                )
        for thread, versions in threads.items():
            for checkpoint, (state, _is_drop_next) in enumerate(versions, 1):
                assert await runtime.state(thread, at=checkpoint) == state
            assert len(await runtime.history(thread)) == len(versions)
            for run in await runtime.runs(thread=thread):
                assert (await runtime.replay(run.run_id)).divergences == ()
    finally:
        await runtime.__aexit__(None, None, None)


async def play_phases(plan: list[Any]) -> None:
    """Play runs of a graph that checkpoints at phases: what is a checkpoint loads as it was."""
    async with Runtime.open(f"memory://phases-{next(NAMES)}", graphs=[phased]) as runtime:
        box = Box()
        for number, (todo, items, _is_new_process, fork) in enumerate(plan):
            given = {"todo": todo, "items": items}
            run = await runtime.start(phased, given, thread="t")
            versions = expected(box, todo, {"items": items})
            assert await run.result() == versions[-1][0]
            box = versions[-1][0]
            kept = [each for each in await runtime.history("t") if each.run_id == run.id]
            assert kept[0].step == len(versions) - 1
            for each in kept:
                assert await runtime.state("t", at=each.id) == versions[each.step][0]
            assert (await runtime.replay(run.id)).divergences == ()
            at = kept[fork[2] % len(kept)]
            origin = "t", {at.id - 1: versions[at.step]}
            await forked(runtime, origin, at.id - 1, fork[3], f"f{number}")
            assert (await runtime.replay((await runtime.runs())[0].run_id)).divergences == ()


@given(runs, st.sampled_from([0, 200, 10_000_000]))
@settings(max_examples=60, deadline=None)
def test_every_phase_loads_as_it_was(plan, journal_bytes):
    with (
        patch("perdure.engine.driver.SNAPSHOT_BYTES_MIN", journal_bytes),
        patch("perdure.engine.driver.WHOLE_COPY_SHARE", 0),
        patch("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000),
    ):
        asyncio.run(play_phases(plan))


async def forked(
    runtime: Runtime,
    origin: tuple[str, list[Version] | dict[int, Version]],
    number: int,
    update: dict[str, Any],
    to: str,
) -> list[Version]:
    """Fork a thread at one of its checkpoints; return what the fork is to have at its own."""
    thread, versions = origin
    at = number % len(versions) if isinstance(versions, list) else number
    box, is_drop_next = versions[at]
    fields = {key: value for key, value in update.items() if key != "kind"}
    run = await runtime.fork(thread, at=at + 1, update=fields, to=to)
    found = rest_of((replace(box, **fields), is_drop_next))
    assert await run.result() == found[-1][0]
    return found


@given(
    runs, st.integers(0, 3), st.sampled_from([0, 200, 1500, 10_000_000]), st.sampled_from([0, 1, 8])
)
@settings(max_examples=80, deadline=None)
def test_every_version_loads_as_it_was(plan, rest, journal_bytes, chain):
    with (
        patch("perdure.engine.branches.FORK_CHAIN_MAX", chain),
        patch("perdure.engine.driver.SNAPSHOT_BYTES_MIN", journal_bytes),
        patch("perdure.engine.driver.WHOLE_COPY_SHARE", 0),
        patch("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000),
    ):
        asyncio.run(play(plan, lambda checkpoint: checkpoint % 4 == rest))
