"""Who of this host is alive, read from operating-system locks.

A worker holds `flock(LOCK_EX)` on `<db>-locks/<worker_id>.lock` for as long as it lives; the kernel
drops the lock with the process, however it dies. Whoever can take the lock of a registered worker
knows that it is dead.

Order, so that survivors never judge wrongly: the lock is taken before the worker's row is written,
and the row is deleted before the lock is let go. A lock counts only if its file is still the one
under that name. Rows carry the boot id of their host: a host that shares the path over a network
does not judge others.
"""

import fcntl
import os
from pathlib import Path
from threading import Event
from urllib.parse import quote

from perdure.errors import StoreLocked
from perdure.ids import WorkerId
from perdure.model import WorkerRow
from perdure.store.sqlite.limits import HOLD_PAUSE_S, HOLD_TRIES

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this host's boot; empty where it has none (nobody is judged then)."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class LockFolder:
    """The lock files of one store, and the locks that this object holds."""

    def __init__(self, database: Path) -> None:
        """Keep where the files are; nothing is created yet."""
        self._folder = database.with_name(database.name + "-locks")
        self._boot_id = boot_id()
        self._held: dict[str, int] = {}
        self._never = Event()

    def liveness_of(self, worker_id: str) -> str:
        """Return what the worker's row says: boot id and file name; empty: not judged."""
        return f"{self._boot_id}:{worker_id}.lock" if self._boot_id else ""

    def hold(self, worker_id: str) -> None:
        """Take the worker's lock and keep it; waits for a survivor that is just looking.

        Raises:
            StoreLocked: a living worker has the same id.
        """
        if worker_id in self._held:
            return
        self._folder.mkdir(exist_ok=True)
        for _ in range(HOLD_TRIES):
            fd = os.open(self._path(worker_id), os.O_RDWR | os.O_CREAT, 0o644)
            if _lock(fd) and self._is_current(worker_id, fd):
                self._held[worker_id] = fd
                return
            os.close(fd)  # a survivor looks at the file, or removed it between open and lock
            self._never.wait(HOLD_PAUSE_S)
        msg = f"worker {worker_id!r} is alive elsewhere; nothing was written. Give each its own id"
        raise StoreLocked(msg, worker_id=worker_id)

    def let_go(self, worker_id: str) -> None:
        """Remove the worker's file and let go of its lock."""
        fd = self._held.pop(worker_id, None)
        if fd is not None:
            self.remove(worker_id, fd)

    def let_go_all(self) -> None:
        """Let go of every lock without removing files: as if the process had died."""
        while self._held:
            _worker_id, fd = self._held.popitem()
            os.close(fd)

    def find_dead(self, rows: list[WorkerRow]) -> list[tuple[WorkerId, int]]:
        """Return `(worker_id, fd)` of the dead, each locked by the fd against other survivors."""
        dead: list[tuple[WorkerId, int]] = []
        for row in rows:
            if row.worker_id not in self._held and self._is_judged(row):
                fd = self._try_lock(row.worker_id)
                if fd is not None:
                    dead.append((row.worker_id, fd))
        return dead

    def remove(self, worker_id: str, fd: int) -> None:
        """Remove the file and let go of its lock."""
        self._path(worker_id).unlink(missing_ok=True)
        os.close(fd)

    def _is_judged(self, row: WorkerRow) -> bool:
        return bool(row.liveness) and row.liveness == self.liveness_of(row.worker_id)

    def _try_lock(self, worker_id: str) -> int | None:
        try:
            fd = os.open(self._path(worker_id), os.O_RDWR)
        except FileNotFoundError:
            return None  # removed by hand, or by another survivor: the lease decides
        if _lock(fd) and self._is_current(worker_id, fd):
            return fd
        os.close(fd)
        return None

    def _is_current(self, worker_id: str, fd: int) -> bool:
        try:
            there = self._path(worker_id).stat()
        except FileNotFoundError:
            return False
        return os.fstat(fd).st_ino == there.st_ino

    def _path(self, worker_id: str) -> Path:
        return self._folder / f"{quote(worker_id, safe='')}.lock"


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
