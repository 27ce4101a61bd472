"""Whether what fails is tried again, or made anew, before anything is served."""

import ast
from collections.abc import Iterator

from perdure.contracts.code import _catalog
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import Scope, Try, walk
from perdure.contracts.code._swallowed import is_of
from perdure.contracts.code._values import Leaf


def is_tried_again(
    flow: Flow, scope: Scope, attempt: Try, handler: ast.ExceptHandler, made: Leaf
) -> bool:
    """Whether what a handler leaves behind is not what serving begins with.

    It stands in a loop that only success ends; or one that keeps as much as what was `made` comes
    once more, outside of every other handler and test, so that its failure ends the start.
    """
    if any(isinstance(one, ast.Return | ast.Break) for node in handler.body for one in walk(node)):
        return False
    if is_endless(scope, attempt) and _is_returned(attempt):
        return True
    first = handler.body[0].lineno
    rank = _catalog.rank(made.value.medium)
    return any(
        line > first
        for line, leaf in _made_later(flow, scope, attempt, handler)
        if _catalog.rank(leaf.value.medium) >= rank
    )


def is_endless(scope: Scope, attempt: Try) -> bool:
    """Whether what fails is tried until it does not."""
    return any(_is_endless(loop, attempt) for loop in _around(scope, attempt))


def _is_returned(attempt: Try) -> bool:
    """Whether who called it waits for what is made."""
    nodes = (one for part in (attempt.node.body, attempt.node.orelse) for one in part)
    return any(
        isinstance(one, ast.Return) and one.value is not None
        for each in nodes
        for one in walk(each)
    )


def _around(scope: Scope, attempt: Try) -> Iterator[ast.While | ast.For | ast.AsyncFor]:
    for node in walk(scope.node):
        if isinstance(node, ast.While | ast.For | ast.AsyncFor) and any(
            one is attempt.node for each in node.body for one in walk(each)
        ):
            yield node


def _is_endless(loop: ast.While | ast.For | ast.AsyncFor, attempt: Try) -> bool:
    """Whether only what was tried to its end leaves a loop."""
    if not (
        isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and loop.test.value
    ):
        return False
    tried = {id(one) for part in (attempt.node.body, attempt.node.orelse) for each in part
             for one in walk(each)}  # fmt: skip
    return not any(
        isinstance(one, ast.Break | ast.Return) and id(one) not in tried
        for each in loop.body
        for one in walk(each)
    )


def _made_later(
    flow: Flow, scope: Scope, attempt: Try, handler: ast.ExceptHandler
) -> Iterator[tuple[int, Leaf]]:
    """Give the lines where a saver is made after this, whatever was tried before."""
    end = attempt.node.end_lineno or attempt.node.lineno
    own = {id(one) for each in handler.body for one in ast.walk(each)}
    for call in flow.calls.making(scope):
        line = call.node.lineno
        guards = tuple(one for one in call.guards if not is_of(one, handler))
        is_guarded = guards != attempt.guards[: len(guards)]
        if (id(call.node) not in own and line <= end) or is_guarded or _is_tried(scope, line):
            continue
        leaf = flow.calls.constructs(call.node, flow.frame(scope))
        if leaf is not None:
            yield line, leaf


def _is_tried(scope: Scope, line: int) -> bool:
    return any(
        one.node.body[0].lineno <= line <= (one.node.body[-1].end_lineno or 0)
        for one in scope.tries
        if one.node.handlers
    )


def raised_after(handler: ast.ExceptHandler, line: int) -> ast.expr | None:
    """Return the test after which a handler raises, past a line; `None`: none was seen."""
    for one in handler.body:
        if one.lineno <= line:
            continue
        if isinstance(one, ast.Raise):
            return ast.Constant(value=True)
        if isinstance(one, ast.If) and any(isinstance(each, ast.Raise) for each in one.body):
            return one.test
    return None
