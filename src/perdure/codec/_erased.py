"""Frames whose records were erased: their digests stay, so that the chain still verifies.

The body of an erased frame is the format byte 0xEE and a msgpack array of the SHA-256 of every
record, in order. The frame's other columns (seq, count, token, time, hashes) stay as they are, and
the chain hash is made of the digests alone: it is the same before and after. What is erased can't
be made up again without finding a second record of the same SHA-256.
"""

import msgspec

from perdure.codec._journal import ERASED_FORMAT, record_digests, split_frame
from perdure.errors import DecodeFailed

DIGEST_BYTES = 32
"""Bytes of a SHA-256."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[bytes])


def is_erased(body: bytes) -> bool:
    """Return whether a frame's body holds digests in place of records."""
    return body[:1] == bytes([ERASED_FORMAT])


def erase_frame(body: bytes) -> bytes:
    """Return the body of the same frame with its records erased; one that is erased stays as it is.

    Raises:
        DecodeFailed: the body can't be read; what it holds can't be proven afterwards.
    """
    return bytes([ERASED_FORMAT]) + _encoder.encode(digests_of(body))


def digests_of(body: bytes) -> list[bytes]:
    """Return the digests of a frame's records, in order, whether they were erased or not.

    Raises:
        DecodeFailed: damaged, or written by a newer format.
    """
    if not is_erased(body):
        return record_digests(split_frame(body))
    try:
        digests = _decoder.decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"erased journal frame can't be decoded: {error}"
        raise DecodeFailed(msg) from error
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        msg = f"erased journal frame holds a digest that is not {DIGEST_BYTES} bytes long"
        raise DecodeFailed(msg)
    return digests


def erased_blank(count: int) -> bytes:
    """Return the body of an erased frame whose records could not be read: no digest is known."""
    return bytes([ERASED_FORMAT]) + _encoder.encode([bytes(DIGEST_BYTES)] * count)
