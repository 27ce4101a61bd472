"""Conversations and paused runs that a project keeps itself, in dicts of its process.

Only with positive evidence: a dict of a module, or of an object that is made once, that code keeps
under the id of a session, thread, conversation, user or chat, that is read again beside messages
for a model, in a program that requests reach; or one whose entries hold what a run waits on until
another request sets it. What is also written elsewhere (a file, a database, a cache) says nothing.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._beside import beside
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._own_files import files_of
from perdure.contracts.code._own_tables import tables_of
from perdure.contracts.code._program import Variable, last_name
from perdure.contracts.code._scopes import Assign, Scope
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._speaking import TELLS, Speaking, id_in
from perdure.contracts.code._startup import is_route, startup_of
from perdure.contracts.code.facts import Degrade, Medium, Role, Site

_DICTS = {"dict", "defaultdict", "OrderedDict", "TTLCache", "LRUCache", "WeakValueDictionary"}
_PAUSES = regex(r"(?i)approv|confirm|human|pause|interrupt|resum|permission|pending|decision")
_WAITED_ON = {"Event", "Future", "create_future", "Condition", "Queue"}
_SETS = {"set", "set_result", "put", "put_nowait", "notify_all"}
_HOLDS = {
    "ChatMessageHistory", "InMemoryChatMessageHistory", "InMemoryHistory",
    "ConversationBufferMemory", "ConversationBufferWindowMemory", "ConversationSummaryMemory",
    "ConversationSummaryBufferMemory", "ChatMemoryBuffer", "ChatSummaryMemoryBuffer", "ChatHistory",
}  # fmt: skip
"""Objects of libraries that hold messages."""

_HISTORY = regex(
    r"(?i)^(chat_?|conversation_?|message_?)?(history|messages|transcript|turns|dialogue|log)$"
)
_ADDS = regex(r"^(append|extend|add_\w*messages?|add_turn|appendleft)$")
_KEEPS = regex(
    r"^(dump|dumps|save|persist|commit|insert|upsert|setex|hset|write|write_text|execute|put_item|"
    r"save_\w+|persist_\w+|insert_\w+|store_\w+|flush\w*|sync\w*)$"
)


class _Kept(Struct, frozen=True):
    """A dict of a module, with the functions that use it."""

    variable: Variable
    line: int
    users: tuple[Scope, ...]
    owner: Scope | None = None
    """The class, of a dict that its instances have."""
    is_served: bool | None = True
    makes_items: bool = False
    """It makes an item of what is asked for: a `defaultdict`."""


class Histories(Struct):
    """Where conversations are, and what becomes of them when their store fails."""

    sites: tuple[Site, ...] = ()
    degrades: tuple[Degrade, ...] = ()


def histories_of(flow: Flow, sites: Sites, *, has_saver: bool) -> Histories:
    """Find where the reachable code keeps conversations and paused runs itself."""
    if not any(is_route(scope) for scope in flow.program.live):
        return Histories()
    speaking = Speaking(flow)
    tables = (*tables_of(flow, sites, speaking), *files_of(flow, sites, speaking))
    found: list[Site] = []
    degrades: list[Degrade] = []
    for kept in [*_dicts(flow), *_of_instances(flow)]:
        paused = _paused(flow, kept) if kept.owner is None else None
        if paused is not None:
            found.append(paused)
            continue
        told = _history(flow, sites, kept, speaking)
        names_threads = any("thread_id" in one.words for one in kept.users)
        is_beside = bool(told.degrades) or len(told.sites) > 1
        is_copy = not is_beside and (tables or (has_saver and names_threads))
        # The thread, or the database, may keep the same conversation.
        found.extend(replace(one, is_served=None) if is_copy else one for one in told.sites)
        degrades.extend(told.degrades)
        if len(found) >= limits.UNREACHABLE_MAX:
            break
    if any(one.medium is Medium.REDIS for one in found):
        tables = tuple(one for one in tables if one.medium is not Medium.REDIS)
    return Histories((*found, *tables), tuple(degrades))


def _dicts(flow: Flow) -> Iterator[_Kept]:
    by_name: dict[str, list[Scope]] = {}
    for scope in flow.program.live:
        for name in scope.names if scope.kind == "function" else ():
            by_name.setdefault(name, []).append(scope)
    for module in flow.program.live:
        for name, assigns in module.assigns.items() if module.kind == "module" else ():
            if len(assigns) != 1 or not _is_empty_dict(assigns[0]):
                continue
            variable = Variable(module, name)
            users = tuple(
                one for one in by_name.get(name, ()) if flow.program.resolve(one, name) == variable
            )
            if users:
                makes = _makes_items(assigns[0])
                yield _Kept(variable, assigns[0].line, users, makes_items=makes)


def _of_instances(flow: Flow) -> Iterator[_Kept]:
    """Find the dicts of objects that are made once, before requests are served."""
    for begin in flow.program.live:
        owner = begin.owner
        if owner is None or not begin.name.endswith("__init__"):
            continue
        for assign in begin.attributes:
            if not _own(assign.target) or not _is_empty_dict(assign):
                continue
            name = _own(assign.target)
            users = tuple(
                one
                for several in owner.inner.values()
                for one in several
                if one is not begin and ("self", name) in one.dotted
            )
            is_served = _is_made_once(flow, begin)
            if users and is_served is not False:
                makes = _makes_items(assign)
                yield _Kept(Variable(begin, name), assign.line, users, owner, is_served, makes)


def _own(node: ast.expr) -> str:
    """Return the name of an object's own attribute; empty for anything else."""
    if isinstance(node, ast.Attribute) and _is_name(node.value, "self"):
        return node.attr
    return ""


