"""What runs can wait for in the entries of a dict: events, futures and queues, by part and by name.

A part is an attribute of an entry, a key of it, or (empty) the entry itself.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct, field

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._kept import is_dict, is_item, own
from perdure.contracts.code._meanings import External
from perdure.contracts.code._scopes import Assign, Scope, children, last_name, walk

_LIBRARIES = ("asyncio", "threading", "anyio", "trio", "queue", "multiprocessing", "concurrent")
_WAITED_ON = {"Event", "Future", "create_future", "Condition", "Queue", "SimpleQueue"}


class Item(Struct):
    """What entries of a dict are made of, as far as runs can wait for it."""

    parts: dict[str, str] = field(default_factory=dict)
    """By attribute or key, empty for the entry itself: which kind of object it is."""
    owners: list[Scope] = field(default_factory=list)
    """Classes of the project whose objects the entries are."""


def made_of(flow: Flow, scope: Scope, value: ast.expr | None, item: Item) -> None:
    """Note what of a value that is put into a dict runs can wait for."""
    match value:
        case ast.Name():
            values = [one.value for one in scope.assigns.get(value.id, ())]
            for one in (one for one in values if not isinstance(one, ast.Name)):
                made_of(flow, scope, one, item)
        case ast.Dict():
            for key, inner in zip(value.keys, value.values, strict=True):
                _part_of(flow, scope, inner, item, str(getattr(key, "value", "")))
        case ast.Tuple() | ast.List():
            for at, inner in enumerate(value.elts):
                _part_of(flow, scope, inner, item, str(at))
        case ast.Call() if not _part_of(flow, scope, value, item, ""):
            _of_class(flow, scope, value, item)


def _part_of(flow: Flow, scope: Scope, value: ast.expr | None, item: Item, part: str) -> bool:
    """Note that runs can wait for a part of an entry, if they can."""
    values = [value]
    if isinstance(value, ast.Name):
        values = [one.value for one in scope.assigns.get(value.id, ())]
    kinds = [
        last_name(one.func)
        for one in values
        if isinstance(one, ast.Call) and _is_waited_on(flow, scope, one)
    ]
    if kinds:
        item.parts[part] = kinds[-1]
    return bool(kinds)


def _of_class(flow: Flow, scope: Scope, made: ast.Call, item: Item) -> None:
    owner = flow.program.meaning(scope, made.func)
    if not isinstance(owner, Scope) or owner.kind != "class":
        return
    if owner not in item.owners:
        item.owners.append(owner)
    for name, assigns in owner.assigns.items():
        for given in (one for assign in assigns for one in _factories(assign.value)):
            _part_of(flow, owner, given, item, name)
    for begin in owner.inner.get("__init__", ()):
        for assign in begin.attributes:
            _part_of(flow, begin, assign.value, item, own(assign.target))
    for one in made.keywords:
        if one.arg:
            _part_of(flow, scope, one.value, item, one.arg)
    for name, given in zip(owner.assigns, made.args, strict=False):
        _part_of(flow, scope, given, item, name)


def _is_waited_on(flow: Flow, scope: Scope, node: ast.Call) -> bool:
    name = last_name(node.func)
    if name not in _WAITED_ON:
        return False
    meaning = flow.program.meaning(scope, node.func)
    is_library = isinstance(meaning, External) and meaning.name.startswith(_LIBRARIES)
    return name == "create_future" or is_library


class Names:
    """What the names of one function have to do with the entries of a dict."""

    def __init__(self, scope: Scope, name: str, item: Item, given: set[str]) -> None:
        """Note what a function binds; `given`: names of entries that others give it."""
        self.name, self.item = name, item
        self.entries = set(given)
        self.is_inside = any(scope in owner.all_inner() for owner in item.owners)
        self.direct: dict[str, str] = {}
        for bound, assigns in scope.assigns.items():
            for one in assigns:
                value = awaited(one.value)
                if value is not None and one.item is None and is_got(value, name):
                    self.entries.add(bound)
        put = _bound_with(scope, stored(scope, name)) | {
            one.id
            for value in stored(scope, name)
            if value is not None
            for one in walk(value)
            if isinstance(one, ast.Name)
        }
        for bound, assigns in scope.assigns.items():
            for one in assigns:
                if one.value is not None:
                    self._bind(bound, one, is_put=bound in put)

    def _bind(self, bound: str, assign: Assign, *, is_put: bool) -> None:
        """Note what a name is bound to: a part of an entry, or an entry that is put there."""
        value = assign.value
        if value is None:
            return
        part = self.part(value)
        if assign.item is not None and is_got(value, self.name):
            part = str(assign.item) if str(assign.item) in self.item.parts else None
        made = last_name(value) if isinstance(value, ast.Call) else ""
        if part is None and is_put:
            part = next((one for one, kind in self.item.parts.items() if kind == made), None)
        owners = {owner.name.rpartition(".")[2] for owner in self.item.owners}
        if part is not None:
            self.direct[bound] = part
        elif is_put and (made in owners or isinstance(value, ast.Dict)):
            self.entries.add(bound)

    def is_entry(self, node: ast.expr) -> bool:
        """Whether an expression is an entry of the dict."""
        return (isinstance(node, ast.Name) and node.id in self.entries) or is_got(node, self.name)

    def part(self, node: ast.expr) -> str | None:
        """Return which part of an entry an expression is; `None` if it is none."""
        found: str | None = None
        match node:
            case ast.Name() if node.id in self.direct:
                return self.direct[node.id]
            case ast.Attribute(value=inner, attr=name):
                is_own = self.is_inside and isinstance(inner, ast.Name) and inner.id == "self"
                found = name if is_own or self.is_entry(inner) else None
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)) if self.is_entry(inner):
                found = str(key)
            case ast.Call(
                func=ast.Attribute(value=inner, attr="get"), args=[ast.Constant(value=key), *_]
            ) if self.is_entry(inner):
                found = str(key)
        if found is None and self.is_entry(node):
            found = ""
        return found if found in self.item.parts else None


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """Return the nodes of a function without those of functions within it."""
    pending: list[ast.AST] = list(getattr(scope.node, "body", ()))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(children(node))


def stored(scope: Scope, name: str) -> Iterator[ast.expr | None]:
    """Return the values that a function puts into a dict."""
    for assign in scope.items:
        if isinstance(assign.target, ast.Subscript) and is_dict(assign.target.value, name):
            yield assign.value
    for call in scope.calls:
        func = call.node.func
        is_begun = isinstance(func, ast.Attribute) and func.attr == "setdefault"
        if is_begun and isinstance(func, ast.Attribute) and is_dict(func.value, name):
            yield from call.node.args[1:2]


def is_got(node: ast.expr, name: str) -> bool:
    """Whether an expression is an entry of a dict, taken out of it or not."""
    return is_item(node, name, ("get", "setdefault", "pop"))


def awaited(node: ast.expr | None) -> ast.expr | None:
    return node.value if isinstance(node, ast.Await) else node


def _factories(value: ast.expr | None) -> Iterator[ast.expr]:
    """Return the calls that make what a field of a class begins with."""
    if not isinstance(value, ast.Call):
        return
    given = next((one.value for one in value.keywords if one.arg == "default_factory"), None)
    if isinstance(given, ast.Lambda):
        yield given.body
    elif given is not None:
        yield ast.copy_location(ast.Call(func=given, args=[], keywords=[]), given)


def by_method(item: Item, name: str, names: set[str]) -> Iterator[str]:
    """Return the parts of an entry for which a method of it does what its name does not say."""
    for owner in item.owners:
        for method in owner.inner.get(name, ()):
            for node in own_nodes(method):
                if isinstance(node, ast.Attribute) and node.attr in names:
                    part = own(node.value)
                    if part and part in item.parts:
                        yield part


def _bound_with(scope: Scope, values: Iterator[ast.expr | None]) -> set[str]:
    """Return the names that a function binds to the very values that it puts somewhere."""
    put = {id(one) for one in values if one is not None}
    return {
        name
        for name, assigns in scope.assigns.items()
        if any(id(one.value) in put for one in assigns)
    }
