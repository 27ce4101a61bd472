"""Where code goes on with weaker storage than it was meant to have, and says nothing."""

import ast
from collections.abc import Iterator

from msgspec import Struct, structs

from perdure.contracts.code import _catalog, limits
from perdure.contracts.code._again import is_endless, is_tried_again, raised_after
from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._executed import Executed, asked, joined
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._installed import without_missing
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import Guard, GuardKind, Guards, Scope, Try, last_name, walk
from perdure.contracts.code._serving import started
from perdure.contracts.code._setting_up import sets_up
from perdure.contracts.code._sites import Sites, known_of
from perdure.contracts.code._swallowed import (
    Caught,
    Outcome,
    begun,
    decided,
    is_missing,
    is_open,
    outcome,
    raises,
    refuses,
    tested,
)
from perdure.contracts.code._values import Condition, Decision, Frame, Kind, Leaf
from perdure.contracts.code.facts import Degrade, Medium, Role
from perdure.contracts.evidence import Confidence, Evidence, Known

_NOWHERE = " is set nowhere"


def degrades_of(flow: Flow, sites: Sites, executed: Executed) -> tuple[Degrade, ...]:
    """Find fallbacks of the graphs that are served, and savers that are used wrongly."""
    found = [*_fallbacks(sites, executed), *_not_entered(sites), *_not_there(flow)]
    for scope in flow.program.live:
        if scope.tries:
            found.extend(swallows(flow, scope, executed))
    found.extend(_begun(flow, executed))
    found.extend(_started(flow, sites, executed))
    found = [_as_configured(flow, one) for one in without_missing(flow, found)]
    seen: dict[tuple[str, int, str], Degrade] = {}
    told = {(e.file, e.line) for one in found if not is_open(one) for e in one.evidence}
    for one in sorted(found, key=_likelihood):
        last = one.evidence[-1]
        if is_open(one) and (last.file, last.line) in told:
            continue  # what the failure leads to is known in another way
        seen.setdefault((last.file, last.line, one.cause), one)
    return tuple(seen.values())


def _as_configured(flow: Flow, degrade: Degrade) -> Degrade:
    """Say of a swallowed failure that it happens, where only a database's place is not committed.

    Whoever runs the service tells it; without it there is no durable saver that could fail.
    """
    if degrade.cause != "failed" or degrade.when.value is not False:
        return degrade
    notes = [step.note for step in degrade.when.evidence if step.note.endswith(_NOWHERE)]
    if not any(flow.environment.is_left_out(note.removesuffix(_NOWHERE)) for note in notes):
        return degrade
    when = Known(value=True, confidence=Confidence.INFERRED, evidence=degrade.when.evidence)
    return structs.replace(degrade, when=when)


def _medium(leaf: Leaf) -> Medium | None:
    if leaf.kind is Kind.SITE:
        medium: Medium = leaf.value.medium
        return medium
    if leaf.kind is Kind.CONST and leaf.value is None:
        return Medium.NONE
    return None


def _fallbacks(sites: Sites, executed: Executed) -> Iterator[Degrade]:
    groups: dict[tuple[str, int, Role], list[Bound]] = {}
    for one in sites.bound:
        groups.setdefault((one.sink.scope.path, one.sink.line, one.sink.role), []).append(one)
    for group in groups.values():
        media = [medium for one in group if (medium := _medium(one.leaf)) is not None]
        strongest = max((_catalog.rank(medium) for medium in media), default=0)
        if strongest < _catalog.rank(Medium.FILE):
            continue
        shared = {
            _place_of(condition)
            for one in group
            if (medium := _medium(one.leaf)) is not None and _catalog.rank(medium) >= strongest
            for condition in one.leaf.conditions
        }
        for one in group:
            medium = _medium(one.leaf)
            if medium is None or _catalog.rank(medium) >= strongest:
                continue
            yield from _fallback(executed, one, medium, shared)


_Place = tuple[str, int, int, bool]


def _place_of(condition: Condition) -> _Place:
    frame, guard = condition
    return (frame.scope.path, guard.line, id(guard.node), guard.is_true)


