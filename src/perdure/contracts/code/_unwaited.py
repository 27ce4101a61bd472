"""What surely nobody waits for: begun by a queue or a clock, after the answer, or left alone."""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._queued import is_worker, starts_worker
from perdure.contracts.code._scopes import Call, Scope, last_name, of_scope

_TASKS = {"create_task", "ensure_future", "Thread"}
_LEFT = {"delay", "apply_async", "send_task", "enqueue", "enqueue_job", "kiq", "add_job"}
"""What queues and clocks begin, unless somebody asks for what comes of it."""

_WAITS = {
    "gather", "TaskGroup", "create_task_group", "join", "wait", "wait_for", "as_completed",
    "result", "Queue", "SimpleQueue", "Event", "Condition", "Future", "create_future", "Semaphore",
    "StreamingResponse", "EventSourceResponse", "create_memory_object_stream", "run_until_complete",
    "map", "shield", "done", "websocket", "accept", "receive_text", "receive_json",
}  # fmt: skip
_SAME = regex(
    r"(?i)(^|_)(q|queues?|events?|fut|futures?|done|sockets?|ws|websockets?|channel|stream|writer"
    r"|emit|emitter|send|sender|callbacks?|out|results?|sink)$"
)
"""Names of what a run gives its words to, where somebody may wait for them."""

_ENDS = regex(r"(?i)shut|stop|close|lifespan|exit|cleanup|drain|cancel")
_WORKERS = ("arq.", "rq.", "celery.", "dramatiq.", "taskiq.")
_RUN_WORKER = {"run_worker", "Worker", "SimpleWorker", "worker_main", "create_worker"}


def is_of_queue(flow: Flow) -> bool:
    """Whether a program is the worker of a known queue."""
    if starts_worker(flow.environment.service) or is_worker(flow.program):
        return True
    return any(
        flow.program.library_of(scope, call).startswith(_WORKERS)
        for scope in flow.program.live
        for call in scope.called_as(_RUN_WORKER)
    )


def is_left(flow: Flow, scope: Scope, call: Call) -> bool:
    """Whether a call surely begins what no request waits for."""
    if call.name == "add_task":
        return _is_after_the_answer(scope, call)
    if call.name in _LEFT:
        return call.name == "add_job" or _is_alone(scope, call.node)
    if call.name not in _TASKS or _is_socket(scope) or scope.yields or _waits(scope):
        return False
    if any(_SAME.search(name) for name in _given(call.node)):
        return False
    return _is_alone(scope, call.node) and not _is_waited_elsewhere(flow, scope, call.node)


def _is_after_the_answer(scope: Scope, call: Call) -> bool:
    """Whether it is `add_task` of the tasks that follow an answer."""
    func = call.node.func
    if not isinstance(func, ast.Attribute):
        return False
    name = last_name(func.value)
    here: Scope | None = scope
    while here is not None:
        for one in here.parameters:
            if one.arg == name and one.annotation is not None:
                return "BackgroundTasks" in ast.unparse(one.annotation)
        for made in here.assigns.get(name, ()):
            if isinstance(made.value, ast.Call):
                return last_name(made.value.func) == "BackgroundTasks"
        here = here.parent
    return name in {"background_tasks", "background"}


def _is_alone(scope: Scope, node: ast.Call) -> bool:
    """Whether nothing in a function uses what a call gives, but to keep it from being collected."""
    names = _names_of(scope, node)
    parents = _parents(scope)
    used = [node, *(one for one in parents if isinstance(one, ast.Name) and one.id in names)]
    return all(_is_kept_only(parents, one) for one in used)


def _names_of(scope: Scope, node: ast.Call) -> set[str]:
    return {
        name for name, assigns in scope.assigns.items() if any(one.value is node for one in assigns)
    }


@of_scope
def _parents(scope: Scope) -> dict[ast.AST, ast.AST]:
    return {child: one for one in ast.walk(scope.node) for child in ast.iter_child_nodes(one)}


_CARES = {"add_done_callback", "start", "set_name", "daemon", "get_name", "id", "name"}


def _is_kept_only(parents: dict[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether one use of a task is to begin it, to hold it, or to be told of its end."""
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return True
    match parents.get(node):
        case ast.Expr() | ast.Delete():
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(one, ast.Name | ast.Attribute | ast.Subscript) for one in targets)
        case ast.AnnAssign():
            return True
        case ast.Attribute(attr=name):
            return name in _CARES
        case ast.Call(func=ast.Attribute(attr="add" | "append" | "discard")) as keeps:
            return isinstance(parents.get(keeps), ast.Expr)
    return False


def _is_waited_elsewhere(flow: Flow, scope: Scope, node: ast.Call) -> bool:
    """Whether a function of the same file waits for what is kept under the same name."""
    kept = _kept_in(scope, node)
    return any(
        one.path == scope.path and not _ENDS.search(one.name) and kept & _awaited(one)
        for one in (flow.program.live if kept else ())
    )


def _kept_in(scope: Scope, node: ast.Call) -> set[str]:
    """Return the names of the collections and attributes that a task is put into."""
    names = _names_of(scope, node)

    def is_it(value: ast.expr | None) -> bool:
        return value is node or (isinstance(value, ast.Name) and value.id in names)

    found: set[str] = set()
    for one in ast.walk(scope.node):
        if isinstance(one, ast.Assign) and is_it(one.value):
            for target in one.targets:
                inner = target.value if isinstance(target, ast.Subscript) else target
                found.add(last_name(inner) if not isinstance(target, ast.Name) else "")
        match one:
            case ast.Call(func=ast.Attribute(attr="add" | "append", value=base), args=args):
                found |= {last_name(base)} if any(is_it(each) for each in args) else set()
    return found - {""}


@of_scope
def _awaited(scope: Scope) -> set[str]:
    """Return the names within what a function waits for."""
    found: set[str] = set()
    for node in ast.walk(scope.node) if scope.kind == "function" else ():
        is_join = isinstance(node, ast.Call) and last_name(node.func) in {"join", "result"}
        if isinstance(node, ast.Await) or is_join:
            for one in ast.walk(node):
                if isinstance(one, ast.Name | ast.Attribute):
                    found.add(last_name(one))
    return found


@of_scope
def _waits(scope: Scope) -> bool:
    """Whether a function, or one within it, waits for something, or makes what others wait for."""
    return any(
        isinstance(one, ast.Call)
        and (last_name(one.func) in _WAITS or (last_name(one.func) == "get" and not one.args))
        for one in ast.walk(scope.node)
    )


def _given(node: ast.Call) -> set[str]:
    """Return the names of what a call is given, and of what these are given."""
    return {last_name(one) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)}


def _is_socket(scope: Scope) -> bool:
    """Whether a function serves a connection that stays open."""
    decorators = {last_name(one) for one in getattr(scope.node, "decorator_list", ())}
    return bool(decorators & {"websocket", "websocket_route", "on", "event"}) or any(
        one.arg in {"ws", "websocket", "socket"}
        or (one.annotation is not None and "WebSocket" in ast.unparse(one.annotation))
        for one in scope.parameters
    )
