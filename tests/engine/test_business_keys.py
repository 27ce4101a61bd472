"""A business key that another run's effect has: its first outcome, once it is one, and for good."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    END,
    START,
    Context,
    EffectFailed,
    Graph,
    Rejected,
    Retry,
    RunCancelled,
    effect,
)
from perdure.governance import verify
from tests.engine.one_node import State, one_node
from tests.engine.polled import PAUSE_S, answered, reached

KEY = "order-9"


class Outside:
    """The other side: what it is asked for, and how it answers next."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: list[Any] = []
        self.undoing = asyncio.Event()
        self.may_undo = asyncio.Event()

        async def undo(_request: Any, _result: Any) -> None:
            self.undoing.set()
            await self.may_undo.wait()

        @effect(kind="keyed", compensate=undo, retry=Retry(max_attempts=3, base_s=0.1))
        async def charge(amount: int, *, idempotency_key: str) -> str:
            self.calls.append(idempotency_key)
            answer = self.answers.pop(0) if self.answers else f"charge {len(self.calls)}"
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.charge = charge

    async def ask_for_it(self, ctx: Any) -> str:
        """Return the result, or why there is none."""
        try:
            return str(await ctx.call(self.charge, 5, key=KEY))
        except EffectFailed as error:
            return str(error)


@pytest.fixture
def outside():
    return Outside()


async def until_it_is(runtime, state):
    """Wait until an effect of the ledger has a state."""
    while not (found := await runtime.effects(state)):  # noqa: ASYNC110  # the store tells
        await asyncio.sleep(PAUSE_S)
    return found[0]


async def test_it_waits_for_a_try_that_is_still_to_come(open_runtime, outside):
    """It was told that the effect did not happen, which then did."""
    outside.answers = [Rejected("not now", retry_after_s=1.5)]
    runtime = await open_runtime(one_node(outside.ask_for_it, name="asks", state_type=State))
    first = await runtime.start("asks", {})
    await until_it_is(runtime, "failed")
    second = await runtime.start("asks", {})
    states = [await run.result(timeout=20) for run in (first, second)]
    assert [state.results for state in states] == [["charge 2"], ["charge 2"]]
    assert outside.calls == [KEY, KEY]
    assert (await verify(runtime)).findings == []


async def test_a_refusal_for_good_is_told_as_a_record(open_runtime, outside):
    outside.answers = [Rejected("card expired")]

    async def body(ctx):
        told = await outside.ask_for_it(ctx)
        said = await ctx.ask("Go on?", schema=bool)  # so that the node is executed again
        return [told, said.value, await outside.ask_for_it(ctx)]

    runtime = await open_runtime(one_node(body, name="asks"))
    first = await runtime.start("asks", {})
    await reached(first, "waiting")
    second = await runtime.start("asks", {})
    await reached(second, "waiting")
    [failed] = [event for event in await runtime.events(second.id) if event.kind == "effect_failed"]
    assert (failed.body["via"], failed.body["attempt"]) == ("key", 0)
    assert failed.body["by"] == (await runtime.effects("failed"))[0].id
    for run in (first, second):
        await answered(runtime, run)
    state = await second.result(timeout=10)
    await first.result(timeout=10)
    assert "and was not sent" in state.results[0]
    assert f"did not happen in run {first.id}" in state.results[0]
    assert outside.calls == [KEY]
    assert (await runtime.replay(second.id)).is_clean
    assert (await verify(runtime)).findings == []
    seen = (await runtime.moment(second.id)).effects
    assert {(each.state, each.via) for each in seen} == {("failed", "key")}


async def test_what_was_countered_is_told_and_not_sent_again(open_runtime, outside):
    async def body(ctx):
        told = await outside.ask_for_it(ctx)
        await ctx.receive("never")
        return told

    runtime = await open_runtime(
        one_node(body, name="stays"), one_node(outside.ask_for_it, name="asks")
    )
    first = await runtime.start("stays", {})
    await reached(first, "waiting")
    await first.cancel(compensate=True, by="ann")
    await outside.undoing.wait()
    second = await runtime.start("asks", {})
    row = await reached(second, "waiting")  # it may be countered, or that may fail
    assert "with the same business key" in row.waits[0].note
    outside.may_undo.set()
    with pytest.raises(RunCancelled):
        await first.result(timeout=10)
    state = await second.result(timeout=10)
    assert f"run {first.id} did it, and countered it since" in state.results[0]
    third = await (await runtime.start("asks", {})).result(timeout=10)
    assert "countered it since" in third.results[0]
    assert outside.calls == [KEY]
    assert (await verify(runtime)).findings == []


async def test_a_node_that_is_tried_again_asks_again(open_runtime, outside):
    """The first run was refused for good; its node is tried again and succeeds meanwhile."""
    outside.answers = [Rejected("card expired")]

    async def insists(ctx):
        return await ctx.call(outside.charge, 5, key=KEY)

    graph = Graph(State, name="insists")

    @graph.node(retry=Retry(max_attempts=5, base_s=2.0, on=(EffectFailed,)))
    async def act(state: State, ctx: Context) -> dict:
        return {"results": [str(await insists(ctx))]}

    graph.edge(START, act)
    graph.edge(act, END)
    runtime = await open_runtime(graph)
    first = await runtime.start("insists", {})
    await until_it_is(runtime, "failed")
    second = await runtime.start("insists", {})
    states = [await run.result(timeout=30) for run in (first, second)]
    assert [state.results for state in states] == [["charge 2"], ["charge 2"]]
    assert outside.calls == [KEY, KEY]
    told = [event.kind for event in await runtime.events(second.id)]
    assert "effect_failed" in told
    assert (await verify(runtime)).findings == []


async def test_the_same_run_is_told_at_once(open_runtime, outside):
    """Its own effect with the key failed for good: nothing is waited for."""
    outside.answers = [Rejected("card expired")]

    async def body(ctx):
        told = await outside.ask_for_it(ctx)
        await ctx.sleep(timedelta(milliseconds=10))
        return [told.partition(" of ")[0], await outside.ask_for_it(ctx)]

    runtime = await open_runtime(one_node(body, name="asks"))
    run = await runtime.start("asks", {})
    state = await run.result(timeout=10)
    assert "did not happen" in state.results[0]
    assert len(outside.calls) == 1