def _is_made_once(flow: Flow, begin: Scope) -> bool | None:
    """Whether objects of a class are made before requests, `False` where each makes its own."""
    makers = [where for where, _call in flow.callers(begin)]
    before = startup_of(flow)
    if any(id(one) in before for one in makers):
        return True
    return None if any(not is_route(one) for one in makers) else False


def _is_empty_dict(assign: Assign) -> bool:
    value = assign.value
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and last_name(value.func) in _DICTS


def _makes_items(assign: Assign) -> bool:
    value = assign.value
    return isinstance(value, ast.Call) and last_name(value.func) == "defaultdict"


def _site(flow: Flow, kept: _Kept, role: Role, *steps: tuple[Scope, int, str]) -> Site:
    scope, name = kept.variable.scope, kept.variable.name
    return Site(
        role=role,
        medium=Medium.MEMORY,
        evidence=(
            *flow.program.way_to(scope.path),
            evidence(scope, kept.line, f"makes {name}, a dict of the process"),
            *(evidence(*step) for step in steps),
        ),
        class_name=f"the dict {name}",
        is_served=kept.is_served,
        survives_process=False,
    )


# ------------------------------------------------------------------------------- conversations


def _history(flow: Flow, sites: Sites, kept: _Kept, speaking: Speaking) -> Histories:
    name = kept.variable.name
    written = next(
        ((one, line) for one in kept.users if (line := _stored_at(one, kept)) is not None), None
    )
    if written is None:
        return Histories()
    writes_elsewhere = any(_writes_elsewhere(scope) for scope in kept.users)
    holds = next(
        (
            (one, line)
            for one in kept.users
            if (line := _holds_messages(flow, one, kept)) is not None
        ),
        None,
    )
    if holds is None and not _is_told(kept) and not writes_elsewhere:
        return Histories()
    for scope in _readers(flow, kept, far=holds is not None or writes_elsewhere):
        line = speaking.line(scope)
        if line is not None and (holds is not None or not _is_huge(scope)):
            site = _site(
                flow,
                kept,
                Role.HISTORY,
                (*written, f"keeps a conversation in {name} by its id"),
                (scope, line, "gives it to the model again"),
            )
            if not writes_elsewhere:
                return Histories((site,))
            other = beside(flow, sites, site, written)
            return Histories() if other is None else Histories(other.sites, other.degrades)
    return Histories()


