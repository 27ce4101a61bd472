"""From what was declared to a valid plan, or to all that is wrong with it at once."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field, structs

from perdure.core.plan import (
    END,
    START,
    Branch,
    Channel,
    Checkpoints,
    GraphPlan,
    Migration,
    NodePlan,
    Send,
)
from perdure.core.retry import Retry
from perdure.errors import GraphInvalid
from perdure.graph._channels import make_channels, make_read_input
from perdure.graph._migrations import MigrationDeclared, read_migrations
from perdure.graph._signature import (
    SignatureProblem,
    adapt,
    goes_anywhere,
    hints_of,
    is_async_callable,
    is_context,
    is_generator_callable,
    signature_of,
)
from perdure.graph._state import ShapeProblems, StateShape, read_shape
from perdure.graph._targets import Names, TargetProblem, make_normalise
from perdure.graph._text import NAME_RULE, is_duration, is_name
from perdure.graph._types import collect_types
from perdure.graph.effects import Effect


class NodeDeclared(Struct, frozen=True, kw_only=True):
    """One node as declared: exactly one of `function` and `compile_subgraph` is given."""

    name: str
    thing: Any
    compile_subgraph: Callable[[], GraphPlan] | None
    retry: Any
    timeout_s: Any
    goto: tuple[Any, ...] | None
    phase: Any = False


class BranchDeclared(Struct, frozen=True, kw_only=True):
    """One branch as declared."""

    source: Any
    router: Any
    targets: tuple[Any, ...] | None


class Declared(Struct, kw_only=True):
    """All that was declared about a graph."""

    name: str
    version: int
    state_type: Any
    namespace: Mapping[str, Any]
    step_limit: int
    compensate_on_failure: bool
    checkpoints: Any
    nodes: list[NodeDeclared] = field(default_factory=list)
    edges: list[tuple[Any, Any]] = field(default_factory=list)
    branches: list[BranchDeclared] = field(default_factory=list)
    migrations: list[MigrationDeclared] = field(default_factory=list)


def compile_graph(declared: Declared) -> GraphPlan:
    """Return the plan.

    Raises:
        GraphInvalid: with one line for each thing that is wrong.
    """
    return _Compiler(declared).compile()


class _Compiler:
    """Collects problems while it turns the parts of a graph into the parts of a plan."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.problems: list[str] = []
        self.names = Names()

    def problem(self, place: str, text: str) -> None:
        """Note one line."""
        where = f", {place}" if place else ""
        self.problems.append(f"graph {self.declared.name!r}{where}: {text}")

    def compile(self) -> GraphPlan:
        """Return the plan, or raise with every problem."""
        self._check_settings()
        shape = self._shape()
        self._name_nodes()
        nodes = self._nodes()
        edges = self._edges()
        branches = self._branches()
        self._check_start(edges, branches)
        self._check_reachable(nodes, edges, branches)
        migrations = self._migrations(shape)
        if self.problems or shape is None:
            raise GraphInvalid(
                "\n".join(self.problems), graph=self.declared.name, problems=self.problems
            )
        plan = self._plan(shape, nodes, edges, branches)
        return structs.replace(plan, migrations=migrations)

    def _migrations(self, shape: StateShape | None) -> dict[int, Migration]:
        migrations, problems = read_migrations(
            self.declared.migrations,
            self.declared.version,
            nodes=self.names.known,
            fields=None if shape is None else {each.name for each in shape.fields},
        )
        for place, text in problems:
            self.problem(place, text)
        return migrations

    def _check_settings(self) -> None:
        declared = self.declared
        if not is_name(declared.name):
            self.problem("name", f"{declared.name!r} can't name a graph; {NAME_RULE}")
        for setting in ("version", "step_limit"):
            value = getattr(declared, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self.problem(setting, f"{value!r} is not a whole number from 1; give one")
        if declared.checkpoints not in list(Checkpoints):
            known = " or ".join(repr(each.value) for each in Checkpoints)
            self.problem("checkpoints", f"{declared.checkpoints!r} is not {known}")
            return
        phases = [node.name for node in declared.nodes if node.phase]
        if phases and declared.checkpoints == Checkpoints.EVERY_STEP:
            text = f"phase=True of node {phases[0]!r} means nothing: every step is a checkpoint"
            self.problem("checkpoints", f"{text}; give the graph checkpoints='phases'")

    def _shape(self) -> StateShape | None:
        try:
            return read_shape(self.declared.state_type, self.declared.namespace)
        except ShapeProblems as error:
            for line in error.lines:
                self.problem("state", line)
        except NameError as error:
            self.problem(
                "state",
                f"an annotation can't be resolved ({error}); define that class at module level, "
                "or before the Graph is made",
            )
        except TypeError as error:
            self.problem("state", f"an annotation can't be read ({error}); correct it")
        return None

    def _name_nodes(self) -> None:
        for node in self.declared.nodes:
            place = f"node {node.name!r}"
            if node.name in (START, END):
                self.problem(place, "the name is reserved; give another with name=")
            elif not is_name(node.name):
                self.problem(place, f"can't be a name; {NAME_RULE}; give one with name=")
            if node.name in self.names.known:
                self.problem(place, "declared twice; give one of them another name with name=")
            self.names.add(node.name, node.thing)

    def _nodes(self) -> dict[str, NodePlan]:
        plans = {}
        for node in self.declared.nodes:
            self._check_node_settings(node)
            goto = self._goto(node)
            if node.compile_subgraph is None:
                plan = self._function_node(node, goto)
            else:
                plan = self._subgraph_node(node, node.compile_subgraph, goto)
            if plan is not None:
                plans[node.name] = plan
        return plans

    def _check_node_settings(self, node: NodeDeclared) -> None:
        place = f"node {node.name!r}"
        if node.retry is not None and not isinstance(node.retry, Retry):
            self.problem(place, f"retry={node.retry!r} is not a Retry; write Retry(max_attempts=3)")
        if type(node.phase) is not bool:
            self.problem(place, f"phase={node.phase!r} must be True or False")
        if node.timeout_s is not None and not is_duration(node.timeout_s):
            self.problem(place, f"timeout_s={node.timeout_s!r} must be seconds above 0, or None")

    def _goto(self, node: NodeDeclared) -> frozenset[str] | None:
        if node.goto is None:
            return None
        return self._targets(node.goto, f"goto= of node {node.name!r}")

    def _targets(self, targets: tuple[Any, ...], place: str) -> frozenset[str]:
        found = set()
        for target in targets:
            try:
                name = self.names.name_of(target)
            except TargetProblem as problem:
                self.problem(place, str(problem))
                continue
            if name == START:
                self.problem(place, "START is no target; name the first node instead")
            else:
                found.add(name)
        return frozenset(found)

    def _function_node(self, node: NodeDeclared, goto: frozenset[str] | None) -> NodePlan | None:
        place = f"node {node.name!r}"
        if isinstance(node.thing, Effect):
            self.problem(place, "an effect is no node; call it in one: await ctx.call(effect, ...)")
            return None
        if is_generator_callable(node.thing):
            self.problem(place, "it is a generator; return an update, and stream with ctx.emit")
            return None
        try:
            call, takes_context = adapt(node.thing, "state")
        except SignatureProblem as problem:
            self.problem(place, str(problem))
            return None
        return NodePlan(
            name=node.name,
            call=call,
            is_async=is_async_callable(node.thing),
            takes_context=takes_context,
            retry=node.retry,
            timeout_s=node.timeout_s,
            goto=goto,
            is_phase=bool(node.phase),
        )

    def _subgraph_node(
        self,
        node: NodeDeclared,
        compile_subgraph: Callable[[], GraphPlan],
        goto: frozenset[str] | None,
    ) -> NodePlan | None:
        place = f"node {node.name!r}"
        if goto is not None:
            self.problem(place, "a graph gives no Goto; leave goto= out and add an edge")
        try:
            plan = compile_subgraph()
        except GraphInvalid as error:
            lines = error.fields.get("problems")
            for line in lines if isinstance(lines, list) else [str(error)]:
                self.problem(place, str(line))
            return None
        return NodePlan(
            name=node.name,
            call=None,
            is_async=True,
            takes_context=False,
            subgraph=plan,
            retry=node.retry,
            timeout_s=node.timeout_s,
        )

    def _source(self, source: Any, place: str) -> str | None:
        try:
            name = self.names.name_of(source)
        except TargetProblem as problem:
            self.problem(place, str(problem))
            return None
        if name == END:
            self.problem(place, "nothing follows END; start the edge at a node or START")
            return None
        return name

    def _edges(self) -> dict[str, tuple[str, ...]]:
        edges: dict[str, tuple[str, ...]] = {}
        for source, target in self.declared.edges:
            place = f"edge {_text(source)} -> {_text(target)}"
            if isinstance(source, list | tuple) or isinstance(target, list | tuple):
                self.problem(place, "an edge has one source and one target; add one edge for each")
                continue
            name = self._source(source, place)
            for found in self._targets((target,), place):
                if name is not None and found not in edges.get(name, ()):
                    edges[name] = (*edges.get(name, ()), found)
        return edges

    def _branches(self) -> dict[str, tuple[Branch, ...]]:
        branches: dict[str, tuple[Branch, ...]] = {}
        for declared in self.declared.branches:
            place = f"branch of {_text(declared.source)}"
            source = self._source(declared.source, place)
            if declared.targets is None:
                targets = frozenset(self.names.known | {END})
            else:
                targets = self._targets(declared.targets, place)
                if not declared.targets:
                    self.problem(place, "targets is empty; name what the router may return")
            router = self._router(declared.router, place)
            if source is None or router is None:
                continue
            branch = self._branch(source, router, declared, targets)
            branches[source] = (*branches.get(source, ()), branch)
        return branches

    def _router(self, router: Any, place: str) -> Callable[[Any], Any] | None:
        try:
            call, takes_context = adapt(router, "state")
        except SignatureProblem as problem:
            self.problem(place, f"router {_text(router)}: {problem}")
            return None
        if takes_context or is_generator_callable(router):
            self.problem(
                place, f"router {_text(router)}: it must take the state and return targets"
            )
            return None
        return call

    def _branch(
        self,
        source: str,
        router: Callable[[Any], Any],
        declared: BranchDeclared,
        targets: frozenset[str],
    ) -> Branch:
        is_async = is_async_callable(declared.router)
        normalise = make_normalise(
            self.declared.name, self.names, source, targets, f"branch {_text(declared.router)}"
        )
        route = _async_route(router, normalise) if is_async else _plain_route(router, normalise)
        return Branch(source=source, route=route, is_async=is_async, targets=targets)

    def _check_start(
        self, edges: Mapping[str, tuple[str, ...]], branches: Mapping[str, tuple[Branch, ...]]
    ) -> None:
        if not self.declared.nodes:
            self.problem("", "it has no nodes; add one with @graph.node")
        elif START not in edges and START not in branches and not self._has_start_problem():
            self.problem(START, "nothing starts; add graph.edge(START, first_node)")

    def _has_start_problem(self) -> bool:
        """Whether an edge from START was tried, so that its own line is there already."""
        sources = [edge[0] for edge in self.declared.edges]
        sources.extend(branch.source for branch in self.declared.branches)
        return any(isinstance(source, str) and source == START for source in sources)

    def _check_reachable(
        self,
        nodes: Mapping[str, NodePlan],
        edges: Mapping[str, tuple[str, ...]],
        branches: Mapping[str, tuple[Branch, ...]],
    ) -> None:
        reached: set[str] = set()
        waiting = [START] if START in edges or START in branches else []
        if not waiting:
            return  # that nothing starts has a line of its own
        free = {node.name for node in self.declared.nodes if _may_go_anywhere(node)}
        while waiting:
            place = waiting.pop()
            if place in reached:
                continue
            reached.add(place)
            if place in free:
                return
            waiting.extend(_followers(place, nodes, edges, branches))
        for name in sorted(self.names.known - reached):
            self.problem(
                f"node {name!r}",
                f"can't be reached from START; add an edge or a branch target to it, or "
                f"goto=[{name!r}] at the node that returns a Goto to it",
            )

    def _plan(
        self,
        shape: StateShape,
        nodes: Mapping[str, NodePlan],
        edges: Mapping[str, tuple[str, ...]],
        branches: Mapping[str, tuple[Branch, ...]],
    ) -> GraphPlan:
        declared = self.declared
        channels = make_channels(declared.name, shape)
        return GraphPlan(
            name=declared.name,
            version=declared.version,
            state_type=declared.state_type,
            channels=channels,
            nodes=nodes,
            edges=edges,
            branches=branches,
            build_state=shape.build,
            read_input=make_read_input(declared.name, declared.state_type, shape, channels),
            resolve=self._resolve(nodes),
            step_limit=declared.step_limit,
            checkpoints=Checkpoints(declared.checkpoints),
            compensates_on_failure=declared.compensate_on_failure,
            types=self._types(channels, nodes),
        )

    def _resolve(self, nodes: Mapping[str, NodePlan]) -> Callable[..., tuple[str | Send, ...]]:
        names, graph = self.names, self.declared.name
        by_source = {
            name: make_normalise(graph, names, name, node.goto, "Goto")
            for name, node in nodes.items()
        }
        unsourced = make_normalise(graph, names, "", None, "Goto")

        def resolve(target: Any, source: str | None = None, /) -> tuple[str | Send, ...]:
            return by_source.get(source or "", unsourced)(target)

        return resolve

    def _types(
        self, channels: Mapping[str, Channel], nodes: Mapping[str, NodePlan]
    ) -> tuple[type, ...]:
        declared = self.declared
        annotations = [declared.state_type, *(each.annotation for each in channels.values())]
        for node in declared.nodes:
            plan = nodes[node.name]
            if plan.subgraph is not None:
                annotations.extend(plan.subgraph.types)
            else:
                annotations.extend(_argument_annotations(node.thing, declared.namespace))
        return collect_types(annotations, declared.namespace)


def _may_go_anywhere(node: NodeDeclared) -> bool:
    return node.compile_subgraph is None and node.goto is None and goes_anywhere(node.thing)


def _followers(
    place: str,
    nodes: Mapping[str, NodePlan],
    edges: Mapping[str, tuple[str, ...]],
    branches: Mapping[str, tuple[Branch, ...]],
) -> Iterator[str]:
    yield from edges.get(place, ())
    for branch in branches.get(place, ()):
        yield from branch.targets
    if place in nodes:
        yield from nodes[place].goto or ()


def _argument_annotations(function: Any, namespace: Mapping[str, Any]) -> list[Any]:
    """Return the annotation of the first argument: a Send stores a value of it."""
    hints = hints_of(function, namespace)
    parameters = signature_of(function).parameters.values()
    first = next((each for each in parameters if not is_context(each)), None)
    return [hints[first.name]] if first is not None and first.name in hints else []


def _plain_route(
    router: Callable[[Any], Any], normalise: Callable[[Any], tuple[str | Send, ...]]
) -> Callable[[Any], Any]:
    return lambda state: normalise(router(state))


def _async_route(
    router: Callable[[Any], Any], normalise: Callable[[Any], tuple[str | Send, ...]]
) -> Callable[[Any], Any]:
    async def route(state: Any) -> tuple[str | Send, ...]:
        return normalise(await router(state))

    return route


def _text(thing: Any) -> str:
    if isinstance(thing, str):
        return {START: "START", END: "END"}.get(thing, repr(thing))
    if isinstance(thing, functools.partial):
        return _text(thing.func)
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None)
    return repr(name) if isinstance(name, str) else type(thing).__name__
