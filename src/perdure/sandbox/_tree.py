"""Looking at a tree: without following a link, and without reading what is known.

Theory: reading every file at every snapshot would make its cost grow with the sandbox. So the
digest of a file is kept with its inode, size and both times; while those are the same, so is
the file. The change time can't be set by a program, and the one gap - a change in the same tick
of the file system's clock as the last one seen - is closed by not keeping what was changed
within RACY_NS before it was read (as git does with its index). What this can't see: a process
that goes on writing through a shared mapping of a file. Nothing of a contained effect outlives
it, so none is there.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from perdure.errors import UsageError
from perdure.sandbox.limits import BYTES_MAX, CHUNK_BYTES, DEPTH_MAX, ENTRIES_MAX, READ_TRIES_MAX

MODE_BITS = 0o777
"""Permissions that a snapshot keeps: no set-id bits, which a tool has no right to hand on."""


class Kind(StrEnum):
    """What an entry of a tree is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or link of a snapshot.

    Attributes:
        kind: which of them.
        mode: permission bits; 0 for a link.
        size: bytes of a file; else 0.
        digest: SHA-256 of a file's bytes, in hex; what a link points to; else "".
    """

    kind: Kind
    mode: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes whenever a file does."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        """Return the stamp of a file that was looked at."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it is in the live tree: kind, permission bits and stamp; where a link points to."""

    kind: Kind
    mode: int
    stamp: Stamp
    target: str = ""


Tree = dict[str, Entry]
"""Entries by path relative to the root, "/" between names; a folder comes before what is in it."""


def look(root: Path, *, to_keep: bool) -> dict[str, Seen]:
    """Return what is in a tree, each folder before what is in it.

    Args:
        root: a folder.
        to_keep: refuse what a snapshot can't keep. Else list it, except what is deeper than a
            snapshot can be, and make folders accessible.

    Raises:
        UsageError: there is a special file, or more than a snapshot may hold.
        OSError: a folder can't be read.
    """
    found: dict[str, Seen] = {}
    _Look(found, to_keep=to_keep).folder(root, "", depth=0)
    return found


class _Look:
    def __init__(self, found: dict[str, Seen], *, to_keep: bool) -> None:
        self.found = found
        self.to_keep = to_keep
        self.size = 0

    def folder(self, folder: Path, prefix: str, *, depth: int) -> None:
        if depth > DEPTH_MAX:
            if not self.to_keep:
                return
            raise refused(prefix, f"is deeper than {DEPTH_MAX} folders", "Make the tree flatter.")
        if not self.to_keep and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            folder.chmod(0o700)
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        for entry in inside:
            path = f"{prefix}{entry.name}"
            seen = _seen(entry)
            if self.to_keep:
                self.check(path, seen)
            self.found[path] = seen
            if seen.kind is Kind.FOLDER:
                self.folder(folder / entry.name, f"{path}/", depth=depth + 1)

    def check(self, path: str, seen: Seen) -> None:
        if seen.kind is Kind.SPECIAL:
            raise refused(path, "is a socket, pipe or device", "Remove it, or put it elsewhere.")
        if len(self.found) >= ENTRIES_MAX:
            raise refused(
                path, f"is one entry too many: the limit is {ENTRIES_MAX}", "Remove some."
            )
        self.size += seen.stamp.size if seen.kind is Kind.FILE else 0
        if self.size > BYTES_MAX:
            raise refused(path, f"takes the tree over {BYTES_MAX} bytes", "Remove something.")


def refused(path: str, what: str, remedy: str) -> UsageError:
    """Return the error of a tree of which no snapshot can be taken."""
    return UsageError(f"no snapshot was taken: {path!r} {what}. {remedy}", path=path)


def _seen(entry: os.DirEntry[str]) -> Seen:
    found = entry.stat(follow_symlinks=False)
    mode, stamp = stat.S_IMODE(found.st_mode) & MODE_BITS, Stamp.of(found)
    if stat.S_ISLNK(found.st_mode):
        return Seen(Kind.LINK, 0, stamp, os.readlink(entry.path))  # noqa: PTH115  (Path would respell it)
    if stat.S_ISDIR(found.st_mode):
        return Seen(Kind.FOLDER, mode, stamp)
    return Seen(Kind.FILE if stat.S_ISREG(found.st_mode) else Kind.SPECIAL, mode, stamp)


def as_entry(seen: Seen, digest: str) -> Entry:
    """Return a seen thing as an entry of a snapshot; digest counts for files only."""
    if seen.kind is Kind.FILE:
        return Entry(seen.kind, seen.mode, seen.stamp.size, digest)
    return Entry(seen.kind, seen.mode, 0, seen.target)


def open_file(path: Path) -> int:
    """Open a regular file to read it; never what a link points to, and never waiting for a pipe.

    Raises:
        OSError: it can't be read, or has become something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused(str(path), "is no regular file any more", "Stop what still writes there.")
    return descriptor


def read_whole(path: Path, copy: Path | None = None) -> tuple[str, Stamp, int]:
    """Hash a file that nobody changes meanwhile, and copy it if asked.

    Args:
        path: the file.
        copy: where to. What is there is replaced.

    Returns:
        Digest (SHA-256, hex), the stamp that belongs to it, and the file's permission bits.

    Durability: the bytes of the copy are on disk; its name is not.

    Raises:
        UsageError: the file changed at every one of READ_TRIES_MAX readings.
    """
    for _ in range(READ_TRIES_MAX):
        descriptor = open_file(path)
        with os.fdopen(descriptor, "rb", buffering=0) as source:
            before = Stamp.of(os.fstat(descriptor))
            digest = pour(source, copy)
            found = os.fstat(descriptor)
            if Stamp.of(found) == before:
                return digest, before, stat.S_IMODE(found.st_mode) & MODE_BITS
    raise refused(str(path), "changes while it is read", "Stop what still writes there.")


def pour(source: Any, copy: Path | None, *, mode: int = 0o600, fsync: bool = True) -> str:
    """Hash what can be read from source, and write it to a new file if asked. Return the digest."""
    hasher = hashlib.sha256()
    if copy is None:
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
        return hasher.hexdigest()
    copy.unlink(missing_ok=True)
    with copy.open("xb") as target:
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
            target.write(chunk)
        os.fchmod(target.fileno(), mode)
        if fsync:
            target.flush()
            os.fsync(target.fileno())
    return hasher.hexdigest()