def _fallback(
    executed: Executed, one: Bound, medium: Medium, shared: set[_Place]
) -> Iterator[Degrade]:
    """Say how a weaker saver is come to; `shared`: what is so where a durable one is, too."""
    flow = executed.flow
    found = []
    for at, condition in enumerate(one.leaf.conditions):
        cause = None if _place_of(condition) in shared else _cause(flow, condition)
        if cause is None:
            continue
        others = [*one.leaf.conditions[:at], *one.leaf.conditions[at + 1 :], *cause.conditions]
        when = executed.line(one.sink.scope, ())
        for frame, guard in others if when.is_met is not False else ():
            is_in_handler = frame.scope is condition[0].scope and guard.line > condition[1].line
            if guard.raises and cause.is_failure and is_in_handler:
                decision = _asked(flow, frame, guard)  # else the failure is raised
            else:
                decision = executed.guarded(frame.scope, (guard,), frame)
            if when.is_met is True or decision.is_met is False:
                when = joined(when, decision) if decision.is_met is True else decision
            if when.is_met is False:
                break
        degrade = Degrade(
            evidence=(
                *flow.program.way_to(one.sink.scope.path)[-2:],
                *cause.steps,
                *_end(one, medium),
            ),
            becomes=medium,
            when=asked(when),
            cause="failed" if cause.is_failure else "unset",
        )
        tried = _tried(flow, degrade, condition) if cause.is_failure else degrade
        found += [tried] if tried is not None else []
    yield from sorted(found, key=_likelihood)[:1]


def _tried(flow: Flow, degrade: Degrade, condition: Condition) -> Degrade | None:
    """Return a fallback with the durable saver that is made in what its handler is of.

    `None`: the handler does not go on with it.
    """
    frame, guard = condition
    scope = frame.scope
    for attempt in scope.tries:
        handler = next((one for one in attempt.node.handlers if one.lineno == guard.line), None)
        if handler is None:
            continue
        last = degrade.evidence[-1]
        if last.file == scope.path and handler.lineno < last.line <= (handler.end_lineno or 0):
            when = Decision(is_met=True)
            raised = _unless_raised(flow, frame, handler, last.line, when)
            if raised.is_met is not True and degrade.when.value is True:
                degrade = structs.replace(degrade, when=asked(raised))
        made = _made_in(flow, scope, attempt)
        if made:
            value = made[0].value
            is_refused = degrade.becomes is Medium.NONE and _is_refused(scope, handler)
            if is_refused or is_tried_again(flow, scope, attempt, handler, made[0]):
                return None
            maker = evidence(scope, value.node.lineno, f"makes {value.class_name}")
            surely = len(made) == 1 and sets_up(attempt, handler, value.node)
            return structs.replace(degrade, made=maker, sets_up=surely)
    return degrade


def _made_in(flow: Flow, scope: Scope, attempt: Try) -> list[Leaf]:
    """Return the durable savers and stores that are made in what is tried."""
    first, last = _lines(attempt)
    return [
        leaf
        for call in flow.calls.making(scope)
        if first <= call.node.lineno <= last
        and (leaf := flow.calls.constructs(call.node, flow.frame(scope))) is not None
        and _catalog.rank(leaf.value.medium) >= _catalog.rank(Medium.FILE)
    ]


def _likelihood(degrade: Degrade) -> int:
    """Order what happens here before what is open, and that before what does not happen."""
    return (True, None, False).index(degrade.when.value)


def _end(one: Bound, medium: Medium) -> tuple[Evidence, ...]:
    leaf, sink = one.leaf, one.sink
    if leaf.kind is Kind.SITE:
        scope, line = leaf.value.frame.scope, leaf.value.node.lineno
        return (evidence(scope, line, f"goes on with {leaf.value.class_name} ({medium.value})"),)
    return (evidence(sink.scope, sink.line, "goes on without a saver"),)


class _Cause(Struct, frozen=True):
    is_failure: bool
    steps: tuple[Evidence, ...]
    conditions: tuple[Condition, ...] = ()
    """What else must be so, where the failure is swallowed."""


def _cause(flow: Flow, condition: Condition) -> _Cause | None:
    """Return whether a condition says that something failed, or only that it is not set."""
    frame, guard = condition
    if guard.kind is GuardKind.HANDLER:
        note = f"swallows {guard.catches}"
        return _Cause(is_failure=True, steps=(evidence(frame.scope, guard.line, note),))
    raised = next((one for one in guard.unless if one.kind is GuardKind.HANDLER), None)
    if raised is not None:
        step = evidence(frame.scope, raised.line, f"swallows {raised.catches}")
        tried = structs.replace(guard, is_true=not guard.is_true, unless=())
        return _Cause(is_failure=True, steps=(step,), conditions=((frame, tried),))
    if guard.kind is not GuardKind.TEST or guard.node is None:
        return None
    subject = tested(guard.node)
    if subject is None or is_missing(guard.node) is not guard.is_true:
        return None
    leaves = flow.leaves(subject, frame)
    here = evidence(frame.scope, guard.line, "goes on when it is missing")
    for leaf in leaves:
        for where, inner in leaf.conditions:
            if inner.kind is GuardKind.HANDLER and _is_falsy(leaf):
                note = f"swallows {inner.catches}"
                steps = (evidence(where.scope, inner.line, note), here)
                return _Cause(is_failure=True, steps=steps, conditions=leaf.conditions)
    if any(leaf.is_unset or isinstance(leaf.value, str) for leaf in leaves):
        return _Cause(is_failure=False, steps=(here,))
    return None


