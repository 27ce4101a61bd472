"""A durable runtime for long-running agents.

This module is the facade: what is listed in `__all__` is public, everything else may change. It
imports no driver and starts nothing.
"""

from perdure.codec import register_type
from perdure.core.plan import END, START, Goto, Send
from perdure.core.retry import Retry
from perdure.engine import Answer, Child, Context, Event, Run, Runtime, WorkerSettings
from perdure.errors import (
    AlreadyAnswered,
    AskExpired,
    ChildFailed,
    EffectFailed,
    NeedsDecision,
    PerdureError,
    ReceiveTimedOut,
    Rejected,
    RunCancelled,
    RunFailed,
)
from perdure.graph import (
    Absent,
    Effect,
    Found,
    Graph,
    Limit,
    Request,
    Unknown,
    add,
    append,
    effect,
    merge,
    replace,
)
from perdure.model import EffectState, RunStatus

__version__ = "0.1.0"

__all__ = [
    "END",
    "START",
    "Absent",
    "AlreadyAnswered",
    "Answer",
    "AskExpired",
    "Child",
    "ChildFailed",
    "Context",
    "Effect",
    "EffectFailed",
    "EffectState",
    "Event",
    "Found",
    "Goto",
    "Graph",
    "Limit",
    "NeedsDecision",
    "PerdureError",
    "ReceiveTimedOut",
    "Rejected",
    "Request",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunStatus",
    "Runtime",
    "Send",
    "Unknown",
    "WorkerSettings",
    "__version__",
    "add",
    "append",
    "effect",
    "merge",
    "register_type",
    "replace",
]
