"""The graph as people write it."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, overload

from perdure.core.plan import Checkpoints, GraphPlan
from perdure.core.retry import Retry
from perdure.errors import GraphInvalid
from perdure.graph._compile import BranchDeclared, Declared, NodeDeclared, compile_graph
from perdure.graph._migrations import MigrationDeclared
from perdure.graph._signature import caller_names, default_name, is_resolved

StateT = TypeVar("StateT")
NodeT = TypeVar("NodeT")
UpgradeT = TypeVar("UpgradeT", bound=Callable[[dict[str, Any]], dict[str, Any]])


_DEFINED: "weakref.WeakValueDictionary[tuple[str, int], Graph[Any]]" = weakref.WeakValueDictionary()


def graphs_defined() -> set[tuple[str, int]]:
    """Return name and version of every graph of this process."""
    return set(_DEFINED)


def graph_defined(name: str, version: int) -> "Graph[Any] | None":
    """Return the newest graph of this process with the name and version, or None.

    For children of runs that another process spawned: their graph is imported with the parent's.
    """
    return _DEFINED.get((name, version))


class Graph(Generic[StateT]):
    """A typed graph: nodes that change a state, and the edges between them.

    Nothing is checked while it is being declared; `compile` checks everything at once, and the
    runtime calls it. Names, not functions, are what is stored: a graph can change its code between
    two runs of a process as long as the names stay.
    """

    def __init__(
        self,
        state_type: type[StateT],
        *,
        name: str,
        version: int = 1,
        step_limit: int = 1000,
        compensate_on_failure: bool = False,
        checkpoints: Checkpoints | str = Checkpoints.EVERY_STEP,
    ) -> None:
        """Begin a graph without nodes.

        Args:
            state_type: a dataclass, TypedDict, pydantic model or msgspec.Struct; each field is a
                channel, merged by the reducer in its `Annotated`, else replaced.
            name: what its runs are stored under.
            version: from 1; raise it when running runs can't go on with the changed graph.
            step_limit: most steps of one run.
            compensate_on_failure: whether a failing run compensates its confirmed effects.
            checkpoints: `every_step`, or `phases`: a step with one node writes no state, but after
                nodes that were added with `phase=True`, at the end, before parallel nodes and
                subgraphs, and where the run waits, fails or is handed over. Effects are journaled
                always. Whoever takes a run over executes the nodes since the last checkpoint again.
        """
        self._declared = Declared(
            name=name,
            version=version,
            state_type=state_type,
            namespace={} if is_resolved(state_type) else caller_names(),
            step_limit=step_limit,
            compensate_on_failure=compensate_on_failure,
            checkpoints=checkpoints,
        )
        self._plan: GraphPlan | None = None
        self._is_compiling = False
        _DEFINED[name, version] = self

    @property
    def name(self) -> str:
        """What its runs are stored under."""
        return self._declared.name

    @property
    def version(self) -> int:
        """The version that its runs are pinned to."""
        return self._declared.version

    @property
    def state_type(self) -> type[StateT]:
        """The class of the state."""
        found: type[StateT] = self._declared.state_type
        return found

    def __repr__(self) -> str:
        return f"Graph(name={self.name!r}, version={self.version!r})"

    @overload
    def node(
        self,
        function: NodeT,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        goto: Iterable[Any] | None = None,
        phase: bool = False,
    ) -> NodeT: ...

    @overload
    def node(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        goto: Iterable[Any] | None = None,
        phase: bool = False,
    ) -> Callable[[NodeT], NodeT]: ...

    def node(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        goto: Iterable[Any] | None = None,
        phase: bool = False,
    ) -> Any:
        """Add a node, as `@graph.node`, `@graph.node(...)` or `graph.node(function_or_graph)`.

        Args:
            function: takes (state), (state, ctx), (ctx) or nothing, async or plain, and returns an
                update (a dict of changed fields), a `Goto`, or None; or another Graph. As the
                target of a `Send` it gets the Send's argument in place of the state.
            name: what the node is stored under; by default the name of the function or graph.
            retry: how often it is tried again after an exception; None: once.
            timeout_s: longest duration of one attempt in seconds, waits not counted.
            goto: every node (or END) that its `Goto`s may name. Left out, they may name any.
            phase: whether a step of it is a checkpoint where the graph's are at phases.

        Returns:
            The function or graph itself, so that edges can name it.
        """
        self._refuse_change(f"node {name or function!r}")
        goto_targets = None if goto is None else _several(goto)

        def add(thing: Any) -> Any:
            self._refuse_change(f"node {name or thing!r}")
            is_graph = isinstance(thing, Graph)
            chosen = name if name is not None else thing.name if is_graph else default_name(thing)
            self._declared.nodes.append(
                NodeDeclared(
                    name=chosen,
                    thing=thing,
                    compile_subgraph=thing.compile if is_graph else None,
                    retry=retry,
                    timeout_s=timeout_s,
                    goto=goto_targets,
                    phase=phase,
                )
            )
            return thing

        return add if function is None else add(function)

    def edge(self, source: Any, target: Any) -> None:
        """Go from one node to another whenever the first has finished.

        Args:
            source: a node (its function, graph or name), or START.
            target: a node, or END. Several edges from one source run their targets in parallel.
        """
        self._refuse_change("edge")
        self._declared.edges.append((source, target))

    def branch(
        self, source: Any, router: Callable[..., Any], targets: Iterable[Any] | None = None
    ) -> None:
        """Go from a node to where a function of the state says.

        Args:
            source: a node (its function, graph or name), or START.
            router: (state) -> a node, END, `Send(node, argument)`, or a list of these; plain or
                async. It must depend on nothing but the state. An empty list ends the path.
            targets: every node (or END) that it may give; None: all of them.
        """
        self._refuse_change("branch")
        self._declared.branches.append(
            BranchDeclared(
                source=source,
                router=router,
                targets=None if targets is None else _several(targets),
            )
        )

    def migration(
        self,
        from_version: int,
        to_version: int,
        *,
        nodes: Mapping[str, str | None] | None = None,
        fields: Mapping[str, str | None] | None = None,
    ) -> Callable[[UpgradeT], UpgradeT]:
        """Say how runs of an older version go on with a newer one, and threads with their state.

        As a decorator of `upgrade(state)`, or without a function where names are all that changed.
        Every migration must lead to this graph's version, by itself or by others: from 1 to 2 and
        from 2 to 3. What is wrong is told by `compile`.

        Args:
            from_version: version that wrote what is stored.
            to_version: the newer one that is made of it.
            nodes: name of a node before -> after; None: it is gone, and a run that stands at it
                needs a decision.
            fields: name of a field before -> after; None: it is dropped. Done before the function
                is called.

        Returns:
            The decorator. The function takes the state as a dict of its stored fields and returns
            the dict that the newer version takes. It is plain (not async), pure, quick, and has no
            ctx. A field that is absent from its result gets its default. Values of classes that
            are not there any more are dicts with the class's name under "$type".
        """
        self._refuse_change(f"migration {from_version} -> {to_version}")
        declared = MigrationDeclared(
            from_version=from_version,
            to_version=to_version,
            nodes=dict(nodes or {}),
            fields=dict(fields or {}),
        )
        self._declared.migrations.append(declared)

        def add(upgrade: UpgradeT) -> UpgradeT:
            self._refuse_change(f"migration {from_version} -> {to_version}")
            declared.functions.append(upgrade)
            return upgrade

        return add

    def compile(self) -> GraphPlan:
        """Return the valid plan of the graph, always the same one.

        Raises:
            GraphInvalid: with one line for each thing that is wrong, naming the place and what to
                do. The graph can still be completed and compiled again.
        """
        if self._plan is None:
            if self._is_compiling:
                msg = f"graph {self.name!r}: it contains itself; take it out, or loop with an edge"
                raise GraphInvalid(msg, graph=self.name)
            self._is_compiling = True
            try:
                self._plan = compile_graph(self._declared)
            finally:
                self._is_compiling = False
        return self._plan

    def _refuse_change(self, what: str) -> None:
        if self._plan is not None:
            msg = (
                f"graph {self.name!r}, {what}: it is compiled and can't change any more; declare "
                "everything before the runtime gets it"
            )
            raise GraphInvalid(msg, graph=self.name)


def _several(targets: Any) -> tuple[Any, ...]:
    """Return a tuple; one name alone counts as one target, not as its letters."""
    if isinstance(targets, str) or callable(targets) or isinstance(targets, Graph):
        return (targets,)
    return tuple(targets)
