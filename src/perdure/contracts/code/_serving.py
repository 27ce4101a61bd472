"""Starts that swallow the failure of a durable saver and serve all the same.

    try:
        await keeping.begin()          # sets keeping.saver
    except OperationalError as error:
        print(error)
    yield                              # requests are answered from here on

What they serve with is what the graphs have without it: none, if that is what the saver's variable
holds until then; or the weaker saver that a graph was made with, where the durable one is only
given to it afterwards (`graph.checkpointer = saver`).
"""

import ast
from collections.abc import Iterable, Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._order import begins
from perdure.contracts.code._scopes import Call, Scope, Try, last_name, walk
from perdure.contracts.code._startup import functions_called, startup_of
from perdure.contracts.code._swallowed import (
    Caught,
    Outcome,
    durable_made,
    exits,
    looks_at,
    raises,
    refuses,
)
from perdure.contracts.code._values import Decision, Kind
from perdure.contracts.code._walks import led_to
from perdure.contracts.code.facts import Medium, Role

_FAILS = regex(
    r"^\W*(Base)?Exception$|(Operational|Database|Interface|Internal|Connection|Connect|Redis|PyMongo|"
    r"Mongo|Timeout|Pool|Psycopg|SQLAlchemy|Postgres|OS|IO|Socket)\w*(Error|Exception|Failure)\b|"
    r"\b(sqlite3|aiosqlite|psycopg|asyncpg)\.Error\b|PoolTimeout|AutoReconnect"
)
"""What a database that is not there raises, as handlers name it."""

_MET = Decision(is_met=True)


def started(flow: Flow, bound: list[Bound]) -> Iterator[tuple[Caught, Outcome]]:
    """Find the handlers of starts after which a service serves without its durable saver."""
    pending = [(scope, call.node.lineno, leaf, 0) for scope, call, leaf in durable_made(flow)]
    seen: set[tuple[int, int]] = set()
    while pending:
        scope, line, made, depth = pending.pop()
        if (id(scope), line) in seen or depth > limits.DYNAMIC_DEPTH_MAX:
            continue
        seen.add((id(scope), line))
        for attempt, handler in _failures(scope, line):
            caught = Caught(scope, attempt, handler, made)
            found = _served_without(flow, bound, caught)
            if found is not None:
                yield caught, found
            if not raises(handler):
                break
        else:
            callers = flow.callers(scope)[: limits.CALLERS_MAX]
            pending += [(where, call.node.lineno, made, depth + 1) for where, call in callers]


def _served_without(flow: Flow, bound: list[Bound], caught: Caught) -> Outcome | None:
    """Return what a service serves with once its start has swallowed a failure, if that is seen."""
    scope, attempt, handler = caught.scope, caught.attempt, caught.handler
    is_start = begins(scope) or id(scope) in startup_of(flow)
    if not is_start or not _goes_on(scope, attempt, handler):
        return None
    within = _executed_by(flow, scope, attempt)
    for one in bound:
        if one.sink.role is not Role.SAVER or (
            one.chosen.is_met is False and one.sink.graph is None
        ):
            continue
        is_tried = _is_within(scope, attempt, one, within)
        if one.is_early and not is_tried and _asks_for(one, caught):
            note = f"{one.sink.maker} has made a graph without a saver"
            return Outcome(Medium.NONE, evidence(one.sink.scope, one.sink.line, note), _MET)
        if one.leaf.kind is not Kind.SITE or one.leaf.value.key != caught.made.value.key:
            continue
        found = (
            _given_later(caught, bound, within, is_for_all=one.chosen.is_met is not False)
            if one.sink.graph is not None and is_tried
            else None
        )
        if found is None and one.sink.graph is None and not is_tried:
            found = None if _is_object_tried(flow, caught, within) else _unset(flow, one)
        if found is not None:
            return found
    return None


def _failures(scope: Scope, line: int) -> Iterator[tuple[Try, ast.ExceptHandler]]:
    """Return the handlers around a line, the nearest first, that a lost database comes to."""
    for attempt in reversed(scope.tries):
        body = attempt.node.body
        if not (body[0].lineno <= line <= (body[-1].end_lineno or 0)):
            continue
        for handler in attempt.node.handlers:
            if handler.type is None or _FAILS.search(ast.unparse(handler.type)):
                yield attempt, handler


