"""Drives the core over a store: runs, workers, recovery, waits, effects; what users hold."""

from perdure.engine.branches import ForkPreview, RollbackPreview, RolledBack
from perdure.engine.compare import Comparison, Moment
from perdure.engine.context import ChildRun, Context
from perdure.engine.costs import CheckpointCost
from perdure.engine.divergence import Divergence, DivergenceKind, Replay
from perdure.engine.events import EVENT_KINDS, Event
from perdure.engine.orders import Schedule, WorkLimit
from perdure.engine.ports import Answer
from perdure.engine.runtime import Run, Runtime
from perdure.engine.tree import ThreadTree
from perdure.engine.views import Ask, Checkpoint, LedgerEntry
from perdure.engine.worker import WorkerSettings

__all__ = [
    "EVENT_KINDS",
    "Answer",
    "Ask",
    "Checkpoint",
    "CheckpointCost",
    "ChildRun",
    "Comparison",
    "Context",
    "Divergence",
    "DivergenceKind",
    "Event",
    "ForkPreview",
    "LedgerEntry",
    "Moment",
    "Replay",
    "RollbackPreview",
    "RolledBack",
    "Run",
    "Runtime",
    "Schedule",
    "ThreadTree",
    "WorkLimit",
    "WorkerSettings",
]
