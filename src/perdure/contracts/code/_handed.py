"""Conversations of a dict that are taken out in one function and given to a model in another.

What is followed is the item of the dict, by its names: through who gives it back, to who is handed
it, and into its own methods. Only where what it holds is surely put before a model, and a message
is added to it, in functions none of which writes to something else or reads from there. Nothing is
said where the messages come from the request, or the item goes with it. What is found is a question
at most: between so many functions a store may be that has another name.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct, field

from perdure.contracts.code import limits
from perdure.contracts.code._asking import asks_model
from perdure.contracts.code._elsewhere import classes_of, is_read
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._kept import Kept, is_dict
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._startup import functions_called, is_abstract
from perdure.contracts.code._turns import (
    ADDS,
    HISTORY,
    adds_message,
    is_got,
    part,
    writes_elsewhere,
)

_COMMON = {"get", "pop", "setdefault", "find", "load", "fetch", "open", "create", "__getitem__"}
"""Names that objects of libraries have for their methods, too."""

_OUT = {"get", "setdefault", "copy", "get_messages", "to_messages", "get_history", "as_messages"}


class Handed(Struct):
    """Where an item of a dict gets a message, and where what it holds is put before a model."""

    added: tuple[Scope, int]
    asked: tuple[Scope, int]
    scopes: tuple[Scope, ...]
    """The functions that it goes through."""


class _Held(Struct):
    """A function with the names that the item, or what is said in it, has there."""

    scope: Scope
    wholes: set[str]
    parts: set[str]
    giving: list[ast.Call]
    """The calls here that give the item back."""
    depth: int


class _Seen(Struct):
    """What was found on the way."""

    added: tuple[Scope, int] | None = None
    asked: tuple[Scope, int] | None = None
    scopes: list[Scope] = field(default_factory=list)
    is_elsewhere: bool = False


class Handing:
    """Follows what dicts hold to who asks a model, within a bound for all of them."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is followed yet."""
        self.flow = flow
        self.left = limits.HANDED_LINES_MAX

    def of(self, kept: Kept) -> Handed | None:
        """Return how what a dict holds gets to a model in a function that does not know it."""
        follow = _Follow(self.flow, kept)
        pending = [_Held(one, set(), set(), [], 0) for one in kept.users]
        known: set[tuple[int, tuple[str, ...], bool]] = set()
        seen = follow.seen
        while pending:
            here = pending.pop(0)
            names = (*sorted(here.wholes), "", *sorted(here.parts))
            key = (id(here.scope), names, bool(here.giving))
            if key in known:
                continue
            known.add(key)
            last = getattr(here.scope.node, "end_lineno", 0) or 0
            self.left -= max(last - here.scope.line, 1)
            if len(known) > limits.MENTIONS_MAX or self.left < 0:
                return None
            pending.extend(follow.one(here))
        if seen.added is None or seen.asked is None or seen.is_elsewhere:
            return None
        if _goes_with_request(self.flow, kept, seen.scopes):
            return None
        return Handed(seen.added, seen.asked, tuple(seen.scopes))


