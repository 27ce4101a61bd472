"""Protocols of time, chance and identity, and the bundle that the engine is given."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Probe = Callable[[str], None]
"""Called with the name of a crash point each time one is reached; does nothing in production.

Fault tests put a function here that kills the process at a chosen point.
"""


Entropy = Callable[[int], bytes]
"""Returns that many bytes which nobody can guess: for keys and nonces."""


class Clock(Protocol):
    """A source of time and of sleep."""

    def now_us(self) -> int:
        """Return the wall-clock time in microseconds since the epoch (UTC). May jump."""

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards; the origin means nothing."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds (0: after one turn of the event loop). Cancel-safe."""


class Rng(Protocol):
    """A source of chance."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float between low and high, evenly distributed."""


class IdSource(Protocol):
    """A source of identifiers that are never repeated."""

    def new(self, prefix: str, at_us: int) -> str:
        """Return `prefix_...`: 26 characters that sort by `at_us`, unique across processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the engine may ask of the world besides its store."""

    clock: Clock
    rng: Rng
    ids: IdSource
    probe: Probe
    entropy: Entropy = os.urandom
