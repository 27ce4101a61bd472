"""Real processes, forked from one that has imported everything: a start costs milliseconds.

The parent must not have threads or an event loop. Every child has a hard deadline, is killed by its
own pid only, and is waited for. No child gets back into the code of its parent: it ends by
`os._exit`.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

PAUSE_S = 0.002


class Child:
    """One forked process."""

    def __init__(self, name: str, pid: int, deadline_s: float) -> None:
        self.name = name
        self.pid = pid
        self.status: int | None = None
        self._deadline_s = deadline_s

    def poll(self) -> int | None:
        """Return its exit status (negative: a signal), None while it lives. Kills it when late."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > self._deadline_s:
                self.kill()
        return self.status

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.poll() == -signal.SIGKILL

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit status, or None if it still lives after the timeout."""
        until_s = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < until_s:
            time.sleep(PAUSE_S)
        return self.status

    def kill(self) -> None:
        """Kill it for good and wait for it."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _pid, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ask it to drain (SIGTERM); kill it if it does not; return its exit status."""
        self.send(signal.SIGTERM)
        if self.wait(timeout_s) is None:
            self.kill()
        return self.status if self.status is not None else -signal.SIGKILL


def fork(name: str, body: Callable[[], Any], *, log: Path, deadline_s: float) -> Child:
    """Run `body` in a child; its exit status is what it returned, or 0, or 1 after an exception.

    Args:
        name: for messages.
        body: plain function, or one that returns a coroutine, which is run.
        log: where its output goes.
        deadline_s: seconds from now after which the parent kills it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    listening, ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        os.read(listening, 1)  # a signal that comes before Python is set up again would be dropped
        os.close(listening)
        return Child(name, pid, time.monotonic() + deadline_s)
    code = 1
    try:
        gc.freeze()
        # Asked to end before it has begun, a child ends at once.
        signal.signal(signal.SIGTERM, lambda *_args: os._exit(0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(listening)
        os.close(ready)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _run(body)
    except BaseException:  # noqa: BLE001  # a child must not unwind into its parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _run(body: Callable[[], Any]) -> int:
    result = body()
    if isinstance(result, Coroutine):
        result = asyncio.run(_watched(result))
    return result if isinstance(result, int) else 0


async def _watched(body: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; on SIGUSR1 write down where every task stands."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _show_tasks)
    return await body


def _show_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


class Family:
    """The children of one scenario; leaving the block ends all that still live."""

    def __init__(self, place: Path, deadline_s: float) -> None:
        self.place = place
        self.deadline_s = deadline_s
        self._until_s = time.monotonic() + deadline_s
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for child in self._children:
            child.kill()

    @property
    def left_s(self) -> float:
        """Seconds left for the whole scenario."""
        return max(self._until_s - time.monotonic(), 0.0)

    def fork(self, name: str, body: Callable[[], Any]) -> Child:
        """Fork a child of this family."""
        log = self.place / f"{name}.log"
        child = fork(name, body, log=log, deadline_s=self.left_s + 5.0)
        self._children.append(child)
        return child

    def show_tasks(self) -> None:
        """Let all that live write down where their tasks stand, into their logs."""
        for child in self._children:
            if child.poll() is None and child.name not in {"service", "proxy"}:
                child.send(signal.SIGUSR1)
        time.sleep(1.0)

    def logs(self) -> str:
        """Return the output of all children."""
        texts = [
            (path.name, path.read_text(errors="replace"))
            for path in sorted(self.place.glob("*.log"))
        ]
        return "\n".join(f"--- {name}\n{text}" for name, text in texts if text)
