"""The graph as people write it, with its effects and reducers; compiled to a `GraphPlan`."""

from perdure.core.plan import END, START, Goto, GraphPlan, Send
from perdure.core.retry import Retry
from perdure.graph._builder import Graph, graph_defined, graphs_defined
from perdure.graph._function import FunctionState, function_graph
from perdure.graph._types import collect_types
from perdure.graph.effects import (
    RETRY_NONE,
    RETRY_RESENDABLE,
    Absent,
    Effect,
    Found,
    Limit,
    Request,
    Unknown,
    as_effect,
    effect,
    effect_named,
)
from perdure.graph.reducers import add, append, merge, replace
from perdure.model import EffectKind

__all__ = [
    "END",
    "RETRY_NONE",
    "RETRY_RESENDABLE",
    "START",
    "Absent",
    "Effect",
    "EffectKind",
    "Found",
    "FunctionState",
    "Goto",
    "Graph",
    "GraphPlan",
    "Limit",
    "Request",
    "Retry",
    "Send",
    "Unknown",
    "add",
    "append",
    "as_effect",
    "collect_types",
    "effect",
    "effect_named",
    "function_graph",
    "graph_defined",
    "graphs_defined",
    "merge",
    "replace",
]
