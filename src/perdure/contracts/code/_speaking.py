"""What shows that code puts a conversation before a model, and under whose id it keeps one."""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import Scope, last_name, walk
from perdure.contracts.code._walks import led_to

IDS = regex(
    r"(?i)(session|thread|conversation|conv|chat|user|client|sender|channel|call|room|phone|contact)"
    r"_?(id|key|uuid|number|sid)?$|^sid$|^(wa|from)_(id|number)$"
)
TELLS_TEXT = (
    r"(?i)history|histories|message|conversation|chat|memory|memories|session|thread|dialog|context"
    r"|transcript"
)
TELLS = regex(TELLS_TEXT)
_MESSAGES = {
    "HumanMessage", "AIMessage", "ChatMessage", "ModelMessage", "add_user_message", "ModelRequest",
    "ModelResponse",
}  # fmt: skip
_GIVEN_AS = {
    "history", "chat_history", "message_history", "messages", "conversation_history", "contents",
    "previous_messages", "input_messages",
}  # fmt: skip
_WITH_MEMORY = {
    "as_chat_engine", "from_defaults", "run", "arun", "ConversationChain", "LLMChain", "from_llm",
    "from_tools", "initialize_agent", "AgentExecutor",
}  # fmt: skip
_STRONG = {"history", "chat_history", "message_history", "conversation_history"}
_PAST = regex(r"^(\w+_)?history(_(text|str|string|lines|block|context))?$")
"""Names of what was said, which text for a model has in it."""

_SHOWS = regex(r"(Response|Out|Schema|Read|View|Detail|Dto|DTO)$")
_ASKS = regex(r"^(a?invoke|a?stream|astream_events|a?run|run_sync|a?generate|a?chat|create)$")


class Speaking:
    """Answers, once for each function, where it puts messages before a model."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is asked yet."""
        self.flow = flow
        self._known: dict[int, int | None] = {}

    def line(self, scope: Scope) -> int | None:
        """Return where a scope puts messages together for a model, or hands a history to one."""
        if id(scope) not in self._known:
            self._known[id(scope)] = _speaks(scope)
        return self._known[id(scope)]

    def told(self, scope: Scope) -> int | None:
        """Return where a scope surely hands a history to a model."""
        for call in scope.calls:
            is_given = any(one.arg in _STRONG for one in call.node.keywords)
            if is_given and _ASKS.match(last_name(call.node.func)):
                return call.node.lineno
        return None

    def near(self, scope: Scope, depth: int = 3) -> tuple[Scope, int] | None:
        """Return where a function, or who calls it, does so."""
        found = self.way(scope, depth)
        return found[-1] if found else None

    def way(self, scope: Scope, depth: int = 3) -> tuple[tuple[Scope, int], ...]:
        """Return the calls of a function up to who does so, then where that does; empty: nobody."""
        calls: dict[int, tuple[tuple[Scope, int], ...]] = {id(scope): ()}

        def calling(here: Scope) -> list[Scope]:
            found = self.flow.callers(here)
            for where, call in found:
                calls.setdefault(id(where), (*calls[id(here)], (where, call.node.lineno)))
            return [where for where, _call in found]

        for here in led_to([scope], calling, steps=depth, most=limits.CALLERS_MAX):
            line = self.line(here)
            if line is not None:
                return (*calls[id(here)], (here, line))
        return ()


def _speaks(scope: Scope) -> int | None:
    for call in scope.calls:
        if call.name in _MESSAGES:
            return call.node.lineno
        given = {one.arg for one in call.node.keywords}
        name = call.name
        is_given = given & _STRONG or (given & _GIVEN_AS and _ASKS.match(name))
        is_with = "memory" in given and name in _WITH_MEMORY
        if (is_given or is_with or {"role", "content"} <= given) and not _SHOWS.search(name):
            return call.node.lineno
    for node in walk(scope.node):
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if {"role", "content"} <= keys:
                return node.lineno
        elif isinstance(node, ast.FormattedValue) and _PAST.match(last_name(node.value)):
            return node.lineno
    return None


def id_in(node: ast.expr, scope: Scope | None = None) -> str:
    """Return the name of the id that a key is made of; empty if it names none.

    A key is a name, an attribute, an item of what a request brings, or text with one of them in it.
    """
    match node:
        case ast.Name() if scope is not None and not IDS.search(node.id):
            made = [one.value for one in scope.assigns.get(node.id, ()) if one.value is not None]
            return id_in(made[0]) if len(made) == 1 and not isinstance(made[0], ast.Name) else ""
        case ast.JoinedStr():
            inside = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
            return next((found for one in inside if (found := id_in(one, scope))), "")
        case ast.Call(func=ast.Name(id="str" | "int"), args=[inner]):
            return id_in(inner, scope)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(word)), *_]):
            return word if IDS.search(word) else ""
        case ast.Subscript(slice=ast.Constant(value=str(word))):
            return word if IDS.search(word) else ""
        case ast.Call():
            return ""
        case ast.Tuple():
            return next((found for one in node.elts if (found := id_in(one, scope))), "")
    name = last_name(node)
    return name if IDS.search(name) else ""
