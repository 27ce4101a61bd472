"""What is no run that waits for a person, though names tell so.

A request whose own answer is waited for, a long poll, a stream, who takes jobs out of a queue, and
a loop that goes on until it is to stop: none of them loses a run. Nor does what is in a database.
"""

import ast
from collections.abc import Callable, Iterable, Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._entries import own_nodes
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import External
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._startup import functions_called, is_route
from perdure.contracts.code._walks import led_to

AGENTS = (
    "langgraph", "langchain", "deepagents", "openai", "anthropic", "google.genai", "google.adk",
    "google.generativeai", "vertexai", "pydantic_ai", "agents", "agno", "crewai", "llama_index",
    "autogen", "litellm", "smolagents", "semantic_kernel", "claude_agent_sdk", "claude_code_sdk",
    "strands", "haystack", "dspy", "mistralai", "groq", "ollama", "instructor", "camel",
    "agent_framework",
)  # fmt: skip
"""Packages of agents and models, by how their names begin."""

_SAVES = regex(
    r"^(save|persist|commit|insert|upsert|setex|hset|put_item|rpush|lpush|save_\w+|persist_\w+|"
    r"insert_\w+|store_\w+|write_\w+|flush\w*|insert_one|update_one|replace_one|find_one|fetchone|"
    r"fetchall|fetchrow|scalar\w*)$"
)
_TABLES = regex(
    r"(?i)repo|^db$|_db$|^db_|database|\bdao|_dao$|crud|collection|_table$|^session$|store$|storage|"
    r"^conn$|connection$|cursor|redis|prisma|supabase"
)
_USES = regex(
    r"^(create|update|add|set|mark|record|put|append|delete|remove|get|find|fetch|load|select|query|"
    r"read|list|execute|table|merge|hget|hgetall)(_\w+)?$"
)


def uses_agents(flow: Flow) -> bool:
    """Whether code that is executed imports a library of agents or models."""
    return any(
        isinstance(flow.program.resolve(scope, name), External)
        for scope in flow.program.live
        for name, several in scope.imports.items()
        if any(
            not one.level and f"{one.module}.{one.name or ''}".startswith(AGENTS) for one in several
        )
    )


def saves(scope: Scope) -> bool:
    """Whether a function writes somewhere else, too, or reads from there."""
    for call in scope.calls:
        base = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        is_kept = base is not None and _TABLES.search(last_name(base))
        if _SAVES.match(call.name) or (is_kept and _USES.match(call.name)):
            return True
        text = call.node.args[0] if call.node.args else None
        if call.name == "execute" and isinstance(text, ast.Constant | ast.JoinedStr):
            return True
    return False


def save_around(flow: Flow, scopes: Iterable[Scope]) -> bool:
    """Whether functions, or what they call, write somewhere else, too, or read from there."""

    def called(here: Scope) -> Iterator[Scope]:
        return (
            one for call in here.calls for one in functions_called(flow, here, call.node, _none)
        )

    depth, most = limits.DYNAMIC_DEPTH_MAX, limits.MENTIONS_MAX
    count = 0
    for here in led_to(scopes, called, steps=depth, most=most):
        count += 1
        if saves(here):
            return True
    return count == most  # who can tell


def _none(_name: str) -> list[Scope]:
    return []


class Way:
    """The functions that execute one, up to the routes that do."""

    def __init__(
        self,
        begin: Scope,
        callers: Callable[[Scope], list[tuple[Scope, Call]]],
        begun: Callable[[Scope], set[int]],
    ) -> None:
        """Follow who calls it, and does not only begin it."""
        self.scopes: list[Scope] = []
        self.routes: list[Scope] = []
        self.is_streamed = self.is_in_loop = False
        within: dict[int, set[int]] = {}
        pending = [(begin, 0)]
        while pending and len(self.scopes) < limits.CALLERS_MAX:
            here, depth = pending.pop(0)
            if any(one is here for one in self.scopes):
                continue
            self.scopes.append(here)
            self.is_streamed |= here.yields
            if is_route(here):
                self.routes.append(here)
                continue
            if depth < limits.DYNAMIC_DEPTH_MAX:
                for where, call in callers(here):
                    if id(where) not in within:
                        within[id(where)] = {id(one) for one in loops(where)}
                    self.is_in_loop |= id(call.node) in within[id(where)]
                    if id(call.node) not in begun(where):
                        pending.append((where, depth + 1))

    def meets(self, other: "Way") -> bool:
        """Whether one request executes both."""
        return any(one is each for one in self.routes for each in other.routes)

    def is_polled(self) -> bool:
        """Whether a client waits that asks again."""
        return any(verb_of(one) == "get" for one in self.routes)


def loops(scope: Scope) -> list[ast.AST]:
    """Return what is within loops of a function that go on until something is true."""
    return [node for loop in own_nodes(scope) if isinstance(loop, ast.While) for node in walk(loop)]


def is_stop_loop(scope: Scope, part: str) -> bool:
    """Whether a function works until an event is set: that is an order to end.

    `part`: the attribute that the event is; empty for any.
    """
    return any(
        isinstance(one, ast.Attribute)
        and one.attr == "is_set"
        and part in {"", last_name(one.value)}
        for loop in own_nodes(scope)
        if isinstance(loop, ast.While)
        for one in walk(loop.test)
    )


def verb_of(route: Scope) -> str:
    """Return the HTTP verb of a route, as its decorator has it; empty if it has none."""
    return next(
        (
            last_name(one.func)
            for one in getattr(route.node, "decorator_list", ())
            if isinstance(one, ast.Call)
            and last_name(one.func) in {"get", "post", "put", "patch", "delete"}
        ),
        "",
    )
