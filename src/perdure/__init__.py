"""A durable runtime for long-running agents.

This module is the facade: what is listed in `__all__` is public, everything else may change. It
imports no driver and starts nothing. A name is imported when it is asked for first (PEP 562), so
that a command that needs one room does not pay for all of them; decision 0032.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.codec import register_langchain, register_type
    from perdure.core.plan import END, START, Goto, Send
    from perdure.core.retry import Retry
    from perdure.engine import (
        Answer,
        ChildRun,
        Context,
        Event,
        Run,
        Runtime,
        Schedule,
        WorkerSettings,
        WorkLimit,
    )
    from perdure.errors import (
        AlreadyAnswered,
        AlreadyDecided,
        AskExpired,
        ChildFailed,
        EffectFailed,
        EffectKeyReused,
        EffectTimedOut,
        GraphInvalid,
        NeedsDecision,
        NodeTimedOut,
        NotFound,
        PerdureError,
        ReceiveTimedOut,
        Rejected,
        ResultTimedOut,
        RunCancelled,
        RunFailed,
        RunFinal,
        StartKeyReused,
        StoreError,
        ThreadBusy,
        UpdateInvalid,
        UsageError,
        ValueUnserializable,
        VersionMismatch,
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
    from perdure.model import EffectState, Missed, RunStatus

__version__ = "0.1.0"

__all__ = [
    "END",
    "START",
    "Absent",
    "AlreadyAnswered",
    "AlreadyDecided",
    "Answer",
    "AskExpired",
    "ChildFailed",
    "ChildRun",
    "Context",
    "Effect",
    "EffectFailed",
    "EffectKeyReused",
    "EffectState",
    "EffectTimedOut",
    "Event",
    "Found",
    "Goto",
    "Graph",
    "GraphInvalid",
    "Limit",
    "Missed",
    "NeedsDecision",
    "NodeTimedOut",
    "NotFound",
    "PerdureError",
    "ReceiveTimedOut",
    "Rejected",
    "Request",
    "ResultTimedOut",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunFinal",
    "RunStatus",
    "Runtime",
    "Schedule",
    "Send",
    "StartKeyReused",
    "StoreError",
    "ThreadBusy",
    "Unknown",
    "UpdateInvalid",
    "UsageError",
    "ValueUnserializable",
    "VersionMismatch",
    "WorkLimit",
    "WorkerSettings",
    "__version__",
    "add",
    "append",
    "effect",
    "merge",
    "register_langchain",
    "register_type",
    "replace",
]

_ROOMS: dict[str, tuple[str, ...]] = {
    "perdure.codec": (
        "register_langchain",
        "register_type",
    ),
    "perdure.core.plan": (
        "END",
        "START",
        "Goto",
        "Send",
    ),
    "perdure.core.retry": ("Retry",),
    "perdure.engine": (
        "Answer",
        "ChildRun",
        "Context",
        "Event",
        "Run",
        "Runtime",
        "Schedule",
        "WorkerSettings",
        "WorkLimit",
    ),
    "perdure.errors": (
        "AlreadyAnswered",
        "AlreadyDecided",
        "AskExpired",
        "ChildFailed",
        "EffectFailed",
        "EffectKeyReused",
        "EffectTimedOut",
        "GraphInvalid",
        "NeedsDecision",
        "NodeTimedOut",
        "NotFound",
        "PerdureError",
        "ReceiveTimedOut",
        "Rejected",
        "ResultTimedOut",
        "RunCancelled",
        "RunFailed",
        "RunFinal",
        "StartKeyReused",
        "StoreError",
        "ThreadBusy",
        "UpdateInvalid",
        "UsageError",
        "ValueUnserializable",
        "VersionMismatch",
    ),
    "perdure.graph": (
        "Absent",
        "Effect",
        "Found",
        "Graph",
        "Limit",
        "Request",
        "Unknown",
        "add",
        "append",
        "effect",
        "merge",
        "replace",
    ),
    "perdure.model": (
        "EffectState",
        "Missed",
        "RunStatus",
    ),
}
"""Where each name comes from, as the imports above say to type checkers."""

_PLACES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name where it is, and keep it."""
    room = _PLACES.get(name)
    if room is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found: object = getattr(importlib.import_module(room), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List what is public, and what a module has."""
    return sorted({*globals(), *__all__})
