"""An agent: a model and its tools, going in turns, as a graph like any other.

    begin -> think -> act -> think -> ... -> END

A turn is a reply of the model (`think`) and the calls that it makes (`act`); each is a step, and a
checkpoint. Which way to go depends on the conversation alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from perdure.agent._acting import Acting
from perdure.agent._messages import Ending, Message, Model, Reply, Role
from perdure.agent._replies import bounded
from perdure.agent._text import clean
from perdure.agent._tools import Tool, as_tool
from perdure.agent.limits import (
    CHUNK_CHARS,
    REPEATS_MAX,
    REPLY_ATTEMPTS_MAX,
    REPLY_S_MAX,
    RESULT_CHARS_MAX,
    SILENCES_MAX,
    TOKENS_MAX,
    TOOLS_MAX,
    TURNS_MAX,
)
from perdure.codec import register_type
from perdure.core.plan import END, START
from perdure.core.retry import Retry
from perdure.engine import Context
from perdure.errors import GraphInvalid, SettingInvalid, UpdateInvalid, UsageError
from perdure.graph import Effect, Graph, Limit, append
from perdure.model import EffectKind

_NUDGE = "Your last reply was empty. Answer, or call a tool."


class AgentLimits(Struct, frozen=True, kw_only=True):
    """Where an agent ends whatever its model wants.

    Attributes:
        turns_max: replies of the model in one run.
        tokens_max: tokens in and out in one run, as the endpoint counts them; checked after each
            turn, so the last one may go beyond it.
        result_chars_max: characters of a tool's result that the model sees; the middle is left out.
        repeats_max: how often the same calls may give the same results in a row.
        reply_s_max: seconds that one reply may take.
        reply_attempts_max: tries of one reply, when the endpoint fails.
    """

    turns_max: int = TURNS_MAX
    tokens_max: int = TOKENS_MAX
    result_chars_max: int = RESULT_CHARS_MAX
    repeats_max: int = REPEATS_MAX
    reply_s_max: float = REPLY_S_MAX
    reply_attempts_max: int = REPLY_ATTEMPTS_MAX

    def __post_init__(self) -> None:
        """Refuse what leaves no room to work."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                msg = f"AgentLimits({name}={getattr(self, name)!r}): must be above 0"
                raise SettingInvalid(msg)


@dataclass
class Conversation:
    """The state of an agent. A thread's next run goes on with it.

    Attributes:
        prompt: what a person says next; taken into `messages` when a run begins.
        messages: all that was said.
        answer: what the model answered in the end.
        ended: why the newest run ended; None: it is under way.
        turns, input_tokens, output_tokens: of the newest run.
        repeats, last_round, silences: how long nothing new has happened.
    """

    prompt: str = ""
    messages: Annotated[list[Message], append] = field(default_factory=list)
    answer: str = ""
    ended: Ending | None = None
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    repeats: int = 0
    last_round: str = ""
    silences: int = 0


register_type(Conversation, name="perdure.agent.Conversation")

_ASKED: "ContextVar[_Asked]" = ContextVar("perdure_agent_asked")
"""What the reply is to that this task waits for."""


