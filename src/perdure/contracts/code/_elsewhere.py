"""What lets a conversation in a dict be kept elsewhere, too: then it is a question whether it is.

An object of a library may be given a store of its own; one of the project may be filled from a
database when it is made; a store may be handed what it asks first.
"""

import ast
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._kept import Kept, is_dict, makers_of, own
from perdure.contracts.code._meanings import Variable
from perdure.contracts.code._scopes import Scope, last_name, walk
from perdure.contracts.code._speaking import id_in
from perdure.contracts.code._startup import functions_called
from perdure.contracts.code._turns import ADDS, is_got

_STORES = {
    "chat_store", "chat_memory", "chat_message_history", "message_store", "session_store",
    "chat_storage",
}  # fmt: skip
_OWN_STORES = {"store", "storage", "db", "backend", "repository", "repo", "session_id_store"}
"""Arguments that say a store only where they are given to what is put into the dict."""

_IN_MEMORY = regex(r"(?i)in_?memory|^(simplechatstore|chatmessagehistory|dict|list)$")
_LOADS = regex(
    r"(?i)^_*(re)?(a?load|fetch|store_from|hydrate|refill|rebuild|read|select|query|pull)(_\w{1,60})?$"
    r"|^_*restore(_\w{1,60})?$|^_*(get|list|find)_\w{0,40}(history|messages|conversation|session)\w{0,9}$"
)
_GIVES = regex(r"(?i)(^|_)(history|histories|messages|conversations?|transcript|get|find|one|all)$")
_HISTORY = regex(r"(?i)^_*\w{0,20}(history|messages|transcript|turns|dialogue|log)$")
_WRITES = regex(
    r"^(save|persist|commit|insert|upsert|setex|hset|put_item|save_\w{1,60}|persist_\w{1,60}"
    r"|insert_\w{1,60}|store_\w{1,60})$"
)
_PLAIN = {"list", "dict", "deque", "defaultdict", "OrderedDict", "field", "Field", "copy", "str"}


def may_be_elsewhere(flow: Flow, kept: Kept) -> bool:
    """Whether what a dict holds may be kept, and found again, outside the process."""
    values = list(_values(flow, kept))
    if any(_is_given_store(flow, scope, value) for scope, value in values):
        return True
    if any(is_read(kept, scope, value) for scope, value in values):
        return True
    if any(_is_filled_in_loop(scope, kept.variable.name) for scope in kept.users):
        return True
    if any(_is_filled(flow, one) for one in classes_of(flow, kept)):
        return True
    return kept.owner is not None and _asks_first(flow, kept, kept.owner)


def is_overridden(flow: Flow, kept: Kept) -> bool:
    """Whether all objects that are made are of classes whose own methods use no such dict."""
    if kept.owner is None:
        return False
    made = []
    for where, call in makers_of(flow, kept.owner):
        owner = flow.program.meaning(where, call.node.func)
        if not isinstance(owner, Scope) or owner.kind != "class":
            return False
        made.append(owner)
    return bool(made) and not any(_uses(flow, one, kept) for one in made)


def _uses(flow: Flow, owner: Scope, kept: Kept) -> bool:
    """Whether objects of a class have a method that uses a dict: not all are replaced by others."""
    for user in kept.users:
        name = user.name.rpartition(".")[2]
        if name != "__init__" and flow.program.method(owner, name) in {user, None}:
            return True
    return False


def classes_of(flow: Flow, kept: Kept) -> list[Scope]:
    """Return the classes whose objects are put into a dict."""
    found: list[Scope] = []
    for scope, value in _values(flow, kept):
        meaning = flow.program.meaning(scope, value.func)
        if isinstance(meaning, Scope) and meaning.kind == "class" and meaning not in found:
            found.append(meaning)
    return found


# ------------------------------------------------------------------------------------ what is put


def _values(flow: Flow, kept: Kept) -> Iterator[tuple[Scope, ast.Call]]:
    """Yield the calls that make what is put into a dict, and those that these are given."""
    name = kept.variable.name
    for scope in kept.users:
        put = [
            one.value
            for one in scope.items
            if isinstance(one.target, ast.Subscript) and is_dict(one.target.value, name)
        ]
        put += [
            given
            for call in scope.calls
            if call.name == "setdefault"
            and isinstance(call.node.func, ast.Attribute)
            and is_dict(call.node.func.value, name)
            for given in call.node.args[1:]
        ]
        for value in put:
            yield from _calls(flow, scope, value, 0)


def _calls(
    flow: Flow, scope: Scope, value: ast.expr | None, depth: int
) -> Iterator[tuple[Scope, ast.Call]]:
    if value is None or depth > limits.DYNAMIC_DEPTH_MAX:
        return
    for part in _parts(scope, value):
        yield from _calls(flow, scope, part, depth + 1)
    if isinstance(value, ast.Call):
        yield scope, value
        for made in functions_called(flow, scope, value, lambda _name: []):
            for result in made.results if not made.name.endswith("__init__") else ():
                yield from _calls(flow, made, result.value, depth + 1)


def _parts(scope: Scope, value: ast.expr) -> list[ast.expr]:
    """Return what an expression has within it, or is the name of."""
    match value:
        case ast.Await():
            return [value.value]
        case ast.Name():
            made = [one.value for one in scope.assigns.get(value.id, ()) if one.value is not None]
            return [one for one in made if not isinstance(one, ast.Name)]
        case ast.Dict() | ast.BoolOp():
            return value.values
        case ast.Call():
            return [*value.args, *(one.value for one in value.keywords)]
    return []


