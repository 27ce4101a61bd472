"""Large values as pages that are addressed by what is in them.

Theory: the encoded value is cut where its content says so (FastCDC: a rolling hash over the last
64 bytes), so that an edit moves the cuts next to it only. A page is named by its SHA-256; two
versions of a value, two forks and two threads of a tenant share every page that is equal. What a
record holds instead of the value is a reference: the hashes, in order. A long list of hashes is cut
into pages itself, so a change writes about one page of the value and one of each list above it.

Where cuts are made is no part of the format: another way to cut shares less, and reads the same.

Invariants: joined, the pages of a reference are the encoded value; a page whose hash is not its
name is never used.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from perdure.codec._compress import compressed, expanded
from perdure.codec.limits import (
    PAGE_BYTES_MAX,
    PAGE_BYTES_MEAN,
    PAGE_DEPTH_MAX,
    PAGE_LISTS_MIN,
    PAGED_MIN,
    VALUE_BYTES_MAX,
)
from perdure.errors import DecodeFailed
from perdure.model import Page

PAGED_EXT = 2
"""Extension type of a reference; values have type 1."""

HASH_BYTES = 32

_PLAIN, _ZSTD = b"\x00", b"\x01"
_EXT_HEADS = frozenset({0xC7, 0xC8, 0xC9})
_encoder = msgspec.msgpack.Encoder()


class PageRef(Struct, frozen=True, array_like=True):
    """What stands in a record for a value in pages.

    Attributes:
        depth: how many levels of lists are between `hashes` and the value's pages.
        length: bytes of the encoded value.
        hashes: the hashes of the topmost level, one after the other.
    """

    depth: int
    length: int
    hashes: bytes


Known = dict[tuple[int, int], tuple[bytes, bytes]]
"""Pages by rolling hash and length: their bytes, and their hash."""

_ref_decoder = msgspec.msgpack.Decoder(PageRef)
_ext_decoder = msgspec.msgpack.Decoder(msgspec.msgpack.Ext)


class Paged(Struct, frozen=True):
    """A value in pages.

    Attributes:
        ref: what a record holds instead.
        pages: those that may not be stored yet.
        known: what its pager remembers once they are.
    """

    ref: bytes
    pages: tuple[Page, ...]
    known: "Known"


@cache
def _cutter() -> Any:
    from pyfastcdc import FastCDC  # noqa: PLC0415  # costs start-up time, needed by large values

    return FastCDC(PAGE_BYTES_MEAN, min_size=PAGE_BYTES_MEAN // 4, max_size=PAGE_BYTES_MAX)


class Pager:
    """Cuts the versions of one value. It remembers the newest, whose pages need not be written."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Know no page."""
        self._known: Known = {}

    def cut(self, encoded: bytes) -> Paged:
        """Return the value in pages; remembers nothing."""
        known: Known = {}
        pages: list[Page] = []
        hashes = self._level(encoded, known, pages)
        depth = 0
        while len(hashes) > PAGE_LISTS_MIN:
            hashes = self._level(hashes, known, pages)
            depth += 1
        ref = _encoder.encode(PageRef(depth, len(encoded), hashes))
        ext = _encoder.encode(msgspec.msgpack.Ext(PAGED_EXT, ref))
        return Paged(ext, tuple(pages), known)

    def keep(self, paged: Paged) -> None:
        """Remember a version whose pages are handed over, to be stored with what uses them."""
        self._known = paged.known

    def learn(self, encoded: bytes, stored: Iterable[bytes]) -> None:
        """Remember a value that was loaded; `stored`: hashes of the pages that it came from."""
        found = set(stored)
        known = self.cut(encoded).known
        self._known = {key: pair for key, pair in known.items() if pair[1] in found}

    def _level(self, encoded: bytes, known: Known, pages: list[Page]) -> bytes:
        """Cut one level; return its hashes, add its pages to what is known and what is new."""
        hashes: list[bytes] = []
        for chunk in _cutter().cut_buf(encoded):
            at = chunk.offset
            piece = encoded[at : at + chunk.length]
            key = (chunk.gear_hash, chunk.length)
            # Comparing bytes is ten times as fast as hashing them.
            pair = known.get(key) or self._known.get(key)
            if pair is None or pair[0] != piece:
                pair = piece, sha256(piece).digest()
                pages.append(page_of(piece, pair[1]))
            known[key] = pair
            hashes.append(pair[1])
        return b"".join(hashes)


def page_of(piece: bytes, named: bytes) -> Page:
    """Return the page of some bytes and their hash; its first byte says how they are packed."""
    packed = compressed(piece)
    return Page(named, _PLAIN + piece if packed is None else _ZSTD + packed)


def is_large(encoded: bytes) -> bool:
    """Return whether an encoded value is stored as pages."""
    return len(encoded) >= PAGED_MIN


def ref_of(raw: bytes | Raw) -> PageRef | None:
    """Return the reference that a stored value is; None: it is the value itself.

    Raises:
        DecodeFailed: it looks like a reference and is none.
    """
    view = memoryview(raw)
    head = view[0] if view else 0
    if head not in _EXT_HEADS or view[1 + (1 << (head - 0xC7))] != PAGED_EXT:
        return None
    try:
        ref = _ref_decoder.decode(_ext_decoder.decode(view).data)
    except msgspec.MsgspecError as error:
        msg = f"a reference to pages can't be decoded: {error}"
        raise DecodeFailed(msg) from error
    is_sane = (
        0 <= ref.depth <= PAGE_DEPTH_MAX
        and 0 < ref.length <= VALUE_BYTES_MAX
        and ref.hashes
        and len(ref.hashes) % HASH_BYTES == 0
        and len(ref.hashes) <= ref.length * HASH_BYTES
    )
    if not is_sane:
        msg = f"a reference to pages is not what is written: depth {ref.depth}, {ref.length} bytes"
        raise DecodeFailed(msg)
    return ref


def names_in(hashes: bytes) -> list[bytes]:
    """Return the hashes of a list of them."""
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def opened(page: bytes, named: bytes) -> bytes:
    """Return the bytes of a stored page.

    Raises:
        DecodeFailed: its bytes are not what its name says.
    """
    head, packed = page[:1], memoryview(page)[1:]
    if head == _ZSTD:
        piece = expanded(packed, bytes_max=PAGE_BYTES_MAX)
    elif head == _PLAIN:
        piece = bytes(packed)
    else:
        msg = f"page {named.hex()[:16]} is packed in a way that is unknown here"
        raise DecodeFailed(msg)
    if sha256(piece).digest() != named:
        msg = f"page {named.hex()[:16]} does not hold what its name says"
        raise DecodeFailed(msg)
    return piece


def joined(ref: PageRef, hashes: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    """Return the encoded value of the pages named by `hashes`.

    Raises:
        DecodeFailed: they are not as long as the reference says.
    """
    named = [pieces[name] for name in names_in(hashes)]
    size = sum(map(len, named))
    if size != ref.length:  # before they are joined: pages may repeat without end
        msg = f"the pages of a value hold {size} bytes instead of {ref.length}"
        raise DecodeFailed(msg)
    return b"".join(named)
