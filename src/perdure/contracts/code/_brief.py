"""Savers and stores that are made for one request or task, used there, and gone with it.

Such a one holds nothing that another request could look for: beside a saver that is kept it says
nothing of threads. Only where its whole use is seen: it, and the graph that gets it, stay in names
of the function that makes it, or of an object that such a function makes and keeps to itself.
"""

import ast
import re
from collections.abc import Iterator

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import MAIN, Call, Scope, children, last_name
from perdure.contracts.code._startup import is_route, startup_of
from perdure.contracts.code._values import Kind, Made
from perdure.contracts.code.facts import Medium, Role

_KEEPS_RESULT = regex(r"cache|memo|singleton", re.IGNORECASE)
_USES = regex(
    r"^a?(run|invoke|stream|batch|execute|process|handle|call|ask|chat|answer|evaluate|print|setup"
    r"|info|debug|warning|len|isinstance|gather|wait_for)\w*$"
)
"""Calls that use what they are given, and don't keep it."""


def brief_of(flow: Flow, bound: list[Bound]) -> list[Bound]:
    """Return those that are gone with the request that made them."""
    return [one for one in bound if _is_brief(flow, one)]


def without(flow: Flow, brief: list[Bound], bound: list[Bound]) -> list[Bound]:
    """Leave brief ones out where a graph gets another one of their kind; else mark stores so."""
    bound = [
        replace(one, is_brief=True) if one not in brief and _may_be_brief(flow, one) else one
        for one in bound
    ]
    if not brief:
        return bound
    lasting = {
        one.sink.role
        for one in bound
        if one not in brief and one.leaf.kind is Kind.SITE and one.chosen.is_met is not False
    }
    found = []
    for one in bound:
        if one not in brief:
            found.append(one)
        elif one.sink.role not in lasting and one.sink.role is not Role.HISTORY:
            found.append(replace(one, is_brief=one.sink.role is Role.STORE))
    return found


def _is_brief(flow: Flow, one: Bound) -> bool:
    if one.leaf.kind is not Kind.SITE:
        return False
    made: Made = one.leaf.value
    if made.medium is not Medium.MEMORY or made.is_shared:
        return False
    scope = made.frame.scope
    if one.sink.role is Role.HISTORY and is_route(scope) and not _is_shared(scope, made.node):
        return True  # sessions of a service that each request makes for itself
    return _stays(flow, scope, made.node, 0)


def _may_be_brief(flow: Flow, one: Bound) -> bool:
    """Whether a session of the project's own has a list of its own, and may be a request's."""
    if one.leaf.kind is not Kind.SITE or one.leaf.value.role is not Role.HISTORY:
        return False
    made: Made = one.leaf.value
    scope = made.frame.scope
    if not made.is_own or made.medium is not Medium.MEMORY or made.is_shared:
        return False
    if scope.kind != "function" or id(scope) in startup_of(flow):
        return False
    decorators = getattr(scope.node, "decorator_list", ())
    is_kept = any(_KEEPS_RESULT.search(last_name(one)) for one in decorators)
    return not is_kept and not _is_shared(scope, made.node)


def _is_shared(scope: Scope, node: ast.Call) -> bool:
    """Whether a function puts what a call makes where others find it."""
    names = {
        name for name, assigns in scope.assigns.items() if any(one.value is node for one in assigns)
    }
    kept = [one.value for one in (*scope.attributes, *scope.items)]
    return bool(names & scope.shared) or any(
        one is node or (isinstance(one, ast.Name) and one.id in names) for one in kept
    )


def _stays(flow: Flow, scope: Scope, node: ast.Call, depth: int) -> bool:
    """Whether what a call makes stays within one call of the function around it."""
    if scope.kind != "function" or scope.name == MAIN or depth > limits.DYNAMIC_DEPTH_MAX:
        return False
    decorators = getattr(scope.node, "decorator_list", ())
    if id(scope) in startup_of(flow) or any(_KEEPS_RESULT.search(last_name(d)) for d in decorators):
        return False
    if scope.owner is not None and scope.name.endswith(".__init__") and _is_own(scope, node):
        makers = list(_makers(flow, scope))
        return bool(makers) and all(
            _stays(flow, where, call.node, depth + 1) for where, call in makers
        )
    return not _escapes(scope, node)


def _makers(flow: Flow, begin: Scope, depth: int = 0) -> Iterator[tuple[Scope, Call]]:
    """Find the calls that make objects with this constructor: of its class, by `cls`, derived."""
    for where, call in flow.callers(begin):
        if where.name.endswith(".__init__") and call.name == "__init__":
            if depth < limits.DYNAMIC_DEPTH_MAX:
                yield from _makers(flow, where, depth + 1)
        else:
            yield where, call
    owner = begin.owner
    family = [*flow.program.family(owner), *flow.program.derived(owner)] if owner else []
    for where, call in flow.program.calls_of("cls"):
        if any(flow.program.class_around(where) is one for one in family):
            yield where, call


def _is_own(scope: Scope, node: ast.Call) -> bool:
    """Whether a constructor makes it an attribute of its object, and nothing else."""
    return any(
        one.value is node and isinstance(one.target, ast.Attribute) and _is_name(one.target, "self")
        for one in scope.attributes
    )


def _is_name(node: ast.Attribute, name: str) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == name


def _escapes(scope: Scope, node: ast.Call) -> bool:
    """Whether anything outside of a function gets what a call in it makes."""
    names: set[str] = set()
    count = -1
    while len(names) > count:
        count = len(names)
        for statement in _statements(scope.node):
            match statement:
                case ast.Return(value=value) if value is not None and _carries(value, node, names):
                    return True
                case ast.Assign(targets=targets, value=value) if _carries(value, node, names):
                    if not all(isinstance(one, ast.Name) for one in targets):
                        return True
                    names.update(one.id for one in targets if isinstance(one, ast.Name))
                case ast.AnnAssign(target=target, value=value) if value and _carries(
                    value, node, names
                ):
                    if not isinstance(target, ast.Name):
                        return True
                    names.add(target.id)
                case ast.Expr(value=value) if _is_given_away(value, node, names):
                    return True
    return bool(names & scope.shared)


def _statements(function: ast.AST) -> Iterator[ast.AST]:
    pending = list(children(function))
    while pending:
        here = pending.pop()
        yield here
        if not isinstance(here, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(children(here))


def _carries(value: ast.AST, node: ast.Call, names: set[str]) -> bool:
    """Whether an expression's value has it: it is it, holds it, or is made with it as an argument.

    What a method of it returns does not: `graph.invoke(...)` gives an answer.
    """
    pending: list[ast.AST] = [value]
    while pending:
        here = pending.pop()
        if here is node or (isinstance(here, ast.Name) and here.id in names):
            return True
        if isinstance(here, ast.Call):
            if _USES.match(last_name(here.func)):
                continue
            pending.extend([*here.args, *(one.value for one in here.keywords)])
            if isinstance(here.func, ast.Attribute) and here.func.attr == "with_config":
                pending.append(here.func.value)
        elif not isinstance(here, ast.Attribute):
            pending.extend(children(here))
    return False


def _is_given_away(value: ast.expr, node: ast.Call, names: set[str]) -> bool:
    """Whether a statement hands it to a call that may keep it; a `yield` hands it to anybody."""
    inner = value.value if isinstance(value, ast.Await | ast.Yield) else value
    if inner is None:
        return False
    if isinstance(value, ast.Yield):
        return _carries(inner, node, names)
    return isinstance(inner, ast.Call) and _carries(inner, node, names)