def _is_told(kept: _Kept) -> bool:
    """Whether the name says that it holds conversations, or the one of a function that uses it."""
    name = kept.variable.name
    is_of_ids = bool(_OF_IDS.search(name)) and _holds_only_text(kept)
    if TELLS.search(name):
        return not is_of_ids
    return kept.owner is None and any(TELLS.search(one.name) for one in kept.users)


def _holds_only_text(kept: _Kept) -> bool:
    """Whether all that is put in are names of ids: `threads[user_id] = thread_id`."""
    stored = [
        one.value
        for scope in kept.users
        for one in scope.items
        if isinstance(one.target, ast.Subscript) and _is_dict(one.target.value, kept.variable.name)
    ]
    return bool(stored) and all(_is_id(one) for one in stored)


def _is_id(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        return str(value.slice.value).endswith("id")
    return isinstance(value, ast.Name | ast.Attribute) and last_name(value).endswith("id")


def _is_huge(scope: Scope) -> bool:
    """Whether so much is in a function that words near each other say nothing of each other."""
    return (getattr(scope.node, "end_lineno", 0) or 0) - scope.line > limits.NEAR_LINES_MAX


def _holds_messages(flow: Flow, scope: Scope, kept: _Kept) -> int | None:
    """Return where what is put into a dict, or got from it, is shown to be a conversation."""
    name = kept.variable.name
    aliases = {
        one
        for one, assigns in scope.assigns.items()
        if any(assign.value is not None and _is_got(assign.value, name) for assign in assigns)
    }
    for assign in scope.items:
        target = assign.target
        if isinstance(target, ast.Subscript) and _is_dict(target.value, name):
            value = assign.value
            if value is not None and _is_conversation(flow, scope, value):
                return assign.line
    for call in scope.calls:
        func = call.node.func
        if not isinstance(func, ast.Attribute):
            continue
        is_begun = func.attr == "setdefault" and _is_dict(func.value, name)
        if is_begun and any(_is_conversation(flow, scope, one) for one in call.node.args[1:]):
            return call.node.lineno
        base = func.value
        is_of_it = _is_got(base, name) or (isinstance(base, ast.Name) and base.id in aliases)
        if not is_of_it and isinstance(base, ast.Subscript | ast.Attribute):
            inner = base.value  # sessions[sid]["messages"].append(...), session.history.append(...)
            is_part = _is_got(inner, name) or (isinstance(inner, ast.Name) and inner.id in aliases)
            is_of_it = is_part and bool(_HISTORY.match(_part(base)))
        if is_of_it and _ADDS.match(func.attr) and _adds_message(call.node):
            return call.node.lineno
    return None


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_got(node: ast.expr, name: str) -> bool:
    """Whether an expression is an item of the dict: by brackets, `get` or `setdefault`."""
    if isinstance(node, ast.Subscript):
        return _is_dict(node.value, name)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"get", "setdefault"}
        and _is_dict(node.func.value, name)
    )


def _adds_message(node: ast.Call) -> bool:
    if last_name(node.func).startswith("add_"):
        return True
    for given in node.args:
        for one in ast.walk(given):
            match one:
                case ast.Dict():
                    keys = {key.value for key in one.keys if isinstance(key, ast.Constant)}
                    if keys & {"role", "content", "user", "assistant", "question", "text"}:
                        return True
                case ast.Call() if "Message" in last_name(one.func):
                    return True
                case ast.Name() | ast.Attribute() if _SAID.search(last_name(one)):
                    return True
    return False


_OF_IDS = regex(r"(?i)_(threads?|sessions?|ids?)$")
_SAID = regex(r"(?i)message|msg|turn|entry|reply|response|answer|history|prompt")


