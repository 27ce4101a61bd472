"""How long the code takes to finish what runs, after it was told to stop."""

import ast
import posixpath
import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import dotted, evidence, keyword
from perdure.contracts.code._scopes import Call, Scope
from perdure.contracts.code._values import Kind
from perdure.contracts.code.facts import ARQ_WAITS, Drain
from perdure.contracts.deployment.facts import Service
from perdure.contracts.evidence import Known
from perdure.contracts.limits import NUMBER_MAX
from perdure.contracts.numbers import decimal

_STOPS = regex(r"stop|shutdown|drain|graceful|terminat|aexit|aclose|cleanup", re.IGNORECASE)
_ASSIGNED = {
    "graceful_timeout": "the graceful timeout of the server",
    "job_completion_wait": ARQ_WAITS,
    "worker_soft_shutdown_timeout": "the soft shutdown of Celery",
    "timeout_graceful_shutdown": "the graceful shutdown of uvicorn",
}


_WAITS = frozenset({
    "uvicorn.run", "uvicorn.Config", "asyncio.wait", "asyncio.wait_for", "asyncio.timeout",
})  # fmt: skip


def drains_of(flow: Flow) -> tuple[Drain, ...]:
    """Find the times that the reachable code waits for when it stops."""
    return tuple(drain for scope in flow.program.live for drain in _of_scope(flow, scope))


def _of_scope(flow: Flow, scope: Scope) -> Iterator[Drain]:
    if "update" in scope.called or not _WAITS.isdisjoint(flow.program.libraries_in(scope)):
        for call in scope.calls:
            yield from _of_call(flow, scope, call)
    for name, what in _ASSIGNED.items():
        for assign in scope.assigns.get(name, []) if scope.kind == "class" else ():
            if assign.value is not None:
                yield Drain(seconds=_seconds(flow, scope, assign.value, assign.line), what=what)
    for assign in scope.attributes:
        target = assign.target
        if isinstance(target, ast.Attribute) and target.attr in _ASSIGNED and assign.value:
            seconds = _seconds(flow, scope, assign.value, assign.line)
            yield Drain(seconds=seconds, what=_ASSIGNED[target.attr])


def _of_call(flow: Flow, scope: Scope, call: Call) -> Iterator[Drain]:
    name = dotted(flow, scope, call)
    line = call.node.lineno
    if name in {"uvicorn.run", "uvicorn.Config"}:
        given = keyword(call.node, "timeout_graceful_shutdown")
        what = "the graceful shutdown of uvicorn"
        if given is None:
            step = evidence(scope, line, "uvicorn waits for open requests without a limit")
            yield Drain(seconds=Known(value=None, evidence=(step,)), what=what)
        else:
            yield Drain(seconds=_seconds(flow, scope, given, given.lineno), what=what)
    elif name in {"asyncio.wait", "asyncio.wait_for", "asyncio.timeout"} and _is_stopping(
        flow, scope, line
    ):
        given = keyword(call.node, "timeout")
        at = {"asyncio.wait_for": 1, "asyncio.timeout": 0}.get(name)
        if given is None and at is not None and len(call.node.args) > at:
            given = call.node.args[at]
        if given is not None:
            what = f"what {scope.name.rpartition('.')[2]} waits for"
            yield Drain(seconds=_seconds(flow, scope, given, given.lineno), what=what)
    elif call.name == "update":
        given = keyword(call.node, "worker_soft_shutdown_timeout")
        if given is not None:
            what = _ASSIGNED["worker_soft_shutdown_timeout"]
            yield Drain(seconds=_seconds(flow, scope, given, given.lineno), what=what)


def _is_stopping(flow: Flow, scope: Scope, line: int) -> bool:
    """Whether a line is executed when the process ends: by name, or behind a lifespan's yield."""
    name = scope.name.rpartition(".")[2]
    if "lifespan" in name.lower():
        yields = [result.line for result in scope.results]
        return bool(yields) and line > min(yields)
    if not _STOPS.search(name):
        return False
    return any(
        _STOPS.search(where.name) or "lifespan" in where.name.lower()
        for where, _call in flow.callers(scope)
    ) or scope.name in {"shutdown", "lifespan"}


def _seconds(flow: Flow, scope: Scope, given: ast.expr, line: int) -> Known[float]:
    leaf = flow.only(given, flow.frame(scope))
    step = evidence(scope, line, "waits so long for what runs")
    if leaf is not None and leaf.kind is Kind.CONST:
        if leaf.value is None:
            return Known(value=None, evidence=(step,))
        number = _number(leaf.value)
        if number is not None:
            steps = tuple(one for one in leaf.evidence if one.note)
            return Known(
                value=number,
                evidence=(*steps, step),
                confidence=leaf.confidence,
                assumed=leaf.assumed,
            )
    shown = ast.unparse(given)[:60]
    question = (leaf.question if leaf else None) or f"the value of {shown}"
    return Known(value=None, evidence=(step,), question=question)


def _number(value: object) -> float | None:
    if isinstance(value, int | float):
        # Not float(value) at once: a long number of the code has none.
        return float(value) if -NUMBER_MAX <= value <= NUMBER_MAX else None
    return decimal(value) if isinstance(value, str) else None


def drains_of_server(flow: Flow, service: Service) -> Iterator[Drain]:
    """Find the time in the configuration file that gunicorn is given, or finds where it works."""
    server = service.start.server if service.start is not None else None
    if server is None or server.program != "gunicorn":
        return
    argv = list(server.argv)
    given = [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in {"-c", "--config"}]
    name = (given or ["gunicorn.conf.py"])[0].removeprefix("file:").removeprefix("python:")
    path = flow.program.layout.file(name)
    scope = flow.program.modules.scope(path) if path is not None and path.endswith(".py") else None
    if scope is None or posixpath.basename(scope.path) == "__init__.py":
        return
    for assign in scope.assigns.get("graceful_timeout", [])[-1:]:
        if assign.value is not None:
            seconds = _seconds(flow, scope, assign.value, assign.line)
            yield Drain(seconds=seconds, what=_ASSIGNED["graceful_timeout"])