def _goes_on(scope: Scope, attempt: Try, handler: ast.ExceptHandler) -> bool:
    """Whether serving begins after the handler."""
    if raises(handler) or exits(handler):
        return False
    inside = [node for one in handler.body for node in walk(one)]
    if any(isinstance(node, ast.Yield) for node in inside):
        return True
    is_left = any(isinstance(node, ast.Return) for node in inside)
    if scope.yields:
        end = attempt.node.end_lineno or attempt.node.lineno
        return not is_left and any(one.line > end for one in scope.results)
    return scope.kind == "function" and scope.end is not None


def _executed_by(flow: Flow, scope: Scope, attempt: Try) -> set[int]:
    """Return the functions (by `id`) that the body of a `try` calls, and those that they call."""
    first, last = attempt.node.body[0].lineno, attempt.node.body[-1].end_lineno or 0
    begun = [call for call in scope.calls if first <= call.node.lineno <= last]

    def called(here: Scope) -> Iterator[Scope]:
        return _called(flow, here, here.calls)

    most = limits.SCOPES_MAX
    first_called = _called(flow, scope, begun)
    return {id(one) for one in led_to(first_called, called, steps=most, most=most)}


def _called(flow: Flow, scope: Scope, calls: Iterable[Call]) -> Iterator[Scope]:
    def few(name: str) -> list[Scope]:
        found = flow.program.methods_named(name)
        return found if len(found) <= limits.ALIKE_MAX else []

    for call in calls:
        yield from functions_called(flow, scope, call.node, few)


def _is_within(scope: Scope, attempt: Try, one: Bound, within: set[int]) -> bool:
    """Whether a `try` makes a graph, or gives it its saver."""
    first, last = attempt.node.body[0].lineno, attempt.node.body[-1].end_lineno or 0
    is_here = one.sink.scope is scope and first <= one.sink.line <= last
    return is_here or id(one.sink.scope) in within


def _is_object_tried(flow: Flow, caught: Caught, within: set[int]) -> bool:
    """Whether the object that keeps the saver is made in the `try`, too: then nobody has it."""
    owner = flow.program.class_around(caught.made.value.frame.scope)
    if owner is None:
        return False
    body = caught.attempt.node.body
    first, last = body[0].lineno, body[-1].end_lineno or 0
    return any(
        id(where) in within or (where is caught.scope and first <= call.node.lineno <= last)
        for where, call in flow.program.calls_of(owner.name.rpartition(".")[2])
    )


def _asks_for(early: Bound, caught: Caught) -> bool:
    """Whether a graph that was made too early asks for what the function sets that fails."""
    name = last_name(early.sink.value) if early.sink.value is not None else ""
    where = caught.made.value.frame.scope
    return name in where.assigns or any(
        isinstance(one.target, ast.Attribute) and one.target.attr == name
        for one in where.attributes
    )


def _given_later(
    caught: Caught, bound: list[Bound], within: set[int], *, is_for_all: bool
) -> Outcome | None:
    """Return what graphs were made with to which the `try` only gives the durable saver.

    `is_for_all`: also to those that have a weaker one already.
    """
    weak = [
        one
        for one in bound
        if one.sink.role is Role.SAVER
        and one.sink.graph is None
        and one.chosen.is_met
        and not _is_within(caught.scope, caught.attempt, one, within)
    ]
    for one in sorted(weak, key=lambda each: each.leaf.kind is not Kind.SITE):
        sink = one.sink
        is_weak = one.leaf.kind is Kind.SITE and one.leaf.value.medium is Medium.MEMORY
        if is_weak and is_for_all:
            note = f"a graph keeps the {one.leaf.value.class_name} that it was made with"
            return Outcome(Medium.MEMORY, evidence(sink.scope, sink.line, note), _MET)
        if one.leaf.kind is Kind.CONST and one.leaf.value is None:
            step = evidence(sink.scope, sink.line, "a graph stays without a saver")
            return Outcome(Medium.NONE, step, _MET)
    return None


def _unset(flow: Flow, one: Bound) -> Outcome | None:
    """Return that a graph gets `None`, which its saver's variable holds until the saver is made."""
    sink = one.sink
    if sink.value is None or not isinstance(sink.value, ast.Name | ast.Attribute):
        return None
    leaves = flow.leaves(sink.value, flow.frame(sink.scope))
    name = last_name(sink.value)
    if not any(leaf.is_initial for leaf in leaves) or looks_at(flow, name):
        return None
    if any(refuses(where, {name}) for where in flow.program.live):
        return None
    note = f"{sink.maker} gets {name}, which is None until then"
    return Outcome(Medium.NONE, evidence(sink.scope, sink.line, note), _MET)
