"""Measure isolated sandboxes: `python -m bench.sandbox [--quick] [--json FILE]`.

Times are wall-clock milliseconds, p50 and p95, in one process, with bubblewrap (where it is
installed) in the same run as the peer that makes comparable namespaces and keeps no files.
"""

import argparse
import asyncio
import base64
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from perdure.errors import SandboxUnstoppable
from perdure.sandbox import IsolatedSandbox, IsolatedSandboxes

BWRAP = [
    "bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc",
    "--dev", "/dev", "--tmpfs", "/run", "--tmpfs", "/workspace", "--chdir", "/workspace",
]  # fmt: skip
DEPTHS = (1, 10, 100)
HELD_MB = (10, 100, 500)
GOALS_MS = {
    "first command: true": 12.0,
    "tree in advance: true": 4.0,
    "changes of an empty turn": 1.0,
    "export of a 10-file delta": 3.0,
    **{f"checkpoint at {depth} layers": 2.0 for depth in DEPTHS},
    **{f"rollback at {depth} layers": 1.86 for depth in DEPTHS},
}
"""What p50 is to be at most, on two quiet cores."""
KEY_NAME = "BENCH_SANDBOX_KEY"
DELTA = "mkdir -p d && for n in 0 1 2 3 4 5 6 7 8 9; do head -c 10000 /dev/urandom > d/$n; done"
HOLD = (
    "python3 -c 'import os, time; held = os.urandom({megabytes} << 20);"
    ' open("/tmp/up", "w"); time.sleep(9e6)\' > /dev/null 2>&1 & until [ -e /tmp/up ]; do :; done'
)


