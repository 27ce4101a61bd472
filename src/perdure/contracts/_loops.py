"""Which loops of a module surely have no end, and which calls the program surely executes itself.

A loop that `break`, an exit, a time limit or a caught exception may leave is none; nor is one in a
function that threads, timers or decorators execute.
"""

import ast
from collections.abc import Iterator

_LEAVES = ast.Break | ast.Return | ast.Raise | ast.Yield | ast.YieldFrom
_EXITS = frozenset({"exit", "_exit", "quit", "abort", "kill", "killpg", "raise_signal"})
_OF = frozenset({"os", "sys", "signal", "builtins", "parser"})
"""Whose exits end the program: `child.kill()` does not."""
_IN_THE_END = frozenset({"next", "anext", "input"})
"""Functions that end by an exception when there is no more."""
_TIMED = frozenset(
    {"timeout", "timeout_at", "move_on_after", "move_on_at", "fail_after", "fail_at", "suppress"}
)
"""What is entered so leaves its body early, or without an exception."""
_RUNS = frozenset({"run", "run_until_complete", "gather", "exit"})
"""Calls that execute in the program itself what they are given."""
_KEEPS_ON = frozenset(
    {"KeyboardInterrupt", "CancelledError", "SystemExit", "Exception", "BaseException"}
)
"""What ends a loop only when something goes wrong, or from outside."""
_PLAIN = frozenset(
    {"staticmethod", "classmethod", "override", "final", "abstractmethod", "traceable", "observe"}
)
"""Decorators after which a function is executed by who calls it."""


class _Place:
    """A function or a loop, the one around it, and whether it may be left."""

    __slots__ = ("above", "is_left", "node")

    def __init__(self, node: ast.AST, above: "_Place | None" = None) -> None:
        self.node = node
        self.above = above
        self.is_left = False


class Loops:
    """The loops of one module, in one pass."""

    def __init__(self, tree: ast.AST) -> None:
        """Read a module."""
        self.early: set[int] = set()
        """Nodes that the program may leave early, or that others execute, by their ids."""
        self.called: dict[str, list[tuple[_Place | None, _Place | None]]] = {}
        """Calls by name, each with the function and the loop that they stand in."""
        self.awaited: set[int] = set()
        """Calls whose coroutines are waited for where they are made, by their ids."""
        self.handed: set[str] = set()
        """Names of functions that others are given, or are called where a time limit is."""
        self._loops: list[tuple[ast.While, _Place, _Place | None]] = []
        self._strange: set[int] = set()
        self._exits: set[str] = set()
        self._read(tree)

    def _read(self, tree: ast.AST) -> None:  # noqa: C901 - one case for each kind of node
        pending: list[tuple[ast.AST, bool, _Place | None, _Place | None]] = [
            (tree, False, None, None)
        ]
        while pending:
            node, is_early, function, loop = pending.pop()
            if is_early:
                self.early.add(id(node))
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    function, loop = _Place(node, function), None
                    if any(_name(one) not in _PLAIN for one in node.decorator_list):
                        self._strange.add(id(node))
                case ast.Lambda():
                    loop = None
                case ast.While(test=ast.Constant(value=value)) if value:
                    loop = _Place(node, loop)
                    self._loops.append((node, loop, function))
                case ast.Yield() | ast.YieldFrom() if function is not None:
                    self._strange.add(id(function.node))
                case ast.Await():
                    self.awaited.add(id(node.value))
                case ast.Call():
                    self._call(node, is_early=is_early, function=function, loop=loop)
            if isinstance(node, _LEAVES):
                _leave(loop)
            self._raised(node, function)
            parts = {id(part) for part in _early(node)}
            pending.extend(
                (child, is_early or id(child) in parts, function, loop)
                for child in ast.iter_child_nodes(node)
            )

    def _call(
        self, node: ast.Call, *, is_early: bool, function: _Place | None, loop: _Place | None
    ) -> None:
        name = _name(node)
        self.called.setdefault(name, []).append((function, loop))
        is_exit = name in _EXITS and _is_of_program(node.func)
        if is_exit or (name in _IN_THE_END and isinstance(node.func, ast.Name)):
            _leave(loop)
        if is_exit and function is not None:
            self._exits.add(_named(function))
        if is_early:
            self.handed.add(name)
        if name in _RUNS:
            self.awaited.update(_given(node))
        else:
            given = (*node.args, *(one.value for one in node.keywords))
            self.handed.update(
                _name(one) for one in given if isinstance(one, ast.Name | ast.Attribute)
            )

    def _raised(self, node: ast.AST, function: _Place | None) -> None:
        raised = node.exc if isinstance(node, ast.Raise) else None
        if raised is not None and function is not None and _name(raised) in _ENDS:
            self._exits.add(_named(function))

    def exiting(self, names: set[str]) -> set[str]:
        """Return the functions that end the program, if some of other modules do."""
        found = self._exits | names
        pending = list(found)
        while pending:
            for function, _ in self.called.get(pending.pop(), ()):
                if function is not None and _named(function) not in found:
                    found.add(_named(function))
                    pending.append(_named(function))
        return found

    def endless(self, exiting: set[str], handed: set[str]) -> list[ast.While]:
        """Return the loops that have no end.

        Args:
            exiting: functions of any module that end the program.
            handed: functions of any module that others execute.
        """
        if "fork" in self.called:
            return []
        for name in exiting:
            for _, loop in self.called.get(name, ()):
                _leave(loop)
        return [
            node
            for node, loop, function in self._loops
            if not loop.is_left
            and id(node) not in self.early
            and not any(
                id(one.node) in self._strange or _named(one) in handed for one in _around(function)
            )
        ]

    def executes(self, call: ast.Call, function: ast.AST) -> bool:
        """Whether a call surely executes a function: no generator, nothing that hands it on."""
        if id(call) in self.early or not isinstance(function, ast.AsyncFunctionDef):
            return id(call) not in self.early
        return id(call) in self.awaited

    def is_plain(self, function: ast.AST) -> bool:
        """Whether who calls a function executes it: no strange decorator, no generator."""
        return id(function) not in self._strange


