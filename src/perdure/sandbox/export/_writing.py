"""A layer, written from its manifest: into a folder that is new, by descriptors.

The manifest was checked before (`_manifest`): so a name is a name, and each entry is in a folder of
its own part. Nobody else can reach the folder, which is below one of this user alone, until it is
whole and gets its name.
"""

import os
import stat
from collections.abc import Iterator, Sequence

from perdure.errors import UsageError
from perdure.sandbox.export._manifest import (
    Entry,
    Kind,
    Manifest,
    Part,
    piece_lengths,
)
from perdure.sandbox.export._pieces import Pieces
from perdure.sandbox.export._reading import Driver
from perdure.sandbox.inside import syscalls

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN = 0o700
"""What the owner needs to work in a folder, where he is not root."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Writing:
    """Writes one layer."""

    def __init__(self, manifest: Manifest, driver: Driver, pieces: Pieces) -> None:
        """Write what a manifest says, as a driver keeps it.

        Raises:
            UsageError: files belong to users that there are none of here; nothing was written.
        """
        self._manifest = manifest
        self._driver = driver
        self._pieces = pieces
        self._pack: tuple[int, bytes] = (-1, b"")
        most = max(
            (max(entry.owner, entry.group) for part in manifest.parts for entry in part.entries),
            default=0,
        )
        if most >= driver.count:
            msg = (
                f"snapshot {manifest.layer!r} has files of user or group {most}, and sandboxes of "
                f"the driver {driver.name!r} have {driver.count} only; nothing was restored. Use a "
                "worker that runs as root"
            )
            raise UsageError(msg, snapshot=manifest.layer)

    def part(self, part: Part, folder: str) -> None:
        """Write a part into a folder, which is there and empty.

        Raises:
            SnapshotBroken: a piece is not what was exported; the folder is in between.
            OSError: the disk can't serve; the same.

        Durability: none; sync the file system.
        """
        top = os.open(folder, _FOLDER | os.O_CLOEXEC)
        try:
            closed = self._write(part.entries, top)
            # Deepest first; while others were made, their owner had to be able to look into them.
            for number in reversed(closed):
                opened = _open_folder(top, part.entries, number)
                try:
                    os.fchmod(opened, part.entries[number].mode)
                finally:
                    os.close(opened)
        finally:
            os.close(top)

    def _write(self, entries: Sequence[Entry], top: int) -> list[int]:
        """Write the entries of a part; return the folders whose mode is to be set in the end."""
        above: list[tuple[int, int]] = [(0, os.dup(top))]
        closed: list[int] = []
        try:
            for number, entry in enumerate(entries[1:], 1):
                while above[-1][0] != entry.parent:
                    self._leave(entries, above, closed)
                inside = above[-1][1]
                if entry.kind == Kind.FOLDER:
                    os.mkdir(entry.name, 0o700, dir_fd=inside)
                    opened = syscalls.open_beneath(inside, os.fsdecode(entry.name), _FOLDER)
                    above.append((number, opened))
                elif entry.kind == Kind.SAME:
                    _link(top, entries, entry, inside)
                else:
                    self._one(entry, inside)
            while above:
                self._leave(entries, above, closed)
        finally:
            for _, opened in above:
                os.close(opened)
        return closed

    def _leave(
        self, entries: Sequence[Entry], above: list[tuple[int, int]], closed: list[int]
    ) -> None:
        """Give a folder its owner, mode and time, which what is made in it would change."""
        number, opened = above.pop()
        entry = entries[number]
        try:
            if entry.is_replaced:
                os.setxattr(opened, self._driver.opaque, b"y")
            if entry.mode & _OPEN != _OPEN:
                closed.append(number)
            self._finish(opened, entry, entry.mode | _OPEN)
        finally:
            os.close(opened)

    def _finish(self, opened: int, entry: Entry, mode: int) -> None:
        self._own(entry, opened)
        for name, value in entry.attributes:
            os.setxattr(opened, name, value)
        os.fchmod(opened, mode)
        os.utime(opened, ns=(entry.modified_ns, entry.modified_ns))

    def _own(self, entry: Entry, opened: int) -> None:
        if self._driver.name == "ns":  # else all belongs to who makes it
            os.fchown(opened, self._driver.first + entry.owner, self._driver.first + entry.group)

    def _one(self, entry: Entry, inside: int) -> None:
        if entry.kind == Kind.REMOVED:
            os.mknod(entry.name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=inside)
            return
        if entry.kind == Kind.FILE:
            opened = os.open(entry.name, _NEW, 0o600, dir_fd=inside)
            try:
                self._fill(entry, opened)
                self._finish(opened, entry, entry.mode)
            finally:
                os.close(opened)
            return
        if entry.kind == Kind.LINK:
            os.symlink(entry.target, entry.name, dir_fd=inside)
        else:
            kind = stat.S_IFIFO if entry.kind == Kind.PIPE else stat.S_IFSOCK
            os.mknod(entry.name, kind | 0o600, dir_fd=inside)
        if self._driver.name == "ns":
            owner, group = self._driver.first + entry.owner, self._driver.first + entry.group
            os.chown(entry.name, owner, group, dir_fd=inside, follow_symlinks=False)
        if entry.kind != Kind.LINK:
            os.chmod(entry.name, entry.mode, dir_fd=inside)  # no link: it was made just now
        times = (entry.modified_ns, entry.modified_ns)
        os.utime(entry.name, ns=times, dir_fd=inside, follow_symlinks=False)

    def _fill(self, entry: Entry, opened: int) -> None:
        stretches = entry.extents if entry.extents is not None else ((0, entry.size),)
        content = _Stream(self._content(entry))
        for begin, length in stretches:
            at, end = begin, begin + length
            while at < end:
                chunk = content.up_to(end - at)
                _write(opened, chunk, at)
                at += len(chunk)
        os.ftruncate(opened, entry.size)

    def _content(self, entry: Entry) -> Iterator[bytes]:
        """Yield what is in a file, without holes."""
        if entry.packed is not None:
            piece, begin = entry.packed
            yield self._packed(piece)[begin : begin + entry.bytes_there]
            return
        lengths = piece_lengths(entry.bytes_there)
        for digest, length in zip(entry.pieces, lengths, strict=True):
            yield self._pieces.get(digest, length)

    def _packed(self, piece: int) -> bytes:
        if not self._manifest.packs:
            return self._manifest.inline
        if self._pack[0] != piece:
            self._pack = (piece, self._pieces.get(*self._manifest.packs[piece]))
        return self._pack[1]


class _Stream:
    """Bytes of several pieces, one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = memoryview(b"")

    def up_to(self, count: int) -> memoryview:
        """Return the next bytes: one at least, count at most."""
        while not self._held:
            self._held = memoryview(next(self._pieces))
        found, self._held = self._held[:count], self._held[count:]
        return found


def _link(top: int, entries: Sequence[Entry], entry: Entry, inside: int) -> None:
    """Give a file that was written another name."""
    first = entries[entry.same]
    source = _open_folder(top, entries, first.parent)
    try:
        os.link(first.name, entry.name, src_dir_fd=source, dst_dir_fd=inside, follow_symlinks=False)
    finally:
        os.close(source)


def _open_folder(top: int, entries: Sequence[Entry], number: int) -> int:
    """Return a descriptor of a folder that was written: step by step, as paths have an end."""
    names: list[bytes] = []
    while number > 0:
        names.append(entries[number].name)
        number = entries[number].parent
    opened = os.dup(top)
    for name in reversed(names):
        try:
            inner = syscalls.open_beneath(opened, os.fsdecode(name), _FOLDER)
        finally:
            os.close(opened)
        opened = inner
    return opened


def _write(opened: int, content: memoryview, at: int) -> None:
    while content:
        done = os.pwrite(opened, content, at)
        content, at = content[done:], at + done
