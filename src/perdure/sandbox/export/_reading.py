"""A frozen layer, read for export: by descriptors, without following any link.

What is read was written by code that nobody vetted. Each folder is opened in the one above it, each
file in its folder, never by a path, so that a link leads nowhere. Nobody writes to a frozen layer;
that a file is what the walk saw is looked at again all the same.
"""

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from perdure.errors import UsageError
from perdure.sandbox.export._manifest import FILE_BITS, FOLDER_BITS, Entry, Kind, Part, is_kept
from perdure.sandbox.export._pieces import Pieces
from perdure.sandbox.inside import syscalls
from perdure.sandbox.limits import (
    ATTRIBUTE_BYTES_MAX,
    DEPTH_MAX,
    EXPORT_BYTES_MAX,
    EXPORT_ENTRIES_MAX,
    EXPORT_FILE_BYTES_MAX,
    EXTENTS_MAX,
    INLINE_BYTES_MAX,
    PACKED_FILE_BYTES_MAX,
    PIECE_BYTES,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_KINDS = {
    stat.S_IFDIR: Kind.FOLDER,
    stat.S_IFREG: Kind.FILE,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFIFO: Kind.PIPE,
    stat.S_IFSOCK: Kind.SOCKET,
}


class Driver(Struct, frozen=True):
    """How the kernel was told to keep what an overlay means, and whose the files are.

    Attributes:
        name: `ns` or `userns`.
        opaque: attribute of a folder that hides what is below it.
        first: user id of the host that is root in the sandbox.
        count: how many ids there are from it on.
    """

    name: str
    opaque: str
    first: int
    count: int


def driver_of(ids: tuple[int, int]) -> Driver:
    """Return this process's driver; `ids`: the first user id of the sandboxes, and how many."""
    if os.geteuid() == 0:
        return Driver("ns", "trusted.overlay.opaque", *ids)
    return Driver("userns", "user.overlay.opaque", *ids)


class Packer:
    """Puts small files together into pieces."""

    def __init__(self, pieces: Pieces) -> None:
        """Have nothing yet."""
        self._pieces = pieces
        self._held = bytearray()
        self.packs: list[tuple[bytes, int]] = []

    def add(self, content: bytes) -> tuple[int, int]:
        """Take in a small file; return in which piece it is, and where."""
        if len(self._held) + len(content) > PIECE_BYTES:
            self._flush()
        begin = len(self._held)
        self._held += content
        return len(self.packs), begin

    def end(self) -> bytes:
        """Put away what is held; return it where it is so little that no object is made of it."""
        if not self.packs and len(self._held) <= INLINE_BYTES_MAX:
            return bytes(self._held)
        if self._held:
            self._flush()
        return b""

    def _flush(self) -> None:
        self.packs.append((self._pieces.put(self._held), len(self._held)))
        self._held = bytearray()


class Reading:
    """Reads a layer, part by part; what is in files goes into pieces on the way."""

    def __init__(self, driver: Driver, pieces: Pieces, go_on: Callable[[], None]) -> None:
        """Belong to one layer.

        Args:
            driver: of the sandboxes here.
            pieces: where content goes.
            go_on: called for each entry; raises where work is to stop.
        """
        self._driver = driver
        self._pieces = pieces
        self._go_on = go_on
        self.packer = Packer(pieces)
        self._count = 0
        self._bytes = 0

    def part(self, at: str, folder: str) -> Part:
        """Return a part of the layer.

        Raises:
            UsageError: it can't be exported: too much, too deep, or not of this tenant.
            OSError: it can't be read.
        """
        entries: list[Entry] = []
        walk = _Walk(self, at, entries)
        top = os.open(folder, _FOLDER | os.O_CLOEXEC)
        try:
            walk.all(top)
        except PermissionError as error:  # no root of the host, and closed by root of the sandbox
            raise refused(walk.where, "is closed to its own user") from error
        finally:
            os.close(top)
        return Part(at, tuple(entries))

    def count(self, where: str) -> None:
        """Count one entry more."""
        self._go_on()
        self._count += 1
        if self._count > EXPORT_ENTRIES_MAX:
            raise refused(where, f"is one entry more than {EXPORT_ENTRIES_MAX}")

    def count_bytes(self, there: int, where: str) -> None:
        """Count the bytes of a file."""
        self._bytes += there
        if self._bytes > EXPORT_BYTES_MAX:
            raise refused(where, f"takes the layer over {EXPORT_BYTES_MAX} bytes")

    @property
    def driver(self) -> Driver:
        """How the layer is kept here."""
        return self._driver

    @property
    def pieces(self) -> Pieces:
        """Where content goes."""
        return self._pieces


class _Walk:
    """One part of a layer, folder by folder."""

    def __init__(self, reading: Reading, at: str, entries: list[Entry]) -> None:
        self._reading = reading
        self._at = at
        self._entries = entries
        self._known: dict[tuple[int, int], int] = {}
        self.where = ""

    def all(self, top: int) -> None:
        self._add_folder(top, -1, b"", self._at or "/")
        self._inside(top, 0, f"/{self._at}".rstrip("/"), depth=1)

    def _inside(self, folder: int, number: int, where: str, *, depth: int) -> None:
        with os.scandir(folder) as found:
            listed = sorted(found, key=lambda entry: os.fsencode(entry.name))
        for each in listed:
            name = os.fsencode(each.name)
            self.where = path = f"{where}/{each.name}"
            status = os.stat(each.name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self._add(folder, number, each.name, status, path)
                continue
            if depth > DEPTH_MAX:
                raise refused(path, f"is deeper than {DEPTH_MAX} folders")
            inner = syscalls.open_beneath(folder, each.name, _FOLDER)
            try:
                mine = self._add_folder(inner, number, name, path)
                self._inside(inner, mine, path, depth=depth + 1)
            finally:
                os.close(inner)

    def _add_folder(self, folder: int, parent: int, name: bytes, where: str) -> int:
        self._reading.count(where)
        status = os.fstat(folder)
        is_replaced = False
        with suppress(OSError):
            is_replaced = os.getxattr(folder, self._reading.driver.opaque) == b"y"
        self._entries.append(
            Entry(
                parent,
                name,
                Kind.FOLDER,
                stat.S_IMODE(status.st_mode) & FOLDER_BITS,
                *self._owner(status, where),
                status.st_mtime_ns,
                _attributes(folder, where),
                is_replaced,
            )
        )
        return len(self._entries) - 1

    def _add(self, folder: int, parent: int, name: str, status: os.stat_result, where: str) -> None:
        self._reading.count(where)
        encoded = os.fsencode(name)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            self._entries.append(Entry(parent, encoded, Kind.REMOVED))
            return
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            raise refused(where, "is a device, which no sandbox can make")
        identity = (status.st_dev, status.st_ino)
        if kind is Kind.FILE and identity in self._known:
            same = Entry(parent, encoded, Kind.SAME, same=self._known[identity])
            self._entries.append(same)
            return
        owner, group = self._owner(status, where)
        bits = 0 if kind is Kind.LINK else stat.S_IMODE(status.st_mode) & FILE_BITS
        if kind is Kind.FILE:
            if status.st_nlink > 1:
                self._known[identity] = len(self._entries)
            entry = self._file(folder, parent, name, status, where)
        else:
            target = os.fsencode(os.readlink(name, dir_fd=folder)) if kind is Kind.LINK else b""
            entry = Entry(
                parent, encoded, kind, bits, owner, group, status.st_mtime_ns, target=target
            )
        self._entries.append(entry)

    def _owner(self, status: os.stat_result, where: str) -> tuple[int, int]:
        """Return owner and group as the sandbox sees them."""
        driver = self._reading.driver
        owner, group = status.st_uid - driver.first, status.st_gid - driver.first
        if driver.name == "userns":  # the group that it is mapped to is the process's own
            group = 0 if status.st_gid == os.getegid() else -1
        if not (0 <= owner < driver.count and 0 <= group < driver.count):
            raise refused(
                where, f"belongs to {status.st_uid}:{status.st_gid}, which is no sandbox's"
            )
        return owner, group

    def _file(
        self, folder: int, parent: int, name: str, status: os.stat_result, where: str
    ) -> Entry:
        if status.st_size > EXPORT_FILE_BYTES_MAX:
            raise refused(where, f"is longer than {EXPORT_FILE_BYTES_MAX} bytes")
        opened = syscalls.open_beneath(folder, name, _FILE)
        try:
            now = os.fstat(opened)
            if (now.st_ino, now.st_size, now.st_mtime_ns) != (
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
            ) or not stat.S_ISREG(now.st_mode):
                raise refused(where, "changed while it was read, and frozen layers never do")
            extents = _extents(opened, now, where)
            stretches = extents if extents is not None else ((0, now.st_size),)
            there = sum(length for _, length in stretches)
            self._reading.count_bytes(there, where)
            packed: tuple[int, int] | None = None
            pieces: tuple[bytes, ...] = ()
            if there <= PACKED_FILE_BYTES_MAX:
                content = b"".join(_read(opened, *each, where) for each in stretches)
                packed = self._reading.packer.add(content)
            else:
                pieces = self._pieces(opened, stretches, where)
            return Entry(
                parent,
                os.fsencode(name),
                Kind.FILE,
                stat.S_IMODE(now.st_mode) & FILE_BITS,
                *self._owner(now, where),
                now.st_mtime_ns,
                _attributes(opened, where),
                size=now.st_size,
                extents=extents,
                packed=packed,
                pieces=pieces,
            )
        finally:
            os.close(opened)

    def _pieces(
        self, opened: int, stretches: tuple[tuple[int, int], ...], where: str
    ) -> tuple[bytes, ...]:
        """Put the bytes of a large file away; return the digests of the pieces."""
        digests: list[bytes] = []
        held = bytearray()
        for begin, length in stretches:
            done = 0
            while done < length:
                step = min(PIECE_BYTES - len(held), length - done)
                held += _read(opened, begin + done, step, where)
                done += step
                if len(held) == PIECE_BYTES:
                    digests.append(self._reading.pieces.put(held))
                    held.clear()
        if held:
            digests.append(self._reading.pieces.put(held))
        return tuple(digests)


def _read(opened: int, begin: int, length: int, where: str) -> bytes:
    content = os.pread(opened, length, begin)
    while len(content) < length:
        more = os.pread(opened, length - len(content), begin + len(content))
        if not more:
            raise refused(where, "became shorter while it was read")
        content += more
    return content


def _extents(opened: int, status: os.stat_result, where: str) -> tuple[tuple[int, int], ...] | None:
    """Return the stretches of a file that are no holes; None: it has none."""
    if status.st_blocks * 512 >= status.st_size:
        return None
    found: list[tuple[int, int]] = []
    end = 0
    while end < status.st_size:
        try:
            begin = os.lseek(opened, end, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        end = os.lseek(opened, begin, os.SEEK_HOLE)
        found.append((begin, end - begin))
        if len(found) > EXTENTS_MAX:
            raise refused(where, f"has more than {EXTENTS_MAX} holes")
    return None if found == [(0, status.st_size)] else tuple(found)


def _attributes(opened: int, where: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the attributes of users."""
    found: list[tuple[bytes, bytes]] = []
    for name in sorted(os.listxattr(opened)):
        encoded = os.fsencode(name)
        if is_kept(encoded):
            found.append((encoded, os.getxattr(opened, name)))
    if sum(len(name) + len(value) for name, value in found) > ATTRIBUTE_BYTES_MAX:
        raise refused(where, f"has attributes of more than {ATTRIBUTE_BYTES_MAX} bytes")
    return tuple(found)


def refused(where: str, what: str) -> UsageError:
    """Return the error of a layer that can't be exported."""
    shown = where.encode("utf-8", "backslashreplace").decode()
    msg = f"the snapshot can't be exported: {shown} {what}. It stays on this host"
    return UsageError(msg, path=shown)
