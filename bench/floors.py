"""The floors: what the machine itself takes for the least that could be done.

They use the driver, the page size and the settings of Perdure's SQLite store, and write a row of
the size of a small step. `delay_s` stands for a slow disk: a sleep after each commit, as the
store's `flush_delay_ms` does.
"""

import asyncio
import time
from pathlib import Path

import apsw

ROW_BYTES = 200
"""About what the record of a small step takes."""


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "FULL")
    db.execute("create table if not exists row (run text, seq integer, body blob, "
               "primary key (run, seq)) without rowid")  # fmt: skip
    return db


def commits(folder: Path, count: int, *, rows: int = 1, delay_s: float = 0.0) -> float:
    """Return the seconds that one commit of so many rows takes: the mean over `count` commits."""
    path = folder / f"floor-{rows}-{delay_s}.db"
    db = _open(path)
    try:
        first = db.execute("select coalesce(max(seq), 0) from row").get + 1
        body = b"x" * ROW_BYTES
        started_s = time.perf_counter()
        for commit in range(first, first + count):
            db.execute("begin immediate")
            db.executemany(
                "insert into row values (?, ?, ?)",
                [(f"run-{row:02d}", commit, body) for row in range(rows)],
            )
            db.execute("commit")
            if delay_s:
                time.sleep(delay_s)
        return (time.perf_counter() - started_s) / count
    finally:
        db.close()


async def plain_steps(count: int) -> float:
    """Return the seconds of a step that keeps nothing: await a function, merge, one turn."""
    state = {"left": count, "note": ""}

    async def step(now: dict[str, object]) -> dict[str, object]:
        return {"left": int(str(now["left"])) - 1, "note": "x" * 100}

    started_s = time.perf_counter()
    while int(str(state["left"])) > 0:
        state = {**state, **await step(state)}
        await asyncio.sleep(0)
    return (time.perf_counter() - started_s) / count
