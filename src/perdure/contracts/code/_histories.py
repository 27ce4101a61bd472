"""Conversations and paused runs that a project keeps itself, in dicts of its process.

Only with positive evidence: a dict of a module, or of an object that is made once, that code keeps
under the id of a session, thread, conversation, user or chat, that is read again beside messages
for a model, in a program that requests reach; or one whose entries hold what a run waits on until
another request sets it. What is also written elsewhere (a file, a database, a cache) says nothing.
"""

import ast

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._apart import calls_by_name, is_apart
from perdure.contracts.code._beside import beside
from perdure.contracts.code._elsewhere import classes_of, is_overridden, may_be_elsewhere
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._handed import Handing
from perdure.contracts.code._instead import with_instead
from perdure.contracts.code._kept import Kept, dicts_of, is_dict, own, site_of
from perdure.contracts.code._outliving import reached
from perdure.contracts.code._own_files import files_of
from perdure.contracts.code._own_tables import tables_of
from perdure.contracts.code._scopes import Scope, last_name, walk
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._speaking import TELLS, Speaking, id_in
from perdure.contracts.code._startup import is_route
from perdure.contracts.code._turns import (
    ADDS,
    HISTORY,
    adds_message,
    is_got,
    part,
    writes_elsewhere,
)
from perdure.contracts.code._waits import Waits
from perdure.contracts.code.facts import Degrade, Medium, Role, Site

_HOLDS = {
    "ChatMessageHistory", "InMemoryChatMessageHistory", "InMemoryHistory",
    "ConversationBufferMemory", "ConversationBufferWindowMemory", "ConversationSummaryMemory",
    "ConversationSummaryBufferMemory", "ChatMemoryBuffer", "ChatSummaryMemoryBuffer", "ChatHistory",
}  # fmt: skip
"""Objects of libraries that hold messages."""

_MESSAGES = regex(
    r"(?i)^(new_|all_|chat_?|message_?|conversation_?)?(history|messages|transcript)$"
)
_ASKS = regex(
    r"^(a?chat|a?stream_chat|a?predict|a?run|run_sync|a?invoke|a?kickoff|a?ask|send_message|respond)$"
)
_ANSWERS = regex(
    r"(?i)^_*a?(chat|invoke|stream|generate|complete|completion|predict|run|ask|respond|answer|call)"
    r"(_\w{1,40})?$"
)
_MEMORIES = {"memory", "chat_memory", "chat_history"}
_GIVES = regex(r"(?i)(history|messages|transcript|conversation)$")
"""Names of functions that give a conversation."""


class Histories(Struct):
    """Where conversations are, and what becomes of them when their store fails."""

    sites: tuple[Site, ...] = ()
    degrades: tuple[Degrade, ...] = ()
    through: tuple[Scope, ...] = ()
    """Functions that a conversation is handed through, beside those that use its dict."""


def histories_of(flow: Flow, sites: Sites, *, has_saver: bool) -> Histories:
    """Find where the reachable code keeps conversations and paused runs itself."""
    if not any(is_route(scope) for scope in flow.program.live):
        return Histories()
    speaking = Speaking(flow)
    in_tables = tables_of(flow, sites, speaking)
    files = files_of(flow, sites, speaking)
    tables = (*in_tables.sites, *files)
    beside_it = any(one.chosen.value is not False for one in tables)
    waits = Waits(flow)
    handing = Handing(flow)
    found: list[Site] = []
    degrades: list[Degrade] = []
    for kept in dicts_of(flow):
        paused = waits.of(kept)
        if paused is not None:
            found.append(paused)
            continue
        if is_overridden(flow, kept):
            continue
        seen, instead = with_instead(flow, kept, tables)
        told = _history(flow, sites, seen, speaking, handing)
        degrades.extend(instead if told.sites else [])
        names_threads = any("thread_id" in one.words for one in (*kept.users, *told.through))
        is_beside = bool(told.degrades) or len(told.sites) > 1
        is_open = bool(told.sites) and (
            may_be_elsewhere(flow, kept) or calls_by_name(flow, kept.users)
        )
        is_copy = not is_beside and (is_open or (has_saver and names_threads))
        if told.sites and beside_it and not is_beside and not is_copy:
            through = (*kept.users, *told.through)
            is_copy = bool(files) or not is_apart(flow, through, in_tables.users)
        # The thread, a database, or a store of its own may keep the same conversation.
        found.extend(replace(one, is_served=None) if is_copy else one for one in told.sites)
        degrades.extend(told.degrades)
        if len(found) >= limits.UNREACHABLE_MAX:
            break
    if any(one.medium is Medium.REDIS for one in found):
        tables = tuple(one for one in tables if one.medium is not Medium.REDIS)
    return Histories((*found, *tables), tuple(degrades))


# ------------------------------------------------------------------------------- conversations


