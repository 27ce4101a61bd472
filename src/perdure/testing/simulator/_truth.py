"""The store itself: a memory store whose rows the checker may look at."""

from perdure.clock import Services
from perdure.store._memory_tables import Tables
from perdure.store.memory import MemoryStore


class TruthStore(MemoryStore):
    """What is really stored."""

    def __init__(self, services: Services) -> None:
        """Start empty."""
        super().__init__("memory://", services)

    @property
    def tables(self) -> Tables:
        """The rows, to be read only."""
        return self._tables
