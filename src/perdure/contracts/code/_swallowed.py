"""What becomes of a durable saver whose failure is only logged where it is made.

Where nothing in the handler itself says it, the rest does: a weaker saver made further down or
where others find it missing is a change to weaker storage; a test that raises when it is missing
ends the request. Where neither was seen it is a question, and never taken for an end.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct, structs

from perdure.contracts._patterns import regex
from perdure.contracts.code import _catalog, limits
from perdure.contracts.code._executed import Executed
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import (
    Call,
    Guard,
    GuardKind,
    Scope,
    Try,
    always_leaves,
    last_name,
    walk,
)
from perdure.contracts.code._values import Decision, Leaf
from perdure.contracts.code.facts import Degrade, Medium
from perdure.contracts.evidence import Evidence

_SAVERS = regex(r"(?i)saver|checkpoint|memory|store$|^cp$|graph|agent|workflow")
_OF_SAVER = regex(r"(?i)saver|checkpoint")
_MAKES = regex(r"(?i)saver|checkpoint|store|history")
_HEALTH = regex(r"(?i)health|ready|readiness|liveness")


_NOT_SEEN = "swallows it, and what follows was not seen to end the start or the request"


def is_open(degrade: Degrade) -> bool:
    """Whether of a failure nothing is known but that it is swallowed."""
    return degrade.evidence[-1].note == _NOT_SEEN


class Caught(Struct, frozen=True):
    """A durable saver, and the handler that its failure comes to."""

    scope: Scope
    attempt: Try
    handler: ast.ExceptHandler
    made: Leaf


class Outcome(Struct, frozen=True):
    """What a swallowed failure leaves the service with."""

    medium: Medium
    step: Evidence
    when: Decision


def tested(node: ast.expr) -> ast.expr | None:
    """Return what a test asks the presence of; `None` for other tests."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return tested(node.operand)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return node.left
        case ast.Name() | ast.Attribute() | ast.Call():
            return node
    return None