_ENDS = frozenset({"SystemExit", "KeyboardInterrupt"})


def _leave(loop: _Place | None) -> None:
    while loop is not None and not loop.is_left:
        loop.is_left = True
        loop = loop.above


def _around(function: _Place | None) -> Iterator[_Place]:
    while function is not None:
        yield function
        function = function.above


def _named(function: _Place) -> str:
    return getattr(function.node, "name", "")


def _early(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that may be left early, or that others execute."""
    match node:
        case ast.Lambda():
            yield node.body
        case ast.With() | ast.AsyncWith():
            if any(_name(one.context_expr) in _TIMED for one in node.items):
                yield from node.body
        case ast.Try() | ast.TryStar():
            if not all(_keeps_on(one.type) for one in node.handlers):
                yield from node.body
        case ast.Call():
            if _name(node) not in _RUNS:
                yield from (*node.args, *node.keywords)


def _given(node: ast.Call) -> Iterator[int]:
    """Yield the calls that a call is given itself, also in a list, by their ids."""
    for one in node.args:
        inner = one.value if isinstance(one, ast.Starred) else one
        if isinstance(inner, ast.ListComp | ast.GeneratorExp):
            inner = inner.elt
        several = inner.elts if isinstance(inner, ast.List | ast.Tuple) else [inner]
        yield from (id(each) for each in several)


def _is_of_program(func: ast.expr) -> bool:
    return not isinstance(func, ast.Attribute) or _name(func.value) in _OF


def _keeps_on(caught: ast.expr | None) -> bool:
    several = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return all(one is None or _name(one) in _KEEPS_ON for one in several)


def endless_in(tree: ast.AST) -> list[int]:
    """Return the lines of the loops of a module that have no end, as far as it says itself."""
    read = Loops(tree)
    return sorted(one.lineno for one in read.endless(read.exiting(set()), read.handed))


def early_lines(tree: ast.AST) -> set[int]:
    """Return the lines with waits of a module that are left early, or that others execute."""
    early = Loops(tree).early
    return {
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Await) and id(node) in early
    }


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
