"""Calls that a person must allow."""

import datetime as dt

import pytest

from perdure.agent import Agent, ScriptedModel, ToolCall, call, tool
from tests.agent.parts import CountingModel, answered, double, results_of, until

pytestmark = pytest.mark.timeout(60)


def payer(paid, **options):
    @tool(approve=True, **options)
    async def pay(cents: int) -> str:
        """Pay somebody."""
        paid.append(cents)
        return f"paid {cents}"

    return pay


async def test_a_person_allows_or_refuses_and_the_model_is_told(open_runtime):
    paid = []
    steps = [call("pay", cents=1), call("pay", cents=2), call("pay", cents=3), "done"]
    agent = Agent(name="payer", model=CountingModel(steps), tools=[payer(paid)])
    runtime = await open_runtime(agent)
    run = await runtime.start(agent.graph, {"prompt": "pay"})
    question = await answered(runtime, True)
    assert question == "Agent 'payer' wants to call pay with {\"cents\":1}. Allow it?"
    await answered(runtime, False)
    await answered(runtime, "far too much", by="bob")
    state = await run.result(timeout=10)
    assert results_of(state) == [
        "paid 1",
        "the call was not made: ada refused it",
        "the call was not made: bob refused it: far too much",
    ]
    assert paid == [1]
    assert len(agent._model.asked) == 4, "no reply was asked for again after a wait"


async def test_a_person_sees_what_is_called_and_nothing_hides_it(open_runtime):
    @tool(approve=True)
    async def say(text: str, cents: int) -> str:
        """Say."""

    sent = '{"cents": 1, "text": "a\\n\\u001b[2J\\u202eb", "cents": 900}'
    agent = Agent(
        name="sly",
        model=ScriptedModel([[ToolCall(id="1", name="say", arguments=sent)], "ok"]),
        tools=[say],
    )
    runtime = await open_runtime(agent)
    run = await runtime.start(agent.graph, {"prompt": "go"})
    question = await answered(runtime, False)
    assert '"cents":900' in question
    assert '"cents":1' not in question
    assert question.isprintable()
    await run.result(timeout=10)


async def test_all_questions_of_a_reply_are_asked_at_once(open_runtime):
    paid = []
    calls = [call("pay", cents=1), call("pay", cents=2), call("double", number=1)]
    agent = Agent(name="both", model=ScriptedModel([calls, "ok"]), tools=[payer(paid), double])
    runtime = await open_runtime(agent)
    run = await runtime.start(agent.graph, {"prompt": "pay"})

    async def both():
        return len(await runtime.asks(open=True)) == 2

    await until(both)
    for ask in reversed(await runtime.asks(open=True)):
        await runtime.answer(ask.id, True, by="ada")
    assert results_of(await run.result(timeout=10)) == ["paid 1", "paid 2", "2"]
    assert paid == [1, 2]


async def test_nobody_allows_it_in_time(on_virtual_time):
    paid = []
    # An hour: a worker looks for mail all the while, and each look is executed.
    pay = payer(paid, approve_within=dt.timedelta(hours=1))
    agent = Agent(name="late", model=ScriptedModel([call("pay", cents=1), "ok"]), tools=[pay])
    runtime, clock = await on_virtual_time(agent)
    async with clock.autojump():
        state = await (await runtime.start(agent.graph, {"prompt": "pay"})).result()
    assert results_of(state) == ["the call was not made: nobody allowed it in time"]
    assert paid == []