def _is_conversation(flow: Flow, scope: Scope, value: ast.expr) -> bool:
    """Whether a value holds messages: an object of a library or the project, or a dict of them."""
    match value:
        case ast.Name():
            made = [one.value for one in scope.assigns.get(value.id, ()) if one.value is not None]
            return any(
                _is_conversation(flow, scope, one) for one in made if not isinstance(one, ast.Name)
            )
        case ast.Dict():
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            return any(isinstance(key, str) and _HISTORY.match(key) for key in keys)
        case ast.Call():
            if last_name(value.func) in _HOLDS:
                return True
            meaning = flow.program.meaning(scope, value.func)
            is_class = isinstance(meaning, Scope) and meaning.kind == "class"
            return is_class and isinstance(meaning, Scope) and _has_history(flow, meaning)
    return False


def _has_history(flow: Flow, owner: Scope) -> bool:
    """Whether objects of a class have messages among their attributes."""
    for one in flow.program.family(owner):
        if any(_HISTORY.match(name) for name in one.assigns):
            return True
        for begin in one.inner.get("__init__", ()):
            if any(_HISTORY.match(_own(assign.target).strip("_")) for assign in begin.attributes):
                return True
    return False


def _writes_elsewhere(scope: Scope) -> bool:
    return any(_KEEPS.match(last_name(call.node.func)) for call in scope.calls)


def _stored_at(scope: Scope, kept: _Kept) -> int | None:
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
        is_begun = func.attr == "setdefault" and _is_dict(base, name) and call.node.args
        if is_begun and id_in(call.node.args[0], scope):
            return call.node.lineno
        is_longer = bool(_ADDS.match(func.attr))
        if is_longer and isinstance(base, ast.Subscript) and _holds(base, name, scope):
            return call.node.lineno
    for node in ast.walk(scope.node) if kept.makes_items else ():
        if isinstance(node, ast.Subscript) and _holds(node, name, scope):
            return node.lineno
    return None


def _holds(item: ast.Subscript, name: str, scope: Scope) -> bool:
    """Whether an item is what a dict of this name has under a conversation's id."""
    return _is_dict(item.value, name) and bool(id_in(item.slice, scope))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_dict(node: ast.expr, name: str) -> bool:
    """Whether an expression is the dict of this name, of a module or of an object."""
    return _is_name(node, name) or _own(node) == name


def _readers(flow: Flow, kept: _Kept, *, far: bool) -> list[Scope]:
    """Return the functions that use a dict, and those that call them; of an object its methods.

    `far`: what is kept is surely a conversation, so that callers of an object's methods count, too.
    """
    found = list(kept.users)
    for user in kept.users if kept.owner is None or far else ():
        found.extend(where for where, _call in flow.callers(user) if where not in found)
        if len(found) > limits.CALLERS_MAX:
            break
    return found


# ---------------------------------------------------------------------------------- paused runs


def _paused(flow: Flow, kept: _Kept) -> Site | None:
    """Find a dict of what runs wait on: an event that another request sets."""
    name = kept.variable.name
    waits = next(
        ((one, line) for one in kept.users if (line := _waited_at(one, name)) is not None), None
    )
    if waits is None:
        return None
    for scope in kept.users:
        for call in scope.calls:
            is_set = last_name(call.node.func) in _SETS and not call.node.keywords
            if is_set and is_route(scope) and _PAUSES.search(f"{name} {scope.name}"):
                return _site(
                    flow,
                    kept,
                    Role.PAUSED,
                    (*waits, f"a run waits on what {name} holds"),
                    (scope, call.node.lineno, "another request lets it go on"),
                )
    return None


def _waited_at(scope: Scope, name: str) -> int | None:
    made = {
        one
        for one, assigns in scope.assigns.items()
        if any(_makes_event(assign.value) for assign in assigns)
    }
    for assign in scope.items:
        target = assign.target
        if not isinstance(target, ast.Subscript) or not _is_name(target.value, name):
            continue
        inside = (
            {one.id for one in ast.walk(assign.value) if isinstance(one, ast.Name)}
            if (assign.value is not None)
            else set()
        )
        if inside & made or _makes_event(assign.value):
            return assign.line
    return None


def _makes_event(node: ast.expr | None) -> bool:
    return node is not None and any(
        isinstance(one, ast.Call) and last_name(one.func) in _WAITED_ON for one in ast.walk(node)
    )
