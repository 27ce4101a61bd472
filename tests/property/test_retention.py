"""What is kept of a thread loads as a full copy taken at the time says, whatever was pruned.

Random runs on threads that share pages, with whole copies far more often than in life; forks, tags,
prunes and collections in between. After each of them every checkpoint that must be kept loads equal
to the state that the model says, every other one loads equal or is said to be pruned, and the audit
finds nothing.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Annotated, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import END, START, Graph, Runtime, append
from perdure.errors import HistoryPruned, NotFound
from perdure.governance import collect, prune, verify

pytestmark = pytest.mark.timeout(120)  # much work, where others work too

NAMES = itertools.count()
BIG = 17_000


@dataclass
class Box:
    todo: list[dict[str, Any]] = field(default_factory=list)
    items: Annotated[list[str], append] = field(default_factory=list)
    name: str = ""
    large: dict[str, str] = field(default_factory=dict)
    other: str = ""


def applied(box: Box, step: dict[str, Any]) -> dict[str, Any]:
    writes = {key: value for key, value in step.items() if key in {"items", "name"}}
    if "edit" in step:
        key, text = step["edit"]
        writes["large"] = {**box.large, key: text * BIG}
    if "swap" in step:
        writes["other"] = step["swap"] * BIG
    return writes


graph = Graph(Box, name="kept-box", step_limit=10_000)


@graph.node
async def work(state: Box) -> dict[str, Any]:
    if not state.todo:  # of a fork that has nothing left to do
        return {}
    return {**applied(state, state.todo[0]), "todo": state.todo[1:]}


def route(state: Box) -> str:
    return "work" if state.todo else END


graph.branch(START, route, targets=["work", END])
graph.branch("work", route, targets=["work", END])


def after(box: Box, writes: dict[str, Any], todo: list[dict[str, Any]]) -> Box:
    return Box(
        todo=todo,
        items=box.items + writes.get("items", []),
        name=writes.get("name", box.name),
        large=writes.get("large", box.large),
        other=writes.get("other", box.other),
    )


class Model:
    """What every checkpoint of every thread held, and which must be there."""

    def __init__(self) -> None:
        self.states: dict[str, list[Box]] = {}
        self.held: dict[str, set[int]] = {}
        self.pruned: dict[str, int] = {}
        self.tags: dict[str, dict[str, int]] = {}

    def ran(self, thread: str, todo: list[dict[str, Any]]) -> None:
        states = self.states.setdefault(thread, [])
        box = states[-1] if states else Box()
        states.append(after(box, {}, todo))
        while todo:
            states.append(after(states[-1], applied(states[-1], todo[0]), todo[1:]))
            todo = todo[1:]

    def must(self, thread: str) -> set[int]:
        newest = len(self.states[thread])
        first = self.pruned.get(thread, 1)
        return {*range(first, newest + 1), *self.held.get(thread, ())}


async def check(runtime: Runtime, model: Model) -> None:
    for thread, states in model.states.items():
        must = model.must(thread)
        for checkpoint, state in enumerate(states, 1):
            try:
                found = await runtime.state(thread, at=checkpoint)
            except HistoryPruned:
                assert checkpoint not in must, (thread, checkpoint)
            else:
                assert found == state, (thread, checkpoint)
        assert await runtime.state(thread) == states[-1]
        with pytest.raises(NotFound):
            await runtime.state(thread, at=len(states) + 1)
        listed = {each.id for each in await runtime.history(thread)}
        assert must <= listed
        await runtime.tree(thread)
    report = await verify(runtime)
    assert report.findings == []


texts = st.sampled_from("abc")
steps = st.fixed_dictionaries(
    {},
    optional={
        "items": st.lists(texts, max_size=3),
        "name": texts,
        "edit": st.tuples(texts, st.sampled_from("xyz")).map(list),
        "swap": st.sampled_from("xyz"),
    },
)
threads = st.sampled_from(["t", "u"])
actions = st.lists(
    st.one_of(
        st.tuples(st.just("run"), threads, st.lists(steps, max_size=5)),
        st.tuples(st.just("run"), threads, st.lists(steps, max_size=5)),
        st.tuples(st.just("prune"), st.sampled_from(["t", "u", ""]), st.integers(1, 4)),
        st.tuples(st.just("collect"), st.just(""), st.just(0)),
        st.tuples(st.just("tag"), threads, st.integers(1, 12)),
        st.tuples(st.just("untag"), threads, st.integers(1, 12)),
        st.tuples(st.just("fork"), threads, st.integers(1, 12)),
        st.tuples(st.just("rollback"), threads, st.integers(1, 12)),
    ),
    min_size=2,
    max_size=9,
)


async def act(runtime: Runtime, model: Model, kind: str, thread: str, what: Any) -> None:
    states = model.states.get(thread, [])
    if kind == "run":
        run = await runtime.start(graph, {"todo": what}, thread=thread)
        await run.result()
        model.ran(thread, what)
    elif kind == "prune":
        chosen = [thread] if thread else list(model.states)
        if any(each in model.states for each in chosen):
            await prune(
                runtime, keep=what, threads=[each for each in chosen if each in model.states]
            )
        for each in chosen:
            if each in model.states:
                first = max(len(model.states[each]) - what + 1, 1)
                model.pruned[each] = max(first, model.pruned.get(each, 1))
    elif kind == "collect":
        await collect(runtime)
    elif states:
        at = min(what, len(states))
        try:
            await runtime.state(thread, at=at)
        except HistoryPruned:
            if kind == "tag":
                with pytest.raises(HistoryPruned):
                    await runtime.tag(thread, at, f"tag {at}")
            return
        await branch(runtime, model, kind, thread, at)


async def branch(runtime: Runtime, model: Model, kind: str, thread: str, at: int) -> None:
    held = model.held.setdefault(thread, set())
    if kind == "tag":
        await runtime.tag(thread, at, f"tag {at}")
        held.add(at)
    elif kind == "untag":
        if await runtime.untag(thread, f"tag {at}"):
            held.discard(at)
    elif kind == "rollback" and at < len(model.states[thread]):
        await runtime.rollback(thread, at=at, by="ada")
        model.states[thread].append(model.states[thread][at - 1])
    elif kind == "fork":
        to = f"f{next(NAMES)}"
        run = await runtime.fork(thread, at=at, update={"name": "fork", "todo": []}, to=to)
        await run.result()
        held.add(at)


@given(actions, st.sampled_from([0, 200, 1500]))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_loads_as_it_was(plan, journal_bytes):
    with (
        patch("perdure.engine.driver.SNAPSHOT_BYTES_MIN", journal_bytes),
        patch("perdure.engine.driver.WHOLE_COPY_SHARE", 0),
        patch("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000),
    ):
        asyncio.run(play(plan))


async def play(plan: list[tuple[str, str, Any]]) -> None:
    model = Model()
    async with Runtime.open(f"memory://kept-{next(NAMES)}", graphs=[graph]) as runtime:
        for kind, thread, what in plan:
            await act(runtime, model, kind, thread, what)
            if kind in {"prune", "collect"}:
                await check(runtime, model)
        await check(runtime, model)