def is_missing(node: ast.expr) -> bool:
    """Whether a test that holds says that what it asks for is missing: `not x`, `x is None`."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return not is_missing(node.operand)
        case ast.Compare(ops=[ast.Is()]):
            return True
    return False


def raises(handler: ast.ExceptHandler) -> bool:
    """Whether a handler raises on any way through it."""
    return any(isinstance(node, ast.Raise) for one in handler.body for node in walk(one))


def outcome(flow: Flow, executed: Executed, caught: Caught) -> Outcome | None:
    """Return what follows a handler that only logs; `None` if the failure ends what needs it."""
    scope, attempt, handler = caught.scope, caught.attempt, caught.handler
    if raises(handler) or exits(handler):
        return None
    kept = _kept(scope, attempt)
    gives = any(isinstance(one, ast.Return) and one.value is not None for one in _inside(attempt))
    if not (kept or gives):
        return None  # it serves only what was tried, which fails with it
    if _is_over(scope, attempt) or any(isinstance(one, ast.Return) for one in _of(handler)):
        return None
    for call in scope.calls:
        if call.node.lineno > _end(attempt):
            found = _weaker(executed, scope, call, caught)
            if found is not None:
                return found
    for where, call in _fallbacks(flow, scope, kept):
        found = _weaker(executed, where, call, caught)
        if found is not None:
            return found
    if any(refuses(where, kept) for where in flow.program.live if kept):
        return None
    return _open(scope, handler)


def _open(scope: Scope, handler: ast.ExceptHandler) -> Outcome:
    at = f"{scope.path}:{handler.lineno}"
    question = (
        f"Once the durable saver has failed, which {at} does not raise again: does the service "
        "refuse to serve, or go on without it?"
    )
    step = evidence(scope, handler.lineno, _NOT_SEEN)
    return Outcome(Medium.NONE, step, Decision(is_met=None, question=question))


def _of(handler: ast.ExceptHandler) -> Iterator[ast.AST]:
    for statement in handler.body:
        yield from walk(statement)


def exits(handler: ast.ExceptHandler) -> bool:
    """Whether a handler leaves the process: what `always_leaves` takes for one, but no jump."""
    return any(isinstance(one, ast.Expr) and always_leaves([one]) for one in handler.body)


def _inside(attempt: Try) -> Iterator[ast.AST]:
    for statement in [*attempt.node.body, *attempt.node.orelse]:
        yield from walk(statement)


def _end(attempt: Try) -> int:
    return attempt.node.end_lineno or attempt.node.lineno


def _is_over(scope: Scope, attempt: Try) -> bool:
    """Whether nothing but an error, or the failure of a start that never yields, follows."""
    later = [one for one in scope.results if one.line > _end(attempt)]
    if scope.yields:
        return not later
    return scope.end is None and not later and scope.kind == "function"


def _kept(scope: Scope, attempt: Try) -> set[str]:
    """Return the names outside the function that a `try` sets, where others look for them."""
    first, last = attempt.node.lineno, _end(attempt)
    found = {
        one.target.attr
        for one in scope.attributes
        if first <= one.line <= last and isinstance(one.target, ast.Attribute)
    }
    for name, assigns in scope.assigns.items():
        if any(first <= one.line <= last for one in assigns) and (
            name in scope.shared or scope.kind == "module" or _is_used_after(scope, name, last)
        ):
            found.add(name)
    return {name for name in found if _SAVERS.search(name)}


def _is_used_after(scope: Scope, name: str, line: int) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and node.lineno > line
        for node in walk(scope.node)
    )


def _weaker(executed: Executed, scope: Scope, call: Call, caught: Caught) -> Outcome | None:
    """Return the weaker saver that a call makes, and whether settings let it come to that."""
    flow, made, handler = executed.flow, caught.made, caught.handler
    leaf = flow.calls.constructs(call.node, flow.frame(scope))
    if leaf is None or leaf.value.role is not made.value.role:
        return None
    if _catalog.rank(leaf.value.medium) >= _catalog.rank(made.value.medium):
        return None
    guards = tuple(one for one in call.guards if not is_of(one, handler))
    when = executed.guarded(scope, guards)
    if when.is_met is False:
        return None
    others = [one for one in guards if not _is_decided(executed, scope, one)]
    if when.is_met is True and any(not _says_missing(one) for one in others):
        shown = f"whether {scope.path}:{call.node.lineno} is come to after the failure"
        when = Decision(is_met=None, question=shown)
    step = evidence(scope, call.node.lineno, f"goes on with {leaf.value.class_name}")
    return Outcome(leaf.value.medium, step, when)


def is_of(guard: Guard, handler: ast.ExceptHandler) -> bool:
    """Whether a guard says that this handler was come to."""
    lines = {guard.line, *(one.line for one in guard.unless if one.kind is GuardKind.HANDLER)}
    return handler.lineno in lines


def _is_decided(executed: Executed, scope: Scope, guard: Guard) -> bool:
    return bool(executed.guarded(scope, (guard,)).settings)


def _says_missing(guard: Guard) -> bool:
    """Whether a guard lets only through what has no saver, or says nothing of savers."""
    if guard.kind is not GuardKind.TEST or guard.node is None:
        return False
    if guard.unless:
        return True
    what = tested(guard.node)
    if what is None or not _SAVERS.search(last_name(what)):
        return False
    return is_missing(guard.node) is guard.is_true


def _fallbacks(flow: Flow, scope: Scope, kept: set[str]) -> Iterator[tuple[Scope, Call]]:
    """Find the calls that make what is kept by these names, where it is missing."""
    count = 0
    for where in flow.program.live if kept else ():
        if where is scope or where.path != scope.path:
            continue
        for call in where.calls:
            asked = [_name_of(one) for one in call.guards if _says_missing(one)]
            if any(name in kept for name in asked):
                count += 1
                if count > limits.CALLERS_MAX:
                    return
                yield where, call


def _name_of(guard: Guard) -> str:
    what = tested(guard.node) if guard.node is not None else None
    return "" if what is None else last_name(what)


def refuses(where: Scope, kept: set[str]) -> bool:
    """Whether a function raises where something that is kept by these names is missing."""
    for node in walk(where.node) if where.kind == "function" else ():
        if not isinstance(node, ast.If) or not any(isinstance(x, ast.Raise) for x in node.body):
            continue
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        for part in parts:
            what = tested(part)
            if what is not None and is_missing(part) and _asks(what) in kept:
                return True
    return False


def _asks(node: ast.expr) -> str:
    """Return the name that a test asks: of `getattr(state, "saver", None)` the attribute's."""
    if isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1:
        name = node.args[1]
        return str(name.value) if isinstance(name, ast.Constant) else ""
    return last_name(node)


