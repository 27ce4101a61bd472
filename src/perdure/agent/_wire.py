"""The chat-completions protocol as bytes: what is asked, and a streamed reply put together. Pure.

What comes is decoded by types and never trusted: a field of another type, an index out of range or
a stream beyond its bounds is `Garbled`. Fields that nobody knows are passed over.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from perdure.agent._messages import Message, OnChunk, Reply, Role, ToolCall, ToolSpec, Usage
from perdure.agent.limits import ARGUMENTS_CHARS_MAX, CALLS_MAX, TEXT_CHARS_MAX

CALLS_SEEN_MAX = 4 * CALLS_MAX
"""Calls that are put together before the stream is given up: some are left out, and are told."""


class Garbled(Exception):
    """What an endpoint sent is no reply; the text says what of it. Private."""


# -- what is asked -----------------------------------------------------------------------------


def request_body(
    model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], options: dict[str, Any]
) -> bytes:
    """Return the request. Options replace what is there; one that is None is left out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(each) for each in _alternating(messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = [{"type": "function", "function": each} for each in tools]
    body.update(options)
    return msgspec.json.encode({key: item for key, item in body.items() if item is not None})


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with what a person said in a row as one: some servers insist on it."""
    merged: list[Message] = []
    for each in messages:
        if merged and each.role is Role.USER and merged[-1].role is Role.USER:
            merged[-1] = Message(role=Role.USER, text=f"{merged[-1].text}\n\n{each.text}")
        else:
            merged.append(each)
    return merged


def _message(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    said: dict[str, Any] = {"role": message.role.value, "content": message.text}
    if message.tool_calls:
        said["tool_calls"] = [_call(each) for each in message.tool_calls]
        said["content"] = message.text or None
    return said


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _sendable(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _sendable(arguments: str) -> str:
    """Return arguments that a server can read: some parse them, and refuse the whole request."""
    try:
        is_object = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    return arguments if is_object else "{}"


# -- what comes --------------------------------------------------------------------------------


class _Function(Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallPiece(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Counted(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Piece(Struct):
    choices: list[_Choice] | None = None
    usage: _Counted | None = None
    error: Any = None


class _CallSoFar(Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    chars: int = 0


class Assembly:
    """A reply that is put together from the pieces of a stream."""

    def __init__(self, on_chunk: OnChunk) -> None:
        """Start with nothing."""
        self._on_chunk = on_chunk
        self._text: list[str] = []
        self._chars = 0
        self._calls: dict[int, _CallSoFar] = {}
        self._newest = -1
        self._finish: str | None = None
        self._usage: Usage | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the endpoint said that the reply is at its end."""
        return self._finish is not None

    def add(self, data: str | bytes) -> None:
        """Take in one event's data.

        Raises:
            Garbled: it is no piece of a reply, or says that there will be none.
        """
        try:
            piece = msgspec.json.decode(data, type=_Piece)
        except (msgspec.DecodeError, RecursionError) as error:
            msg = f"the stream is garbled: {error}"
            raise Garbled(msg) from error
        if piece.error is not None:
            msg = f"the endpoint reports: {error_text(piece.error)}"
            raise Garbled(msg)
        if piece.usage is not None:
            self._count(piece.usage)
        for choice in piece.choices or []:
            if choice.index == 0:
                self._take(choice)

    def reply(self) -> Reply:
        """Return what came.

        Raises:
            Garbled: the stream ended before the reply did.
        """
        if not self.is_whole:
            msg = "the stream ended before the reply did"
            raise Garbled(msg)
        calls = [
            ToolCall(id=each.id, name=each.name, arguments="".join(each.arguments) or "{}")
            for _, each in sorted(self._calls.items())
        ]
        return Reply(
            text="".join(self._text),
            tool_calls=tuple(calls),
            usage=self._usage,
            is_cut=self._finish == "length",
        )

    def _count(self, counted: _Counted) -> None:
        self._usage = Usage(
            input_tokens=counted.prompt_tokens or 0, output_tokens=counted.completion_tokens or 0
        )

    def _take(self, choice: _Choice) -> None:
        said = choice.delta or choice.message or _Delta()
        text = said.content or said.refusal
        if text:
            self._chars += len(text)
            if self._chars > TEXT_CHARS_MAX:
                msg = f"the reply is longer than {TEXT_CHARS_MAX} characters"
                raise Garbled(msg)
            self._text.append(text)
            self._on_chunk(text)
        for number, piece in enumerate(said.tool_calls or []):
            if choice.delta is None:  # all in one: each is whole, whether numbered or not
                piece.index = number
            self._add_call(piece)
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason

    def _add_call(self, piece: _CallPiece) -> None:
        call = self._calls.setdefault(self._place(piece), _CallSoFar())
        if len(self._calls) > CALLS_SEEN_MAX:
            msg = f"the reply calls more than {CALLS_SEEN_MAX} tools"
            raise Garbled(msg)
        call.id = call.id or piece.id or ""
        function = piece.function or _Function()
        call.name = call.name or function.name or ""
        given = function.arguments
        text = msgspec.json.encode(given).decode() if isinstance(given, dict) else given or ""
        call.chars += len(text)
        if call.chars <= ARGUMENTS_CHARS_MAX + 1:
            call.arguments.append(text)
        elif not call.arguments or call.chars - len(text) <= ARGUMENTS_CHARS_MAX:
            # Kept one character too long, so that the model is told; the rest is not.
            left = ARGUMENTS_CHARS_MAX + 1 - (call.chars - len(text))
            call.arguments.append(text[:left])

    def _place(self, piece: _CallPiece) -> int:
        """Return which call a piece belongs to; some servers number none of them."""
        if piece.index is not None:
            self._newest = piece.index
        elif piece.id and all(each.id != piece.id for each in self._calls.values()):
            self._newest = max(self._calls, default=-1) + 1
        return self._newest


def error_text(error: Any) -> str:
    """Return what an endpoint says is wrong, from the forms that endpoints use."""
    if isinstance(error, dict):
        inner = error.get("error", error.get("message", error.get("detail", error)))
        return error_text(inner) if isinstance(inner, dict) and inner is not error else str(inner)
    return str(error)
