"""The compiled form of a graph: what the engine runs. Built by `perdure.graph`, immutable.

Invariant: a plan is complete and valid when it exists; nothing in it is looked up by name at run
time without having been checked when it was built.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field

from perdure.core.retry import Retry
from perdure.model import WriteOp

START = "__start__"
"""Name of the place where a graph begins; the source of its first edges."""

END = "__end__"
"""Name of the place where a path through a graph ends."""


class Send(Struct, frozen=True):
    """One node execution with an argument of its own (fan-out).

    Attributes:
        node: name of the node; before `GraphPlan.resolve` also the node's function or graph.
        argument: passed to the node in place of the state. Must be storable.
    """

    node: Any
    argument: Any


class Goto(Struct, frozen=True):
    """An update together with where to go next, instead of the node's edges.

    Attributes:
        node: a node (its name, function or graph), `END`, a `Send`, or a list of these. Only
            `GraphPlan.resolve` turns it into names.
        update: changed fields, or None.
    """

    node: Any
    update: Mapping[str, Any] | None = None


class Resolve(Protocol):
    """Turns what a router or a `Goto` gives into names."""

    def __call__(self, target: Any, source: str | None = None, /) -> tuple[str | Send, ...]:
        """Return node names, `END` and `Send`s with a name, without repeated names.

        An empty list gives an empty tuple: this path ends here, as after a fan-out over nothing.

        Args:
            target: a node, `END`, a `Send`, or a list or tuple of these.
            source: the node that gave it, for the message; where that node declared `goto=[...]`
                the target must be one of those.

        Raises:
            GraphInvalid: not a node of the graph, or not declared; names graph, source and nodes.
        """
        ...


class Checkpoints(StrEnum):
    """After which steps of a graph the state is written."""

    EVERY_STEP = "every_step"
    PHASES = "phases"


class Channel(Struct, frozen=True, kw_only=True):
    """One field of the state.

    Attributes:
        op: how a node's value enters: REPLACE, APPEND (a list, extended by a list) or FOLD (by
            `reduce`).
        reduce: for FOLD: (old, new) -> merged; must not change its arguments. Called only where
            there is an old value; the first one stands as it is.
        annotation: the declared type, `Any` where unknown.
        default: makes the first value; None: the field is required in the input, unless
            `is_optional`.
        is_optional: whether the field may be absent from the state for good (`NotRequired` keys of
            a TypedDict).
        check: returns an incoming value as it is, or raises `UpdateInvalid` naming the field; a
            mapping declared as a class with fields is built. For APPEND it checks the list of new
            items. None: everything is accepted.
    """

    name: str
    op: WriteOp
    reduce: Callable[[Any, Any], Any] | None = None
    annotation: Any = Any
    default: Callable[[], Any] | None = None
    is_optional: bool = False
    check: Callable[[Any], Any] | None = None


class Branch(Struct, frozen=True, kw_only=True):
    """A conditional edge.

    Attributes:
        route: the router: (state) -> where to go, already normalised to a tuple of node names,
            `END` or `Send`, empty after a fan-out over nothing. Raises GraphInvalid for a target
            that was not declared. A coroutine function if `is_async`.
        targets: every name that it may give.
    """

    source: str
    route: Callable[[Any], Any]
    is_async: bool
    targets: frozenset[str]


class NodePlan(Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        call: takes (state) or (state, ctx) as `takes_context` says, whatever the user's function
            takes; None for a subgraph. In a fan-out the first argument is the Send's.
        is_async: whether `call` gives an awaitable; a plain function runs in an OS thread.
        subgraph: the plan of the graph that this node is, else None.
        retry: how often the node is tried again after an exception; None: once.
        timeout_s: longest duration of one attempt, waits not counted; None: no limit.
        goto: every name that its `Goto`s may give; None: not declared, so any node or `END`.
        is_phase: whether a step of it alone is a checkpoint where the graph's are at phases.
    """

    name: str
    call: Callable[..., Any] | None
    is_async: bool
    takes_context: bool
    subgraph: "GraphPlan | None" = None
    retry: Retry | None = None
    timeout_s: float | None = None
    goto: frozenset[str] | None = None
    is_phase: bool = False


class Migration(Struct, frozen=True, kw_only=True):
    """How what an older version of a graph stored becomes what a newer one goes on with.

    Attributes:
        upgrade: (state as a dict of its fields) -> the same as the newer version has it; plain and
            pure. None: the fields are renamed at most.
        nodes: name of a node before -> after; None: there is no such node any more. Others keep
            theirs.
        fields: the same for fields; done before `upgrade` is called.
    """

    from_version: int
    to_version: int
    upgrade: Callable[[dict[str, Any]], Any] | None = None
    nodes: Mapping[str, str | None] = field(default_factory=dict)
    fields: Mapping[str, str | None] = field(default_factory=dict)


class GraphPlan(Struct, frozen=True, kw_only=True):
    """A graph that can be run.

    Attributes:
        channels: by field name, in declaration order.
        edges: source (or START) -> targets (or END), unconditional.
        branches: source (or START) -> conditional edges.
        build_state: (values by field) -> the object that nodes get; a missing field gets its
            default.
        read_input: (what the user passed to `start`) -> values by field that were given: for a
            mapping its items, for a state object its fields that differ from their defaults (all
            fields if `is_first`), for None nothing. Called as read_input(input, is_first). The
            values have been checked; raises UpdateInvalid naming the field. On the first run it
            also gives the fields whose default may differ from call to call (an id, a time), so
            that they are stored once and not made anew by each `build_state`.
        resolve: what a router or a `Goto` gave -> names.
        step_limit: most steps of one run.
        is_function: whether it is one plain function run durably; its result is channel `result`.
        compensates_on_failure: whether a failing run compensates its confirmed effects.
        types: classes that values of this graph may be of, for the codec to register.
        migrations: version that each leads away from -> migration; every one leads to `version`,
            by itself or by others.
        checkpoints: after which steps the state is written.
    """

    name: str
    version: int
    state_type: Any
    channels: Mapping[str, Channel]
    nodes: Mapping[str, NodePlan]
    edges: Mapping[str, tuple[str, ...]]
    branches: Mapping[str, tuple[Branch, ...]]
    build_state: Callable[[Mapping[str, Any]], Any]
    read_input: Callable[[Any, bool], dict[str, Any]]
    resolve: Resolve
    step_limit: int = 1000
    is_function: bool = False
    compensates_on_failure: bool = False
    types: tuple[type, ...] = field(default=())
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    checkpoints: Checkpoints = Checkpoints.EVERY_STEP