def _is_given_store(flow: Flow, scope: Scope, node: ast.Call) -> bool:
    names = _STORES | _OWN_STORES
    return any(
        (one.arg in names) and not _is_in_memory(flow, scope, one.value) for one in node.keywords
    )


def _is_in_memory(flow: Flow, scope: Scope, node: ast.expr | None, depth: int = 0) -> bool:
    """Whether a store is surely one in memory."""
    match node:
        case ast.Constant() | ast.Dict() | ast.List():
            return True
        case ast.Call(func=ast.Attribute(attr="from_defaults", value=base)):
            return bool(_IN_MEMORY.search(last_name(base)))
        case ast.Call(func=func):
            return bool(_IN_MEMORY.search(last_name(func)))
        case ast.Name() if depth < limits.DYNAMIC_DEPTH_MAX:
            known = flow.program.meaning(scope, node)
            if isinstance(known, Variable):
                values = [one.value for one in known.scope.assigns.get(known.name, ())]
                return bool(values) and all(
                    _is_in_memory(flow, known.scope, one, depth + 1) for one in values
                )
    return False


def is_read(kept: Kept, scope: Scope, node: ast.Call) -> bool:
    """Whether what is put into a dict is read from somewhere under the id of a conversation."""
    func = node.func
    if isinstance(func, ast.Attribute) and is_dict(func.value, kept.variable.name):
        return False
    name = last_name(func)
    is_of_id = any(id_in(one, scope) for one in (*node.args, *(k.value for k in node.keywords)))
    is_of_object = isinstance(func, ast.Attribute) and bool(_GIVES.search(name))
    return is_of_id and (is_of_object or bool(_LOADS.match(name)))


def _is_filled_in_loop(scope: Scope, name: str) -> bool:
    """Whether an item gets its messages one by one, from what something gives for its id."""
    items = {
        bound
        for bound, assigns in scope.assigns.items()
        if any(one.value is not None and is_got(one.value, name) for one in assigns)
    }
    items.update(
        one.value.id
        for one in scope.items
        if isinstance(one.value, ast.Name) and is_got(one.target, name)
    )
    for node in walk(scope.node):
        if not isinstance(node, ast.For | ast.AsyncFor) or not _is_of_id(scope, node.iter, name):
            continue
        for one in ast.walk(node):
            match one:
                case ast.Call(func=ast.Attribute(attr=way, value=base)) if ADDS.match(way):
                    if _is_in(base, name, items):
                        return True
    return False


def _is_of_id(scope: Scope, node: ast.expr, name: str) -> bool:
    """Whether something that is not the dict is asked for what belongs to a conversation's id."""
    return any(
        isinstance(one, ast.Call)
        and not is_got(one, name)
        and any(id_in(given, scope) for given in (*one.args, *(k.value for k in one.keywords)))
        for one in ast.walk(node)
    )


def _is_in(node: ast.expr, name: str, items: set[str]) -> bool:
    """Whether an expression is the item of a dict, or a part of it."""
    while not is_got(node, name) and isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return is_got(node, name) or (isinstance(node, ast.Name) and node.id in items)


# --------------------------------------------------------------------------- objects of the project


def _is_filled(flow: Flow, owner: Scope) -> bool:
    """Whether objects of a class begin with messages from elsewhere, or write them there."""
    for one in flow.program.family(owner):
        for begin in one.inner.get("__init__", ()):
            if any(_LOADS.match(call.name) for call in begin.calls):
                return True
            for assign in begin.attributes:
                if _HISTORY.match(own(assign.target)) and _is_from_elsewhere(
                    flow, begin, assign.value
                ):
                    return True
        for method in one.all_inner():
            if method.kind == "function" and any(_WRITES.match(c.name) for c in method.calls):
                return True
    return False


def _is_from_elsewhere(flow: Flow, scope: Scope, value: ast.expr | None) -> bool:
    if isinstance(value, ast.BoolOp):
        return any(_is_from_elsewhere(flow, scope, one) for one in value.values)
    if isinstance(value, ast.IfExp):
        return any(_is_from_elsewhere(flow, scope, one) for one in (value.body, value.orelse))
    if not isinstance(value, ast.Call):
        return False
    name = last_name(value.func)
    is_class = name[:1].isupper()  # an object that holds messages, of a library or of its own
    return not is_class and name not in _PLAIN


def _asks_first(flow: Flow, kept: Kept, owner: Scope) -> bool:
    """Whether a store that is handed another one asks that one first: `if self._backend: ...`."""
    asked = {name for user in kept.users for name in _asked_in(user)}
    for begin in owner.inner.get("__init__", ()) if asked else ():
        by_name = {
            one.value.id: own(one.target)
            for one in begin.attributes
            if isinstance(one.value, ast.Name) and own(one.target) in asked
        }
        places = [one.arg for one in begin.parameters if one.arg != "self"]
        for _where, call in makers_of(flow, owner):
            given = dict(zip(places, call.node.args, strict=False))
            given |= {one.arg: one.value for one in call.node.keywords if one.arg}
            for name in by_name:
                value = given.get(name)
                if value is not None and not isinstance(value, ast.Constant):
                    return True
    return False


def _asked_in(scope: Scope) -> Iterator[str]:
    """Yield the attributes that a method tests for being there, and asks then."""
    for node in ast.walk(scope.node):
        if not isinstance(node, ast.If):
            continue
        tested = {own(one) for one in ast.walk(node.test) if isinstance(one, ast.Attribute)} - {""}
        for statement in (*node.body, *node.orelse):
            for one in ast.walk(statement):
                if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
                    name = own(one.func.value)
                    if name in tested:
                        yield name
