"""Bounds of what a model sends: nothing of it is stored or acted on before it went through here."""

from collections.abc import Sequence

from perdure.agent._messages import Message, Reply, ToolCall, Usage
from perdure.agent._text import clean, cut
from perdure.agent.limits import (
    ALIAS_CHARS_MAX,
    ARGUMENTS_CHARS_MAX,
    CALLS_MAX,
    CHARS_PER_TOKEN,
    TEXT_CHARS_MAX,
    TOKENS_COUNTED_MAX,
)


def bounded(reply: Reply, messages: Sequence[Message]) -> Reply:
    """Return the reply as it is stored: of bounded size, each call with an alias of its own."""
    text = cut(clean(reply.text), TEXT_CHARS_MAX)
    dropped = len(reply.tool_calls) - CALLS_MAX
    if dropped > 0:
        text = f"{text}\n[{dropped} more calls were left out: at most {CALLS_MAX} in a reply]"
    calls: list[ToolCall] = []
    aliases: set[str] = set()
    for number, call in enumerate(reply.tool_calls[:CALLS_MAX]):
        calls.append(_bounded_call(call, f"call_{len(messages)}_{number}", aliases))
        aliases.add(calls[-1].id)
    usage = reply.usage or estimated(reply, messages)
    return Reply(
        text=text, tool_calls=tuple(calls), usage=_bounded_usage(usage), is_cut=reply.is_cut
    )


def _bounded_call(call: ToolCall, spare: str, taken: set[str]) -> ToolCall:
    alias = clean(call.id[:ALIAS_CHARS_MAX])
    while not alias or alias in taken:
        alias, spare = spare, f"{spare}_"
    # One character more than is taken, so that it is still seen to be too long.
    arguments = clean(call.arguments[: ARGUMENTS_CHARS_MAX + 1])
    return ToolCall(id=alias, name=clean(call.name[:ALIAS_CHARS_MAX]), arguments=arguments)


def _bounded_usage(usage: Usage) -> Usage:
    return Usage(
        input_tokens=min(max(usage.input_tokens, 0), TOKENS_COUNTED_MAX),
        output_tokens=min(max(usage.output_tokens, 0), TOKENS_COUNTED_MAX),
    )


def estimated(reply: Reply, messages: Sequence[Message]) -> Usage:
    """Return about how many tokens a reply took, for an endpoint that does not count."""
    given = sum(_chars(each.text, each.tool_calls) for each in messages)
    made = _chars(reply.text, reply.tool_calls)
    return Usage(
        input_tokens=given // CHARS_PER_TOKEN + 1, output_tokens=made // CHARS_PER_TOKEN + 1
    )


def _chars(text: str, calls: Sequence[ToolCall]) -> int:
    return len(text) + sum(len(each.name) + len(each.arguments) for each in calls)
