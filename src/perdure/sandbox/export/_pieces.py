"""Pieces of content: each an object, named by what is in it, put there once."""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct

from perdure.codec.limits import COMPRESSED_MIN
from perdure.errors import NotFound, SnapshotBroken
from perdure.sandbox.export._condemned import Condemned
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.export._sealer import Sealer
from perdure.sandbox.limits import PIECE_BYTES

_STORED_BYTES_MAX = PIECE_BYTES + COMPRESSED_MIN
"""Bytes of a piece's object at most: what can't be compressed, and what sealing adds."""


class Tally(Struct):
    """What an export put there.

    Attributes:
        pieces: how many, with those that were there.
        new: how many were not there.
        bytes: of their content.
        stored_bytes: of the objects that were made.
        snapshots: how many manifests were made: of layers that were not there.
        known: how many snapshots were looked for, and were there.
    """

    pieces: int = 0
    new: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    snapshots: int = 0
    known: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.pieces + other.pieces,
            self.new + other.new,
            self.bytes + other.bytes,
            self.stored_bytes + other.stored_bytes,
            self.snapshots + other.snapshots,
            self.known + other.known,
        )


class Pieces:
    """The pieces of a tenant, at a place of objects."""

    def __init__(
        self,
        objects: ObjectStore,
        sealer: Sealer,
        *,
        go_on: Callable[[], None] = lambda: None,
        condemned: Condemned | None = None,
    ) -> None:
        """Use a place.

        Args:
            objects: the place.
            sealer: of the tenant.
            go_on: called before each piece; raises where work is to stop.
            condemned: what is given up there; None: nothing is put.
        """
        self._objects = objects
        self._sealer = sealer
        self._go_on = go_on
        self._condemned = condemned
        self.used: set[str] = set()
        self.tally = Tally()

    def put(self, content: bytes | bytearray) -> bytes:
        """Make a piece be there, durable; return its digest."""
        self._go_on()
        digest = sha256(content).digest()
        self.tally.pieces += 1
        self.tally.bytes += len(content)
        name, is_there = self._place_of(self.name_of(digest))
        self.used.add(name)
        if not is_there:
            stored = self._sealer.seal(bytes(content), ("piece", digest))
            if self._objects.put(name, stored):
                self.tally.new += 1
                self.tally.stored_bytes += len(stored)
        return digest

    def _place_of(self, name: str) -> tuple[str, bool]:
        if self._condemned is None:
            return name, self._objects.has(name)
        return self._condemned.free(name)

    def get(self, digest: bytes, length: int) -> bytes:
        """Return a piece.

        Raises:
            SnapshotBroken: it is missing, or is not what was put there.
        """
        self._go_on()
        name = self.name_of(digest)
        stored = self._stored(name)
        self.tally.pieces += 1
        self.tally.bytes += length
        try:
            content = self._sealer.unseal(stored, ("piece", digest), bytes_max=length)
        except SnapshotBroken as error:
            place = f"{name} of {self._objects.place}"
            raise error.located(place) from error
        if len(content) != length or sha256(content).digest() != digest:
            msg = f"the object {name!r} of {self._objects.place} is not what was put there"
            raise SnapshotBroken(msg, object=name)
        return content

    def _stored(self, name: str) -> bytes:
        """Return a piece's object: that of its name, or one that was put when that was given up."""
        try:
            return self._objects.get(name, bytes_max=_STORED_BYTES_MAX)
        except NotFound as error:
            for other in self._objects.list(f"{name}."):
                with suppress(NotFound):
                    return self._objects.get(other, bytes_max=_STORED_BYTES_MAX)
            msg = f"{error}, and a snapshot needs it; nothing was restored"
            raise SnapshotBroken(msg, object=name) from error

    def name_of(self, digest: bytes) -> str:
        """Return the name of a piece's object."""
        name = self._sealer.name_of(b"piece" + digest)
        return f"{self._sealer.folder}/pieces/{name[:2]}/{name}"