class _Follow:
    def __init__(self, flow: Flow, kept: Kept) -> None:
        self.flow = flow
        self.kept = kept
        self.name = kept.variable.name
        self.classes = classes_of(flow, kept)
        self.is_list = _holds_lists(kept)
        self.seen = _Seen()

    def one(self, here: _Held) -> list[_Held]:
        """Look at one function, and return those that it hands the item to."""
        scope = here.scope
        self._names(here)
        if not here.wholes and not here.parts and not self._is_used(here):
            return []
        self.seen.scopes.append(scope)
        self.seen.is_elsewhere |= (
            writes_elsewhere(scope)
            or self._is_refilled(here)
            or self._is_replaced(here)
            or self._is_of_request(here)
        )
        found: list[_Held] = []
        for call in scope.calls:
            if self.seen.added is None and self._adds(call.node, here):
                self.seen.added = (scope, call.node.lineno)
            found += self._handed_on(call, here)
        for assign in (*scope.attributes, *scope.items):
            is_put = self._is_part_of_whole(assign.target, here) and assign.value is not None
            if self.seen.added is None and is_put and not _is_empty(assign.value):
                self.seen.added = (scope, assign.line)
        if here.depth < limits.DYNAMIC_DEPTH_MAX:
            found += self._given_back(here)
        return found if here.depth < limits.DYNAMIC_DEPTH_MAX else []

    # ------------------------------------------------------------------------------------ names

    def _names(self, here: _Held) -> None:
        """Find what else the item, and what is said in it, are called in a function."""
        stored = [
            one.value.id
            for one in here.scope.items
            if isinstance(one.value, ast.Name)
            and isinstance(one.target, ast.Subscript)
            and is_got(one.target, self.name)
            and one.value.id in here.scope.assigns
        ]
        here.wholes.update(stored if here.scope in self.kept.users else ())
        both = {
            id(one.value)
            for one in here.scope.items
            if isinstance(one.value, ast.Call) and is_got(one.target, self.name)
        }  # `session = sessions[id] = Session()`
        for _time in range(limits.DYNAMIC_DEPTH_MAX):
            before = len(here.wholes) + len(here.parts)
            for name, assigns in here.scope.assigns.items():
                for assign in assigns:
                    value = assign.value
                    if value is None or name in here.wholes or name in here.parts:
                        continue
                    if id(value) in both or self._is_whole(value, here):
                        here.wholes.add(name)
                    elif self._has_part(value, here):
                        here.parts.add(name)
            here.parts |= self._collected(here)
            if before == len(here.wholes) + len(here.parts):
                break

    def _collected(self, here: _Held) -> set[str]:
        """Return the lists that a loop over what is said is put into."""
        found = set()
        for node in walk(here.scope.node):
            if isinstance(node, ast.For) and self._has_part(node.iter, here):
                for one in ast.walk(node):
                    match one:
                        case ast.Call(
                            func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend")
                        ):
                            found.add(name)
                        case ast.AugAssign(target=ast.Name(id=name)):
                            found.add(name)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "extend"
                and isinstance(node.func.value, ast.Name)
                and any(self._has_part(one, here) for one in node.args)
            ):
                found.add(node.func.value.id)
        return found - here.wholes

    def _is_whole(self, node: ast.expr, here: _Held) -> bool:
        """Whether an expression is the item of the dict."""
        match node:
            case ast.Await() | ast.NamedExpr():
                return self._is_whole(node.value, here)
            case ast.BoolOp():
                return any(self._is_whole(one, here) for one in node.values)
            case ast.Name():
                return node.id in here.wholes
            case ast.Call() if any(one is node for one in here.giving):
                return True
        return here.scope in self.kept.users and is_got(node, self.name)

    def _is_part_of_whole(self, node: ast.expr, here: _Held) -> bool:
        """Whether an expression is what is said in the item: `session.messages`."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _OUT or not self._is_whole(node.func.value, here):
                return False
            first = node.args[0] if node.args else None
            is_named = isinstance(first, ast.Constant) and HISTORY.match(str(first.value))
            return bool(is_named) or (first is None and node.func.attr not in {"get", "copy"})
        is_inner = isinstance(node, ast.Attribute | ast.Subscript)
        if not is_inner or not isinstance(node, ast.Attribute | ast.Subscript):
            return False
        return bool(HISTORY.match(part(node).strip("_"))) and self._is_whole(node.value, here)

    def _has_part(self, node: ast.expr, here: _Held) -> bool:
        """Whether a value is made of what is said in the item."""
        pending: list[ast.AST] = [node]
        while pending:
            one = pending.pop()
            if isinstance(one, ast.expr) and self._is_part(one, here):
                return True
            match one:
                case ast.Subscript(value=inner) if self._is_part(inner, here):
                    continue  # one message, or the last ones
                case ast.Call(func=ast.Name(id="len" | "bool" | "sum")):
                    continue
                case ast.Call(func=ast.Attribute(attr="pop" | "index" | "count")):
                    continue
            pending.extend(ast.iter_child_nodes(one))
        return False

    def _is_part(self, node: ast.expr, here: _Held) -> bool:
        """Whether a value is all that is said in the item."""
        is_named = isinstance(node, ast.Name) and node.id in here.parts
        return (
            is_named
            or self._is_part_of_whole(node, here)
            or (self.is_list and self._is_whole(node, here))
        )

    def _is_used(self, here: _Held) -> bool:
        """Whether a function has the item without any name for it."""
        return (
            bool(here.giving)
            or here.scope in self.kept.users
            or any(
                self._is_whole(one, here)
                for call in here.scope.calls
                for one in (
                    *call.node.args,
                    *(given.value for given in call.node.keywords),
                    *([call.node.func.value] if isinstance(call.node.func, ast.Attribute) else ()),
                )
            )
        )

    # ------------------------------------------------------------------------------------- acts

    def _adds(self, node: ast.Call, here: _Held) -> bool:
        """Whether a call adds a message to what is said in the item."""
        func = node.func
        if not isinstance(func, ast.Attribute) or not ADDS.match(func.attr):
            return False
        base = func.value
        is_named = isinstance(base, ast.Name) and base.id in here.parts
        is_of_it = is_named or self._is_part_of_whole(base, here)
        is_of_it |= self._is_whole(base, here) and (self.is_list or func.attr.startswith("add_"))
        return is_of_it and adds_message(node)

    def _is_refilled(self, here: _Held) -> bool:
        """Whether what is said in the item is read from elsewhere."""
        put = [
            one.value
            for one in (*here.scope.attributes, *here.scope.items)
            if one.value is not None and self._is_part_of_whole(one.target, here)
        ]
        put += [
            given
            for call in here.scope.calls
            if isinstance(call.node.func, ast.Attribute)
            and call.name in {"extend", "update", "load", "restore"}
            and (
                self._is_part_of_whole(call.node.func.value, here)
                or self._is_whole(call.node.func.value, here)
            )
            for given in call.node.args
        ]
        return any(
            isinstance(one, ast.Call) and is_read(self.kept, here.scope, one)
            for value in put
            for one in ast.walk(value)
        )

    def _is_replaced(self, here: _Held) -> bool:
        """Whether what is said in the item is put there as a whole, by who has it elsewhere."""
        for assign in (*here.scope.attributes, *here.scope.items):
            value = assign.value
            if value is None:
                continue
            if self._is_part_of_whole(assign.target, here):
                is_begun = _is_empty(value) and bool(assign.guards)
                if not is_begun and not self._has_part(value, here):
                    return True
            elif self._has_part(value, here) and "request" in ast.unparse(assign.target):
                return True
        return any(call.name == "set_cookie" for call in here.scope.calls)

    def _is_of_request(self, here: _Held) -> bool:
        """Whether messages that somebody else has are put into the item: those of a request."""
        scope = here.scope
        if scope in self.kept.users:
            put = [
                one.value
                for one in scope.items
                if one.value is not None and is_got(one.target, self.name)
            ]
            put += [
                given
                for call in scope.calls
                if is_got(call.node, self.name)
                for given in call.node.args[1:]
            ]
            if any(self._has_given(one, here) for one in put):
                return True
        for call in scope.calls:
            func = call.node.func
            is_longer = isinstance(func, ast.Attribute) and call.name in {"extend", "update"}
            if is_longer and any(self._has_given(one, here) for one in call.node.args):
                return True
        return any(
            isinstance(node, ast.For | ast.AsyncFor)
            and self._has_given(node.iter, here)
            and any(isinstance(one, ast.Call) and self._adds(one, here) for one in ast.walk(node))
            for node in walk(scope.node)
        )

    def _has_given(self, node: ast.expr, here: _Held) -> bool:
        """Whether a value has messages in it that a parameter is, or another object has."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id not in here.parts | here.wholes:
                if HISTORY.match(one.id) and one.id in here.scope.parameter_names:
                    return True
            elif (
                isinstance(one, ast.Attribute | ast.Subscript)
                and HISTORY.match(part(one))
                and not self._is_part_of_whole(one, here)
            ):
                return True
        return False

    def _handed_on(self, call: Call, here: _Held) -> Iterator[_Held]:
        """Yield what a call hands the item to; note where it hands it to a model."""
        node, scope = call.node, here.scope
        func = node.func
        if isinstance(func, ast.Attribute) and self._is_whole(func.value, here):
            for owner in self.classes:
                method = self.flow.program.method(owner, func.attr)
                if method is not None:
                    yield _Held(method, {"self"}, set(), [], here.depth + 1)
        given: list[tuple[str | int | None, ast.expr]] = [
            *enumerate(node.args),
            *((one.arg, one.value) for one in node.keywords),
        ]
        wholes = [key for key, one in given if self._is_whole(one, here)]
        parts = [key for key, one in given if key not in wholes and self._has_part(one, here)]
        if self.is_list:
            wholes, parts = [], [*wholes, *parts]
        if not wholes and not parts:
            return
        called = functions_called(self.flow, scope, node, self._few)
        if parts and not called and asks_model(self.flow.program, scope, call):
            self.seen.asked = self.seen.asked or (scope, node.lineno)
        for one in called:
            names = [each.arg for each in one.parameters]
            if one.owner is not None and names[:1] in (["self"], ["cls"]):
                names = names[1:]
            yield _Held(one, _named(names, wholes), _named(names, parts), [], here.depth + 1)

    def _few(self, name: str) -> list[Scope]:
        found = [one for one in self.flow.program.methods_named(name) if not is_abstract(one)]
        return found if len(found) <= limits.ALIKE_MAX else []

    def _given_back(self, here: _Held) -> Iterator[_Held]:
        """Yield the callers of a function that gives the item back."""
        scope = here.scope
        gives = any(
            one.value is not None and self._is_whole(one.value, here) for one in scope.results
        )
        if not gives:
            return
        by_caller: dict[int, tuple[Scope, list[ast.Call]]] = {}
        is_common = scope.name.rpartition(".")[2] in _COMMON
        for where, call in self.flow.callers(scope)[: limits.CALLERS_MAX]:
            found = functions_called(self.flow, where, call.node, lambda _name: [])
            if not is_common or scope in found:
                by_caller.setdefault(id(where), (where, []))[1].append(call.node)
        for where, calls in by_caller.values():
            yield _Held(where, set(), set(), calls, here.depth + 1)


