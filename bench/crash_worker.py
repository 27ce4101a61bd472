"""A worker that is killed: `python -m bench.crash_worker URL NOTES [TTL]`.

It notes "opened" before it opens the store, "ready" when it works, and "begun" when the node
begins, each with its process id and the monotonic clock, which all processes of a host share. The
node then works (sleeps), until another process has noted that it began, too. TTL: seconds that its
leases last.
"""

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure import END, START, Graph, Runtime, WorkerSettings

WORK_S = 120.0


@dataclass
class Trial:
    """What the node is told: which trial this is, and where the notes are."""

    number: int = 0
    notes: str = ""


def note(notes: Path, word: str, trial: int) -> None:
    """Add a line to the notes, whole or not at all."""
    line = f"{word} {trial} {os.getpid()} {time.monotonic_ns()}\n"
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode("ascii"))
    os.close(descriptor)


def read(notes: Path, word: str, trial: int) -> list[tuple[int, int]]:
    """Return (process id, monotonic nanoseconds) of the lines with this word and trial."""
    lines = notes.read_text(encoding="ascii").splitlines() if notes.exists() else []
    found = [line.split() for line in lines]
    return [(int(pid), int(ns)) for w, n, pid, ns in found if (w, int(n)) == (word, trial)]


graph = Graph(Trial, name="bench-crash")


@graph.node(name="work")
async def _work(state: Trial) -> dict[str, Any]:
    notes = Path(state.notes)
    note(notes, "begun", state.number)
    is_first = len(read(notes, "begun", state.number)) == 1
    if is_first:
        await asyncio.sleep(WORK_S)
    return {}


graph.edge(START, "work")
graph.edge("work", END)


def settings(ttl_s: float | None) -> WorkerSettings:
    """Return the usual settings, or those of a lease of so many seconds."""
    if ttl_s is None:
        return WorkerSettings()
    return WorkerSettings(lease_ttl_s=ttl_s, heartbeat_s=ttl_s / 3)


async def main(url: str, notes: Path, ttl_s: float | None = None) -> None:
    runtime = Runtime.open(url, graphs=[graph], worker=settings(ttl_s))
    note(notes, "opened", 0)  # its modules are loaded, like the interpreter; nothing was asked yet
    async with runtime:
        note(notes, "ready", 0)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *map(float, sys.argv[3:])))
