"""Pages of large values: each one that a journal refers to must be there, and be what it is named.

Theory: a record holds the hashes of a value's pages, and the chain holds the record; so a page that
hashes to its name is what was written. Versions of a value share most of their pages, so those that
were seen once in a thread are not asked for again.
"""

from hashlib import sha256

from perdure.codec import PageRef, names_in, opened, ref_of
from perdure.engine.paging import values_in
from perdure.errors import DecodeFailed
from perdure.model import records as rec


class PageNeeds:
    """The pages that the records of one thread refer to.

    Attributes:
        wanted: pages that did not come yet, with the levels of lists that they lead to.
    """

    def __init__(self) -> None:
        """Need none."""
        self.wanted: dict[bytes, int] = {}
        self._seen: set[tuple[bytes, int]] = set()
        self._lengths: dict[bytes, int] = {}
        self._lists: dict[bytes, bytes] = {}

    def look_at(self, record: rec.Record) -> None:
        """Want what a record refers to.

        Raises:
            DecodeFailed: it holds a reference that is none.
        """
        for raw in values_in(record):
            ref = ref_of(raw)
            if ref is not None:
                self._want(ref.hashes, ref.depth)

    def _want(self, hashes: bytes, depth: int) -> None:
        for name in names_in(hashes):
            if (name, depth) not in self._seen:
                self.wanted[name] = max(depth, self.wanted.get(name, 0))

    def take(self, name: bytes, body: bytes) -> str | None:
        """Take in a page that is wanted; return what is wrong with it, or None."""
        depth = self.wanted.pop(name)
        self._seen.add((name, depth))
        try:
            piece = opened(body, name)
        except DecodeFailed as error:
            return str(error)
        if depth:
            self._lists[name] = piece
            self._want(piece, depth - 1)
        self._lengths[name] = len(piece)
        return None

    def is_value(self, ref: PageRef, encoded: bytes) -> bool | None:
        """Return whether a reference is to these bytes; None: not all of its pages came."""
        hashes = ref.hashes
        for _level in range(ref.depth):
            lists = [self._lists.get(name) for name in names_in(hashes)]
            if None in lists:
                return None
            hashes = b"".join(each for each in lists if each is not None)
        at = 0
        for name in names_in(hashes):
            if name not in self._lengths:
                return None
            piece = encoded[at : at + self._lengths[name]]
            if sha256(piece).digest() != name:
                return False
            at += len(piece)
        return at == len(encoded)

    def drop(self) -> list[bytes]:
        """Return the pages that did not come, and want them no more."""
        missing = list(self.wanted)
        self._seen.update(self.wanted.items())
        self.wanted = {}
        return missing
