"""Crews of several tasks, which keep what is done in memory until all of it is."""

import ast
from collections.abc import Iterator

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import dotted, evidence, keyword
from perdure.contracts.code._outliving import all_begun, has_routes, reached
from perdure.contracts.code._scopes import Scope, walk
from perdure.contracts.evidence import Evidence

_STARTS = frozenset({"kickoff", "kickoff_async", "akickoff", "kickoff_for_each"})
_TELLS = ("task_callback", "step_callback")
"""What is given to be told of each task, which may write it down."""


def crew_run(flow: Flow) -> tuple[Evidence, ...]:
    """Find a crew that is run where no request waits: where it is made, and where it is run."""
    made = next(_crews(flow), None)
    if made is None:
        return ()
    live = flow.program.live
    if not has_routes(flow):
        runs = next((scope for scope in live if scope.attribute_names & _STARTS), None)
        return (made, *_run(runs)) if runs is not None else ()
    for begun, step in all_begun(flow):
        runs = next((one for one in reached(flow, begun) if one.attribute_names & _STARTS), None)
        if runs is not None:
            return (made, step, *_run(runs))
    return ()


def _crews(flow: Flow) -> Iterator[Evidence]:
    for scope in flow.program.live:
        for call in scope.called_as({"Crew"}):
            tasks = keyword(call.node, "tasks")
            is_one = isinstance(tasks, ast.List) and len(tasks.elts) < 2  # noqa: PLR2004  # several
            told = any(keyword(call.node, name) is not None for name in _TELLS)
            if tasks is None or is_one or told:
                continue
            if dotted(flow, scope, call).startswith("crewai"):
                yield evidence(scope, call.node.lineno, "makes a crew of several tasks")


def _run(scope: Scope) -> tuple[Evidence, ...]:
    named = (one for one in walk(scope.node) if isinstance(one, ast.Attribute))
    line = next((one.lineno for one in named if one.attr in _STARTS), scope.line)
    return (evidence(scope, line, "runs the crew to its end"),)
