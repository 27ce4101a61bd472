"""The compiled form of a graph: what the engine runs. Built by `perdure.graph`, immutable.

Invariant: a plan is complete and valid when it exists; nothing in it is looked up by name at run
time without having been checked when it was built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core.retry import Retry
from perdure.model import WriteOp

START = "__start__"
"""Name of the place where a graph begins; the source of its first edges."""

END = "__end__"
"""Name of the place where a path through a graph ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One node execution with an argument of its own (fan-out).

    Attributes:
        node: name of the node.
        argument: passed to the node in place of the state. Must be storable.
    """

    node: str
    argument: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goto:
    """An update together with where to go next, instead of the node's edges.

    Attributes:
        targets: names of nodes, `END`, or `Send`s; at least one.
        update: changed fields, or None.
    """

    targets: tuple[str | Send, ...]
    update: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One field of the state.

    Attributes:
        op: how a node's value enters: REPLACE, APPEND (a list, extended by a list) or FOLD (by
            `reduce`).
        reduce: for FOLD: (old, new) -> merged; must not change its arguments. `is_missing` values
            never reach it.
        annotation: the declared type, `Any` where unknown.
        default: makes the first value; None: the field is required in the input.
        check: check and convert an incoming value to the annotation, raising `UpdateInvalid` naming
            the field; for APPEND it checks the list of new items. None: no check.
    """

    name: str
    op: WriteOp
    reduce: Callable[[Any, Any], Any] | None = None
    annotation: Any = Any
    default: Callable[[], Any] | None = None
    check: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A conditional edge.

    Attributes:
        route: the router: (state) -> where to go, already normalised to a tuple of node names,
            `END` or `Send`; raises GraphInvalid for a target that was not declared. May be a
            coroutine function: then `is_async`.
        targets: every name that it may give.
    """

    source: str
    route: Callable[[Any], Any]
    is_async: bool
    targets: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node.

    Attributes:
        call: the user's function, taking (state) or (state, ctx) as `takes_context` says; None for
            a subgraph.
        is_async: whether `call` gives an awaitable; a plain function runs in an OS thread.
        subgraph: the plan of the graph that this node is, else None.
        retry: how often the node is tried again after an exception; None: once.
        timeout_s: longest duration of one attempt, waits not counted; None: no limit.
    """

    name: str
    call: Callable[..., Any] | None
    is_async: bool
    takes_context: bool
    subgraph: "GraphPlan | None" = None
    retry: Retry | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """A graph that can be run.

    Attributes:
        channels: by field name, in declaration order.
        edges: source (or START) -> targets (or END), unconditional.
        branches: source (or START) -> conditional edges.
        build_state: (values by field) -> the object that nodes get; a missing field gets its
            default.
        read_input: (what the user passed to `start`) -> values by field that were given: for a
            mapping its items, for a state object its fields that differ from their defaults (all
            fields if `is_first`). Called as read_input(input, is_first). Raises UpdateInvalid
            naming the field.
        step_limit: most steps of one run.
        is_function: whether it is one plain async function run durably (its result is channel
            `result`).
        compensates_on_failure: whether a failing run compensates its confirmed effects.
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
    step_limit: int = 1000
    is_function: bool = False
    compensates_on_failure: bool = False
    types: tuple[type, ...] = field(default=())
