"""Whether two conversations are apart: no request that comes to the one comes to the other.

What is reached is taken wide: all functions that are named, and all methods of a name on an object
that is not known. So who is said to be apart is; who is not said to be may be all the same.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import External, Meaning, Variable
from perdure.contracts.code._scopes import Scope, last_name, walk
from perdure.contracts.code._turns import writes_elsewhere
from perdure.contracts.code._walks import led_to

_PLAIN = {
    "append", "extend", "get", "setdefault", "items", "keys", "values", "pop", "clear", "copy",
    "insert", "remove", "strip", "split", "join", "format", "lower", "upper",
}  # fmt: skip
"""Methods of lists, dicts and texts."""


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
    return 0 < len(reached) < most and not any(id(one) in others for one in reached)


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