def _is_falsy(leaf: Leaf) -> bool:
    return leaf.kind is Kind.CONST and not leaf.value


def _not_entered(sites: Sites) -> Iterator[Degrade]:
    for one in sites.bound:
        if one.leaf.kind is not Kind.SITE or one.leaf.value.is_entered:
            continue
        if one.chosen.is_met is False:
            continue
        made = one.leaf.value
        if made.medium is Medium.MEMORY:
            continue
        note = f"{made.class_name}.from_conn_string gives a context manager that nobody enters"
        steps = (
            evidence(made.frame.scope, made.node.lineno, note),
            evidence(one.sink.scope, one.sink.line, f"{one.sink.maker} gets it"),
        )
        when = known_of(one.chosen)
        if when.value is None and when.question is None:
            when = Known(value=True, confidence=Confidence.INFERRED)
        yield Degrade(evidence=steps[:1], becomes=Medium.NONE, when=when, cause="misuse")


def _not_there(flow: Flow) -> Iterator[Degrade]:
    """Find imports of savers that no release of their library ever had."""
    for scope in flow.program.live:
        for several in scope.imports.values():
            for found in several:
                if found.name is None or found.level:
                    continue
                if not _catalog.exists(found.module, found.name):
                    note = f"imports {found.name}, which {found.module} does not have"
                    yield Degrade(
                        evidence=(
                            *flow.program.way_to(scope.path)[-2:],
                            evidence(scope, found.line, note),
                        ),
                        becomes=Medium.NONE,
                        cause="misuse",
                    )


def swallows(flow: Flow, scope: Scope, executed: Executed) -> Iterator[Degrade]:
    """Find handlers around a durable saver after which serving goes on."""
    for attempt in scope.tries:
        made = _made_in(flow, scope, attempt)
        if not made or _makes_graph(scope, attempt):
            continue  # where there is no graph at all, requests fail, and nothing is lost
        tried = executed.line(scope, attempt.guards)
        for handler in attempt.node.handlers:
            if is_tried_again(flow, scope, attempt, handler, made[0]):
                continue
            becomes = _after(flow, scope, attempt, handler, executed) or outcome(
                flow, executed, Caught(scope, attempt, handler, made[0])
            )
            if becomes is not None and _is_weaker(becomes, made[0]):
                when = joined(tried, becomes.when) if tried.is_met else tried
                caught = "everything" if handler.type is None else ast.unparse(handler.type)
                name = made[0].value.class_name
                maker = evidence(scope, made[0].value.node.lineno, f"makes {name}")
                steps = (
                    *flow.program.way_to(scope.path)[-2:],
                    maker,
                    evidence(scope, handler.lineno, f"swallows {caught}, and serving goes on"),
                )
                yield Degrade(
                    evidence=(*steps, becomes.step),
                    becomes=becomes.medium,
                    when=asked(when if becomes.when.is_met is True else becomes.when),
                    cause="failed",
                    made=maker,
                    sets_up=len(made) == 1 and sets_up(attempt, handler, made[0].value.node),
                )


def _begun(flow: Flow, executed: Executed) -> Iterator[Degrade]:
    for caught, found in begun(flow, executed):
        scope, attempt = caught.scope, caught.attempt
        tried = executed.line(scope, attempt.guards)
        maker = _maker(caught)
        yield Degrade(
            evidence=(
                *flow.program.way_to(scope.path)[-2:],
                maker,
                evidence(scope, attempt.node.lineno, "swallows what fails there"),
                found.step,
            ),
            becomes=found.medium,
            when=asked(decided(found.when, tried)),
            cause="failed",
            made=maker,
            sets_up=sets_up(attempt, caught.handler, None),
        )


def _started(flow: Flow, sites: Sites, executed: Executed) -> Iterator[Degrade]:
    for caught, found in started(flow, sites.bound):
        scope, handler = caught.scope, caught.handler
        if not _is_weaker(found, caught.made):
            continue
        if is_tried_again(flow, scope, caught.attempt, handler, caught.made):
            continue
        maker = _maker(caught)
        shown = "everything" if handler.type is None else ast.unparse(handler.type)[:60]
        yield Degrade(
            evidence=(
                *flow.program.way_to(scope.path)[-2:],
                maker,
                evidence(scope, handler.lineno, f"swallows {shown}, and serving begins"),
                found.step,
            ),
            becomes=found.medium,
            when=asked(decided(found.when, executed.line(scope, caught.attempt.guards))),
            cause="failed",
            made=maker,
            sets_up=sets_up(caught.attempt, caught.handler, None),
        )


