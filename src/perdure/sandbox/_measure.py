"""How much room a tree takes: its blocks on the disk and its entries, by descriptors.

Theory: what is measured was made by code that nobody vetted, and may be changed by it meanwhile. So
no link is followed (`openat2`), a folder that goes away is left out, and depth and count are bound.
A folder is opened relative to one a few levels above it, so that paths longer than the system takes
are no trouble, and few descriptors are open at once. Counted are blocks, so that a sparse file
counts what it holds, and each file once, however many names it has.
"""

import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path

from msgspec import Struct

from perdure.sandbox._disk import BLOCK_BYTES
from perdure.sandbox.inside import syscalls
from perdure.sandbox.limits import ANCHOR_LEVELS, MEASURED_DEPTH_MAX

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK


class Usage(Struct, frozen=True, kw_only=True):
    """Room that a tree takes.

    Attributes:
        bytes: on the disk, of files and folders.
        entries: files, folders, links and marks of what was removed.
        is_deep: folders are deeper than `MEASURED_DEPTH_MAX`: those below were not looked at.
        is_cut: it was above what was asked about: the rest was not looked at.
    """

    bytes: int = 0
    entries: int = 0
    is_deep: bool = False
    is_cut: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        """Return both together."""
        return Usage(
            bytes=self.bytes + other.bytes,
            entries=self.entries + other.entries,
            is_deep=self.is_deep or other.is_deep,
            is_cut=self.is_cut or other.is_cut,
        )

    def minus(self, other: "Usage") -> "Usage":
        """Return what is left of it without another; not below 0."""
        return Usage(
            bytes=max(0, self.bytes - other.bytes),
            entries=max(0, self.entries - other.entries),
            is_deep=self.is_deep,
        )


class _Anchor:
    """An open folder that paths begin at; closed when nothing begins there any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0

    def let_go(self) -> None:
        self.users -= 1
        if self.users == 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Walk(ABC):
    """Goes through trees; what becomes of an entry is for its kinds."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self._pending: list[tuple[_Anchor, str, int]] = []

    @property
    def is_over(self) -> bool:
        """Whether no more is to be looked at."""
        return False

    @abstractmethod
    def entry(self, folder: int, entry: os.DirEntry[str], depth: int) -> bool:
        """Look at what is in the folder of this descriptor; return whether to go into it."""

    def go(self, top: Path) -> None:
        """Walk everything below top, which is no link.

        Raises:
            FileNotFoundError: it is not there.
        """
        first = _Anchor(os.open(top, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC))
        self._push(first, "", 0)
        try:
            while self._pending and not self.is_over:
                anchor, path, depth = self._pending.pop()
                try:
                    self._folder(anchor, path, depth)
                finally:
                    anchor.let_go()
        finally:
            for anchor, _path, _depth in self._pending:
                anchor.let_go()
            self._pending.clear()

    def _push(self, anchor: _Anchor, path: str, depth: int) -> None:
        anchor.users += 1
        self._pending.append((anchor, path, depth))

    def _folder(self, anchor: _Anchor, path: str, depth: int) -> None:
        try:
            here = _Anchor(syscalls.open_beneath(anchor.descriptor, path or ".", _FOLDER))
        except OSError:
            return  # it went away, or is closed to this user
        here.users = 1
        try:
            is_anchor = path.count("/") >= ANCHOR_LEVELS
            with os.scandir(here.descriptor) as entries:
                for entry in entries:
                    below = self.entry(here.descriptor, entry, depth)
                    if self.is_over:
                        return
                    if below and is_anchor:
                        self._push(here, entry.name, depth + 1)
                    elif below:
                        name = f"{path}/{entry.name}" if path else entry.name
                        self._push(anchor, name, depth + 1)
        except OSError:
            return
        finally:
            here.let_go()


class _Measuring(Walk):
    """One measurement."""

    def __init__(self, bytes_stop: int | None, entries_stop: int | None, *, is_alone: bool) -> None:
        """Have measured nothing."""
        super().__init__()
        self._is_alone = is_alone
        self._bytes_stop = bytes_stop
        self._entries_stop = entries_stop
        self._linked: dict[tuple[int, int], int] = {}
        self.bytes = 0
        self.entries = 0
        self.is_deep = False

    @property
    def is_over(self) -> bool:
        """Whether it is known to be above what was asked about."""
        is_large = self._bytes_stop is not None and self.bytes > self._bytes_stop
        return is_large or (self._entries_stop is not None and self.entries > self._entries_stop)

    def entry(self, folder: int, entry: os.DirEntry[str], depth: int) -> bool:
        """Count it."""
        del folder
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return False
        self.entries += 1
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_nlink > 1 and not is_folder:
            key = status.st_dev, status.st_ino
            seen = self._linked[key] = self._linked.get(key, 0) + 1
            if seen != (status.st_nlink if self._is_alone else 1):
                return False
        self.bytes += status.st_blocks * BLOCK_BYTES
        if is_folder and depth >= MEASURED_DEPTH_MAX:
            self.is_deep = True
            return False
        return is_folder


def measure(
    tops: list[Path],
    *,
    bytes_stop: int | None = None,
    entries_stop: int | None = None,
    is_alone: bool = False,
) -> Usage:
    """Return how much room trees take together, without that of the top folders themselves.

    Args:
        tops: folders; one that is not there takes none.
        bytes_stop: stop as soon as it is more than this.
        entries_stop: the same for entries.
        is_alone: files that have a name elsewhere count nothing: what would be free without them.
    """
    walk = _Measuring(bytes_stop, entries_stop, is_alone=is_alone)
    for top in tops:
        try:
            walk.go(top)
        except FileNotFoundError:
            continue
        if walk.is_over:
            break
    return Usage(bytes=walk.bytes, entries=walk.entries, is_deep=walk.is_deep, is_cut=walk.is_over)