def _history(
    flow: Flow, sites: Sites, kept: Kept, speaking: Speaking, handing: Handing
) -> Histories:
    written = next(
        ((one, line) for one in kept.users if (line := _stored_at(one, kept)) is not None), None
    )
    if written is None:
        return Histories()
    found = _near(flow, sites, kept, speaking, written)
    if found is not None:
        return found
    way = handing.of(kept)
    if way is None:
        return Histories()
    site = _kept_site(flow, kept, written, way.asked, way.added)
    return Histories((replace(site, is_served=None),), through=way.scopes)


def _near(
    flow: Flow, sites: Sites, kept: Kept, speaking: Speaking, written: tuple[Scope, int]
) -> Histories | None:
    """Return what is found where the functions that use a dict speak to a model themselves."""
    is_written = any(writes_elsewhere(scope) for scope in kept.users)
    holds = next(
        (
            (one, line)
            for one in kept.users
            if (line := _holds_messages(flow, one, kept)) is not None
        ),
        None,
    )
    if holds is None and not _is_told(kept) and not is_written:
        return None
    is_far = holds is not None or is_written
    for scope in _readers(flow, kept):
        is_near = is_far or kept.owner is None or scope in kept.users
        line = speaking.line(scope) if is_near else speaking.told(scope)
        if line is None and holds is not None and scope in kept.users:
            line = _asked_at(scope, kept.name) if _speak(flow, kept, speaking) else None
        if line is not None and (holds is not None or not _is_huge(scope)):
            site = _kept_site(flow, kept, written, (scope, line))
            if not is_written:
                return Histories((site,))
            other = beside(flow, sites, site, written)
            return Histories() if other is None else Histories(other.sites, other.degrades)
    return None


def _kept_site(
    flow: Flow,
    kept: Kept,
    written: tuple[Scope, int],
    told: tuple[Scope, int],
    added: tuple[Scope, int] | None = None,
) -> Site:
    steps = [(*written, f"keeps a conversation in {kept.name} by its id")]
    steps += [(*added, "adds what is said")] if added is not None and added != told else []
    return site_of(flow, kept, Role.HISTORY, *steps, (*told, "gives it to the model again"))


def _speak(flow: Flow, kept: Kept, speaking: Speaking) -> bool:
    """Whether the project's own objects in a dict, if it has any, put messages before a model."""
    owners = [one for one in classes_of(flow, kept) if _has_history(flow, one)]
    return not owners or any(
        speaking.line(one) is not None or _asks_with_history(one)
        for owner in owners
        for member in flow.program.family(owner)
        for method in member.all_inner()
        if method.kind == "function"
        for one in reached(flow, method)
    )


def _asks_with_history(scope: Scope) -> bool:
    """Whether a method hands its object's messages to what answers."""
    return any(
        _ANSWERS.match(call.name)
        and any(
            (isinstance(one, ast.Attribute) and HISTORY.match(own(one).strip("_")))
            or (isinstance(given, ast.Name) and given.id == "self")
            for given in call.node.args
            for one in ast.walk(given)
        )
        for call in scope.calls
    )


def _is_told(kept: Kept) -> bool:
    """Whether the name says that it holds conversations, or the one of a function that uses it."""
    name = kept.variable.name
    is_of_ids = bool(_OF_IDS.search(name)) and _holds_only_text(kept)
    if TELLS.search(name):
        return not is_of_ids
    return kept.owner is None and any(TELLS.search(one.name) for one in kept.users)


def _holds_only_text(kept: Kept) -> bool:
    """Whether all that is put in are names of ids: `threads[user_id] = thread_id`."""
    stored = [
        one.value
        for scope in kept.users
        for one in scope.items
        if isinstance(one.target, ast.Subscript) and is_dict(one.target.value, kept.variable.name)
    ]
    return bool(stored) and all(_is_id(one) for one in stored)


