"""Whether what a database refuses a saver when it is set up surely comes to a handler."""

import ast
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code._scopes import Try, last_name, walk

_SETS_UP = {"setup", "asetup"}
_ENTERS = {"__aenter__", "enter_async_context"}
_SAVER = regex(r"(?i)saver|checkpoint")
_ALL = {"Exception", "BaseException"}
_OTHERS = {"ImportError", "ModuleNotFoundError", "ConnectionError", "TimeoutError", "OSError"}
"""What a database that answers does not raise."""
_ENDS = {"exit", "_exit", "abort", "quit", "kill"}


def sets_up(attempt: Try, handler: ast.ExceptHandler, made: ast.AST | None) -> bool:
    """Whether a saver is set up whenever this is tried, and its handler goes on whatever it is.

    By itself, or by being entered, in a line that no test, loop or other `try` stands around.
    Libraries give the refusal a class of their own: only who catches everything surely catches it.
    """
    return (
        _catches(attempt, handler)
        and not _may_end(handler)
        and any(_is_setting_up(one, attempt, made) for one in _straight(attempt.node.body))
    )


def _catches(attempt: Try, handler: ast.ExceptHandler) -> bool:
    for one in attempt.node.handlers:
        types = one.type.elts if isinstance(one.type, ast.Tuple) else [one.type]
        names = {"Exception" if kind is None else last_name(kind) for kind in types}
        if one is handler:
            return bool(names & _ALL)
        if not names <= _OTHERS:
            return False
    return False


def _may_end(handler: ast.ExceptHandler) -> bool:
    nodes = [node for one in handler.body for node in walk(one)]
    return any(
        isinstance(node, ast.Raise | ast.Assert | ast.Continue)
        or (isinstance(node, ast.Call) and last_name(node.func) in _ENDS)
        for node in nodes
    )


def _straight(body: list[ast.stmt]) -> Iterator[ast.stmt | ast.withitem]:
    """Give what is done whenever a body is, up to where it may be left."""
    for one in body:
        if isinstance(one, ast.With | ast.AsyncWith):
            if isinstance(one, ast.AsyncWith):
                yield from one.items
            yield from _straight(one.body)
        elif isinstance(one, ast.If) and _is_there(one.test):
            yield from _straight(one.body)
        elif isinstance(one, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
            yield one
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if any(isinstance(x, ast.Return | ast.Raise | ast.Break | ast.Continue) for x in walk(one)):
            return


def _is_there(test: ast.expr) -> bool:
    """Whether a test asks for a method that every saver has: `hasattr(saver, "asetup")`."""
    match test:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(name))]):
            return name in _SETS_UP
    return False


def _is_setting_up(one: ast.stmt | ast.withitem, attempt: Try, made: ast.AST | None) -> bool:
    if isinstance(one, ast.withitem):
        return _is_saver(one.context_expr, attempt, made)
    value = getattr(one, "value", None)
    value = value.value if isinstance(value, ast.Await) else value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    name = value.func.attr
    if name in _SETS_UP or name == "__aenter__":
        return _is_saver(value.func.value, attempt, made)
    return name in _ENTERS and any(_is_saver(one, attempt, made) for one in value.args)


def _is_saver(node: ast.expr, attempt: Try, made: ast.AST | None) -> bool:
    """Whether an expression is the saver: made there, named as what it is bound to, or so named."""
    if any(each is made for each in ast.walk(node)):
        return True
    shown = ast.unparse(node)
    if _SAVER.search(shown):
        return True
    for one in attempt.node.body:
        match one:
            case ast.Assign(targets=[target]) if any(each is made for each in ast.walk(one.value)):
                return ast.unparse(target) == shown
    return False
