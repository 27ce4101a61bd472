"""Steps that code keeps itself, and graphs that are run without the saver that others have."""

import ast
import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code._chosen import Bound
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence, graph_runs
from perdure.contracts.code._scopes import Call, Scope, last_name, of_scope, walk
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._values import Kind
from perdure.contracts.code.facts import Role
from perdure.contracts.evidence import Evidence

_KEPT = r"(checkpoint|step|snapshot|(graph|run|job|workflow|task|agent|pipeline)_?state)s?"
_KEEPS = regex(
    rf"^_*(save|store|persist|write|upsert|update|append|put|insert)_(\w{{1,60}}_)?({_KEPT}|progress)"
    r"(_\w{1,60})?$|^_*checkpoint(_\w{1,60})?$",
    re.IGNORECASE,
)
_TAKES_UP = regex(
    r"^_*(resum(e|ed|ing)_(from|at|step|state|point|after)(_\w{1,60})?"
    r"|(last|next)_(completed|finished|done|saved|good)_?(step|node|stage|phase)"
    r"|(completed|finished|done)_(steps|nodes|stages|phases)"
    rf"|(load|restore|recover|read|fetch)_(\w{{1,60}}_)?({_KEPT}|progress)"
    r"|get_((last|latest|saved)_)?(checkpoint|(graph|run|job|workflow)_state))$",
    re.IGNORECASE,
)


def own_steps(flow: Flow) -> tuple[Evidence, ...]:
    """Find code that writes steps of a run down, and code that goes on from what is written.

    Both by their names: enough to ask, not to say that it holds.
    """
    live = list(flow.program.live)
    streamed = next((steps for scope in live if (steps := _streamed(flow, scope))), ())
    if streamed:
        return streamed
    kept = next(
        ((scope, call) for scope in live for call in _keeping(scope)),
        None,
    )
    if kept is None:
        return ()
    where, call = kept
    begins = sorted(live, key=lambda scope: scope.path != where.path)
    taken = next((step for scope in begins if (step := _taken_up(scope)) is not None), None)
    if taken is None:
        return ()
    note = f"{call.name} writes a step down"
    return evidence(where, call.node.lineno, note), taken


_STREAMS = {"stream", "astream"}
_WRITES = {"execute", "executemany", "insert_one", "update_one", "replace_one", "hset", "put_item",
           "commit", "merge", "upsert", "save"}  # fmt: skip


def _streamed(flow: Flow, scope: Scope) -> tuple[Evidence, ...]:
    """Find a loop over the steps of a run that hands each to what writes to a database."""
    for node in walk(scope.node) if not scope.called.isdisjoint(_STREAMS) else ():
        if not isinstance(node, ast.For | ast.AsyncFor) or not isinstance(node.iter, ast.Call):
            continue
        if last_name(node.iter.func) not in _STREAMS:
            continue
        names = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
        for call in (one for each in node.body for one in walk(each)):
            if isinstance(call, ast.Call) and _is_handed(call, names) and _writes(flow, call):
                name = last_name(call.func)
                run = evidence(scope, node.lineno, "runs a graph step by step")
                return run, evidence(scope, call.lineno, f"{name} writes a step down")
    return ()


def _is_handed(call: ast.Call, names: set[str]) -> bool:
    given = [*call.args, *(one.value for one in call.keywords)]
    return any(isinstance(n, ast.Name) and n.id in names for one in given for n in ast.walk(one))


def _writes(flow: Flow, call: ast.Call) -> bool:
    name = last_name(call.func)
    return name in _WRITES or any(
        scope.kind == "function"
        and scope.name.rpartition(".")[2] == name
        and not scope.called.isdisjoint(_WRITES)
        for scope in flow.program.live
    )


@of_scope
def _keeping(scope: Scope) -> list[Call]:
    return [call for call in scope.calls if _KEEPS.match(call.name)]


@of_scope
def _taken_up(scope: Scope) -> Evidence | None:
    """Find a name or a key of a function that says from where a run goes on."""
    if scope.kind != "function":
        return None
    for node in walk(scope.node):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.Constant(value=str(name))
                | ast.keyword(arg=str(name))
            ) if _TAKES_UP.match(name):
                return evidence(scope, node.lineno, f"{name} says where to go on")
    return None


def unsaved_runs(flow: Flow, sites: Sites) -> tuple[Evidence, ...]:
    """Find a graph that has no saver and is run with a thread of its own, beside others that have.

    A graph that is a step of another one, or a tool of it, has the saver of that one.
    """
    bound = [one for one in sites.bound if one.sink.role is Role.SAVER]
    steps = {id(one) for one in sites.steps(flow.program.live)}
    for module, own in _by_module(bound):
        if any(one.sink.value is not None or one.leaf.kind is not Kind.CONST for one in own):
            continue
        for scope in module.all_inner():
            if not flow.program.is_live(scope) or id(scope) in steps or _is_tool(scope):
                continue
            for call in graph_runs(scope) if "thread_id" in scope.words else ():
                if not _is_imported(scope, call):
                    note = f"{own[0].sink.maker} makes a graph without a saver"
                    made = evidence(own[0].sink.scope, own[0].sink.line, note)
                    return (made, evidence(scope, call.node.lineno, "runs a graph with a thread"))
    return ()


def _by_module(bound: list[Bound]) -> Iterator[tuple[Scope, list[Bound]]]:
    found: dict[int, tuple[Scope, list[Bound]]] = {}
    for one in bound:
        module = one.sink.scope.module
        found.setdefault(id(module), (module, []))[1].append(one)
    yield from found.values()


def _is_tool(scope: Scope) -> bool:
    return any(last_name(one) == "tool" for one in getattr(scope.node, "decorator_list", ()))


def _is_imported(scope: Scope, call: Call) -> bool:
    """Whether the graph that is run was brought from another file by its name."""
    here: ast.expr = call.node.func
    while isinstance(here, ast.Attribute | ast.Subscript | ast.Call):
        here = here.func if isinstance(here, ast.Call) else here.value
    name = here.id if isinstance(here, ast.Name) else ""
    up: Scope | None = scope
    while up is not None:
        if name in up.imports:
            return True
        if name in up.assigns:
            return False
        up = up.parent
    return False
