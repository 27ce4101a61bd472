"""A durable runtime for long-running agents.

This module is the facade: what is listed in `__all__` is public, everything else may change. It
imports no driver and starts nothing.
"""

from importlib.metadata import PackageNotFoundError, version

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

try:
    __version__ = version("perdure")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

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
