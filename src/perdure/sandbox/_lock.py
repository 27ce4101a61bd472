"""Who may use a sandbox now: one at a time, and of two holders of its run only the newer one.

The lock is a lock of the kernel on an open file: it ends with whoever has it open. For a turn that
is the first process of its tree and not the worker, so that a worker which was stopped holds up
nobody longer than its command runs.

The fence is (ordinal of the run on its thread, fencing token): it rises with every run and every
claim. A file beside the lock keeps the highest that was seen. Who comes with a lower one was
replaced, and does nothing. Who comes with a higher one and finds the lock taken ends the command of
the one that was replaced.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from perdure.errors import LeaseLost
from perdure.sandbox._disk import (
    acquire,
    acquire_now,
    busy,
    put_link_note,
    put_note,
    read_link_note,
    read_note,
)
from perdure.sandbox.limits import LOCK_WAIT_S

_EXITING = 0x4
"""Flag of a process in /proc/PID/stat."""

Fence = tuple[int, int]
"""(ordinal of the run, fencing token)."""


class Lock:
    """The lock of a sandbox, held by this descriptor and all copies of it."""

    def __init__(self, descriptor: int) -> None:
        """Hold it."""
        self.descriptor = descriptor

    def close(self) -> None:
        """Let go of this copy. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def hold(folder: Path, fence: Fence | None) -> Lock:
    """Return the lock of the sandbox in a folder.

    Args:
        folder: the sandbox's.
        fence: of the run that uses it; None: it is used by hand, and nobody is replaced.

    Raises:
        LeaseLost: a newer holder has used it; nothing was changed.
        StoreLocked: somebody else has held it for long; nothing was changed.
    """
    lock = Lock(acquire(folder / "lock", lambda: _end_replaced(folder, fence)))
    try:
        _pass(folder, fence)
        _outlast(folder)
    except BaseException:
        lock.close()
        raise
    return lock


def hold_now(folder: Path, fence: Fence | None) -> Lock | None:
    """Return the lock as `hold`, without waiting; None: somebody else has it now.

    A tree of somebody else may be just ending: for who knows that there was none.
    """
    descriptor = acquire_now(folder / "lock")
    if descriptor < 0:
        return None
    lock = Lock(descriptor)
    try:
        _pass(folder, fence)
    except BaseException:
        lock.close()
        raise
    return lock


def _pass(folder: Path, fence: Fence | None) -> None:
    known = seen(folder)
    if fence is None or fence == known:
        return
    if known is not None and fence < known:
        msg = (
            f"the sandbox {folder.name} is used by a newer holder: run {known[0]} of the thread, "
            f"token {known[1]}; this one has {fence[0]} and {fence[1]}. Nothing was changed"
        )
        raise LeaseLost(msg, path=str(folder))
    _write(folder, fence)


@contextlib.contextmanager
def held(folder: Path, fence: Fence | None) -> Iterator[None]:
    """Hold the lock of a sandbox for a while; raises as `hold`."""
    lock = hold(folder, fence)
    try:
        yield
    finally:
        lock.close()


def seen(folder: Path) -> Fence | None:
    """Return the highest fence that was seen; None: none."""
    try:
        ordinal, token = read_note(f"{folder}/fence").split()
        return int(ordinal), int(token)
    except (FileNotFoundError, ValueError):  # a power failure may have torn it: none is alive then
        return None


def _write(folder: Path, fence: Fence) -> None:
    put_note(f"{folder}/fence", f"{fence[0]} {fence[1]}")


def next_generation(folder: Path, fence: Fence | None) -> tuple[int, int, int]:
    """Return what the next layer of a thread is numbered with; for a holder of the lock.

    It rises with each layer, also from host to host: the store numbers runs and claims, and under
    one claim one host takes the layers. It is durable with the layer, which is synced after it.
    """
    ordinal, token = fence or seen(folder) or (0, 0)
    last = last_generation(folder)
    number = last[2] + 1 if last[:2] >= (ordinal, token) else 1
    following = (*max(last[:2], (ordinal, token)), number)
    _note_generation(folder, following)
    return following


def last_generation(folder: Path) -> tuple[int, int, int]:
    """Return the highest number that a layer of the thread was seen with here."""
    try:
        ordinal, token, number = read_link_note(f"{folder}/generation").split()
        return int(ordinal), int(token), int(number)
    except (FileNotFoundError, ValueError):  # torn by a power failure: a new claim is above it
        return 0, 0, 0


def raise_generation(folder: Path, number: tuple[int, int, int]) -> None:
    """Note a number that a layer of the thread has, so that the next one is above it."""
    if number > last_generation(folder):
        _note_generation(folder, number)


def _note_generation(folder: Path, number: tuple[int, int, int]) -> None:
    put_link_note(f"{folder}/generation", " ".join(map(str, number)))


def _end_replaced(folder: Path, fence: Fence | None) -> None:
    """End the turn of a holder that was replaced, if it is one."""
    known = seen(folder)
    if fence is None or known is None or fence <= known:
        return
    noted = _noted(folder)
    if noted is None:
        return
    pid, started = noted
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            # The number may be another process's by now: not the one that the descriptor is of.
            if started_at(pid) == started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _outlast(folder: Path) -> None:
    """Wait for the end of a tree whose first process is just ending.

    The kernel closes its files, and with them the lock, before it kills what is left of the tree.
    Only when the process has ended is nothing of it alive.
    """
    noted = _noted(folder)
    if noted is None:
        return
    pid, started = noted
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if started_at(pid) == started and _is_ending(pid):
                ended = select.poll()
                ended.register(handle, select.POLLIN)
                if not ended.poll(LOCK_WAIT_S * 1000):
                    raise busy(folder / "lock")
        finally:
            os.close(handle)


def _noted(folder: Path) -> tuple[int, str] | None:
    """Return (pid, start) of the first process of the tree that had the lock last."""
    try:
        pid, started = read_note(f"{folder}/turn").split()
        return int(pid), started
    except (FileNotFoundError, ValueError):
        return None


def _is_ending(pid: int) -> bool:
    try:
        status = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool(int(status.rpartition(")")[2].split()[6]) & _EXITING)


def started_at(pid: int) -> str:
    """Return when a process was started, in ticks of the kernel; empty: it is gone."""
    try:
        status = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]
