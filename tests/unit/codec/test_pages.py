"""Pages of large values: cut, named, joined."""

import random
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import Pager, TypeRegistry, ValueCodec, joined, names_in, opened, ref_of
from perdure.codec._compress import _compressor
from perdure.codec._pages import PAGED_EXT, page_of
from perdure.codec.limits import PAGE_BYTES_MAX, PAGE_LISTS_MIN, VALUE_BYTES_MAX
from perdure.errors import DecodeFailed
from perdure.model import Page

codec = ValueCodec(TypeRegistry())


def text_of(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length).hex().encode()  # noqa: S311  # no secret


def read(stored: dict[bytes, bytes], raw: bytes) -> bytes:
    """Read a value back as a loader does, level by level."""
    ref = ref_of(raw)
    assert ref is not None
    hashes = ref.hashes
    for _level in range(ref.depth):
        hashes = b"".join(opened(stored[name], name) for name in names_in(hashes))
    pieces = {name: opened(stored[name], name) for name in names_in(hashes)}
    return joined(ref, hashes, pieces)


def put(stored: dict[bytes, bytes], pages: tuple[Page, ...]) -> int:
    new = {page.hash: page.body for page in pages if page.hash not in stored}
    stored.update(new)
    return sum(map(len, new.values()))


@given(st.binary(min_size=1, max_size=200_000), st.data())
@settings(max_examples=60, deadline=None)
def test_every_version_reads_back(encoded, data):
    stored: dict[bytes, bytes] = {}
    pager, versions = Pager(), []
    for _edit in range(data.draw(st.integers(1, 5))):
        paged = pager.cut(encoded)
        put(stored, paged.pages)
        pager.keep(paged)
        versions.append((paged.ref, encoded))
        at = data.draw(st.integers(0, len(encoded)))
        gone = data.draw(st.integers(0, 3000))
        encoded = (
            encoded[:at] + data.draw(st.binary(max_size=5000)) + encoded[at + gone :]
        ) or b"x"
    for ref, expected in versions:
        assert read(stored, ref) == expected


def test_an_edit_writes_little():
    stored: dict[bytes, bytes] = {}
    value = {f"field {n}": text_of(n, 512).decode() for n in range(1000)}
    pager = Pager()
    first = pager.cut(codec.encode(value))
    put(stored, first.pages)
    pager.keep(first)
    chance = random.Random(5)  # noqa: S311  # no secret
    written = 0
    for edit in range(100):
        value[f"field {chance.randrange(1000)}"] = text_of(10_000 + edit, 512).decode()
        encoded = codec.encode(value)
        paged = pager.cut(encoded)
        written += put(stored, paged.pages) + len(paged.ref)
        pager.keep(paged)
        assert read(stored, paged.ref) == encoded
    assert written < 1_300_000  # of a value of a million bytes, changed a hundred times


def test_an_insertion_at_the_front_shares_the_rest():
    stored: dict[bytes, bytes] = {}
    body = text_of(1, 500_000)
    put(stored, Pager().cut(body).pages)
    assert put(stored, Pager().cut(b"something new" + body).pages) < 100_000


def test_long_lists_are_pages_too():
    body = text_of(2, 4_000_000)
    paged = Pager().cut(body)
    ref = ref_of(paged.ref)
    assert ref.depth == 1
    assert len(ref.hashes) <= PAGE_LISTS_MIN
    stored: dict[bytes, bytes] = {}
    put(stored, paged.pages)
    assert read(stored, paged.ref) == body


def test_what_was_not_kept_is_written_again():
    pager, body = Pager(), text_of(3, 100_000)
    lost = pager.cut(body)
    assert pager.cut(body).pages == lost.pages
    pager.keep(lost)
    assert pager.cut(body).pages == ()


def test_what_was_loaded_is_not_written_again():
    body = text_of(4, 100_000)
    paged = Pager().cut(body)
    pager = Pager()
    pager.learn(body, [page.hash for page in paged.pages])
    assert pager.cut(body).pages == ()
    other = Pager()
    other.learn(body, [page.hash for page in paged.pages[1:]])  # not all of it is stored
    assert other.cut(body).pages == paged.pages[:1]


@pytest.mark.parametrize("value", [None, 1, "text", b"bytes", [1], {"a": 1}, 2**80, {1, 2}])
def test_other_values_are_no_references(value):
    assert ref_of(codec.encode(value)) is None


def test_a_reference_is_described_and_not_decoded():
    paged = Pager().cut(text_of(6, 50_000))
    with pytest.raises(DecodeFailed):
        codec.decode(paged.ref)


def forged(*fields) -> bytes:
    payload = msgspec.msgpack.encode(list(fields))
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(PAGED_EXT, payload))


@pytest.mark.parametrize(
    "raw",
    [
        forged(0, 100, bytes(31)),
        forged(0, 100, b""),
        forged(9, 100, bytes(32)),
        forged(-1, 100, bytes(32)),
        forged(0, 0, bytes(32)),
        forged(0, VALUE_BYTES_MAX + 1, bytes(32)),
        forged(0, 1, bytes(64)),
        forged("0", 1, bytes(32)),
        forged(0, 1),
        forged(*range(200)),
    ],
)
def test_forged_references_are_refused(raw):
    with pytest.raises(DecodeFailed):
        ref_of(raw)


def test_damaged_pages_are_refused():
    page = page_of(b"a" * 1000, sha256(b"a" * 1000).digest())
    assert opened(page.body, page.hash) == b"a" * 1000
    for at in range(len(page.body)):
        damaged = bytearray(page.body)
        damaged[at] ^= 1
        with pytest.raises(DecodeFailed):
            opened(bytes(damaged), page.hash)
    with pytest.raises(DecodeFailed):
        opened(b"", page.hash)


def test_a_page_that_expands_without_end_is_refused():
    compressor = _compressor()
    bomb = compressor.compress(bytes(50 * PAGE_BYTES_MAX), compressor.FLUSH_FRAME)
    with pytest.raises(DecodeFailed, match="more than"):
        opened(b"\x01" + bomb, bytes(32))


def test_pages_that_do_not_fit_their_reference_are_refused():
    body = text_of(7, 50_000)
    paged = Pager().cut(body)
    ref = ref_of(paged.ref)
    shorter = msgspec.structs.replace(ref, length=ref.length - 1)
    pieces = {page.hash: opened(page.body, page.hash) for page in paged.pages}
    with pytest.raises(DecodeFailed):
        joined(shorter, ref.hashes, pieces)
