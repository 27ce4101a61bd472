"""What the reachable code uses: threads, steps, servers, handlers, and what it takes up again."""

import ast
import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import Call, Scope, of_scope, walk
from perdure.contracts.code._startup import is_route, startup_of
from perdure.contracts.code._values import Kind
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.limits import NUMBER_MAX

SERVES = frozenset({"uvicorn.run", "hypercorn.run", "granian.Granian", "waitress.serve"})
_STORE_USES = {"aput", "asearch", "aget"}
_INVOKES = {"invoke", "ainvoke", "stream", "astream"}
_RUNS = {"invoke", "ainvoke", "stream", "astream", "astream_events", "batch", "abatch"}
_OF_GRAPHS = regex(r"graph|agent|workflow|app\b|compiled|pipeline|runnable|flow", re.IGNORECASE)
_AGENT_MAKERS = {
    "create_react_agent", "create_agent", "create_deep_agent", "create_supervisor", "create_swarm",
    "async_create_deep_agent",
}  # fmt: skip
_EDGES = {"add_node", "add_conditional_edges", "add_edge"}
_RESUMES = regex(
    r"(recover|resume|reap|requeue|orphan|stale|unfinished|interrupted)_?\w{0,80}(run|job|task|thread|work|"
    r"execution|session)|(reaper|recovery|requeue_stale)",
    re.IGNORECASE,
)


