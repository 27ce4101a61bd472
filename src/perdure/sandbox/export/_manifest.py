"""The manifest of an exported layer: every file, folder, link and mark of removal in it.

Theory: an entry has the number of the folder that it is in and a name without any `/`, so that no
path can be written in a manifest at all, and none leads out. Marks of one kind of overlay (devices,
attributes) are facts here: removed, replaced; each driver writes its own. Entries are in the order
of a walk: a folder, then all that is in it.

What is checked is checked for the whole manifest before a byte of it is written (`checked`). It is
not taken for true because it is signed: who may export is not who may write outside of a sandbox.
"""

from enum import IntEnum
from hashlib import sha256

import msgspec
from msgspec import Struct

from perdure.errors import SnapshotBroken
from perdure.sandbox._made import Made
from perdure.sandbox._processes import Process
from perdure.sandbox.limits import (
    ATTRIBUTE_BYTES_MAX,
    DEPTH_MAX,
    EXPORT_BYTES_MAX,
    EXPORT_ENTRIES_MAX,
    EXPORT_FILE_BYTES_MAX,
    EXTENTS_MAX,
    FILE_NAME_BYTES_MAX,
    INLINE_BYTES_MAX,
    PACKED_FILE_BYTES_MAX,
    PIECE_BYTES,
    PROCESSES_TOLD_MAX,
    TARGET_BYTES_MAX,
)

FORMAT = 1
"""Version of the manifest."""

DIGEST_BYTES = 32
IDS_MAX = 65_536

FILE_BITS = 0o1777
"""Permissions of a file: no set-id bits, which sandboxes don't honour anyway."""
FOLDER_BITS = 0o3777
"""Permissions of a folder: its group may be that of what is made in it."""

_TIME_MAX = 1 << 62


class Kind(IntEnum):
    """What an entry is."""

    FOLDER = 0
    FILE = 1
    LINK = 2
    PIPE = 3
    SOCKET = 4
    REMOVED = 5
    """What is there below was removed."""
    SAME = 6
    """Another name of a file."""


