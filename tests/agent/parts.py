"""What the tests of agents share: a model that counts, a tool, and waiting for questions."""

import asyncio

from perdure.agent import Role, ScriptedModel, tool


class CountingModel(ScriptedModel):
    """A script that counts how often it was asked, and keeps what it was shown."""

    def __init__(self, steps):
        super().__init__(steps)
        self.asked = []

    async def reply(self, messages, tools, *, on_chunk):
        self.asked.append((list(messages), list(tools)))
        return await super().reply(messages, tools, on_chunk=on_chunk)


@tool(kind="pure")
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def results_of(state):
    return [each.text for each in state.messages if each.role is Role.TOOL]


async def done(runtime, agent, prompt="go", **options):
    run = await runtime.start(agent.graph, {"prompt": prompt}, **options)
    return await run.result(timeout=20)


async def until(condition):
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


async def answered(runtime, value, by="ada"):
    """Answer the next open question and return its text."""

    async def is_asked():
        return bool(await runtime.asks(open=True))

    await until(is_asked)
    [ask] = await runtime.asks(open=True)
    await runtime.answer(ask.id, value, by=by)
    return ask.question
