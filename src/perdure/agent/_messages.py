"""What is said between a person, a model and its tools. Values of these types are stored.

A field that is added needs a default: conversations of years ago are read with today's classes.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from perdure.codec import register_type


def _stored(cls: type) -> type:
    """Register under a name that no class of a user's has."""
    return register_type(cls, name=f"perdure.agent.{cls.__name__}")


class Role(Enum):
    """Who says it. SYSTEM: what the model is told before everything else; never stored."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Ending(Enum):
    """Why a run of an agent ended; all but `ANSWERED` leave `answer` as far as it came.

    ANSWERED: the model answered without calling a tool.
    CUT: it answered, and the endpoint cut the answer at its limit.
    TURNS, TOKENS: a limit of `AgentLimits` was reached; another run on the thread goes on.
    LOOPING: the same calls gave the same results, again and again.
    SILENT: the model said nothing and called nothing, again and again.
    """

    ANSWERED = "answered"
    CUT = "cut"
    TURNS = "turns"
    TOKENS = "tokens"
    LOOPING = "looping"
    SILENT = "silent"


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool that a model wants called.

    Attributes:
        id: the model's alias of the call, unique in its reply. No identity.
        name: of the tool.
        arguments: JSON text as the model wrote it; it may be none.
    """

    id: str
    name: str
    arguments: str = "{}"


class Message(Struct, frozen=True, kw_only=True):
    """Something that was said.

    Attributes:
        role: who said it.
        text: what was said; the result, of a tool.
        tool_calls: which tools the model called.
        call_id: of a tool's result: the alias of its call.
        name: of a tool's result: the tool.
        is_error: of a tool's result: whether it says why there is none.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    is_error: bool = False


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens that a reply took, as the endpoint counts them."""

    input_tokens: int = 0
    output_tokens: int = 0


class Reply(Struct, frozen=True, kw_only=True):
    """What a model answers to a conversation.

    Attributes:
        text: for people, or about the calls.
        tool_calls: what it wants to know or done first; none: the text is the answer.
        usage: None: the endpoint did not count; it is estimated.
        is_cut: whether the endpoint cut it at its own limit.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    is_cut: bool = False


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it.

    Attributes:
        name: letters, digits, `_` and `-`.
        description: what it does, and when to use it.
        parameters: JSON Schema of the arguments, an object.
    """

    name: str
    description: str
    parameters: dict[str, Any]


OnChunk = Callable[[str], None]
"""Takes a piece of the reply's text as it comes."""


class Model(Protocol):
    """A chat model. It keeps nothing between two calls: what was said is given to it each time."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_chunk: OnChunk
    ) -> Reply:
        """Return what the model says next. It may be called again for the same conversation.

        Args:
            messages: all that was said, oldest first; before it the instructions, if there are any.
            tools: which it may call.
            on_chunk: called with each piece of the text as it comes.

        Raises:
            Rejected: with `retry_after_s`: it is asked again after that; without: the run fails.
            Exception: anything else: it is asked again after a pause, a limited number of times.
        """
        ...


for _cls in (Role, Ending, ToolCall, Message, Usage, Reply):
    _stored(_cls)
