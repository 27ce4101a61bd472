"""How much room files take that have no name any more, but that a tree's processes have open.

Theory: a walk of names doesn't find them, and the disk has them until the last descriptor and the
last mapping of them is gone. Both are listed by the kernel for each process: descriptors for each
table of them, as an OS thread may have one of its own. A file is counted once, whoever has it.

Two kinds can't be measured: what is on its way in a socket, which has a count but no size, and,
where this user isn't root, what is mapped and not open. Of those it is only said that they are
there: what the file system lost meanwhile decides then, see `_watch`.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.sandbox._disk import BLOCK_BYTES
from perdure.sandbox._measure import Usage
from perdure.sandbox.inside import syscalls
from perdure.sandbox.limits import FDINFO_BYTES_MAX

_GONE = " (deleted)"
_IN_SOCKETS = "scm_fds:"


class Nameless:
    """One look at the files without a name of some processes.

    Attributes:
        bytes, entries: of those that were measured.
        is_hiding: there are others, or may be.
    """

    def __init__(self, bytes_stop: int | None = None) -> None:
        """Have found nothing; `bytes_stop`: more need not be found."""
        memory = os.memfd_create("any", os.MFD_CLOEXEC)
        self._memory = os.fstat(memory).st_dev  # what is there is counted as memory
        os.close(memory)
        self._bytes_stop = bytes_stop
        self._seen: set[tuple[int, int]] = set()
        self.bytes = 0
        self.is_hiding = False

    @property
    def usage(self) -> Usage:
        """What they take."""
        is_cut = self._bytes_stop is not None and self.bytes > self._bytes_stop
        return Usage(bytes=self.bytes, entries=len(self._seen), is_cut=is_cut)

    def look(self, pids: Iterable[int]) -> None:
        """Look at processes, as the host numbers them; one that has ended has none."""
        for pid in pids:
            for os_thread in _tables(pid):
                self._look_at_table(f"/proc/{pid}/task/{os_thread}")
                if self.usage.is_cut:
                    return
            with contextlib.suppress(OSError):
                self._look_at_mappings(pid)

    def _look_at_table(self, task: str) -> None:
        for name in _listed(f"{task}/fd"):
            try:
                status = Path(task, "fd", name).stat()
            except OSError:
                continue  # it was closed
            if stat.S_ISSOCK(status.st_mode):
                self.is_hiding = self.is_hiding or _has_files(f"{task}/fdinfo/{name}")
            else:
                self._count(status)
            if self.usage.is_cut:
                return

    def _look_at_mappings(self, pid: int) -> None:
        with Path("/proc", str(pid), "maps").open(encoding="utf-8", errors="replace") as file:
            gone = {line.partition(" ")[0] for line in file if line.rstrip("\n").endswith(_GONE)}
        for where in gone:
            try:
                self._count(Path("/proc", str(pid), "map_files", where).stat())
            except PermissionError:
                self.is_hiding = True
            except OSError:
                continue  # it was unmapped

    def _count(self, status: os.stat_result) -> None:
        is_gone = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
        key = status.st_dev, status.st_ino
        if is_gone and status.st_dev != self._memory and key not in self._seen:
            self._seen.add(key)
            self.bytes += status.st_blocks * BLOCK_BYTES


def _tables(pid: int) -> Iterator[str]:
    """Return an OS thread of a process for each table of descriptors that its OS threads have."""
    found: list[str] = []
    for each in _listed(f"/proc/{pid}/task"):
        if not any(_is_same_table(int(each), int(other)) for other in found):
            found.append(each)
            yield each


def _is_same_table(one: int, other: int) -> bool:
    try:
        return syscalls.kcmp_files(one, other) == 0
    except OSError:
        return False  # it has ended, or can't be told: each is looked at


def _has_files(info: str) -> bool:
    """Return whether descriptors are on their way in a socket."""
    try:
        with Path(info).open("rb") as file:
            text = file.read(FDINFO_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return False
    _, there, count = text.partition(_IN_SOCKETS)
    return bool(there) and count.split()[:1] != ["0"]


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return []
