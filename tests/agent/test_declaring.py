"""How functions become tools and agents, and what is refused when they are declared."""

import asyncio
import functools

import pytest

from perdure import Limit
from perdure.agent import Agent, AgentLimits, ScriptedModel, Tool, call, tool
from perdure.errors import GraphInvalid, SettingInvalid, UsageError


@tool(kind="pure")
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_a_tool_is_described_by_its_function():
    @tool(kind="pure")
    async def find(city: str, days: int = 3, *, unit: str = "C") -> str:
        """Say how the weather will be.

        Only for the next days.

        Args:
            city: Where,
                with its country.
            days: How many.

        Returns:
            Text.
        """

    assert find.spec.name == "find"
    assert find.spec.description == "Say how the weather will be.\n\nOnly for the next days."
    properties = find.spec.parameters["properties"]
    assert properties["city"]["description"] == "Where, with its country."
    assert properties["days"] == {"description": "How many.", "type": "integer", "default": 3}
    assert find.spec.parameters["required"] == ["city"]
    assert find.spec.parameters["additionalProperties"] is False
    assert find.arguments(call("find", city="Rome")) == {"city": "Rome"}


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: tool(lambda a: a), "name"),
        (lambda: tool(_untyped), "no type"),
        (lambda: tool(description="d")(_unfound), "can't be found"),
        (lambda: tool(kind="keyed", description="d")(_typed), "idempotency_key"),
        (lambda: tool(_undescribed), "docstring"),
        (lambda: tool(description="d" * 40_000)(_typed), "bytes"),
        (lambda: tool(name="a b")(_typed), "64"),
        (lambda: tool(description="d")(_starred), "by name"),
        (lambda: tool(description="d")(_odd), "JSON Schema"),
        (lambda: Agent(name="a", model=ScriptedModel([]), tools=[double, double]), "double"),
        (
            lambda: Agent(
                name="a", model=ScriptedModel([]), tools=[double, Tool(double.effect, name="twice")]
            ),
            "are the effect",
        ),
    ],
)
def test_what_a_model_could_not_call_is_refused(declare, says):
    with pytest.raises((GraphInvalid, UsageError), match=says):
        declare()


def _typed(a: int) -> int: ...


def _untyped(a):
    """Do."""


def _unfound(a: "Nowhere") -> int: ...  # noqa: F821  # what this is about


def _undescribed(a: int) -> int: ...


def _starred(*a: int) -> int: ...


def _odd(a: asyncio.Event) -> int: ...


def test_partials_and_methods_are_tools():
    class Shop:
        def find(self, article: str) -> str:
            """Find an article."""

    assert tool(kind="pure")(Shop().find).arguments(call("find", article="x")) == {"article": "x"}
    bound = tool(kind="pure", description="d", name="bound")(functools.partial(_typed, a=3))
    assert bound.spec.parameters["properties"]["a"]["default"] == 3


def test_limits_must_leave_room():
    with pytest.raises(SettingInvalid, match="turns_max=0"):
        AgentLimits(turns_max=0)


async def test_replies_at_once_can_be_limited(open_runtime):
    now, most, full = 0, [], asyncio.Event()

    class Busy(ScriptedModel):
        async def reply(self, messages, tools, *, on_chunk):
            nonlocal now
            now += 1
            most.append(now)
            if now == 2:
                full.set()
            await full.wait()
            await asyncio.sleep(0.01)  # one more would begin now
            now -= 1
            return await super().reply(messages, tools, on_chunk=on_chunk)

    agent = Agent(name="shared", model=Busy(["ok"]), calls_at_once=Limit(2, "endpoint"))
    runtime = await open_runtime(agent)
    runs = [await runtime.start(agent.graph, {"prompt": str(n)}) for n in range(6)]
    for run in runs:
        await run.result(timeout=20)
    assert max(most) == 2


async def test_each_agent_has_a_limit_of_its_own(open_runtime):
    agents = [
        Agent(name=f"agent-{number}", model=ScriptedModel(["ok"]), calls_at_once=number)
        for number in (1, 2)
    ]
    runtime = await open_runtime(*agents)
    for agent in agents:
        run = await runtime.start(agent.graph, {"prompt": "?"})
        assert (await run.result(timeout=10)).answer == "ok"
    with pytest.raises(GraphInvalid, match="limit="):
        Agent(name="none", model=ScriptedModel([]), calls_at_once=0)
