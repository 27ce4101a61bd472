"""What tests of Perdure, and of what is built on it, need: virtual time and stand-ins.

Nothing in Perdure itself imports this room.
"""

from perdure.testing.clock import CountingIds, SeededRng, VirtualClock, virtual_services

__all__ = ["CountingIds", "SeededRng", "VirtualClock", "virtual_services"]