def _is_weaker(found: Outcome, made: Leaf) -> bool:
    """Whether a handler goes on with less than what failed: else it only tries once more."""
    return _catalog.rank(found.medium) < _catalog.rank(made.value.medium)


def _maker(caught: Caught) -> Evidence:
    made = caught.made.value
    return evidence(made.frame.scope, made.node.lineno, f"makes {made.class_name}")


def _makes_graph(scope: Scope, attempt: Try) -> bool:
    first, last = _lines(attempt)
    return any(
        first <= call.node.lineno <= last and call.name in _catalog.GRAPH_MAKERS
        for call in scope.calls
    )


def _lines(attempt: Try) -> tuple[int, int]:
    ends = [getattr(one, "end_lineno", 0) or 0 for one in attempt.node.body]
    return attempt.node.lineno, max(ends, default=0)


def _after(
    flow: Flow, scope: Scope, attempt: Try, handler: ast.ExceptHandler, executed: Executed
) -> Outcome | None:
    """Return what a handler leaves the service with; `None` if it does not go on."""
    frame = flow.frame(scope)
    for node in (one for statement in handler.body for one in walk(statement)):
        if isinstance(node, ast.Call):
            leaf = flow.calls.constructs(node, frame)
            if leaf is not None and leaf.kind is Kind.SITE:
                note = f"goes on with {leaf.value.class_name}"
                step = evidence(scope, node.lineno, note)
                let = _let(executed, scope, handler, _guards_to(scope, node))
                let = _unless_raised(flow, frame, handler, node.lineno, let)
                return Outcome(leaf.value.medium, step, let)
    for result in scope.results:
        is_inside = handler.lineno <= result.line <= (handler.end_lineno or 0)
        if is_inside and _is_none(result.value):
            step = evidence(scope, result.line, "goes on with nothing")
            return Outcome(Medium.NONE, step, _let(executed, scope, handler, result.guards))
    if raises(handler):
        return None
    for statement in handler.body:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)):
                if _is_refused(scope, handler) or is_endless(scope, attempt):
                    return None
                step = evidence(scope, statement.lineno, "goes on without a saver")
                return Outcome(Medium.NONE, step, Decision(is_met=True))
    return None


def _let(executed: Executed, scope: Scope, handler: ast.ExceptHandler, guards: Guards) -> Decision:
    """Decide the tests of the handler itself, whatever they ask, where the other way raises."""
    inside = [
        one
        for one in guards
        if handler.lineno < one.line <= (handler.end_lineno or 0)
        and one.kind is not GuardKind.HANDLER
    ]
    if inside and raises(handler):
        frame = executed.flow.frame(scope)
        found = [_asked(executed.flow, frame, one) for one in inside]
        return min(found, key=lambda one: (False, None, True).index(one.is_met))
    return executed.guarded(scope, guards)


def _asked(flow: Flow, frame: Frame, guard: Guard) -> Decision:
    """Decide a test whose other way raises, without taking for granted that it does not."""
    decision = flow.decide([(frame, guard)])
    if guard.node is None or guard.kind is not GuardKind.TEST:
        return decision
    truth = flow.decider.truth(guard.node, frame)
    shown = ast.unparse(guard.node)[: limits.SHOWN_MAX]
    question = truth.question or f"whether {shown!r} holds at {frame.scope.path}:{guard.line}"
    return decision if truth.is_met is not None else structs.replace(truth, question=question)


def _is_refused(scope: Scope, handler: ast.ExceptHandler) -> bool:
    """Whether the function itself raises where a handler has left nothing."""
    names = {
        last_name(target)
        for one in handler.body
        if isinstance(one, ast.Assign) and _is_none(one.value)
        for target in one.targets
    }
    return refuses(scope, names)


def _unless_raised(
    flow: Flow, frame: Frame, handler: ast.ExceptHandler, line: int, when: Decision
) -> Decision:
    """Decide whether a handler raises after all, past the line where it makes a weaker one."""
    test = raised_after(handler, line)
    if test is None or when.is_met is False:
        return when
    truth = flow.decider.truth(test, frame)
    if truth.is_met is not None:
        if truth.is_met:
            return structs.replace(truth, is_met=False)
        return structs.replace(joined(when, truth), is_met=when.is_met)
    at = f"{frame.scope.path}:{test.lineno}"
    return structs.replace(truth, question=truth.question or f"whether it is raised at {at}")


def _guards_to(scope: Scope, node: ast.Call) -> Guards:
    return next((call.guards for call in scope.calls if call.node is node), ())


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)
