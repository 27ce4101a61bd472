"""What each checkpoint costs: bytes, time, and what a fork from before it would do again."""

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import pytest

from perdure import END, START, Context, Graph, NotFound, append, effect
from perdure.engine.costs import tokens_in
from tests.engine.polled import answered
from tests.engine.polled import reached as resting


@dataclass
class Usage:
    input_tokens: int
    output_tokens: int


@dataclass
class Reply:
    text: str
    usage: Usage


@dataclass
class Talk:
    left: int = 2
    log: Annotated[list[str], append] = field(default_factory=list)
    large: dict[str, str] = field(default_factory=dict)


@effect(kind="keyed")
async def ask_model(number: int, *, idempotency_key: str) -> Reply:
    return Reply("x" * 50, Usage(100 + number, 7))


@effect(kind="pure")
async def look(number: int) -> int:
    return number


def text_of(seed: int, length: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()  # noqa: S311  # no secret


graph = Graph(Talk, name="talk")


@graph.node
async def say(state: Talk, ctx: Context) -> dict[str, Any]:
    reply = await ctx.call(ask_model, state.left)
    await ctx.call(look, 1)
    await ctx.emit({"usage": {"input_tokens": 1}})  # the results say so already
    large = {**state.large, f"k{state.left}": text_of(state.left, 30_000)}
    return {"left": state.left - 1, "log": [reply.text], "large": large}


graph.edge(START, say)
graph.branch(say, lambda state: "say" if state.left > 0 else END, targets=["say", END])


async def test_bytes_effects_and_tokens_of_every_checkpoint(open_runtime):
    runtime = await open_runtime(graph)
    run = await runtime.start(graph, {}, thread="t")
    await run.result(timeout=10)
    first, second, third = await runtime.costs("t")
    assert [cost.checkpoint for cost in (first, second, third)] == [1, 2, 3]
    assert [cost.nodes for cost in (first, second, third)] == [(), ("say",), ("say",)]
    assert (first.again, first.pages, first.input_tokens) == ((), 0, 0)
    assert (second.again, second.repeated, second.children) == (("ask_model",), 1, 0)
    assert [(cost.input_tokens, cost.output_tokens) for cost in (second, third)] == [
        (102, 7),
        (101, 7),
    ]
    assert second.pages > 0
    assert second.page_bytes > 14_000
    frames = await runtime.engine.store.read_frames(run.id)
    stored = sum(len(frame.body) for frame in frames)
    told = sum(cost.journal_bytes + cost.copy_bytes for cost in (first, second, third))
    assert abs(stored - told) <= 3
    with pytest.raises(NotFound, match="no thread 'nowhere'"):
        await runtime.costs("nowhere")


async def test_pages_that_a_fork_inherits_are_not_its_own(open_runtime):
    runtime = await open_runtime(graph)
    await (await runtime.start(graph, {}, thread="t")).result(timeout=10)
    fork = await runtime.fork("t", at=2, to="f")
    await fork.result(timeout=10)
    begun, said = await runtime.costs("f")
    assert (begun.pages, said.nodes) == (0, ("say",))
    assert said.page_bytes < 40_000  # two texts of 30,000, one of them is inherited


async def test_a_step_under_way_and_a_run_without_usage(open_runtime):
    waiting = Graph(Talk, name="waiting")

    @waiting.node
    async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        await ctx.emit({"usage": {"input_tokens": 3, "output_tokens": 4}})
        return {"log": [str((await ctx.ask("Yes?", schema=bool)).value)]}

    waiting.edge(START, ask)
    runtime = await open_runtime(waiting)
    run = await runtime.start(waiting, {}, thread="t")
    await resting(run)
    begun, under_way = await runtime.costs("t")
    assert (begun.checkpoint, under_way.checkpoint, under_way.step) == (1, None, 1)
    assert under_way.at is None
    await answered(runtime, run)
    await run.result(timeout=10)
    _begun, done = await runtime.costs("t")
    assert (done.checkpoint, done.nodes) == (2, ("ask",))
    assert done.input_tokens >= 3


async def test_waits_are_in_the_time_elapsed_and_not_in_that_of_nodes(clock, open_workers):
    slow = Graph(Talk, name="slow")

    @slow.node
    async def rest(state: Talk, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(timedelta(hours=2))
        await clock.sleep(3)
        return {"left": 0}

    slow.edge(START, rest)
    async with clock.autojump():
        [runtime] = await open_workers(1, slow)
        await (await runtime.start(slow, {}, thread="t")).result()
        _begun, done = await runtime.costs("t")
    assert done.elapsed_ms >= 2 * 3600 * 1000
    assert 3000 <= done.node_ms < 60_000


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, (3, 4)),
        ({"usage_metadata": {"input_tokens": 3, "output_tokens": 4}}, (3, 4)),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4, "input_tokens": None}}, (3, 4)),
        ({"usage": {"input_tokens": True}}, (0, 0)),
        ({"usage": 3}, (0, 0)),
        ("usage", (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_what_counts_as_usage(value, tokens):
    assert tokens_in(value) == tokens
