"""Pieces of what is erased, to look for them afterwards in all that the store keeps.

They are kept in memory only, and a bounded number of them: those whose hash is smallest, which is a
sample that does not depend on the order in which they come.
"""

import heapq
import re
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from typing import Any

from msgspec import Struct

from perdure.engine.paging import values_in
from perdure.governance.limits import (
    NEEDLE_BYTES_MAX,
    NEEDLE_BYTES_MIN,
    NEEDLE_NAMES_MAX,
    NEEDLES_MAX,
)
from perdure.model import FrameRow
from perdure.model import records as rec

_TEXT = re.compile(rb"[A-Za-z0-9 .,:;!?@/_+-]{%d,}" % NEEDLE_BYTES_MIN)
_ID = re.compile(rb"\b[a-z]_[0-9a-z]{26,32}\b")
"""Ids of runs, asks, effects, workers: rows that stay have them."""

_STORED = 40
"""Where a needle begins in a stored body: behind what all bodies have in common."""


class Needles:
    """A sample of byte strings."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Leave out what has one of the known names in it: those stay."""
        self._known = [name.encode() for name in islice(known, NEEDLE_NAMES_MAX)]
        self._heap: list[tuple[int, bytes]] = []
        self._chosen: set[bytes] = set()

    def add_frame(self, frame: FrameRow, records: Iterable[rec.Record]) -> None:
        """Take in how a frame is stored, and what its records hold."""
        self.add_stored(frame.body)
        for record in records:
            for raw in values_in(record):
                self.add_text(bytes(raw))
            for text in _texts_in(record):
                self.add_text(text.encode("utf-8", "surrogatepass"))

    def add_row(self, wires: Iterable[bytes | None]) -> None:
        """Take in the columns of a row as they are stored."""
        for wire in wires:
            if wire is not None:
                self.add_stored(wire)

    def add_stored(self, body: bytes) -> None:
        """Take in a piece of something as it is stored: packed, or sealed."""
        piece = body[_STORED : _STORED + NEEDLE_BYTES_MAX]
        if len(piece) == NEEDLE_BYTES_MAX:
            self._add(piece)

    def add_text(self, content: bytes) -> None:
        """Take in what can be read in some bytes."""
        for found in _TEXT.findall(content):
            piece = found[:NEEDLE_BYTES_MAX].strip()
            if len(piece) >= NEEDLE_BYTES_MIN and not self._stays(piece):
                self._add(piece)

    def _stays(self, piece: bytes) -> bool:
        return _ID.search(piece) is not None or any(name in piece for name in self._known)

    def _add(self, piece: bytes) -> None:
        if piece in self._chosen:
            return
        rank = -int.from_bytes(sha256(piece).digest()[:8], "big")
        if len(self._heap) < NEEDLES_MAX:
            heapq.heappush(self._heap, (rank, piece))
        elif rank > self._heap[0][0]:
            _rank, gone = heapq.heapreplace(self._heap, (rank, piece))
            self._chosen.discard(gone)
        else:
            return
        self._chosen.add(piece)

    @property
    def pieces(self) -> list[bytes]:
        """The sample."""
        return sorted(self._chosen)


def _texts_in(held: Any) -> Iterable[str]:
    """Yield the texts of users in a record that are no encoded values."""
    if isinstance(held, rec.Asked):
        yield held.question
    elif isinstance(held, rec.AskAnswered):
        yield held.by
    failure = getattr(held, "failure", None)
    if isinstance(failure, Struct):
        yield getattr(failure, "message", "")
        yield getattr(failure, "trace", "")
    rollback = getattr(held, "rollback", None)
    if isinstance(rollback, rec.Rollback):
        yield rollback.reason
