"""The history of a simulation: every event, its digest, and the newest ones for people."""

import hashlib
from collections import Counter, deque

from perdure.testing.clock import VirtualClock
from perdure.testing.simulator.limits import EVENTS_SHOWN


class Trace:
    """Takes events in, in order."""

    def __init__(self, clock: VirtualClock, shown: int = EVENTS_SHOWN) -> None:
        """Start empty; the newest `shown` events are kept for people."""
        self._clock = clock
        self._digest = hashlib.sha256()
        self.newest: deque[str] = deque(maxlen=shown)
        self.count = 0
        self.faults: Counter[str] = Counter()

    def add(self, who: str, what: str) -> None:
        """Take an event in."""
        self.count += 1
        line = f"{self.count:6} {self._clock.monotonic_s():10.4f} {who:8} {what}"
        self._digest.update(line.encode())
        self.newest.append(line)

    def fault(self, who: str, kind: str, detail: str = "") -> None:
        """Take a fault in."""
        self.faults[kind] += 1
        self.add(who, f"! {kind} {detail}".rstrip())

    def digest(self) -> str:
        """Return the digest of the whole history."""
        return self._digest.hexdigest()
