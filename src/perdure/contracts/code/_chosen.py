"""Which of the values that a graph may get it does get: what the tests on the way say of it."""

import ast
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import Guard, GuardKind, Guards, Scope
from perdure.contracts.code._values import Condition, Decision, Kind, Leaf
from perdure.contracts.code.facts import Role
from perdure.contracts.evidence import Confidence, Evidence


class Sink(Struct, frozen=True, kw_only=True):
    """A graph that is given a saver or store, or none."""

    scope: Scope
    line: int
    """Of the argument, in a call of many lines; of the call, where it has none."""
    begins: int = 0
    """The first line of such a call."""
    role: Role
    value: ast.expr | None
    guards: Guards
    maker: str
    graph: ast.expr | None = None
    """The graph, where it is given one afterwards: `graph.checkpointer = saver`."""
    pauses: bool = False
    """Its runs are told to wait before or after some steps."""


class Bound(Struct, frozen=True, kw_only=True):
    """One value that a graph may get."""

    sink: Sink
    leaf: Leaf
    chosen: Decision
    is_brief: bool = False
    """It is made for one request or task, and goes with it."""
    is_early: bool = False
    """The graph is made before this is anything else."""
    stays: tuple[Evidence, ...] = ()
    """Why a saver that is made for all graphs does not replace it."""


def without_own_tests(
    sink: Sink, leaf: Leaf, conditions: list[Condition]
) -> list[Condition] | None:
    """Leave out tests of the given value itself: `if saver: compile(checkpointer=saver)`.

    Returns:
        the other conditions; `None` where the graph is not made with this leaf.
    """
    if leaf.kind is Kind.SITE:
        is_there = True
    elif leaf.kind is Kind.CONST and leaf.value is None:
        is_there = False
    else:
        return conditions
    kept: list[Condition] = []
    for frame, guard in conditions:
        is_test = guard.kind is GuardKind.TEST and not guard.unless
        says = _says_there(guard.node, sink.value) if is_test else None
        if says is None:
            kept.append((frame, guard))
        elif (says is guard.is_true) is not is_there:
            return None
    return kept


def _says_there(test: ast.expr | None, value: ast.expr | None) -> bool | None:
    """Whether a test that holds says that a value is there; `None`: it tests something else."""
    match test:
        case ast.Name() | ast.Attribute() if value is not None:
            return True if ast.dump(test) == ast.dump(value) else None
        case ast.UnaryOp(op=ast.Not()):
            inner = _says_there(test.operand, value)
            return None if inner is None else not inner
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            inner = _says_there(test.left, value)
            return None if inner is None else isinstance(test.ops[0], ast.IsNot)
    return None


def matters(flow: Flow, sink: Sink, guard: Guard, sinks: list[Sink]) -> bool:
    """Whether a guard of a graph says which graph there is, and not only whether there is one."""
    if flow.under(sink.scope, (guard,)).is_met is not None:
        return True
    return any(
        other.scope is sink.scope
        and other.role is sink.role
        and any(one.node is guard.node and one.is_true is not guard.is_true for one in other.guards)
        for other in sinks
    )


Outcomes = dict[tuple[int, int], set[bool]]
"""By test and function: the ways that it comes out where any graph gets anything."""


def outcomes_of(bound: Iterable[Bound]) -> Outcomes:
    """Return how the tests come out on the way to all that graphs may get."""
    found: Outcomes = {}
    for one in bound:
        for frame, guard in one.leaf.conditions:
            found.setdefault((id(guard.node), id(frame.scope)), set()).add(guard.is_true)
    return found


def of_request(flow: Flow, one: Bound, outcomes: Outcomes) -> Bound:
    """Leave out tests of a request's own values that only say whether there is a graph at all.

    `if order is None: return` before a graph is made with its saver says nothing of the saver: no
    other value is given where the test comes out the other way, and no setting decides it.
    """
    if one.chosen.is_met is not None:
        return one
    kept = []
    for frame, guard in one.leaf.conditions:
        is_plain = guard.kind is GuardKind.TEST and not guard.unless
        if is_plain and len(outcomes[id(guard.node), id(frame.scope)]) == 1:
            decision = flow.decide([(frame, guard)])
            if decision.is_met is None and not decision.settings:
                continue
        kept.append((frame, guard))
    if len(kept) == len(one.leaf.conditions):
        return one
    chosen = flow.decide(kept)
    return replace(one, chosen=replace(chosen, confidence=Confidence.INFERRED))


