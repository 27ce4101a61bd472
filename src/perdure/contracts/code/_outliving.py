"""Runs of graphs that go on when the request that asked for them has its answer, or without one."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence, graph_runs
from perdure.contracts.code._objects import compiled, is_no_graph
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._startup import functions_called, is_route
from perdure.contracts.code._unwaited import is_left
from perdure.contracts.code._walks import led_to
from perdure.contracts.evidence import Evidence

_HANDS = {
    "add_task", "Thread", "Process", "submit", "run_in_executor", "start_soon", "spawn", "add_job",
    "create_task", "ensure_future", "start_background_task", "enqueue", "run_coroutine_threadsafe",
}  # fmt: skip
_AWAITABLE = {"create_task", "ensure_future", "run_in_executor", "submit"}
_QUEUES = {"delay", "apply_async", "send_task", "enqueue_job", "kiq"}
_WORKS = {
    "task", "shared_task", "actor", "periodic_task", "scheduled_job", "subscriber", "job",
    "cron", "background",
}  # fmt: skip
"""Decorators of functions that a queue or a clock calls."""


class Outliving(Struct):
    """A run of a graph that no request waits for, with how it begins."""

    steps: tuple[Evidence, ...] = ()
    is_told: bool = False
    """Where the graph that is run is compiled is known."""


def outliving(flow: Flow) -> Outliving:
    """Find a run of a graph that no request waits for: of a known one, if there is any."""
    found = Outliving()
    for steps, scope, call in _runs(flow):
        func = call.node.func
        base = func.value if isinstance(func, ast.Attribute) else func
        if compiled(flow.program, scope, base) is not None:
            return Outliving(steps, is_told=True)
        found = found if found.steps else Outliving(steps)
    return found


def _runs(flow: Flow) -> Iterator[tuple[tuple[Evidence, ...], Scope, Call]]:
    if not has_routes(flow):
        for scope in flow.program.live:
            for call in _of_graphs(flow, scope):
                note = "a run that no request waits for"
                yield (evidence(scope, call.node.lineno, note),), scope, call
        return
    for begun, step in all_begun(flow):
        for scope, call in runs_in(flow, begun):
            yield (step, evidence(scope, call.node.lineno, "runs the graph")), scope, call


def has_routes(flow: Flow) -> bool:
    """Whether anything is called by requests."""
    return any(is_route(scope) and not _is_command(scope) for scope in flow.program.live)


def _is_command(scope: Scope) -> bool:
    """Whether it is a command line or a queue that calls a function, and no request."""
    names = {last_name(one) for one in getattr(scope.node, "decorator_list", ())}
    return bool(names & (_WORKS | {"command", "callback", "tool", "action"}))


def _is_work(scope: Scope) -> bool:
    return any(last_name(one) in _WORKS for one in getattr(scope.node, "decorator_list", ()))


def all_begun(flow: Flow) -> Iterator[tuple[Scope, Evidence]]:
    """Return what is begun without a request that waits, each with where."""
    here = {id(scope) for scope in flow.program.live}  # what is not is a worker's
    return (one[:2] for one in _begun(flow) if id(one[0]) in here)


def surely_begun(flow: Flow) -> Iterator[tuple[Scope, Evidence]]:
    """Return what is begun and surely not waited for, each with where."""
    here = {id(scope) for scope in flow.program.live}
    for begun, step, (scope, call) in _begun(flow):
        if id(begun) in here and (call is None or is_left(flow, scope, call)):
            yield begun, step


def _begun(flow: Flow) -> Iterator[tuple[Scope, Evidence, tuple[Scope, Call | None]]]:
    for scope in flow.program.live:
        if _is_work(scope):
            name = scope.name.rpartition(".")[2]
            note = f"{name} is called by a queue or a clock"
            yield scope, evidence(scope, scope.line, note), (scope, None)
        for call in scope.called_as(_HANDS | _QUEUES):
            name = call.name
            if name in _HANDS and not (name in _AWAITABLE and _is_awaited(scope, call)):
                given = [*call.node.args, *(one.value for one in call.node.keywords)]
            elif name in _QUEUES and isinstance(call.node.func, ast.Attribute):
                given = [call.node.func.value, *call.node.args[:1]]
            else:
                continue
            step = evidence(scope, call.node.lineno, "begins what no request waits for")
            for one in given:
                for begun in _called(flow, scope, one):
                    yield begun, step, (scope, call)


def _is_awaited(scope: Scope, call: Call) -> bool:
    """Whether a function waits for what it begins, or gives it to who does."""
    names = {
        name
        for name, assigns in scope.assigns.items()
        if any(one.value is call.node for one in assigns)
    }
    if not names and scope.yields:
        return True
    for node in walk(scope.node):
        match node:
            case ast.Await():
                inside = {one.id for one in walk(node) if isinstance(one, ast.Name)}
                if inside & names or any(one is call.node for one in walk(node)):
                    return True
            case ast.Call(func=ast.Attribute(attr="result")):
                return True
    return bool(names) and scope.yields


def runs_in(flow: Flow, begun: Scope) -> Iterator[tuple[Scope, Call]]:
    """Return the runs of graphs in a function and in what it calls."""
    for scope in reached(flow, begun):
        yield from ((scope, call) for call in _of_graphs(flow, scope))


def _of_graphs(flow: Flow, scope: Scope) -> Iterator[Call]:
    """Return the calls that run what is called a graph, but those of what is surely none."""
    for call in graph_runs(scope):
        func = call.node.func
        if not isinstance(func, ast.Attribute) or not is_no_graph(flow.program, scope, func.value):
            yield call


def reached(flow: Flow, begun: Scope) -> Iterator[Scope]:
    """Return a function, and those that it calls, and those that they do."""

    def called(scope: Scope) -> Iterator[Scope]:
        return (one for call in scope.calls for one in _called(flow, scope, call.node))

    depth, most = limits.EXECUTED_DEPTH_MAX, limits.MENTIONS_MAX
    return led_to([begun], called, steps=depth, most=most)


def _called(flow: Flow, scope: Scope, node: ast.expr) -> list[Scope]:
    def few(name: str) -> list[Scope]:
        found = flow.program.methods_named(name)
        return found if len(found) <= limits.ALIKE_MAX else []

    return functions_called(flow, scope, node, few)
