"""Counts crash points over all processes of one scenario, and kills at the chosen one.

A point is a name and which time it is reached (`nth`, from 1). All processes share one log, so that
the nth time is the nth time anywhere; the file lock on it goes with the process, however it ends.
"""

import fcntl
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Point:
    """The nth time that a name is reached."""

    name: str
    nth: int

    def __str__(self) -> str:
        return f"{self.name}#{self.nth}"


class Injector:
    """A probe for `Services`, and for what the test's own code marks."""

    def __init__(
        self, log: Path, chosen: Point | None = None, *, number: int = signal.SIGKILL
    ) -> None:
        self._number = number
        self._chosen = chosen
        self._counts: Counter[str] = Counter()
        self._rest = b""
        self._offset = 0
        self._log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, name: str) -> None:
        """Be the probe: die here if this is the chosen point."""
        if self.is_chosen(name):
            # To this very thread: of a process, any other thread may be the first to stop.
            signal.pthread_kill(threading.get_ident(), self._number)

    def is_chosen(self, name: str) -> bool:
        """Count one arrival; return whether it is the chosen one."""
        fcntl.lockf(self._log, fcntl.LOCK_EX)
        try:
            os.write(self._log, name.encode() + b"\n")
            self._catch_up()
            chosen = self._chosen
            return chosen is not None and (name, self._counts[name]) == (chosen.name, chosen.nth)
        finally:
            fcntl.lockf(self._log, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        while block := os.pread(self._log, 1 << 16, self._offset):
            self._offset += len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            self._counts.update(line.decode() for line in lines)


def points_in(log: Path) -> list[Point]:
    """Return what a log holds, in order."""
    counts: Counter[str] = Counter()
    found = []
    for name in log.read_text(encoding="utf-8").split():
        counts[name] += 1
        found.append(Point(name, counts[name]))
    return found
