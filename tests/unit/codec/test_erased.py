"""Frames whose records were erased: digests stay, and with them the chain."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import (
    ERASED_FORMAT,
    NO_HASH,
    chain_hash,
    chain_hash_of,
    digests_of,
    encode_frame,
    erase_frame,
    is_erased,
    is_hash_right,
    is_time_hashed,
    split_frame,
)
from perdure.errors import DecodeFailed, RecordErased
from perdure.ids import RunId
from perdure.model import FrameRow

records = st.lists(st.binary(max_size=50), max_size=8)


@given(records)
def test_the_chain_hash_stays(given_records):
    body = encode_frame(given_records)
    erased = erase_frame(body)
    assert digests_of(erased) == digests_of(body)
    assert chain_hash_of(NO_HASH, "r", 1, 2, digests_of(erased), at_us=3) == chain_hash(
        NO_HASH, "r", 1, 2, given_records, at_us=3
    )
    assert (is_erased(body), is_erased(erased)) == (False, True)
    assert erase_frame(erased) == erased


def test_nothing_of_the_records_is_left():
    erased = erase_frame(encode_frame([b"a secret of somebody" * 9]))
    assert b"secret" not in erased
    assert erased[0] == ERASED_FORMAT == 0xEE
    assert len(erased) == 1 + 1 + 2 + 32


def test_who_reads_it_is_told_that_it_was_on_purpose():
    with pytest.raises(RecordErased, match="erased on purpose") as caught:
        split_frame(erase_frame(encode_frame([b"x"])))
    assert isinstance(caught.value, DecodeFailed)


@pytest.mark.parametrize(
    "body",
    [
        b"\xee",
        b"\xee\x91",
        b"\xee\xc0",
        b"\xee\x91\xc4\x01x",
        b"\xee\x91\xa0",
        b"\xee" + msgspec.msgpack.encode([bytes(32), bytes(31)]),
        b"\xee" + b"\x91" * 10_000,
        b"\xee\xdd\xff\xff\xff\xff",
    ],
)
def test_damaged_digests_are_refused(body):
    with pytest.raises(DecodeFailed):
        digests_of(body)


@given(st.binary(max_size=40))
def test_any_bytes_are_digests_or_refused(noise):
    for body in (noise, b"\xee" + noise):
        try:
            assert all(len(digest) == 32 for digest in digests_of(body))
        except DecodeFailed:
            continue


def frame(at_us, *, hashed_us):
    return FrameRow(
        run_id=RunId("r"),
        first_seq=1,
        count=1,
        token=0,
        at_us=at_us,
        body=encode_frame([b"x"]),
        prev_hash=NO_HASH,
        hash=chain_hash(NO_HASH, "r", 1, 0, [b"x"], at_us=hashed_us),
    )


@pytest.mark.parametrize(
    ("hashed_us", "is_right", "is_timed"), [(5, True, True), (None, True, False), (6, False, True)]
)
def test_the_time_is_part_of_the_hash_unless_it_was_written_without(hashed_us, is_right, is_timed):
    found = frame(5, hashed_us=hashed_us)
    assert is_hash_right(found, digests_of(found.body)) is is_right
    if is_right:
        assert is_time_hashed(found, digests_of(found.body)) is is_timed
