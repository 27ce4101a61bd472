"""The floors: what the machine itself takes for the least that could be done.

They use the driver and the settings of Perdure's stores, and write a row of the size of a small
step. `delay_ms` stands for a slow disk: with SQLite a sleep after each commit, with PostgreSQL the
server's `commit_delay`, as the stores' `flush_delay_ms` does.
"""

import asyncio
import time
from pathlib import Path

import apsw
import psycopg

ROW_BYTES = 200
"""About what the record of a small step takes."""


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "FULL")
    db.execute("create table if not exists row (run text, seq integer, body blob, "
               "primary key (run, seq)) without rowid")  # fmt: skip
    return db


def sqlite_commits(folder: Path, count: int, *, rows: int = 1, delay_ms: float = 0.0) -> float:
    """Return the seconds that one commit of so many rows takes: the mean over `count` commits."""
    path = folder / f"floor-{rows}-{delay_ms}.db"
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
            if delay_ms:
                time.sleep(delay_ms / 1000)
        return (time.perf_counter() - started_s) / count
    finally:
        db.close()


def postgres_commits(dsn: str, count: int, *, rows: int = 1, delay_ms: float = 0.0) -> float:
    """Return the same with PostgreSQL: a prepared statement and a round trip for each commit."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("SET synchronous_commit = on")
        if delay_ms:
            db.execute("SELECT set_config('commit_delay', %s, false)", (str(int(delay_ms * 1000)),))
            db.execute("SET commit_siblings = 0")
        db.execute("CREATE TABLE IF NOT EXISTS floor (run text, seq bigint, body bytea, "
                   "PRIMARY KEY (run, seq))")  # fmt: skip
        found = db.execute("SELECT coalesce(max(seq), 0) FROM floor").fetchone()
        first = 1 + int(found[0] if found else 0)
        runs, bodies = [f"run-{row:02d}" for row in range(rows)], [b"x" * ROW_BYTES] * rows
        insert = (
            "INSERT INTO floor SELECT r, %s, b FROM unnest(%b::text[], %b::bytea[]) AS x(r, b)"
            if rows > 1
            else "INSERT INTO floor (seq, run, body) VALUES (%s, %b, %b)"
        )
        what = (runs, bodies) if rows > 1 else (runs[0], bodies[0])
        started_s = time.perf_counter()
        for commit in range(first, first + count):
            db.execute(insert, (commit, *what), prepare=True)
        return (time.perf_counter() - started_s) / count


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