async def timed(act: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    """Return how long each of `count` calls took, in ms."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        await act()
        found.append((time.perf_counter() - begun) * 1e3)
    return found


async def changed_then(
    sandbox: IsolatedSandbox, act: Callable[[], Awaitable[Any]], count: int
) -> list[float]:
    """Return how long `act` took after a command that changed a file, in ms; the last apart."""
    found = []
    for number in range(count):
        await sandbox.run(f"echo {number} > changed")
        found += await timed(act, 1)
    return found


async def prepared_then(
    sandbox: IsolatedSandbox,
    act: Callable[[], Awaitable[Any]],
    count: int,
    *,
    rest_s: float = 0.02,
) -> list[float]:
    """Return how long `act` took when the next tree was there, as after a model's answer, in ms."""
    found = []
    for _ in range(count):
        while sandbox._next.tree is None:  # noqa: ASYNC110, SLF001  # it is built by a task
            await asyncio.sleep(0.005)
        await asyncio.sleep(rest_s)  # what it took of the machine is over
        found += await timed(act, 1)
    return found


async def programs(folder: Path, count: int) -> dict[str, list[float]]:
    """Return the times of programs for Python: started for each, and by one that waits."""
    warm = ("json", "re", "subprocess", "pathlib")
    found: dict[str, list[float]] = {}
    imports = f"import {', '.join(warm)}"
    for what, code, named in (("pass", "pass", ()), ("four imports", imports, warm)):
        for how in ("started", "waiting"):
            backend = IsolatedSandboxes(folder / f"{how}-{len(found)}", warm=named)
            try:
                sandbox = backend.open("bench", "t")
                act = partial(sandbox.run, ["python3", "-"], given=code.encode())
                if how == "waiting":
                    act = partial(sandbox.python, code)
                await act()
                times = await prepared_then(sandbox, act, count, rest_s=0.25)
                found[f"Python {how}: {what}"] = times
            finally:
                backend.close()
    return found


async def living(folder: Path, count: int) -> dict[str, list[float]]:
    """Return the times of a sandbox in which something is alive."""
    backend = IsolatedSandboxes(folder, live=True)
    found: dict[str, list[float]] = {}
    try:
        sandbox = backend.open("bench", "t")
        await sandbox.run("for n in 1 2 3; do sleep 1000 & done")
        found["live tree: true"] = await timed(lambda: sandbox.run(["/bin/true"]), count)
        found["live tree: python3 -I -S -c pass"] = await timed(
            lambda: sandbox.run(["/usr/bin/python3", "-I", "-S", "-c", "pass"]), count
        )
        found["live tree: checkpoint, 1 file"] = await changed_then(sandbox, sandbox.take, count)
        await sandbox.run("for n in $(seq 1000); do echo $n > f$n; done")
        found["live tree: checkpoint, 1,000 files"] = await timed(sandbox.take, count)
    except SandboxUnstoppable:
        return found
    finally:
        backend.close()
    return found


async def exported(folder: Path, count: int) -> dict[str, list[float]]:
    """Return how long a snapshot of 10 new files of 10 KB takes from taken to durable elsewhere.

    Encrypted, to a folder on the same disk: so with the waits for that, which a bucket has as well.
    """
    os.environ[KEY_NAME] = base64.b64encode(os.urandom(32)).decode("ascii")
    place = f"file://{folder / 'exports'}"
    backend = IsolatedSandboxes(folder / "box", export=place, keys=f"env:{KEY_NAME}", prepared=0)
    found = []
    try:
        sandbox = backend.open("bench", "t")
        for number in range(count + 1):
            await sandbox.run(DELTA)
            snapshot = await sandbox.take()
            found += await timed(partial(sandbox.make_durable, snapshot), 1)
            if not sandbox.is_durable(snapshot):
                msg = f"snapshot {number} is not durable"
                raise RuntimeError(msg)
    finally:
        backend.close()
    return {"export of a 10-file delta": found[1:]}  # the first looks through the base


async def measure(folder: Path, count: int) -> dict[str, list[float]]:
    """Return the times of everything, by what was done."""
    backend = IsolatedSandboxes(folder)
    found: dict[str, list[float]] = {}
    try:
        sandbox = backend.open("bench", "t")
        await sandbox.run("true")  # starts the launcher
        found["first command: true"] = await timed(lambda: sandbox.run(["/bin/true"]), count)
        found["a shell that writes a file"] = await timed(lambda: sandbox.run("echo 1 > f"), count)
        found["python3 -I -S -c pass"] = await timed(
            lambda: sandbox.run(["/usr/bin/python3", "-I", "-S", "-c", "pass"]), count
        )
        if shutil.which("bwrap"):
            found["bwrap --unshare-all true"] = await timed(partial(in_bwrap, ["/bin/true"]), count)
        for what, command in (
            ("true", ["/bin/true"]),
            ("a shell that writes a file", ["/bin/sh", "-c", "echo 1 > f"]),
            ("python3 -I -S -c pass", ["/usr/bin/python3", "-I", "-S", "-c", "pass"]),
        ):
            found[f"tree in advance: {what}"] = await prepared_then(
                sandbox, partial(sandbox.run, command), count
            )
            if shutil.which("bwrap"):
                found[f"bwrap beside it ({what})"] = await prepared_then(
                    sandbox, partial(in_bwrap, command), count
                )
        await sandbox.take()
        found["snapshot of an empty turn"] = await timed(sandbox.take, count)
        found["changes of an empty turn"] = await timed(sandbox.changes, count)
        depth = 1
        for wanted in DEPTHS:
            while depth < wanted:
                await sandbox.run(f"echo 1 > layer{depth}")
                await sandbox.take()
                depth += 1
            snapshot = await sandbox.take()

            async def back(snapshot: str = snapshot) -> None:
                await sandbox.restore(snapshot)

            found[f"rollback at {wanted} layers"] = await changed_then(sandbox, back, count)
            takes = []
            for _ in range(count):
                takes += await changed_then(sandbox, sandbox.take, 1)
                await back()
            found[f"checkpoint at {wanted} layers"] = takes
            found[f"command at {wanted} layers"] = await timed(
                lambda: sandbox.run(["/bin/true"]), count
            )
        found["fork"] = await timed(lambda: forked(backend, snapshot), count)
    finally:
        backend.close()
    found |= await exported(folder / "export", count)
    found |= await programs(folder / "python", count)
    return found | await living(folder / "live", count)


async def measure_kept(folder: Path, criu: str, count: int) -> dict[str, list[float]]:
    """Return what processes in snapshots cost, by the memory that one of them has."""
    backend = IsolatedSandboxes(folder, criu=criu)
    found: dict[str, list[float]] = {}
    try:
        for megabytes in HELD_MB:
            sandbox = backend.open("kept", f"t{megabytes}")
            await sandbox.run(HOLD.format(megabytes=megabytes))
            snapshots = []
            takes: list[float] = []
            runs: list[float] = []
            for _ in range(count):
                begun = time.perf_counter()
                snapshots.append(await sandbox.take())
                takes.append((time.perf_counter() - begun) * 1e3)
                runs += await timed(lambda box=sandbox: box.run(["/bin/true"]), 1)
            found[f"snapshot with a process of {megabytes} MB"] = takes
            found[f"command that brings {megabytes} MB back"] = runs
            fork = backend.open("kept", f"fork{megabytes}")
            await fork.restore(snapshots[-1])
            ran = await fork.run(["/bin/true"])
            if ran.lost or not ran.left:
                msg = f"{megabytes} MB were lost: {ran}"
                raise RuntimeError(msg)
            for each in (sandbox, fork):
                await each.close()
    finally:
        backend.close()
    return found


async def in_bwrap(command: list[str]) -> None:
    """Execute a command in bubblewrap."""
    process = await asyncio.create_subprocess_exec(*BWRAP, *command, stderr=subprocess.DEVNULL)
    if await process.wait():
        msg = f"bwrap did not execute {command}: it ended with {process.returncode}"
        raise RuntimeError(msg)


async def forked(backend: IsolatedSandboxes, snapshot: str) -> None:
    """Stand another thread on a snapshot."""
    await backend.open("bench", f"fork-{time.monotonic_ns()}").restore(snapshot)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--criu", help="also measure processes in snapshots, by this program")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    before = machine.load()
    with tempfile.TemporaryDirectory(prefix="bench-sandbox-") as folder:
        found = asyncio.run(measure(Path(folder), 10 if given.quick else 100))
        if given.criu:
            kept = measure_kept(Path(folder, "kept"), given.criu, 5 if given.quick else 20)
            found |= asyncio.run(kept)
    table = Table(title=f"sandboxes, ms (load {before} before, {machine.load()} after)")
    for column in ("what", "p50", "p95", "goal", "n"):
        table.add_column(column, justify="left" if column == "what" else "right")
    rows = {}
    for what, times in found.items():
        p95 = sorted(times)[int(len(times) * 0.95)]
        p50 = statistics.median(times)
        goal = GOALS_MS.get(what)
        rows[what] = {"p50_ms": p50, "p95_ms": p95, "goal_ms": goal, "n": len(times)}
        shown = "" if goal is None else f"{goal:g}{'' if p50 <= goal else ' missed'}"
        table.add_row(what, f"{p50:.2f}", f"{p95:.2f}", shown, str(len(times)))
    once = rows["rollback at 1 layers"]["p50_ms"] + rows["checkpoint at 1 layers"]["p50_ms"]
    rounds = 60_000 / once
    table.add_row("checkpoint and rollback, rounds per minute", f"{rounds:,.0f}", "", "", "")
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
