"""Look for byte strings in every file of a folder: proof that what was erased is gone.

Files come from code that nobody vetted: they are opened beneath the folder, no link is followed,
and nothing but regular files is read.
"""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.sandbox._measure import Walk
from perdure.sandbox.limits import CHUNK_BYTES, SAMPLE_BYTES, SAMPLE_FILES

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Files(Walk):
    """Hands every regular file to somebody, as a descriptor."""

    def __init__(self, take: Callable[[int], bool]) -> None:
        """Hand files to take, until it says that it has enough."""
        super().__init__()
        self._take = take
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether somebody has enough."""
        return self._is_over

    def entry(self, folder: int, entry: os.DirEntry[str], depth: int) -> bool:
        """Hand it over, if it is a regular file."""
        del depth
        if entry.is_dir(follow_symlinks=False):
            return True
        if not entry.is_file(follow_symlinks=False):
            return False
        try:
            descriptor = os.open(entry.name, _FILE, dir_fd=folder)
        except OSError:
            return False
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._is_over = not self._take(descriptor)
        finally:
            os.close(descriptor)
        return False


def walk_files(tops: Sequence[Path], take: Callable[[int], bool]) -> None:
    """Hand every regular file below some folders to take, until that returns False."""
    walk = _Files(take)
    for top in tops:
        if walk.is_over:
            return
        try:
            walk.go(top)
        except OSError:
            continue


def sample(tops: Sequence[Path]) -> list[bytes]:
    """Return the beginnings of some files below folders."""
    found: list[bytes] = []

    def take(descriptor: int) -> bool:
        found.append(os.read(descriptor, SAMPLE_BYTES))
        return len(found) < SAMPLE_FILES

    walk_files(tops, take)
    return [each for each in found if each]


def search(
    tops: Sequence[Path], pieces: Sequence[bytes], *, bytes_max: int
) -> tuple[set[bytes], int]:
    """Return which byte strings are in files below folders, and how many bytes were read.

    Args:
        tops: folders.
        pieces: what is looked for.
        bytes_max: of files, after which it ends.
    """
    left = set(pieces)
    overlap = max((len(piece) for piece in pieces), default=1) - 1
    found: set[bytes] = set()
    count = 0

    def take(descriptor: int) -> bool:
        nonlocal count
        tail = b""
        while chunk := os.read(descriptor, CHUNK_BYTES):
            count += len(chunk)
            held = tail + chunk
            new = {piece for piece in left if piece in held}
            found.update(new)
            left.difference_update(new)
            tail = held[-overlap:] if overlap else b""
            if not left or count >= bytes_max:
                return False
        return True

    if left:
        walk_files(tops, take)
    return found, count