def _is_id(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        return str(value.slice.value).endswith("id")
    return isinstance(value, ast.Name | ast.Attribute) and last_name(value).endswith("id")


def _is_huge(scope: Scope) -> bool:
    """Whether so much is in a function that words near each other say nothing of each other."""
    return (getattr(scope.node, "end_lineno", 0) or 0) - scope.line > limits.NEAR_LINES_MAX


def _holds_messages(flow: Flow, scope: Scope, kept: Kept) -> int | None:
    """Return where what is put into a dict, or got from it, is shown to be a conversation."""
    name = kept.variable.name
    aliases = {
        one
        for one, assigns in scope.assigns.items()
        if any(assign.value is not None and is_got(assign.value, name) for assign in assigns)
    }
    for assign in scope.items:
        target = assign.target
        if isinstance(target, ast.Subscript) and is_dict(target.value, name):
            value = assign.value
            if value is not None and _is_conversation(flow, scope, value):
                return assign.line
    return _given_at(scope, name) or _added_at(flow, scope, name, aliases)


def _given_at(scope: Scope, name: str) -> int | None:
    """Return where a function that is named for a conversation gives what a dict holds."""
    for result in scope.results if _GIVES.search(scope.name) else ():
        if result.value is not None and any(
            isinstance(one, ast.expr) and is_got(one, name) for one in ast.walk(result.value)
        ):
            return result.line
    return None


def _added_at(flow: Flow, scope: Scope, name: str, aliases: set[str]) -> int | None:
    """Return where a message is added to what a dict holds, or a conversation begun there."""
    for call in scope.calls:
        func = call.node.func
        if not isinstance(func, ast.Attribute):
            continue
        is_begun = func.attr == "setdefault" and is_dict(func.value, name)
        if is_begun and any(_is_conversation(flow, scope, one) for one in call.node.args[1:]):
            return call.node.lineno
        base = func.value
        is_of_it = is_got(base, name) or (isinstance(base, ast.Name) and base.id in aliases)
        if not is_of_it and isinstance(base, ast.Subscript | ast.Attribute):
            inner = base.value  # sessions[sid]["messages"].append(...), session.history.append(...)
            is_part = is_got(inner, name) or (isinstance(inner, ast.Name) and inner.id in aliases)
            is_of_it = is_part and bool(HISTORY.match(part(base)))
        if is_of_it and ADDS.match(func.attr) and adds_message(call.node):
            return call.node.lineno
    return None


_OF_IDS = regex(r"(?i)_(threads?|sessions?|ids?)$")


def _is_conversation(flow: Flow, scope: Scope, value: ast.expr) -> bool:
    """Whether a value holds messages: an object of a library or the project, or a dict of them."""
    match value:
        case ast.Name(id=name) if _MESSAGES.match(name):
            return any(one.arg == name for one in scope.parameters)
        case ast.Call(func=ast.Name(id="list" | "tuple" | "deque"), args=[inner, *_]):
            return _is_conversation(flow, scope, inner)
        case ast.Name():
            made = [one.value for one in scope.assigns.get(value.id, ()) if one.value is not None]
            return any(
                _is_conversation(flow, scope, one) for one in made if not isinstance(one, ast.Name)
            )
        case ast.Dict():
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            return any(isinstance(key, str) and HISTORY.match(key) for key in keys)
        case ast.Call():
            if {last_name(value.func), _base(value.func)} & _HOLDS:
                return True
            given = [one.value for one in value.keywords if one.arg in _MEMORIES]
            if any(_is_conversation(flow, scope, one) for one in given):
                return True
            meaning = flow.program.meaning(scope, value.func)
            is_class = isinstance(meaning, Scope) and meaning.kind == "class"
            return is_class and isinstance(meaning, Scope) and _has_history(flow, meaning)
    return False


def _base(node: ast.expr) -> str:
    return last_name(node.value) if isinstance(node, ast.Attribute) else ""


def _asked_at(scope: Scope, name: str) -> int | None:
    """Return where a function asks what a dict holds for an answer: it has its conversation."""
    aliases = {
        one
        for one, assigns in scope.assigns.items()
        if any(assign.value is not None and is_got(assign.value, name) for assign in assigns)
    }
    for call in scope.calls:
        func = call.node.func
        if isinstance(func, ast.Attribute) and _ASKS.match(func.attr):
            base = func.value
            if is_got(base, name) or (isinstance(base, ast.Name) and base.id in aliases):
                return call.node.lineno
    return None


def _has_history(flow: Flow, owner: Scope) -> bool:
    """Whether objects of a class have messages among their attributes."""
    for one in flow.program.family(owner):
        if any(HISTORY.match(name) for name in one.assigns):
            return True
        for begin in one.inner.get("__init__", ()):
            if any(HISTORY.match(own(assign.target).strip("_")) for assign in begin.attributes):
                return True
    return False


def _stored_at(scope: Scope, kept: Kept) -> int | None:
    """Return where a scope puts something into a dict under the id of a conversation."""
    name = kept.variable.name
    for assign in scope.items:
        item = assign.target
        if isinstance(item, ast.Subscript) and _holds(item, name, scope):
            return assign.line
    for call in scope.calls:
        func = call.node.func
        if not isinstance(func, ast.Attribute):
            continue
        base = func.value
        is_begun = func.attr == "setdefault" and is_dict(base, name) and call.node.args
        if is_begun and id_in(call.node.args[0], scope):
            return call.node.lineno
        is_longer = bool(ADDS.match(func.attr))
        if is_longer and isinstance(base, ast.Subscript) and _holds(base, name, scope):
            return call.node.lineno
    for node in walk(scope.node) if kept.makes_items else ():
        if isinstance(node, ast.Subscript) and _holds(node, name, scope):
            return node.lineno
    return None


def _holds(item: ast.Subscript, name: str, scope: Scope) -> bool:
    """Whether an item is what a dict of this name has under a conversation's id."""
    return is_dict(item.value, name) and bool(id_in(item.slice, scope))


def _readers(flow: Flow, kept: Kept) -> list[Scope]:
    """Return the functions that use a dict, and those that call them."""
    found = list(kept.users)
    for user in kept.users:
        found.extend(where for where, _call in flow.callers(user) if where not in found)
        if len(found) > limits.CALLERS_MAX:
            break
    return found