def either_way(flow: Flow, group: list[Bound]) -> list[Bound]:
    """Take a saver for chosen that a graph gets whichever way one open test comes out."""
    ways: dict[tuple[object, ...], set[bool]] = {}
    keys: dict[int, tuple[object, ...]] = {}
    for one in group:
        if one.leaf.kind is not Kind.SITE or one.chosen.is_met is not None:
            continue
        unmet = [each for each in one.leaf.conditions if flow.decide([each]).is_met is None]
        is_test = len(unmet) == 1 and unmet[0][1].kind is GuardKind.TEST
        if is_test and not unmet[0][1].unless:
            frame, guard = unmet[0]
            key = (one.leaf.value.key, id(guard.node), id(frame.scope))
            keys[id(one)] = key
            ways.setdefault(key, set()).add(guard.is_true)
    sure = Decision(is_met=True, confidence=Confidence.INFERRED)
    return [
        replace(one, chosen=sure) if len(ways.get(keys.get(id(one), ()), ())) > 1 else one
        for one in group
    ]


def sole(group: list[Bound]) -> list[Bound]:
    """Take the one saver for chosen that a graph can get, if it gets one at all."""
    likely = [one for one in group if one.chosen.is_met is not False]
    places = {one.leaf.value.key for one in likely if one.leaf.kind is Kind.SITE}
    if len(places) != 1 or any(one.leaf.kind is not Kind.SITE for one in likely):
        return group
    if any(one.chosen.is_met for one in likely):
        return group
    sure = Decision(is_met=True, confidence=Confidence.INFERRED)
    return [replace(one, chosen=sure) if one in likely else one for one in group]


def handed_on(bound: list[Bound]) -> list[Bound]:
    """Say of savers that they stay, where others are only for graphs without any.

    `if not graph.checkpointer: graph.checkpointer = saver` leaves a graph what it was made with.
    """
    for_bare = {id(one): guard for one in bound if (guard := _only_bare(one.sink)) is not None}
    if not for_bare:
        return bound
    made = [
        one
        for one in bound
        if one.sink.graph is None and one.sink.role is Role.SAVER and one.chosen.is_met is not False
    ]
    if not any(one.leaf.kind is Kind.SITE for one in made):
        return bound
    first = next(one for one in bound if id(one) in for_bare)
    note = "gives a saver only to what has none"
    step = Evidence(file=first.sink.scope.path, line=for_bare[id(first)].line, note=note)
    never = Decision(is_met=False, evidence=(step,), confidence=Confidence.INFERRED)
    is_any_bare = any(one.leaf.kind is not Kind.SITE for one in made)
    found = []
    for one in bound:
        if id(one) in for_bare and not is_any_bare:
            found.append(replace(one, chosen=never))
        elif any(one is each for each in made) and one.leaf.kind is Kind.SITE:
            found.append(replace(one, stays=(step,)))
        else:
            found.append(one)
    return found


def _only_bare(sink: Sink) -> Guard | None:
    """Return the test that lets only a graph without a saver be given one."""
    if sink.graph is None or sink.role is not Role.SAVER:
        return None
    for guard in sink.guards:
        if guard.kind is not GuardKind.TEST or guard.node is None or guard.unless:
            continue
        parts = [guard.node]
        is_all = isinstance(guard.node, ast.BoolOp) and (
            isinstance(guard.node.op, ast.And) is guard.is_true
        )
        if isinstance(guard.node, ast.BoolOp):
            parts = guard.node.values if is_all else []
        if any(_says_bare(part, sink.graph, is_true=guard.is_true) for part in parts):
            return guard
    return None


def _says_bare(test: ast.expr, graph: ast.expr, *, is_true: bool) -> bool:
    """Whether a test that comes out so says that a graph has no saver of its own."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return _says_bare(test.operand, graph, is_true=not is_true)
        case (
            ast.Compare(ops=[ast.Is() as op], comparators=[ast.Constant(value=None)])
            | ast.Compare(ops=[ast.IsNot() as op], comparators=[ast.Constant(value=None)])
        ):
            is_bare = isinstance(op, ast.Is) is is_true
            return is_bare and _says_bare(test.left, graph, is_true=False)
        case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=name), *_]):
            return not is_true and name == "checkpointer" and ast.dump(of) == ast.dump(graph)
        case ast.Attribute(attr="checkpointer", value=of):
            return not is_true and ast.dump(of) == ast.dump(graph)
    return False


def if_told(flow: Flow, bound: list[Bound]) -> list[Bound]:
    """Ask for the place of a database that no file says, where graphs have no saver without it.

    A weaker saver that is used instead is what the code says; none at all is what it says of a
    service that was not set up.
    """
    asked = [
        name
        for one in bound
        if one.leaf.kind is Kind.CONST and one.leaf.value is None and one.chosen.is_met
        for name in one.chosen.settings
        if flow.environment.is_left_out(name)
    ]
    return [_asked_for(one, asked[0]) for one in bound] if asked else bound


def _asked_for(one: Bound, name: str) -> Bound:
    is_none = one.leaf.kind is Kind.CONST and one.leaf.value is None
    is_other = one.leaf.kind is Kind.SITE and one.chosen.is_met is False
    if not (is_none or is_other) or name not in one.chosen.settings:
        return one
    asked = Decision(is_met=None, question=f"the value of {name}", settings=(name,))
    return replace(one, chosen=asked)
