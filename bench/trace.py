"""What snapshots of every turn of an agent cost: `python -m bench.trace [--turns 200]`.

An agent works on a project of 1,500 files, 12 MB. Its turns are drawn, with a fixed seed, in the
shares that coding agents make them: three of four look and change nothing (list, read, search, run
what leaves nothing behind); the others edit, test with a cache, build, install, or delete. Between
turns a model thinks: 2 to 8 s, of which none is waited for here, as nothing else happens in them;
they are added. A snapshot is taken after every turn, and waited for, as a run does.

Compared are the bytes of the layers with a copy of all that the sandbox has of its own after every
turn, and the time of the whole with that of the same turns without snapshots.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from perdure.sandbox import IsolatedSandbox, IsolatedSandboxes

PROJECT = (
    "cd /workspace; for d in $(seq 50); do mkdir -p src/m$d; for f in $(seq 30); do"
    " head -c 8000 /dev/urandom | base64 > src/m$d/f$f.py; done; done"
)
LOOKS = (
    "ls -R /workspace/src | head -50",
    "cat /workspace/src/m{d}/f{f}.py | head -100",
    "grep -rl import /workspace/src/m{d} | head",
    "wc -l /workspace/src/m{d}/*.py",
    "find /workspace -name 'f{f}.py' | head",
    "python3 -I -S -c 'print(sum(range(100000)))'",
)
CHANGES = (
    ("sed -i '1s/.*/# {n}/' /workspace/src/m{d}/f{f}.py", 12),
    ("echo 'def f{n}(): pass' >> /workspace/src/m{d}/f{f}.py", 6),
    ("mkdir -p /workspace/.cache; head -c 20000 /dev/urandom > /workspace/.cache/t{f}", 3),
    ("rm -rf /workspace/build; cp -r /workspace/src/m{d} /workspace/build", 2),
    ("mkdir -p /usr/local/lib/p{n}; head -c 900000 /dev/urandom > /usr/local/lib/p{n}/x.so", 1),
    ("rm -f /workspace/src/m{d}/f{f}.py", 1),
)
LOOKING = 0.75
THINKS_S = (2.0, 8.0)
OWN = "du -sb /workspace /usr/local/lib/p* /tmp 2> /dev/null | awk '{s += $1} END {print s}'"


def turns(count: int, chance: random.Random) -> list[tuple[str, float]]:
    """Return the commands, and how long the model thinks after each, in seconds."""
    commands, shares = zip(*CHANGES, strict=True)
    found = []
    for number in range(count):
        is_look = chance.random() < LOOKING
        command = chance.choice(LOOKS) if is_look else chance.choices(commands, shares)[0]
        filled = command.format(n=number, d=chance.randint(1, 50), f=chance.randint(1, 30))
        found.append((filled, chance.uniform(*THINKS_S)))
    return found


async def replayed(
    backend: IsolatedSandboxes, thread: str, given: list[tuple[str, float]], *, takes: bool
) -> dict[str, Any]:
    """Return what the turns took, and with snapshots what they stored."""
    sandbox = backend.open("trace", thread)
    await sandbox.run(PROJECT)
    snapshot = await sandbox.take()
    found = {"commands_s": 0.0, "snapshots_s": 0.0, "same": 0, "stored": 0, "copied": 0}
    for command, _think_s in given:
        begun = time.perf_counter()
        await sandbox.run(command)
        ran = time.perf_counter()
        found["commands_s"] += ran - begun
        if takes:
            taken = await sandbox.take()
            found["snapshots_s"] += time.perf_counter() - ran
            found["same"] += taken == snapshot
            if taken != snapshot:
                found["stored"] += stored(backend.root, taken)
            snapshot = taken
            found["copied"] += await own(sandbox)
    await sandbox.close()
    return found


def stored(root: Path, snapshot: str) -> int:
    """Return the bytes of the files of a layer."""
    (layer,) = root.glob(f"tenants/*/layers/{snapshot}")
    return sum(path.lstat().st_size for path in layer.rglob("*") if path.is_file())


async def own(sandbox: IsolatedSandbox) -> int:
    """Return the bytes of all that a sandbox has of its own."""
    return int((await sandbox.run(OWN)).output)


async def measure(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Return the figures of the trace, with snapshots and without."""
    given = turns(count, random.Random(seed))
    backend = IsolatedSandboxes(folder)
    try:
        plain = await replayed(backend, "plain", given, takes=False)
        taken = await replayed(backend, "taken", given, takes=True)
    finally:
        backend.close()
    thinks_s = sum(think_s for _command, think_s in given)
    without_s = thinks_s + plain["commands_s"]
    return {
        "turns": count,
        "think_s": round(thinks_s, 1),
        "turns that changed nothing": f"{taken['same'] / count:.0%}",
        "bytes stored": taken["stored"],
        "bytes of a copy after every turn": taken["copied"],
        "bytes saved": f"{1 - taken['stored'] / taken['copied']:.2%}",
        "a snapshot, ms": round(taken["snapshots_s"] / count * 1e3, 1),
        "commands without and with snapshots, s": (
            f"{plain['commands_s']:.1f}, {taken['commands_s']:.1f}"
        ),
        "time added by snapshots": f"{taken['snapshots_s'] / without_s:.2%}",
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    before = machine.load()
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as folder:
        found = asyncio.run(measure(Path(folder), given.turns, given.seed))
    table = Table(title=f"snapshots of every turn (load {before} before, {machine.load()} after)")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for what, figure in found.items():
        table.add_row(what, f"{figure:,}" if isinstance(figure, int) else str(figure))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