# ------------------------------------------------------------------- made by a function it calls


def begun(flow: Flow, executed: Executed) -> Iterator[tuple[Caught, Outcome]]:
    """Find handlers that only log around a call that makes a durable saver further down."""
    makers: dict[int, Leaf] = {}
    pending: list[tuple[Scope, Leaf, int]] = []
    for scope, call, leaf in durable_made(flow):
        if not _is_caught(scope, call.node.lineno):
            pending.append((scope, leaf, 0))
    while pending:
        scope, leaf, depth = pending.pop()
        if id(scope) in makers or depth > limits.DYNAMIC_DEPTH_MAX:
            continue
        makers[id(scope)] = leaf
        for where, call in flow.callers(scope)[: limits.CALLERS_MAX]:
            caught = _is_caught(where, call.node.lineno)
            if caught is None:
                pending.append((where, leaf, depth + 1))
                continue
            attempt, handler = caught
            one = Caught(where, attempt, handler, leaf)
            found = _begun(flow, executed, one)
            if found is not None:
                yield one, found


def durable_made(flow: Flow) -> Iterator[tuple[Scope, Call, Leaf]]:
    """Find the calls that make a durable saver or store."""
    for scope in flow.program.live:
        for call in flow.calls.making(scope):
            if not _MAKES.search(ast.unparse(call.node.func)):
                continue
            leaf = flow.calls.constructs(call.node, flow.frame(scope))
            if leaf is not None and _is_durable(leaf):
                yield scope, call, leaf


def _is_durable(leaf: Leaf) -> bool:
    return _catalog.rank(leaf.value.medium) >= _catalog.rank(Medium.FILE)


def _is_caught(scope: Scope, line: int) -> tuple[Try, ast.ExceptHandler] | None:
    """Return the handler of everything around a line that does not raise again."""
    for attempt in reversed(scope.tries):
        body = attempt.node.body
        if not (body[0].lineno <= line <= (body[-1].end_lineno or 0)):
            continue
        for handler in attempt.node.handlers:
            caught = "Exception" if handler.type is None else ast.unparse(handler.type)
            if caught in {"Exception", "BaseException"} and not raises(handler):
                return attempt, handler
    return None


def _begun(flow: Flow, executed: Executed, caught: Caught) -> Outcome | None:
    found = outcome(flow, executed, caught)
    emptied = _emptied(caught.handler)
    is_met = found is not None and found.when.is_met is True
    if is_met or emptied is None or exits(caught.handler):
        return found  # that one route refuses says nothing of a graph that is made all the same
    name, line = emptied
    bare = _compiled_bare(flow, name)
    if bare is None or looks_at(flow, name):
        return found
    return Outcome(Medium.NONE, evidence(caught.scope, line, f"sets {name} to None; {bare}"), _MET)


_MET = Decision(is_met=True)


def _emptied(handler: ast.ExceptHandler) -> tuple[str, int] | None:
    """Return the attribute of a saver that a handler sets to `None`."""
    for node in handler.body:
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Constant(value=None)):
                if _OF_SAVER.search(name):
                    return name, node.lineno
    return None


def _compiled_bare(flow: Flow, name: str) -> str | None:
    """Return where a graph is made without a saver, as the saver of this name is missing."""
    for scope in flow.program.live:
        for call in scope.called_as(_catalog.GRAPH_MAKERS):
            if any(one.arg == "checkpointer" for one in call.node.keywords):
                continue
            for guard in call.guards:
                if _says_missing(guard) and not guard.unless and _name_of(guard) == name:
                    return f"then {scope.path}:{call.node.lineno} makes a graph without a saver"
    return None


def looks_at(flow: Flow, name: str) -> bool:
    """Whether what tells the health of the service looks at the saver of this name."""
    return any(
        _HEALTH.search(scope.name) and (name in scope.names or name in scope.attribute_names)
        for scope in flow.program.live
    )


def decided(when: Decision, tried: Decision) -> Decision:
    """Return the decision about what follows, unless it is not even tried here."""
    if tried.is_met is False:
        return tried
    return when if when.is_met is not None else structs.replace(when, settings=())
