"""Processes of the demo: started, watched, replaced when they die, and ended by their pid only.

Each child ends by itself when its stdin closes, so none outlives the demo, even one that is killed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perdure

ROOT = Path(__file__).resolve().parents[2]

READY_S_MAX = 30.0
"""Longest start of a process, until it has printed its first line."""

STOP_S_MAX = 10.0
"""Longest orderly end of a process, before it is killed."""

LOG_CHARS_SHOWN = 2000
"""Of the log of a process that could not start."""

RESTARTS_MAX = 50
"""Replacements of one worker; more mean that it can't live."""


class ChildFailed(Exception):
    """A process ended before it was ready; the message holds the end of its log."""


@dataclass
class Child:
    """A process that is ready; `hello` is the JSON object that it printed first."""

    name: str
    process: asyncio.subprocess.Process
    hello: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        if self.process.returncode is not None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S_MAX)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def start_child(name: str, log: Path, module: str, *arguments: str) -> Child:
    """Start `python -m module` and wait until it is ready."""
    search = [str(ROOT), str(Path(perdure.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        line = await asyncio.wait_for(_first_line(process), READY_S_MAX)
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    if not line:
        status = await process.wait()
        msg = f"{name} ended with status {status} before it was ready:\n{_end_of(log)}"
        raise ChildFailed(msg)
    return Child(name, process, json.loads(line))


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_CHARS_SHOWN:]


async def _first_line(process: asyncio.subprocess.Process) -> bytes:
    return b"" if process.stdout is None else await process.stdout.readline()


class Fleet:
    """Worker processes on one store. One that dies is replaced at once, as a platform would."""

    def __init__(self, store: str, folder: Path, tell: Callable[[str], None]) -> None:
        self._store = store
        self._folder = folder
        self._tell = tell
        self._living: dict[str, Child] = {}
        self._slots: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.names: dict[str, str] = {}  # worker id -> name for people, of the dead ones too
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, count: int) -> None:
        """Start workers A, B, ... and return when all are ready."""
        ready = [asyncio.Event() for _ in range(count)]
        self._slots = [
            asyncio.create_task(self._keep(chr(ord("A") + index), event))
            for index, event in enumerate(ready)
        ]
        everyone = asyncio.ensure_future(asyncio.gather(*(event.wait() for event in ready)))
        both: set[asyncio.Future[Any]] = {everyone, self.failed}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        everyone.cancel()
        if self.failed.done():
            self.failed.result()

    def worker(self, worker_id: str | None) -> Child | None:
        """Return the living process of a worker id."""
        return self._living.get(worker_id or "")

    async def stop(self) -> None:
        """Drain all workers."""
        self._is_stopping = True
        await asyncio.gather(*(child.stop() for child in self._living.values()))
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _keep(self, slot: str, ready: asyncio.Event) -> None:
        """Keep one worker alive."""
        failure: Exception = ChildFailed(f"worker {slot} was replaced {RESTARTS_MAX} times")
        try:
            for generation in range(1, RESTARTS_MAX + 1):
                await self._live(f"{slot}{generation}", ready)
                if self._is_stopping:
                    return
        except (OSError, TimeoutError, ChildFailed) as error:
            failure = error
        if not self.failed.done():
            self.failed.set_exception(failure)

    async def _live(self, name: str, ready: asyncio.Event) -> None:
        """Start a worker and return when it is dead."""
        log = self._folder / f"worker-{name}.log"
        child = await start_child(
            f"worker {name}", log, "examples.licences.worker", "--store", self._store
        )
        worker_id = child.hello["worker"]
        self.names[worker_id] = name
        self._living[worker_id] = child
        if ready.is_set():
            self._tell(f"worker {name} (pid {child.pid}) replaces the dead one")
        ready.set()
        try:
            await child.process.wait()
        finally:
            if self._is_stopping:
                await child.stop()
            del self._living[worker_id]
