"""What the import of a program executes, and what only runs once everything is imported.

A graph that is compiled while a module is imported gets what its saver's variable holds then; what
the start of the server, a request or the main block puts there comes after it. A function runs at
import where all of its uses are lines of modules that the start imports, or functions that are only
used so; it runs later where all of its uses are. What can't be told is neither.
"""

import ast
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import External
from perdure.contracts.code._scopes import MAIN, Scope, children, walk
from perdure.contracts.code._startup import is_route
from perdure.contracts.code._values import Kind

_STARTS = regex(r"lifespan|startup|on_start")
_SPECIAL = regex(r"^__(?!init__$)\w+__$")


class Order:
    """Answers for one program what runs before what."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is asked yet."""
        self.flow = flow
        self._imported: set[str] | None = None
        self._mentions: dict[str, list[Scope]] | None = None
        self._known: dict[int, bool | None] = {}
        self._busy: set[int] = set()
        self._plain: dict[int, set[str]] = {}

    def is_at_import(self, scope: Scope) -> bool | None:
        """Whether a scope is executed by imports alone; `None`: by them, and perhaps later too."""
        found = self.is_later(scope)
        if found is not None or scope.kind != "function":
            return found is False
        uses = set(self._uses(scope, scope.name.rpartition(".")[2]))
        return None if False in uses and True not in uses else False

    def is_later(self, scope: Scope) -> bool | None:
        """Whether a scope is executed only after all imports; `None`: both, or not to be told."""
        key = id(scope)
        if key in self._known:
            return self._known[key]
        if key in self._busy or len(self._busy) >= limits.FLOW_DEPTH_MAX:
            return None
        self._busy.add(key)
        try:
            found = self._of(scope)
        finally:
            self._busy.discard(key)
        self._known[key] = found
        return found

    def _of(self, scope: Scope) -> bool | None:
        if scope.kind == "module":
            return False if scope.path in self._at_import() else None
        if scope.kind == "class":
            return self.is_later(scope.parent) if scope.parent is not None else None
        if scope.name == MAIN or is_route(scope):
            return True
        name = scope.name.rpartition(".")[2]
        if _SPECIAL.match(name):
            return None
        said: bool | None = True if begins(scope) else None
        is_said = begins(scope)
        for one in self._uses(scope, name):
            if one is None or (is_said and one is not said):
                return None
            said, is_said = one, True
        return said

    def _uses(self, scope: Scope, name: str) -> Iterator[bool | None]:
        """Say of each use of a function when it is; what hands it on may call it at any time."""
        owner = scope.owner
        is_made = name == "__init__" and owner is not None
        wanted = owner.name.rpartition(".")[2] if is_made and owner is not None else name
        target = owner if is_made else scope
        for where in self._mentioning(wanted)[: limits.MENTIONS_MAX]:
            if where is scope:
                continue
            called = [one for one in where.calls if one.name == wanted]
            if any(self._means(where, one.node.func, target) is not False for one in called):
                yield self.is_later(where)
            if wanted in self._handed_on(where) and self._may_mean(where, wanted, target):
                yield self._handed(where, wanted)
        if len(self._mentioning(wanted)) > limits.MENTIONS_MAX:
            yield None

    def _handed_on(self, where: Scope) -> set[str]:
        """Return the names that a scope uses other than by calling them."""
        if id(where) not in self._plain:
            called = {id(call.node.func) for call in where.calls}
            found = self._plain[id(where)] = set()
            pending: list[ast.AST] = list(getattr(where.node, "body", ()))
            while pending:
                node = pending.pop()
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    pending += node.decorator_list  # what is in it is another scope's
                    continue
                match node:
                    case (
                        ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load())
                    ):
                        found |= {name} if id(node) not in called else set()
                pending += children(node)
        return self._plain[id(where)]

    def _mentioning(self, name: str) -> list[Scope]:
        if self._mentions is None:
            self._mentions = {}
            for scope in self.flow.program.live:
                for one in scope.mentions:
                    self._mentions.setdefault(one, []).append(scope)
        return self._mentions.get(name, [])

    def _means(self, where: Scope, func: ast.expr, target: Scope | None) -> bool | None:
        """Whether a call is of this function or class; `None`: its object is not known."""
        meaning = self.flow.program.meaning(where, func)
        if meaning is not None:
            return meaning is target
        if not isinstance(func, ast.Attribute):
            return False
        if target is None or target.owner is None:
            return False
        with self.flow.briefly():
            leaves = self.flow.leaves(func.value, self.flow.frame(where))
        for leaf in leaves:
            if leaf.kind is Kind.INSTANCE:
                return self.flow.program.method(leaf.value.scope, func.attr) is target
            if leaf.kind is Kind.MEANING and isinstance(leaf.value, External):
                return False
        return None

    def _may_mean(self, where: Scope, name: str, target: Scope | None) -> bool:
        if name in where.names:
            return self.flow.program.resolve(where, name) is target
        return target is not None and target.owner is not None

    def _handed(self, where: Scope, name: str) -> bool | None:
        """Say when a function runs that is handed on: what starts a server calls it later."""
        for call in where.calls:
            for one in call.node.keywords:
                if one.arg in {"lifespan", "on_startup", "startup"} and _names(one.value, name):
                    return True
            is_event = call.name in {"add_event_handler", "on_event", "on_startup"}
            if is_event and any(_names(one, name) for one in call.node.args):
                return True
        return True if self.is_later(where) else None

    def _at_import(self) -> set[str]:
        """Return the modules that imports alone execute."""
        if self._imported is None:
            self._imported = set()
            brings: dict[str, list[str]] = {}
            pending: list[str] = []
            for path, importers in self.flow.program.importers.items():
                for importer in importers:
                    if importer is None:
                        pending.append(path)
                    elif importer.kind != "function":
                        brings.setdefault(importer.path, []).append(path)
            while pending:
                path = pending.pop()
                if path not in self._imported:
                    self._imported.add(path)
                    pending += brings.get(path, ())
        return self._imported


def begins(scope: Scope) -> bool:
    """Whether a decorator or its name says that the start of a server calls it."""
    decorators = [ast.unparse(one) for one in getattr(scope.node, "decorator_list", ())]
    if any("startup" in one for one in decorators):
        return True
    name = scope.name.rpartition(".")[2].lower()
    is_async = isinstance(scope.node, ast.AsyncFunctionDef)
    return bool(_STARTS.search(name)) and (is_async or any("context" in one for one in decorators))


def _names(node: ast.expr, name: str) -> bool:
    return any(
        (isinstance(one, ast.Name) and one.id == name)
        or (isinstance(one, ast.Attribute) and one.attr == name)
        for one in walk(node)
    )