def _goes_with_request(flow: Flow, kept: Kept, scopes: list[Scope]) -> bool:
    """Whether an item is taken out by who puts it in, or whoever calls that: it lasts no longer."""
    for scope in kept.users:
        if not _takes_out(scope, kept.variable.name):
            continue
        puts = any(is_got(one.target, kept.variable.name) for one in scope.items)
        puts |= any(is_got(call.node, kept.variable.name) for call in scope.calls)
        is_at_end = any(isinstance(one, ast.Try) and one.finalbody for one in walk(scope.node))
        if puts or is_at_end:
            return True
        callers = [where for where, _call in flow.callers(scope)[: limits.CALLERS_MAX]]
        if any(where in scopes for where in callers if where is not scope):
            return True
    return False


def _takes_out(scope: Scope, name: str) -> bool:
    return any(
        call.name in {"pop", "popitem"}
        and isinstance(call.node.func, ast.Attribute)
        and is_dict(call.node.func.value, name)
        for call in scope.calls
    ) or any(
        isinstance(one, ast.Delete) and any(is_got(each, name) for each in one.targets)
        for one in walk(scope.node)
    )


def _named(names: list[str], keys: list[str | int | None]) -> set[str]:
    """Return the parameters that arguments are given to."""
    found = set()
    for key in keys:
        if isinstance(key, int):
            found.update(names[key : key + 1])
        elif key in names:
            found.add(str(key))
    return found


def _is_empty(value: ast.expr | None) -> bool:
    return isinstance(value, ast.List) and not value.elts


def _holds_lists(kept: Kept) -> bool:
    """Whether what a dict holds are lists, so that an item is what is said itself."""
    if kept.makes_items and isinstance(kept.value, ast.Call):
        return any(last_name(one) in {"list", "deque"} for one in kept.value.args)
    name = kept.variable.name
    put = [
        one.value
        for scope in kept.users
        for one in scope.items
        if isinstance(one.target, ast.Subscript) and is_got(one.target, name)
    ]
    put += [
        one
        for scope in kept.users
        for call in scope.calls
        if is_got(call.node, name)
        for one in call.node.args[1:]
    ]
    return any(
        isinstance(one, ast.List)
        or (isinstance(one, ast.Call) and last_name(one.func) in {"list", "deque"})
        for one in put
    )
