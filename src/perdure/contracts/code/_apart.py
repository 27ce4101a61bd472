"""Whether two conversations are apart: no request that comes to the one comes to the other.

What is reached is taken wide: all functions that are named, and all methods of a name on an object
that is not known. So who is said to be apart is; who is not said to be may be all the same. Where a
name is computed, or something is told to who listens, nothing is said.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import External, Meaning, Module, Parameter, Variable
from perdure.contracts.code._objects import own_values
from perdure.contracts.code._scopes import Scope, last_name, walk
from perdure.contracts.code._turns import writes_elsewhere
from perdure.contracts.code._walks import led_to

_PLAIN = {
    "append", "extend", "get", "setdefault", "items", "keys", "values", "pop", "clear", "copy",
    "insert", "remove", "strip", "split", "join", "format", "lower", "upper",
}  # fmt: skip
"""Methods of lists, dicts and texts."""

_BY_NAME = {
    "getattr", "globals", "locals", "vars", "eval", "exec", "import_module", "__import__",
    "import_string", "methodcaller", "attrgetter",
}  # fmt: skip
_TELLS = regex(
    r"^a?(send|emit|publish|dispatch|fire|trigger|notify)(_robust|_async|_event|_sync)?$"
)
"""What is called by its name as a text, and who tells those that listen."""


def is_apart(flow: Flow, scopes: Iterable[Scope], others: Collection[int]) -> bool:
    """Return whether no request that comes to some functions comes to others.

    Args:
        flow: the evaluation.
        scopes: the functions of the one conversation.
        others: the functions of the other ones, by their ids.
    """
    above = list(_above(flow, scopes))
    if any(writes_elsewhere(one) for one in above):
        return False  # it may be a database that is not known for one
    most = limits.APART_MAX
    reached = list(led_to(above, lambda one: _mentioned(flow, one), steps=most, most=most))
    if not 0 < len(reached) < most or any(id(one) in others for one in reached):
        return False
    return not any(_computes(flow, one) for one in reached)


def calls_by_name(flow: Flow, scopes: Iterable[Scope]) -> bool:
    """Return whether functions come to one that calls those of a module by a name it computes."""
    by_name = {
        id(scope)
        for scope, call in flow.program.calls_of("getattr")
        if len(call.node.args) > 1
        and not isinstance(call.node.args[1], ast.Constant)
        and isinstance(flow.program.meaning(scope, call.node.args[0]), Module)
    }
    most = limits.APART_MAX
    return bool(by_name) and any(
        id(one) in by_name
        for one in led_to(scopes, lambda one: _mentioned(flow, one), steps=most, most=most)
    )


def _computes(flow: Flow, scope: Scope) -> bool:
    """Whether a function calls what no name in the text says."""
    for node in walk(scope.node):
        match node:
            case (
                ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_])
                | ast.Call(func=ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]))
            ):
                continue
            case ast.Call(func=ast.Name(id=name)):
                if name in _BY_NAME or _is_held(flow, scope, name):
                    return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                if _TELLS.match(name) or _is_given(flow, scope, name):
                    return True
            case ast.Call(func=ast.Attribute(attr=name)):
                if name in _BY_NAME or _TELLS.match(name):
                    return True
            case ast.Call(func=ast.Subscript() | ast.Call() | ast.IfExp() | ast.BoolOp()):
                return True
    return False


def _is_held(flow: Flow, scope: Scope, name: str) -> bool:
    """Whether a name is that of an item, of a loop, or of a parameter: of no function."""
    meaning = flow.program.resolve(scope, name)
    if isinstance(meaning, Parameter):
        return True
    made = meaning.scope.assigns.get(meaning.name, ()) if isinstance(meaning, Variable) else ()
    return any(not isinstance(one.value, ast.Lambda) for one in made)


def _is_given(flow: Flow, scope: Scope, name: str) -> bool:
    """Whether an object was given what it calls as its own."""
    return bool(own_values(flow.program, scope, name))


def _above(flow: Flow, scopes: Iterable[Scope]) -> Iterator[Scope]:
    """Yield some functions, and whoever calls them."""

    def calling(here: Scope) -> list[Scope]:
        return [where for where, _call in flow.callers(here) if where.kind != "module"]

    return led_to(scopes, calling, steps=limits.APART_MAX, most=limits.APART_MAX)


def _mentioned(flow: Flow, scope: Scope) -> Iterator[Scope]:
    """Yield the functions that a function may call."""
    program = flow.program
    names = set(scope.names)
    arguments = getattr(scope.node, "args", None)
    for default in (*arguments.defaults, *arguments.kw_defaults) if arguments is not None else ():
        names.update(one.id for one in _names(default))
    for name in names:
        yield from _of_meaning(flow, program.resolve(scope, name), 0)
    yield from (inner for several in scope.inner.values() for inner in several)
    for node in walk(scope.node):
        if isinstance(node, ast.Attribute) and not _is_of_library(flow, scope, node):
            meaning = program.meaning(scope, node)
            if isinstance(meaning, Scope):
                yield from _of_meaning(flow, meaning, 0)
            elif meaning is None:
                yield from program.methods_named(node.attr)


def _of_meaning(flow: Flow, meaning: Meaning, depth: int) -> Iterator[Scope]:
    """Yield the functions of what a name means: of a variable, what it is made of."""
    if isinstance(meaning, Scope):
        if meaning.kind == "class":
            for one in flow.program.family(meaning):
                yield from (each for each in one.all_inner() if each.kind == "function")
        else:
            yield meaning
    elif isinstance(meaning, Variable) and depth < limits.DYNAMIC_DEPTH_MAX:
        for assign in meaning.scope.assigns.get(meaning.name, ()):
            for named in _names(assign.value):
                more = flow.program.resolve(meaning.scope, named.id)
                yield from _of_meaning(flow, more, depth + 1)


def _names(node: ast.AST | None) -> Iterator[ast.Name]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Name)) if node else iter(())


def _is_of_library(flow: Flow, scope: Scope, node: ast.Attribute) -> bool:
    """Whether an attribute is of what a library made, or a method of a list or a dict of here."""
    base: ast.expr = node.value
    while isinstance(base, ast.Attribute | ast.Subscript | ast.Call | ast.Await):
        base = base.func if isinstance(base, ast.Call) else base.value
    if not isinstance(base, ast.Name):
        return isinstance(base, ast.Constant | ast.JoinedStr)
    meaning = flow.program.resolve(scope, base.id)
    if not isinstance(meaning, Variable):
        return isinstance(meaning, External)
    made = [one.value for one in meaning.scope.assigns.get(meaning.name, ())]
    if node.attr in _PLAIN and not any(
        isinstance(one, ast.Call) and _is_class(one) for one in made
    ):
        return True
    return bool(made) and all(
        isinstance(one, ast.Call)
        and isinstance(flow.program.meaning(meaning.scope, one.func), External)
        for one in made
    )


def _is_class(node: ast.Call) -> bool:
    return last_name(node.func)[:1].isupper()
