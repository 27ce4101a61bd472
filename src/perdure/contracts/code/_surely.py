"""Runs that surely no request waits for, and that write nothing down themselves."""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence, graph_runs
from perdure.contracts.code._objects import compiled
from perdure.contracts.code._outliving import (
    has_routes,
    outliving,
    reached,
    runs_in,
    surely_begun,
)
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._unwaited import is_of_queue
from perdure.contracts.evidence import Evidence

_WRITES = regex(
    r"(?i)^_*(dump|dumps|save|store|persist|commit|insert|upsert|update|set|setex|hset|rpush|xadd|write"
    r"|write_text|execute|put|put_item|add|record|checkpoint"
    r"|(save|store|persist|insert|upsert|update|write|record|append|put)_\w{1,60})$"
)


def surely_outliving(flow: Flow, sites: Sites) -> tuple[Evidence, ...]:
    """Find the first run that surely no request waits for, and that writes nothing down itself."""
    live = flow.program.live
    if not has_routes(flow):
        return outliving(flow).steps if is_of_queue(flow) and not any(map(_writes, live)) else ()
    for begun, step in surely_begun(flow):
        if any(_writes(one) for one in reached(flow, begun)):
            continue
        for scope, call in runs_in(flow, begun):
            at = evidence(scope, call.node.lineno, "runs the graph")
            return (*_made(flow, sites, scope, call), step, at)
    return ()


def _made(flow: Flow, sites: Sites, scope: Scope, run: Call) -> tuple[Evidence, ...]:
    """Return where the graph that is run is made, if that can be told."""
    func = run.node.func
    base = func.value if isinstance(func, ast.Attribute) else func
    made = compiled(flow.program, scope, base)
    for one in sites.bound if made is not None else ():
        is_its = made is not None and one.sink.line == made.lineno
        if is_its and any(call.node is made for call in one.sink.scope.calls):
            return (evidence(one.sink.scope, one.sink.line, "makes the graph that is run"),)
    return ()


def _writes(scope: Scope) -> bool:
    """Whether a function writes down what each step of a run gives, as it comes."""
    for node in walk(scope.node) if _streams(scope) else ():
        if isinstance(node, ast.For | ast.AsyncFor) and any(
            isinstance(one, ast.Call) and _WRITES.match(last_name(one.func))
            for statement in node.body
            for one in ast.walk(statement)
        ):
            return True
    return False


def _streams(scope: Scope) -> bool:
    """Whether a function runs a graph step by step."""
    return any("stream" in call.name for call in graph_runs(scope))