def evidence(scope: Scope, line: int, note: str) -> Evidence:
    """Return a step at a line of a scope's file."""
    return Evidence(file=scope.path, line=line, note=note)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call passes by this name."""
    for one in call.keywords:  # asked at every call of a program: a generator takes twice as long
        if one.arg == name:
            return one.value
    return None


def dotted(flow: Flow, scope: Scope, call: Call) -> str:
    """Return the dotted library name that a call means; empty for anything else."""
    return flow.program.library_of(scope, call)


_PAUSES = ("interrupt_on", "interrupt_before")
_THREADS = _STORE_USES | {"interrupt"}
_HTTP = ("httpx", "requests", "aiohttp", "urllib", "websockets", "langgraph_sdk", "http.client")
_SCREENS = ("streamlit", "gradio", "chainlit", "mesop", "nicegui")


def uses_threads(
    flow: Flow, *, has_graphs: bool = True, on_platform: bool = False
) -> tuple[Evidence, ...]:
    """Find where threads are named, runs paused and memories written.

    Where no graph is made, and threads are named only by what calls another service, they are the
    other service's; where nothing configures runs by them, they are another kind: of mail, of a
    chat's replies, of a team's discussion.
    """
    found: list[Evidence] = []
    is_client = not has_graphs and _only_passes_on(flow)
    is_client = is_client or not (on_platform or any(map(_configures, flow.program.live)))
    for scope in flow.program.live:
        line = scope.words.get("thread_id")
        if line is not None and not is_client:
            found.append(evidence(scope, line, "a thread is named"))
        if _THREADS.isdisjoint(scope.called) and scope.passed.isdisjoint(_PAUSES):
            continue
        for call in scope.calls:
            name = call.name
            if name == "interrupt" and dotted(flow, scope, call).startswith("langgraph"):
                found.append(evidence(scope, call.node.lineno, "a run pauses for a person"))
            elif (
                pauses := keyword(call.node, "interrupt_on")
                or keyword(call.node, "interrupt_before")
            ) and names_steps(pauses):
                found.append(evidence(scope, pauses.lineno, "runs pause before some steps"))
            elif name in _STORE_USES and "store" in ast.unparse(call.node.func).lower():
                found.append(evidence(scope, call.node.lineno, "a memory is written or read"))
    return tuple(found[: limits.STORY_MAX])


def names_steps(node: ast.expr) -> bool:
    """Whether what says where runs pause is not written as empty."""
    match node:
        case ast.Constant(value=value):
            return bool(value)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Dict(keys=items):
            return bool(items)
    return True


def resumed(flow: Flow) -> tuple[Evidence, ...]:
    """Find where a person's answer is handed to a run that another request began.

    A function that first runs a graph, and then answers what it waits for, does both at once.
    """
    for scope in flow.program.live:
        for call in scope.called_as({"Command"}) if scope.kind == "function" else ():
            if keyword(call.node, "resume") is not None and not _begins(scope, call):
                return (evidence(scope, call.node.lineno, "a run that paused goes on"),)
    return ()


def _begins(scope: Scope, call: Call) -> bool:
    """Whether the function runs a graph itself on the way to a call, not as the other way."""
    return any(
        run.guards == call.guards[: len(run.guards)]
        and run.node.lineno <= call.node.lineno
        and not any(one is call.node for one in ast.walk(run.node))
        for run in graph_runs(scope)
    )


def _configures(scope: Scope) -> bool:
    return "configurable" in scope.words or "configurable" in scope.passed


def _only_passes_on(flow: Flow) -> bool:
    """Whether each module that names a thread calls over HTTP, shows a screen, or has types."""
    naming = [scope for scope in flow.program.live if "thread_id" in scope.words]
    modules = {id(scope.module): scope.module for scope in naming}
    return bool(modules) and all(
        imports(one, _HTTP + _SCREENS) or _has_only_types(one) for one in modules.values()
    )


def imports(module: Scope, libraries: tuple[str, ...]) -> bool:
    """Whether anything in a file imports one of these libraries."""
    return any(name.startswith(libraries) for name in _imported(module))


@of_scope
def _imported(module: Scope) -> frozenset[str]:
    return frozenset(
        one.module
        for scope in module.all_inner()
        for several in scope.imports.values()
        for one in several
    )


def _has_only_types(module: Scope) -> bool:
    return all(one.kind != "function" or not one.calls for one in module.all_inner())


def has_steps(flow: Flow) -> tuple[Evidence, ...]:
    """Find graphs of several steps: nodes that are added or repeated, and agents that loop."""
    nodes: list[Evidence] = []
    loops: list[Evidence] = []
    for scope in flow.program.live:
        for call in scope.called_as(_EDGES | _AGENT_MAKERS):
            name = call.name
            if name == "add_node":
                nodes.append(evidence(scope, call.node.lineno, "a step is added to a graph"))
                if len(nodes) == 1 and _is_in_loop(scope, call):
                    loops.append(evidence(scope, call.node.lineno, "a step is added in a loop"))
            elif name in _EDGES and _repeats(call.node):
                loops.append(evidence(scope, call.node.lineno, "a step may follow itself"))
            elif name in _AGENT_MAKERS and dotted(flow, scope, call):
                step = evidence(scope, call.node.lineno, f"{name} makes an agent that loops")
                return (step,)
    return tuple(nodes[:2]) if len(nodes) > 1 else tuple((nodes + loops)[:2] if loops else ())


def _is_in_loop(scope: Scope, call: Call) -> bool:
    return any(
        one is call.node
        for loop in walk(scope.node)
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While)
        for one in walk(loop)
    )


def _repeats(edge: ast.Call) -> bool:
    """Whether an edge names its source as a target: `add_conditional_edges("a", f, ["a"])`."""
    source, *others = [*edge.args, *(one.value for one in edge.keywords)] or [edge]
    return isinstance(source, ast.Constant) and any(
        isinstance(one, ast.Constant) and one.value == source.value
        for other in others
        for one in walk(other)
    )


def graph_runs(scope: Scope) -> Iterator[Call]:
    """Return the calls of a scope that run something that is called a graph or an agent."""
    for call in scope.called_as(_RUNS):
        func = call.node.func
        is_run = isinstance(func, ast.Attribute) and func.attr in _RUNS
        if is_run and _OF_GRAPHS.search(ast.unparse(func)):
            yield call


def durability(flow: Flow) -> Known[str] | None:
    """Find when runs are told to write their steps: at the end only where all of them are."""
    found = _durability(flow)
    if found is None or found.value != "exit":
        return found
    told = ("durability", "checkpoint_during")
    others = any(
        not any(keyword(call.node, name) for name in told)
        for scope in flow.program.live
        for call in graph_runs(scope)
    )
    return None if others else found


def _durability(flow: Flow) -> Known[str] | None:
    for scope in flow.program.live:
        for call in scope.passing("durability", "checkpoint_during"):
            given = keyword(call.node, "durability")
            if given is not None:
                leaf = flow.only(given, flow.frame(scope))
                step = evidence(scope, given.lineno, "says when steps are written")
                if leaf is not None and leaf.value in {"sync", "async", "exit"}:
                    return Known(value=str(leaf.value), evidence=(*leaf.evidence, step))
            during = keyword(call.node, "checkpoint_during")
            if isinstance(during, ast.Constant) and during.value is False:
                step = evidence(scope, during.lineno, "steps are written at the end only")
                return Known(value="exit", evidence=(step,))
    return None


def handlers(flow: Flow) -> tuple[Evidence, ...]:
    """Find what acts on SIGTERM: handlers, and servers that install them."""
    found = []
    for scope in flow.program.live:
        libraries = flow.program.libraries_in(scope)
        if scope.called.isdisjoint(_SIGNALS) and not any(map(_is_server, libraries)):
            continue
        for call in scope.calls:
            name = call.name
            if name in _SIGNALS and "SIGTERM" in ast.unparse(call.node):
                found.append(evidence(scope, call.node.lineno, "handles SIGTERM"))
            elif _is_server(dotted(flow, scope, call)):
                found.append(
                    evidence(scope, call.node.lineno, "starts a server that handles SIGTERM")
                )
    return tuple(found[: limits.STORY_MAX])


_SIGNALS = frozenset({"signal", "add_signal_handler"})
_SERVERS = SERVES | {"uvicorn.Server", "aiohttp.web.run_app", "arq.run_worker", "chainlit.run"}


def _is_server(name: str) -> bool:
    return name in _SERVERS or (name.endswith(".serve") and name.startswith("hypercorn"))


def reloads(flow: Flow) -> tuple[Evidence, ...]:
    """Find servers that are started with a reloader."""
    found = []
    for scope in flow.program.live:
        for call in scope.passing("reload"):
            given = keyword(call.node, "reload")
            if given is None or dotted(flow, scope, call) != "uvicorn.run":
                continue
            truth = flow.decider.truth(given, flow.frame(scope))
            if truth.is_met:
                found.append(evidence(scope, given.lineno, "starts with a reloader"))
    return tuple(found)


def workers(flow: Flow) -> Known[int] | None:
    """Find how many server processes the code itself asks for."""
    for scope in flow.program.live:
        for call in scope.passing("workers"):
            given = keyword(call.node, "workers")
            if given is None or dotted(flow, scope, call) not in SERVES:
                continue
            leaf = flow.only(given, flow.frame(scope))
            step = evidence(scope, given.lineno, "says how many workers serve")
            if (
                leaf is not None
                and leaf.kind is Kind.CONST
                and isinstance(leaf.value, int)
                and abs(leaf.value) <= NUMBER_MAX
            ):
                return Known(
                    value=int(leaf.value),
                    evidence=(*(one for one in leaf.evidence if one.note), step),
                    confidence=leaf.confidence,
                    assumed=leaf.assumed,
                )
            question = (leaf.question if leaf else None) or f"the value of {ast.unparse(given)}"
            return Known(value=None, evidence=(step,), question=question)
    return None


def resumes(flow: Flow) -> tuple[Evidence, ...]:
    """Find what takes interrupted runs up again."""
    found = []
    for scope in flow.program.live:
        if scope.kind == "function" and _RESUMES.search(scope.name):
            name = scope.name.rpartition(".")[2]
            found.append(evidence(scope, scope.line, f"{name} takes up what was left"))
        for call in scope.passing("acks_late", "task_acks_late"):
            late = keyword(call.node, "acks_late") or keyword(call.node, "task_acks_late")
            if isinstance(late, ast.Constant) and late.value is True:
                found.append(evidence(scope, late.lineno, "acknowledges work when it is done"))
    return tuple([*found, *_goes_on(flow)][: limits.STORY_MAX])


def _goes_on(flow: Flow) -> list[Evidence]:
    """Find what calls graphs without an input at the start: they go on with what is stored."""
    begun = startup_of(flow)
    found = []
    for scope in flow.program.live:
        handed = [] if id(scope) not in begun else _handed_on(flow, scope)
        for one in [scope, *handed] if id(scope) in begun else []:
            found += [
                evidence(one, call.node.lineno, "goes on with stored runs when the service starts")
                for call in one.calls
                if call.name in _INVOKES
                and call.node.args
                and isinstance(call.node.args[0], ast.Constant)
                and call.node.args[0].value is None
            ]
    return list(dict.fromkeys(found))


def _handed_on(flow: Flow, scope: Scope) -> list[Scope]:
    """Return functions that a scope hands to somebody who calls them: threads, executors, tasks."""
    found = []
    for call in scope.calls:
        for given in [*call.node.args, *(one.value for one in call.node.keywords)]:
            if isinstance(given, ast.Name | ast.Attribute):
                meaning = flow.program.meaning(scope, given)
                if isinstance(meaning, Scope) and meaning.kind == "function":
                    found += [meaning] if not is_route(meaning) else []
    return found
