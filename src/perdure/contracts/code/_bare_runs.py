"""Runs that no request waits for, of a graph that was surely compiled without a saver.

Other graphs of the same service may have one: here it is followed which graph a run is of, from the
name that is run to the call that compiles it.
"""

import ast

from perdure.contracts.code import limits
from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._objects import compiled
from perdure.contracts.code._outliving import all_begun, runs_in
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._values import Kind
from perdure.contracts.code.facts import Role
from perdure.contracts.evidence import Evidence

_AGENTS = ("create_deep_agent", "create_supervisor")
"""Agents whose runs are work of many steps; others answer one message."""


def bare_run(flow: Flow, sites: Sites) -> tuple[Evidence, ...]:
    """Find the first such run: where the graph is made, what begins it, and where it is run."""
    bare = _bare(sites)
    if not bare:
        return ()
    story: tuple[Evidence, ...] = ()
    others: dict[tuple[str, int], Evidence] = {}
    for begun, step in all_begun(flow):
        for scope, call in runs_in(flow, begun):
            func = call.node.func
            made = (
                compiled(flow.program, scope, func.value)
                if isinstance(func, ast.Attribute)
                else None
            )
            one = bare.get(id(made)) if made is not None else None
            if one is None:
                continue
            note = f"{one.sink.maker} makes a graph without a saver"
            place = evidence(one.sink.scope, one.sink.line, note)
            others.setdefault((place.file, place.line), place)
            story = story or (step, evidence(scope, call.node.lineno, "runs that graph"))
    return (*list(others.values())[: limits.STORY_MAX], *story)


def _bare(sites: Sites) -> dict[int, Bound]:
    """Return the calls that compile graphs of several steps without a saver, by `id`."""
    steps = {id(one) for one in sites.steps(sites.program.live)}
    found: dict[int, Bound] = {}
    for one in sites.bound:
        is_none = one.leaf.kind is Kind.CONST and one.leaf.value is None
        if one.sink.role is not Role.SAVER or one.sink.value is not None or not is_none:
            continue
        if id(one.sink.scope) in steps:
            continue  # made within a step of another graph, which is saved
        for call in one.sink.scope.calls:
            is_it = call.node.lineno == one.sink.line
            if is_it and call.name == one.sink.maker and _has_steps(one):
                found[id(call.node)] = one
    return found


def _has_steps(one: Bound) -> bool:
    if one.sink.maker in _AGENTS:
        return True
    owner = one.sink.scope.owner
    around = list(owner.all_inner()) if owner is not None else [one.sink.scope]
    return sum(call.name == "add_node" for s in around for call in s.calls) > 1
