"""A durable runtime for long-running agents.

This module is the facade: what is listed in `__all__` is public, everything else may change. It
imports no driver and starts nothing.
"""

from perdure.core.plan import END, START, Goto, Send
from perdure.core.retry import Retry
from perdure.errors import (
    AskExpired,
    NeedsDecision,
    PerdureError,
    Rejected,
    RunCancelled,
    RunFailed,
)

__version__ = "0.1.0"

__all__ = [
    "END",
    "START",
    "AskExpired",
    "Goto",
    "NeedsDecision",
    "PerdureError",
    "Rejected",
    "Retry",
    "RunCancelled",
    "RunFailed",
    "Send",
    "__version__",
]
