"""Who collects snapshots of files, and is killed where it is told; and who works meanwhile.

python -m tests.fault.collecting layers|blobs ROOT POINT NTH NAMED... | loop ROOT STORE |
prune ROOT STORE POINT NTH
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from perdure import START, Context, Graph, Runtime, effect
from perdure.clock import Services, system_services
from perdure.governance import collect_snapshots, prune
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes, folder_name
from tests.engine.one_node import State

THREADS = ("t-1", "t-2")


@effect(kind="contained")
async def shell(command: str, *, sandbox: Any) -> str:
    """Run a command in the sandbox of the thread."""
    ran = await sandbox.run(command)
    return str(ran.output + ran.errors)


graph = Graph(State, name="boxes")


@graph.node
async def act(state: State, ctx: Context) -> dict[str, Any]:
    """Add a line to a file that all runs of the thread have, and replace another one."""
    line = ctx.run_id
    command = f"echo {line} >> log; head -c 20000 /dev/urandom > big; cat log"
    return {"results": [await ctx.call(shell, command)]}


graph.edge(START, act)


def dying(point: str, nth: int) -> Services:
    """Return services that kill this process when a point is reached for the n-th time."""
    left = nth

    def probe(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return replace(system_services(), probe=probe)


def collect(kind: str, root: str, point: str, nth: str, *named: str) -> None:
    """Collect once, and die at the point."""
    services = dying(point, int(nth))
    backend = (
        IsolatedSandboxes(root, services=services)
        if kind == "layers"
        else DirectorySandboxes(root, probe=services.probe)
    )
    with backend.collection("acme") as collection:
        collection.finish(named, {folder_name(name) for name in THREADS})


async def loop(root: str, url: str) -> None:
    """Collect what journals don't name, again and again, until killed."""
    async with Runtime.open(url, worker=False) as runtime:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            await collect_snapshots(runtime, IsolatedSandboxes(root), tenant="default")


async def prune_once(root: str, url: str, point: str, nth: str) -> None:
    """Prune with the files, and die at the point."""
    services = dying(point, int(nth))
    async with Runtime.open(url, worker=False, services=services) as runtime:
        await prune(runtime, keep=1, sandbox=IsolatedSandboxes(root, services=services))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what in {"layers", "blobs"}:
        collect(what, *rest)
    else:
        does: dict[str, Any] = {"loop": loop, "prune": prune_once}
        asyncio.run(does[what](*rest))