class Agent:
    """A model with tools, as the graph `agent.graph`: started, resumed and forked like any other.

    Start it with `runtime.start(agent.graph, {"prompt": "..."}, thread=...)`; its result is a
    `Conversation`.
    """

    def __init__(
        self,
        *,
        name: str,
        model: Model,
        tools: Iterable[Any] = (),
        instructions: str = "",
        limits: AgentLimits | None = None,
        version: int = 1,
        calls_at_once: int | Limit | None = None,
    ) -> None:
        """Build the graph.

        Args:
            name: what its runs are stored under.
            model: who answers.
            tools: what it may call: of `@tool`, effects, or functions, which are of kind once.
            instructions: what it is told before everything else.
            limits: where it ends.
            version: from 1; raise it when running runs can't go on with the changed agent.
            calls_at_once: replies that a worker waits for at once, over all runs; a `Limit` with a
                group is shared with other agents.

        Raises:
            GraphInvalid: a tool can't be described to a model, or two have the same name.
        """
        self.name = name
        self.version = version
        self.limits = limits or AgentLimits()
        self._model = model
        self._instructions = instructions
        self._tools = _by_name(name, [as_tool(each) for each in tools])
        self._specs = [each.spec for each in self._tools.values()]
        self._ask = self._effect(calls_at_once)
        self._graph = self._build()

    @property
    def graph(self) -> Graph[Conversation]:
        """The graph to give to a runtime and to start."""
        return self._graph

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may call."""
        return tuple(self._tools.values())

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, tools={list(self._tools)})"

    # -- the graph ---------------------------------------------------------------------------------

    def _build(self) -> Graph[Conversation]:
        # Three steps more than the turns need: the graph's limit is never the first to be reached.
        steps = 2 * self.limits.turns_max + 3
        graph = Graph(Conversation, name=self.name, version=self.version, step_limit=steps)
        graph.node(_begin, name="begin")
        graph.node(self._think, name="think")
        graph.node(self._act, name="act")
        graph.edge(START, "begin")
        graph.edge("begin", "think")
        graph.branch("think", _after_think, targets=["act", "think", END])
        graph.branch("act", _after_act, targets=["think", END])
        return graph

    def _effect(self, calls_at_once: int | Limit | None) -> Effect[Any, Any]:
        async def ask(turn: int, messages: int) -> Reply:  # noqa: ARG001  # who asks, and how far
            return await self._reply(_ASKED.get())

        if isinstance(calls_at_once, int):  # of this agent: all agents' effect has one name
            calls_at_once = Limit(calls_at_once, f"agent {self.name}")
        tries = Retry(max_attempts=self.limits.reply_attempts_max, base_s=1.0, cap_s=60.0)
        return Effect(
            ask,
            kind=EffectKind.PURE,
            name="model.reply",
            retry=tries,
            timeout_s=self.limits.reply_s_max,
            limit=calls_at_once,
            rejects=UsageError,  # a model that is set up wrongly stays so
        )

    async def _reply(self, asked: "_Asked") -> Reply:
        said = list(asked.messages)
        if self._instructions:
            said.insert(0, Message(role=Role.SYSTEM, text=self._instructions))
        asked.stream.begin()
        reply = await self._model.reply(said, self._specs, on_chunk=asked.stream.take)
        asked.stream.flush()
        return bounded(reply, said)

    async def _think(self, state: Conversation, ctx: Context) -> dict[str, Any]:
        """Ask the model what comes next."""
        turn = state.turns + 1
        # The conversation is no argument: its digest would cost more with every turn, and tell
        # nothing. The node's place names it, and its state is the same on every execution.
        with _asking(_Asked(messages=state.messages, stream=_Stream(ctx, turn))):
            reply = await ctx.call(self._ask, turn, len(state.messages))
        said = Message(role=Role.ASSISTANT, text=reply.text, tool_calls=reply.tool_calls)
        counted = {
            "turns": turn,
            "input_tokens": state.input_tokens + reply.usage.input_tokens,
            "output_tokens": state.output_tokens + reply.usage.output_tokens,
        }
        if reply.tool_calls:
            return {**counted, "messages": [said], "silences": 0}
        if reply.text.strip():
            ended = Ending.CUT if reply.is_cut else Ending.ANSWERED
            return {**counted, "messages": [said], "answer": reply.text, "ended": ended}
        return {**counted, **self._silent(state, counted)}

    def _silent(self, state: Conversation, counted: dict[str, int]) -> dict[str, Any]:
        """Ask once more for an answer; the empty reply is no part of the conversation."""
        ended = self._limit_reached(**counted)
        if ended is None and state.silences + 1 > SILENCES_MAX:
            ended = Ending.SILENT
        update: dict[str, Any] = {"silences": state.silences + 1, "ended": ended}
        if ended is None and state.silences == 0:
            update["messages"] = [Message(role=Role.USER, text=_NUDGE)]
        return update

    async def _act(self, state: Conversation, ctx: Context) -> dict[str, Any]:
        """Make the calls of the last reply."""
        calls = state.messages[-1].tool_calls
        acting = Acting(ctx, self.name, self._tools, chars_max=self.limits.result_chars_max)
        results = await acting.results(calls)
        this_round = _digest([(each.name, each.arguments) for each in calls], results)
        repeats = state.repeats + 1 if this_round == state.last_round else 1
        ended = self._limit_reached(state.turns, state.input_tokens, state.output_tokens)
        if ended is None and repeats >= self.limits.repeats_max:
            ended = Ending.LOOPING
        return {"messages": results, "repeats": repeats, "last_round": this_round, "ended": ended}

    def _limit_reached(self, turns: int, input_tokens: int, output_tokens: int) -> Ending | None:
        if turns >= self.limits.turns_max:
            return Ending.TURNS
        if input_tokens + output_tokens >= self.limits.tokens_max:
            return Ending.TOKENS
        return None


def _begin(state: Conversation) -> dict[str, Any]:
    """Take in what a person says, and count from nothing."""
    said = _unanswered(state.messages)
    if state.prompt:
        said.append(Message(role=Role.USER, text=state.prompt))
    newest = [*state.messages[-1:], *said][-1:]
    if not newest or newest[0].role is Role.ASSISTANT:
        msg = (
            "nothing was said to the agent: start it with "
            '{"prompt": "..."}, or with messages that end with a person\'s'
        )
        raise UpdateInvalid(msg)
    return {
        "prompt": "",
        "messages": said,
        "answer": "",
        "ended": None,
        "turns": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "repeats": 0,
        "last_round": "",
        "silences": 0,
    }


def _unanswered(messages: list[Message]) -> list[Message]:
    """Return results for the calls of a run that ended before it had any: endpoints insist on them.

    Nobody knows what became of such a call: the model is told so.
    """
    calls = messages[-1].tool_calls if messages else ()
    text = "the run ended before there was a result; whether it was done is not known"
    return [
        Message(role=Role.TOOL, text=text, call_id=each.id, name=each.name, is_error=True)
        for each in calls
    ]


def _after_think(state: Conversation) -> Any:
    if state.ended is not None:
        return END
    return "act" if state.messages[-1].tool_calls else "think"


def _after_act(state: Conversation) -> Any:
    return "think" if state.ended is None else END


def _by_name(agent: str, tools: list[Tool]) -> dict[str, Tool]:
    found = {each.name: each for each in tools}
    effects = [each.effect.name for each in tools]
    if len(found) == len(tools) > len(set(effects)):
        same = sorted({name for name in effects if effects.count(name) > 1})
        msg = f"agent {agent!r}: several tools are the effect {', '.join(same)}; see effect(name=)"
        raise GraphInvalid(msg, agent=agent)
    if len(found) < len(tools):
        names = [each.name for each in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        msg = f"agent {agent!r}: several tools are called {', '.join(twice)}; see tool(name=)"
        raise GraphInvalid(msg, agent=agent)
    if len(found) > TOOLS_MAX:
        msg = f"agent {agent!r}: {len(found)} tools; endpoints take {TOOLS_MAX}"
        raise GraphInvalid(msg, agent=agent)
    return found


def _digest(calls: list[tuple[str, str]], results: list[Message]) -> str:
    return sha256(
        msgspec.json.encode([calls, [(each.text, each.is_error) for each in results]])
    ).hexdigest()[:32]


# -- the stream --------------------------------------------------------------------------------


class _Stream:
    """Emits what the model says while it says it: `{"turn": 3, "text": "..."}`.

    Before the pieces of each try comes `{"turn": 3, "begins": True}`: what came of that turn before
    is void.
    """

    def __init__(self, ctx: Context, turn: int) -> None:
        self._ctx = ctx
        self._turn = turn
        self._pieces: list[str] = []
        self._chars = 0

    def begin(self) -> None:
        self._pieces.clear()
        self._ctx.emit({"turn": self._turn, "begins": True})

    def take(self, text: str) -> None:
        self._pieces.append(text)
        self._chars += len(text)
        if self._chars >= CHUNK_CHARS:
            self.flush()

    def flush(self) -> None:
        text = clean("".join(self._pieces))
        self._pieces.clear()
        self._chars = 0
        if text:
            self._ctx.emit({"turn": self._turn, "text": text})


class _Asked(Struct, frozen=True, kw_only=True):
    """What is asked in one execution of `think`."""

    messages: list[Message]
    stream: _Stream


@contextmanager
def _asking(asked: _Asked) -> Iterator[None]:
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)
