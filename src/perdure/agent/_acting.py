"""The calls of one reply: each is checked, allowed where a person must, made, and answered.

Calls of pure and keyed tools run at once. The others run in the order in which the model gave
them, one at a time, as what one does may be what the next one needs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.agent._messages import Message, Role, ToolCall
from perdure.agent._text import clean, cut, plain
from perdure.agent._tools import ArgumentsInvalid, Tool
from perdure.agent.limits import ERROR_CHARS_MAX, QUESTION_CHARS_MAX
from perdure.engine import Context
from perdure.errors import AskExpired, EffectFailed, InvariantBroken

_SETTING_ERRORS = frozenset({"UsageError", "SettingInvalid", "GraphInvalid"})
"""Failures that no model can do anything about: the run fails, and says why."""


class _Job:
    """A call: with the tool and its arguments, or with its result."""

    __slots__ = ("_found", "call", "given", "result")

    def __init__(
        self,
        call: ToolCall,
        found: Tool | None = None,
        given: dict[str, Any] | None = None,
        *,
        result: Message | None = None,
    ) -> None:
        self.call = call
        self._found = found
        self.given = given or {}
        self.result = result

    @property
    def found(self) -> Tool:
        """The tool, of a call that has no result yet."""
        if self._found is None:
            msg = f"the call of {self.call.name!r} has no tool"
            raise InvariantBroken(msg)
        return self._found


class Acting:
    """Makes the calls of one reply."""

    def __init__(
        self, ctx: Context, agent: str, tools: Mapping[str, Tool], *, chars_max: int
    ) -> None:
        """Belong to one execution of a node.

        Args:
            ctx: of the node.
            agent: its name, for people who are asked.
            tools: by name.
            chars_max: of a result, as the model sees it.
        """
        self._ctx = ctx
        self._agent = agent
        self._tools = tools
        self._chars_max = chars_max

    async def results(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Return the result of each call, in their order.

        Raises:
            EffectFailed: the runtime lacks what a tool needs.
        """
        jobs = [self._job(call) for call in calls]
        ready = [each for each in jobs if each.result is None]
        free = [each for each in ready if each.found.is_free]
        chained = [each for each in ready if not each.found.is_free]
        await _all([*(self._do(each) for each in free), self._do_in_order(chained)])
        return [each.result for each in jobs if each.result is not None]

    def _job(self, call: ToolCall) -> _Job:
        """Return a call that fits a tool, or one that has its result: that it does not."""
        found = self._tools.get(call.name)
        if found is None:
            return _Job(call, result=self._error(call, self._unknown(call.name)))
        try:
            return _Job(call, found, found.arguments(call))
        except ArgumentsInvalid as error:
            return _Job(call, result=self._error(call, f"the call was not made: {error}"))

    async def _do(self, job: _Job) -> None:
        job.result = await self._refusal(job) or await self._made(job)

    async def _do_in_order(self, jobs: list[_Job]) -> None:
        """Ask all that is to be asked at once, then do one after the other."""
        refusals = await _all(self._refusal(job) for job in jobs)
        for job, refusal in zip(jobs, refusals, strict=True):
            job.result = refusal or await self._made(job)

    async def _refusal(self, job: _Job) -> Message | None:
        """Return None when the call may be made, else what the model is told."""
        call, found = job.call, job.found
        if not found.approve:
            return None
        # What is called with, and not what was sent: a key that came twice counts once.
        shown = plain(cut(as_text(job.given), QUESTION_CHARS_MAX))
        question = f"Agent {self._agent!r} wants to call {call.name} with {shown}. Allow it?"
        try:
            answer = await self._ctx.ask(
                question, schema=bool | str, expires_in=found.approve_within
            )
        except AskExpired:
            return self._error(call, "the call was not made: nobody allowed it in time")
        if answer.value is True:
            return None
        reason = f": {answer.value}" if answer.value else ""
        return self._error(call, f"the call was not made: {answer.by} refused it{reason}")

    async def _made(self, job: _Job) -> Message:
        call = job.call
        try:
            value = await self._ctx.call(job.found.effect, **job.given)
        except EffectFailed as error:
            if self._is_setting(error):
                raise
            return self._error(call, f"the call failed: {_reason(error)}")
        text = cut(clean(as_text(value)), self._chars_max)
        return Message(role=Role.TOOL, text=text, call_id=call.id, name=call.name)

    def _is_setting(self, error: EffectFailed) -> bool:
        """Return whether it failed because of how the runtime was opened; from what is recorded."""
        recorded = self._ctx.task.calls.get(str(error.fields.get("effect_id")))
        failure = recorded.failure if recorded is not None else None
        return failure is not None and failure.type in _SETTING_ERRORS

    def _error(self, call: ToolCall, text: str) -> Message:
        text = cut(clean(text), ERROR_CHARS_MAX)
        return Message(role=Role.TOOL, text=text, call_id=call.id, name=call.name, is_error=True)

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._tools) or "none"
        return f"there is no tool {name!r}. The tools are: {known}"


def as_text(value: Any) -> str:
    """Return a tool's result as a model reads it."""
    if value is None:
        return "done"
    if isinstance(value, str):
        return value
    dump = getattr(value, "model_dump_json", None)
    if callable(dump):
        return str(dump())
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _reason(error: EffectFailed) -> str:
    """Return what went wrong, without what is of no use to a model."""
    text = str(error).partition(" attempt(s): ")[2] or str(error)
    return text.removeprefix("Rejected: ")


async def _all(awaitables: Any) -> list[Any]:
    """Await all; the first error is raised when the others have ended."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
