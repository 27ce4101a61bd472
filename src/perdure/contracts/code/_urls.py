"""How a URL begins that is put together: what kind of database it names, whatever its host is."""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._meanings import Variable
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Scope, last_name
from perdure.contracts.code._values import Evaluating

_WRAPS = {"str", "URL", "create", "make_url", "format", "render_as_string", "strip"}
_SCHEME = regex(r"^[a-z][a-z0-9+]{1,40}(://|$)")


def begins(flow: Evaluating, scope: Scope, node: ast.expr | None, depth: int = 0) -> str:
    """Return how the text of an expression surely begins, with its scheme; empty if it may not.

    What a function or a property gives is looked into where all that it gives begins so.
    """
    if depth > limits.FIELDS_DEEP_MAX:
        return ""
    match node:
        case ast.Constant(value=str(text)):
            return text if _SCHEME.match(text) else ""
        case ast.JoinedStr(values=[first, *_]) | ast.BinOp(op=ast.Add(), left=first):
            inner = first.value if isinstance(first, ast.FormattedValue) else first
            return begins(flow, scope, inner, depth + 1)
        case ast.Call(func=ast.Attribute(value=base, attr="replace"), args=[old, new, *_]):
            return _replaced(begins(flow, scope, base, depth + 1), old, new)
        case ast.Call(func=ast.Attribute(value=base, attr="format" | "strip")):
            return begins(flow, scope, base, depth + 1)
        case ast.Call(func=func) if last_name(func) in _WRAPS:
            told = [one.value for one in node.keywords if one.arg == "drivername"]
            given = [*told, *node.args]
            return begins(flow, scope, given[0], depth + 1) if given else ""
        case ast.Call(func=func):
            return _given(flow, scope, func, depth)
        case ast.Name() | ast.Attribute():
            return _given(flow, scope, node, depth)
    return ""


def _replaced(text: str, old: ast.expr, new: ast.expr) -> str:
    """Return how a text begins in which something is replaced; empty if it may begin otherwise."""
    match old, new:
        case ast.Constant(value=str(before)), ast.Constant(value=str(after)) if before:
            known = text.replace(before, after) if before in text else text
            is_longer = before.startswith(text) and before != text
            return known if not is_longer and _SCHEME.match(known) else ""
        case ast.Constant(value=str(before)), _ if before:
            return text if before not in text and not before.startswith(text) else ""
    return ""


def _given(flow: Evaluating, scope: Scope, node: ast.expr, depth: int) -> str:
    """Return how all begins that a name, a function or a property stands for."""
    meaning = flow.program.meaning(scope, node)
    if meaning is None and isinstance(node, ast.Attribute):
        named = flow.program.methods_named(node.attr)
        meaning = _of_object(flow.program, scope, node) or (named[0] if len(named) == 1 else None)
    if isinstance(meaning, Scope) and meaning.kind == "function":
        frame = flow.frame(meaning)
        found = [
            (meaning, one.value)
            for one in meaning.results
            if flow.decider.all_of([(frame, guard) for guard in one.guards]).is_met is not False
        ]
    elif isinstance(meaning, Variable):
        assigns = meaning.scope.assigns.get(meaning.name, ())
        found = [(meaning.scope, one.value) for one in assigns]
    else:
        return ""
    told = {begins(flow, where, value, depth + 1) for where, value in found[: limits.LEAVES_MAX]}
    schemes = {one.partition(":")[0].partition("+")[0] for one in told}
    return min(told) if len(schemes) == 1 and len(found) <= limits.LEAVES_MAX else ""


def _of_object(program: Program, scope: Scope, node: ast.Attribute) -> Scope | None:
    """Return the method or property of an object that a module makes once: `settings.url`."""
    held = program.meaning(scope, node.value)
    made = held.scope.assigns.get(held.name, []) if isinstance(held, Variable) else []
    value = made[0].value if len(made) == 1 else None
    if not isinstance(held, Variable) or not isinstance(value, ast.Call):
        return None
    owner = program.meaning(held.scope, value.func)
    is_class = isinstance(owner, Scope) and owner.kind == "class"
    return program.method(owner, node.attr) if is_class and isinstance(owner, Scope) else None
