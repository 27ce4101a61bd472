"""How long a run rests after its process was killed, or its host was lost."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import crash_worker, machine
from bench.crash_worker import Trial, graph, read
from bench.proxy import Proxy
from perdure import Runtime

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 30.0
"""Longest wait for anything; far above every lease."""


class Trials:
    """Workers over one store, which are killed in the middle of a node."""

    def __init__(self, folder: Path, url: str, name: str = "crash") -> None:
        """Use the store; notes are made in the folder under the name."""
        self._folder = folder
        self._url = url
        self.notes = folder / f"{name}.txt"
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.trial = 0

    async def takeover(self) -> float:
        """Return the seconds from the kill of a worker to the node running again in its peer."""
        while len(self.workers) < 2:
            await self.start_worker()
        await self._begin()
        pid, _ = await self._noted("begun", self.trial, 1)
        killed_ns = time.monotonic_ns()
        self.kill(pid)
        _, again_ns = await self._noted("begun", self.trial, 2)
        return (again_ns - killed_ns) / 1e9

    async def restart(self) -> float:
        """Return the seconds from the opening of the store anew to the node running again."""
        for pid in list(self.workers)[1:]:
            self.kill(pid)
        if not self.workers:
            await self.start_worker()
        await self._begin()
        pid, _ = await self._noted("begun", self.trial, 1)
        self.kill(pid)
        started = await self.start_worker(wait_for="opened")
        _, again_ns = await self._noted("begun", self.trial, 2)
        opened_ns = next(ns for pid, ns in read(self.notes, "opened", 0) if pid == started)
        return (again_ns - opened_ns) / 1e9

    async def lost(self, url_through: Callable[[int], str], port: int, ttl_s: float) -> float:
        """Return the seconds from the loss of a worker's host to the node running again in a peer.

        The host is lost as with its power: nothing is sent from then on, and nothing is closed, so
        that the server holds its connections and its locks.

        Args:
            url_through: the URL of the store, with a port.
            port: the server's.
            ttl_s: how long leases last.
        """
        proxy = Proxy("127.0.0.1", port)
        far = await self.start_worker(url=url_through(await proxy.start()), ttl_s=ttl_s)
        try:
            await self._begin()
            await self._noted("begun", self.trial, 1)
            await self.start_worker(ttl_s=ttl_s)
            cut_ns = time.monotonic_ns()
            proxy.cut()
            _, again_ns = await self._noted("begun", self.trial, 2)
        finally:
            self.kill(far)
            await proxy.close()
        return (again_ns - cut_ns) / 1e9

    async def _begin(self) -> None:
        self.trial += 1
        async with Runtime.open(self._url, graphs=[graph], worker=False) as runtime:
            await runtime.start(graph, Trial(self.trial, str(self.notes)))

    async def start_worker(
        self, wait_for: str = "ready", *, url: str | None = None, ttl_s: float | None = None
    ) -> int:
        worker = self._spawn(url or self._url, ttl_s)
        self.workers[worker.pid] = worker
        deadline_s = time.monotonic() + WAIT_S
        while worker.pid not in {pid for pid, _ in read(self.notes, wait_for, 0)}:
            _check(deadline_s, f"worker {worker.pid} to be {wait_for}")
            await asyncio.sleep(0.005)
        return worker.pid

    def _spawn(self, url: str, ttl_s: float | None) -> "subprocess.Popen[bytes]":
        more = [] if ttl_s is None else [f"{ttl_s:g}"]
        return subprocess.Popen(
            [sys.executable, "-m", crash_worker.__name__, url, str(self.notes), *more],
            cwd=ROOT,
            env=machine.environment(self._folder),
        )

    async def _noted(self, word: str, trial: int, count: int) -> tuple[int, int]:
        deadline_s = time.monotonic() + WAIT_S
        while len(found := read(self.notes, word, trial)) < count:
            _check(deadline_s, f"note {count} of {word!r} in trial {trial}")
            await asyncio.sleep(0.002)
        return found[count - 1]

    def kill(self, pid: int) -> None:
        """Kill one of our workers, as a power failure would."""
        os.kill(pid, signal.SIGKILL)
        self.workers.pop(pid).wait()

    def close(self) -> None:
        for pid in list(self.workers):
            self.kill(pid)


def _check(deadline_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        msg = f"waited {WAIT_S:g} s for {what}"
        raise TimeoutError(msg)
