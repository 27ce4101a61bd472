"""Crews of several tasks, which keep what is done in memory until all of it is."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import dotted, evidence, keyword
from perdure.contracts.code._meanings import Variable
from perdure.contracts.code._outliving import all_begun, has_routes, reached, surely_begun
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Call, Scope, last_name, of_scope, walk
from perdure.contracts.code._unwaited import is_of_queue
from perdure.contracts.evidence import Evidence

_STARTS = frozenset({"kickoff", "kickoff_async", "akickoff", "kickoff_for_each"})
_TELLS = ("task_callback", "step_callback", "checkpoint")
"""What a crew is given that is told of each task, and may write it down."""
_TASK_TELLS = (*_TELLS, "callback", "callbacks", "output_file")
_KEEPS = regex(
    r"^(persist|FlowPersistence|SQLiteFlowPersistence|BaseEventListener|crewai_event_bus)$"
)
"""Names of what keeps, or is told, what is done."""

_SEVERAL = 2


class CrewRun(Struct, frozen=True):
    """A crew that is run where no request waits."""

    steps: tuple[Evidence, ...] = ()
    """Where it is made, what begins it, and where it is run; empty: there is none."""
    question: str | None = None
    """What is open of it, if something is."""


class _Crew(Struct, frozen=True):
    scope: Scope
    call: Call
    is_several: bool | None
    """`None`: nobody can say how many tasks it has."""

    @property
    def made(self) -> Evidence:
        """Where it is made."""
        note = "makes a crew of several tasks" if self.is_several else "makes a crew"
        return evidence(self.scope, self.call.node.lineno, note)


def crew_run(flow: Flow) -> CrewRun:
    """Find a crew that is run where no request waits: where it is made, and where it is run."""
    crews = {id(one.call.node): one for one in _crews(flow) if one.is_several is not False}
    if not crews:
        return CrewRun()
    only = _only(flow, list(crews.values()))
    first = CrewRun()
    for run, begun in _runs(flow):
        known = _made_at(flow.program, run.scope, run.node.value) or (
            only if "crew" in last_name(run.node.value).lower() else None
        )
        crew = crews.get(id(known)) if known is not None else None
        if crew is None and known is not None:
            continue  # another crew, of one task
        made = crew if crew is not None else next(iter(crews.values()))
        at = evidence(run.scope, run.node.lineno, "runs the crew to its end")
        question = _open(flow, crew, is_sure=run.is_sure)
        found = CrewRun((made.made, *begun, at), question)
        if question is None:
            return found
        first = first if first.steps else found
    return first


def _only(flow: Flow, crews: list[_Crew]) -> ast.Call | None:
    """Return the crew of a program in which nothing else has a `kickoff`."""
    live = flow.program.live
    makers = sum(len(scope.called_as({"Crew"})) for scope in live)
    others = any(flow.program.methods_named(name) for name in _STARTS)
    flows = any("Flow" in scope.imports for scope in live)
    return crews[0].call.node if makers == len(crews) == 1 and not others and not flows else None


class _Run(Struct, frozen=True):
    scope: Scope
    node: ast.Attribute
    is_sure: bool


def _runs(flow: Flow) -> Iterator[tuple[_Run, tuple[Evidence, ...]]]:
    """Yield what runs crews and may have nobody that waits; what surely has nobody comes first."""
    if not has_routes(flow):
        is_sure = is_of_queue(flow)
        for scope in flow.program.live:
            for node in _kickoffs(scope):
                yield _Run(scope, node, is_sure), ()
        return
    for is_sure, several in ((True, surely_begun(flow)), (False, all_begun(flow))):
        for begun, step in several:
            for scope in reached(flow, begun):
                for node in _kickoffs(scope):
                    yield _Run(scope, node, is_sure), (step,)


@of_scope
def _kickoffs(scope: Scope) -> list[ast.Attribute]:
    if not scope.attribute_names & _STARTS:
        return []
    named = (one for one in walk(scope.node) if isinstance(one, ast.Attribute))
    return [one for one in named if one.attr in _STARTS]


def _open(flow: Flow, crew: _Crew | None, *, is_sure: bool) -> str | None:
    """Return what is asked of a run; `None`: nothing is open."""
    if not is_sure:
        return "Does whoever asks for this crew wait for its end, so that a crash is seen?"
    if crew is None:
        return "Is what is run here a crew of several tasks, of which a crash loses all?"
    if crew.is_several is None:
        return "Has this crew several tasks, of which a crash loses what is done?"
    if _is_told(flow, crew):
        return "Is what each task gives written down, so that a run goes on from there?"
    return None


def _is_told(flow: Flow, crew: _Crew) -> bool:
    """Whether something may write down what single tasks give."""
    if _tells(crew.call.node, _TELLS):
        return True
    for scope in flow.program.live:
        if any(_tells(one.node, _TASK_TELLS) for one in scope.called_as({"Task", "Agent"})):
            return True
        if any(last_name(one.target) in _TELLS for one in scope.attributes):
            return True
        names = {*scope.imports, *(n for n in scope.names if n)}
        names |= {last_name(one) for one in getattr(scope.node, "decorator_list", ())}
        if any(_KEEPS.match(name) for name in names):
            return True
    return False


def _tells(node: ast.Call, names: tuple[str, ...]) -> bool:
    """Whether a call is given one of these, or what nobody can name."""
    for one in node.keywords:
        is_none = isinstance(one.value, ast.Constant) and one.value.value in {None, False}
        if one.arg is None or (one.arg in names and not is_none):
            return True
    return False


# ---------------------------------------------------------------------------------- which crew


def _crews(flow: Flow) -> Iterator[_Crew]:
    for scope in flow.program.live:
        for call in scope.called_as({"Crew"}):
            if dotted(flow, scope, call).startswith("crewai"):
                yield _Crew(scope, call, _has_several(flow, scope, call))


def _has_several(flow: Flow, scope: Scope, call: Call) -> bool | None:
    tasks = keyword(call.node, "tasks")
    match tasks:
        case None:
            return None if any(one.arg is None for one in call.node.keywords) else False
        case ast.List(elts=elements):
            return _many(elements)
        case ast.Attribute(value=ast.Name(id="self"), attr="tasks"):
            return _has_task_methods(flow, scope)
        case ast.Name(id=name):
            assigns = scope.assigns.get(name, [])
            value = assigns[0].value if len(assigns) == 1 else None
            if isinstance(value, ast.List):
                grown = _grown(scope, name)
                many = _many(value.elts)
                return many if grown == 0 else many or grown >= _SEVERAL or None
    return None


def _grown(scope: Scope, name: str) -> int:
    """Return how many times a list is added to, as far as that is written: a loop is several."""
    added = [
        one.node
        for one in scope.called_as({"append", "extend", "insert"})
        if isinstance(one.node.func, ast.Attribute)
        and isinstance(one.node.func.value, ast.Name)
        and one.node.func.value.id == name
    ]
    looped = {
        id(one)
        for node in (walk(scope.node) if added else ())
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        for one in ast.walk(node)
    }
    once = sum(
        not call.guards and id(call.node) not in looped
        for call in scope.calls
        if any(call.node is one for one in added)
    )
    in_loop = any(id(one) in looped for one in added)
    return once + in_loop or min(len(added), 1)


def _many(elements: list[ast.expr]) -> bool | None:
    if any(isinstance(one, ast.Starred) for one in elements):
        return None
    return len(elements) >= _SEVERAL


def _has_task_methods(flow: Flow, scope: Scope) -> bool | None:
    """Whether the class around a crew has several methods that each make a task."""
    around = flow.program.class_around(scope)
    tasks = [
        one
        for one in (around.all_inner() if around is not None else ())
        if any(last_name(each) == "task" for each in getattr(one.node, "decorator_list", ()))
    ]
    return len(tasks) >= _SEVERAL if tasks else None


def _made_at(program: Program, scope: Scope, node: ast.expr, depth: int = 0) -> ast.Call | None:
    """Return the one call that makes the crew which an expression is; `None`: not to be told."""
    if depth > limits.FLOW_DEPTH_MAX:
        return None
    match node:
        case ast.Await(value=inner):
            return _made_at(program, scope, inner, depth + 1)
        case ast.Call() if last_name(node.func) == "Crew":
            return node
        case ast.Call():
            given = _function(program, scope, node.func)
            if given is not None:
                return _same(program, [(given, one.value) for one in given.results], depth)
        case ast.Attribute(value=ast.Name(id="self")):
            around = program.class_around(scope)
            family = program.family(around) if around is not None else []
            values = [
                (where, one.value)
                for where in program.assigning(node.attr)
                if program.class_around(where) in family
                for one in where.attributes
                if isinstance(one.target, ast.Attribute) and one.target.attr == node.attr
            ]
            return _same(program, values, depth)
        case ast.Name():
            known = program.meaning(scope, node)
            if isinstance(known, Variable):
                assigns = known.scope.assigns.get(known.name, ())
                return _same(program, [(known.scope, one.value) for one in assigns], depth)
    return None


def _function(program: Program, scope: Scope, func: ast.expr) -> Scope | None:
    """Return the function that is called: also a method of an object that is made on the spot."""
    meaning = program.meaning(scope, func)
    if isinstance(meaning, Scope) and meaning.kind == "function":
        return meaning
    if isinstance(func, ast.Attribute):
        base = func.value
        if isinstance(base, ast.Name):
            known = program.meaning(scope, base)
            assigns = known.scope.assigns.get(known.name, []) if isinstance(known, Variable) else []
            base = assigns[0].value or base if len(assigns) == 1 else base
        if isinstance(base, ast.Call):
            owner = program.meaning(scope, base.func)
            if isinstance(owner, Scope) and owner.kind == "class":
                return program.method(owner, func.attr)
    return None


def _same(
    program: Program, values: list[tuple[Scope, ast.expr | None]], depth: int
) -> ast.Call | None:
    """Return what all of several values are; `None` where they differ, or one can't be told."""
    calls = [
        _made_at(program, scope, value, depth + 1)
        for scope, value in values
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None)
    ]
    first = calls[0] if calls else None
    return first if all(one is first for one in calls) else None
