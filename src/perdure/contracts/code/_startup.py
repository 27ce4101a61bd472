"""What is executed before a service serves, as opposed to what a request executes."""

import ast
import re
from collections.abc import Callable

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import Variable
from perdure.contracts.code._scopes import MAIN, Scope, last_name

_STARTS = regex(r"lifespan|startup|on_start|bootstrap", re.IGNORECASE)
_HANDED = {
    "to_thread", "run", "gather", "wait_for", "run_sync", "run_in_executor", "run_in_threadpool",
}  # fmt: skip
_ROUTES = {
    "get", "post", "put", "delete", "patch", "websocket", "route", "api_route", "head", "options",
    "on_message", "message", "event", "tool", "task", "command", "on_chat_start", "action",
}  # fmt: skip


def startup_of(flow: Flow) -> dict[int, Scope | None]:
    """Return the scopes that are executed before serving, by id, each with its caller."""
    if flow.program.startup is None:
        flow.program.startup = _startup(flow)
    return flow.program.startup


def _startup(flow: Flow) -> dict[int, Scope | None]:
    brings: dict[int, list[Scope]] = {}
    pending: list[tuple[Scope, Scope | None]] = [(one, None) for one in flow.program.factories]
    for path, importers in flow.program.importers.items():
        module = flow.program.modules.scope(path) if path.endswith(".py") else None
        for importer in importers if module is not None else ():
            if importer is None and module is not None:
                pending.append((module, None))
            elif module is not None:
                brings.setdefault(id(importer), []).append(module)
    found: dict[int, Scope | None] = {}
    while pending:
        scope, by = pending.pop()
        if id(scope) in found or is_route(scope):
            continue
        found[id(scope)] = by
        pending.extend((module, None) for module in brings.get(id(scope), ()))
        pending.extend(
            (inner, scope)
            for several in scope.inner.values()
            for inner in several
            if _begins(inner) and flow.program.is_live(inner)
        )
        for call in scope.calls:
            handed = [*call.node.args, *(one.value for one in call.node.keywords)]
            nodes = [call.node, *(handed if call.name in _HANDED else ())]
            pending.extend(
                (called, scope) for node in nodes for called in _called(flow, scope, node)
            )
    return found


def _begins(scope: Scope) -> bool:
    """Whether a scope is executed by the import or by the framework before it serves."""
    if scope.kind != "function":
        return True
    if scope.name == MAIN or (_STARTS.search(scope.name) and not is_route(scope)):
        return True
    decorators = getattr(scope.node, "decorator_list", ())
    return any("startup" in ast.unparse(one) for one in decorators)


def is_route(scope: Scope) -> bool:
    """Whether a decorator makes a function one that requests execute."""
    return any(
        last_name(one) in _ROUTES and isinstance(one, ast.Call)
        for one in getattr(scope.node, "decorator_list", ())
    )


def functions_called(
    flow: Flow, scope: Scope, node: ast.expr, by_name: Callable[[str], list[Scope]]
) -> list[Scope]:
    """Return the functions that an expression means or calls.

    `by_name` answers for a method of an object that is not known.
    """
    func = node.func if isinstance(node, ast.Call) else node
    if not isinstance(func, ast.Name | ast.Attribute):
        return []
    meaning = flow.program.meaning(scope, func)
    if isinstance(meaning, Scope):
        if meaning.kind == "class":
            return meaning.inner.get("__init__", [])
        return [meaning] if flow.program.is_live(meaning) else []
    if meaning is None and isinstance(func, ast.Attribute):
        method = _of_object(flow, scope, func)
        return [method] if method is not None else by_name(func.attr)
    return []


def _of_object(flow: Flow, scope: Scope, func: ast.Attribute) -> Scope | None:
    """Return the method of a module's object, which is made once by its class."""
    if not isinstance(func.value, ast.Name):
        return None
    meaning = flow.program.resolve(scope, func.value.id)
    if not isinstance(meaning, Variable) or meaning.scope.kind != "module":
        return None
    assigns = meaning.scope.assigns.get(meaning.name, [])
    made = assigns[0].value if len(assigns) == 1 else None
    if not isinstance(made, ast.Call):
        return None
    owner = flow.program.meaning(meaning.scope, made.func)
    if not isinstance(owner, Scope) or owner.kind != "class":
        return None
    method = flow.program.method(owner, func.attr)
    return method if method is not None and flow.program.is_live(method) else None


def _called(flow: Flow, scope: Scope, node: ast.expr) -> list[Scope]:
    def only(name: str) -> list[Scope]:
        methods = [m for m in flow.program.methods_named(name) if not is_abstract(m)]
        return methods if len(methods) == 1 else []

    return functions_called(flow, scope, node, only)


def is_abstract(method: Scope) -> bool:
    """Whether a method is only there to be written by another class."""
    if any(
        last_name(one).startswith("abstract") for one in getattr(method.node, "decorator_list", ())
    ):
        return True
    owner = method.owner
    bases = getattr(owner.node, "bases", ()) if owner is not None else ()
    return any(last_name(one) == "Protocol" for one in bases)
