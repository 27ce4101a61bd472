"""A model that says what it was told to say: for tests, demos and examples. It thinks nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.agent._messages import Message, OnChunk, Reply, Role, ToolCall, ToolSpec
from perdure.errors import Rejected

Step = (
    str | ToolCall | Sequence[ToolCall] | Reply | Callable[[Sequence[Message]], "str | Reply | Any"]
)
"""An answer; a call, or several; a whole reply; or a function of the conversation to one of these,
plain or async, which may raise."""


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """Return a call of a tool, for a script."""
    return ToolCall(id="", name=tool, arguments=msgspec.json.encode(arguments).decode())


class ScriptedModel:
    """A model for tests and demos: its nth reply to a conversation is the nth step of a script.

    It keeps no state: which step is next is counted in the conversation, so that a script goes on
    where it was in another process, too.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        """Keep the script."""
        self._steps = list(steps)

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],  # noqa: ARG002  # the protocol's; a script knows its tools
        *,
        on_chunk: OnChunk,
    ) -> Reply:
        """Return the next step.

        Raises:
            Rejected: the script is at its end.
        """
        number = sum(each.role is Role.ASSISTANT for each in messages)
        if number >= len(self._steps):
            msg = f"the script has {len(self._steps)} steps; there is no reply {number + 1}"
            raise Rejected(msg)
        step: Any = self._steps[number]
        if callable(step):
            step = step(messages)
            step = await step if hasattr(step, "__await__") else step
        reply = _as_reply(step)
        for word in reply.text.splitlines(keepends=True):
            on_chunk(word)
        return reply


def _as_reply(step: Any) -> Reply:
    if isinstance(step, Reply):
        return step
    if isinstance(step, str):
        return Reply(text=step)
    return Reply(tool_calls=(step,) if isinstance(step, ToolCall) else tuple(step))
