"""Opens a store's database beside the program that has it open."""

from pathlib import Path

import apsw

WAITS_MS = 60_000


def beside(path: str | Path) -> apsw.Connection:
    """Return a connection that waits for its turn, as a worker may be writing just now."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(WAITS_MS)
    return db