class Entry(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One name in a layer.

    Attributes:
        parent: number of the folder that it is in; of the first entry of a part: -1.
        name: without `/`; empty for the first entry of a part.
        kind: a `Kind`.
        mode: permission bits.
        owner, group: ids as the sandbox sees them.
        modified_ns: time of its last change.
        attributes: those of users, (name, value).
        is_replaced: a folder that hides what is below it.
        target: what a link points to.
        same: number of the entry that it is another name of.
        size: of a file, with holes.
        extents: (begin, length) of what is no hole, in order; none: all of it is there.
        packed: (piece, begin) of a small file's bytes among those of others; none: it has pieces.
        pieces: digests of a large file's bytes, without holes.
    """

    parent: int
    name: bytes
    kind: int
    mode: int = 0
    owner: int = 0
    group: int = 0
    modified_ns: int = 0
    attributes: tuple[tuple[bytes, bytes], ...] = ()
    is_replaced: bool = False
    target: bytes = b""
    same: int = -1
    size: int = 0
    extents: tuple[tuple[int, int], ...] | None = None
    packed: tuple[int, int] | None = None
    pieces: tuple[bytes, ...] = ()

    @property
    def bytes_there(self) -> int:
        """Return how many bytes it has without holes."""
        return self.size if self.extents is None else sum(length for _, length in self.extents)


class Part(Struct, frozen=True, array_like=True):
    """The changes to a part of the base. `at`: where it is in the sandbox."""

    at: str
    entries: tuple[Entry, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """An exported layer.

    Attributes:
        format: of the manifest.
        tenant, thread: names of the folders of whose it is; the thread is the one that took it.
        layer: the snapshot's id.
        is_whole: it has what all layers below come to, and stands on none.
        generation: of the thread, see `_generation`.
        parent: the snapshot that it stands on; empty: the base.
        parent_object: name of the parent's manifest.
        parent_digest: SHA-256 of it.
        base: digest of the base, see `_base`.
        made: what it was made with.
        at_us: when it was taken.
        changes: what it holds, as its layer.json says.
        exported_us: when.
        parts: the changes.
        packs: (digest, bytes) of the pieces that small files are in.
        inline: the only such piece, where it is small; its digest is in no list.
        processes: what was alive when it was taken; none comes back elsewhere, but it is told.
    """

    format: int
    tenant: str
    thread: str
    layer: str
    is_whole: bool
    generation: tuple[int, int, int]
    parent: str
    parent_object: str
    parent_digest: bytes
    base: bytes
    made: Made
    at_us: int
    changes: str
    exported_us: int
    parts: tuple[Part, ...]
    packs: tuple[tuple[bytes, int], ...]
    inline: bytes
    processes: tuple[Process, ...] = ()

    @property
    def pieces(self) -> list[tuple[bytes, int]]:
        """Return (digest, bytes) of every piece that is an object of its own."""
        found = list(self.packs)
        for part in self.parts:
            for entry in (entry for entry in part.entries if entry.pieces):
                found += zip(entry.pieces, piece_lengths(entry.bytes_there), strict=True)
        return found


def piece_lengths(total: int) -> list[int]:
    """Return the lengths of the pieces of so many bytes."""
    whole, rest = divmod(total, PIECE_BYTES)
    return [PIECE_BYTES] * whole + ([rest] if rest else [])


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the one spelling of a manifest."""
    return msgspec.msgpack.encode(manifest)


def digest_of(encoded: bytes) -> bytes:
    """Return what names a manifest in those that stand on it."""
    return sha256(encoded).digest()


def decode_manifest(encoded: bytes) -> Manifest:
    """Return a manifest of which everything was checked.

    Raises:
        SnapshotBroken: it is none, or says what can't be.
    """
    try:
        head = msgspec.msgpack.decode(encoded, type=_Head)
        if head.format != FORMAT:
            msg = f"the manifest has format {head.format}; this Perdure reads {FORMAT}"
            raise SnapshotBroken(msg)
        manifest = msgspec.msgpack.decode(encoded, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"the manifest can't be read: {error}; nothing was restored"
        raise SnapshotBroken(msg) from error
    _Check(manifest).all()
    return manifest


class _Head(Struct):
    format: int


class _Check:
    """Refuses what can't be, or is more than anybody exports."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.bytes = 0
        self.where = ""

    def all(self) -> None:
        manifest = self.manifest
        count = sum(len(part.entries) for part in manifest.parts)
        self.that(count <= EXPORT_ENTRIES_MAX, f"has {count} entries")
        self.that(
            len({part.at for part in manifest.parts}) == len(manifest.parts), "has a part twice"
        )
        self.that(len(manifest.inline) <= INLINE_BYTES_MAX, "has too much in it")
        self.that(not (manifest.inline and manifest.packs), "has small files in two places")
        self.that(len(manifest.base) == DIGEST_BYTES, "names no base")
        self.that(bool(manifest.parent) == bool(manifest.parent_object), "names half a parent")
        self.that(not (manifest.parent and manifest.is_whole), "is whole and has a parent")
        self.that(
            all(0 <= number < _TIME_MAX for number in manifest.generation), "has no generation"
        )
        self.that(len(manifest.processes) <= PROCESSES_TOLD_MAX, "has too many processes")
        for digest, length in manifest.packs:
            self.digest(digest)
            self.that(0 < length <= PIECE_BYTES, "has a piece of no such length")
        for part in manifest.parts:
            self.part(part)

    def that(self, is_right: bool, what: str) -> None:  # noqa: FBT001  # reads as a sentence
        if not is_right:
            where = f" ({self.where})" if self.where else ""
            layer = self.manifest.layer
            msg = f"the manifest of snapshot {layer!r} {what}{where}; nothing was restored"
            raise SnapshotBroken(msg, snapshot=layer)

    def digest(self, digest: bytes) -> None:
        self.that(len(digest) == DIGEST_BYTES, "has a digest of no such length")

    def part(self, part: Part) -> None:
        self.where = f"/{part.at}"
        self.that(bool(part.entries), "has a part without a folder")
        first = part.entries[0]
        self.that(
            first.parent == -1 and not first.name and first.kind == Kind.FOLDER,
            "has no first folder",
        )
        self.facts(first)
        above = [0]  # the folders that the walk is in
        names: list[set[bytes]] = [set()]
        for number, entry in enumerate(part.entries[1:], 1):
            self.where = f"/{part.at}, entry {number}"
            while above and above[-1] != entry.parent:
                above.pop()
                names.pop()
            self.that(bool(above), "has an entry in no folder that it is in the order of")
            self.name(entry.name)
            self.that(entry.name not in names[-1], "has a name twice")
            names[-1].add(entry.name)
            self.facts(entry)
            if entry.kind == Kind.FOLDER:
                above.append(number)
                names.append(set())
                self.that(len(above) <= DEPTH_MAX + 1, f"is deeper than {DEPTH_MAX} folders")
            if entry.kind == Kind.SAME:
                self.that(0 < entry.same < number, "has a name of nothing")
                self.that(
                    part.entries[entry.same].kind == Kind.FILE, "has a name of what is no file"
                )

    def name(self, name: bytes) -> None:
        is_name = (
            bool(name) and name not in {b".", b".."} and b"/" not in name and b"\0" not in name
        )
        self.that(is_name and len(name) <= FILE_NAME_BYTES_MAX, "has a name that is none")

    def facts(self, entry: Entry) -> None:
        self.that(entry.kind in Kind.__members__.values(), "has an entry of an unknown kind")
        bits = FOLDER_BITS if entry.kind == Kind.FOLDER else FILE_BITS
        self.that(entry.mode & ~bits == 0, "has permissions that none keeps")
        self.that(0 <= entry.owner < IDS_MAX and 0 <= entry.group < IDS_MAX, "has an owner outside")
        self.that(-_TIME_MAX < entry.modified_ns < _TIME_MAX, "has a time that is none")
        self.that(entry.kind == Kind.FOLDER or not entry.is_replaced, "replaces by no folder")
        self.attributes(entry)
        is_link = 0 < len(entry.target) <= TARGET_BYTES_MAX and b"\0" not in entry.target
        self.that(is_link if entry.kind == Kind.LINK else not entry.target, "has a link to nothing")
        if entry.kind == Kind.FILE:
            self.content(entry)
        else:
            is_empty = not (entry.size or entry.extents or entry.packed or entry.pieces)
            self.that(is_empty, "has content where none can be")

    def attributes(self, entry: Entry) -> None:
        held = sum(len(name) + len(value) for name, value in entry.attributes)
        self.that(held <= ATTRIBUTE_BYTES_MAX, "has too many attributes")
        for name, _value in entry.attributes:
            self.that(is_kept(name) and b"\0" not in name, "has an attribute that is not a user's")
        can_have = entry.kind in {Kind.FILE, Kind.FOLDER}
        self.that(can_have or not entry.attributes, "has attributes where none can be")

    def content(self, entry: Entry) -> None:
        self.that(0 <= entry.size <= EXPORT_FILE_BYTES_MAX, f"has a file of {entry.size} bytes")
        self.extents(entry)
        there = entry.bytes_there
        self.bytes += there
        self.that(
            self.bytes <= EXPORT_BYTES_MAX, f"has more than {EXPORT_BYTES_MAX} bytes of files"
        )
        if entry.packed is None:
            for digest in entry.pieces:
                self.digest(digest)
            expected = -(-there // PIECE_BYTES)
            self.that(
                len(entry.pieces) == expected, "has a file of other pieces than its size says"
            )
            return
        self.that(not entry.pieces, "has a file in two places")
        piece, begin = entry.packed
        if self.manifest.packs:
            self.that(0 <= piece < len(self.manifest.packs), "has a file in a piece that is none")
            length = self.manifest.packs[piece][1]
        else:
            self.that(piece == 0, "has a file in a piece that is none")
            length = len(self.manifest.inline)
        self.that(there <= PACKED_FILE_BYTES_MAX, "has a large file among small ones")
        self.that(0 <= begin <= length - there, "has a file outside of its piece")

    def extents(self, entry: Entry) -> None:
        if entry.extents is None:
            return
        self.that(len(entry.extents) <= EXTENTS_MAX, "has a file of too many holes")
        end = 0
        for begin, length in entry.extents:
            self.that(begin >= end and length > 0, "has a file whose bytes overlap")
            end = begin + length
        self.that(end <= entry.size, "has a file with bytes after its end")


def is_kept(attribute: bytes) -> bool:
    """Return whether an attribute is a user's own: what an overlay means by one is none."""
    return attribute.startswith(b"user.") and not attribute.startswith(b"user.overlay.")
