"""Records to frames and back, and the hash chain over them.

A frame is what one commit made durable for one run. Its body is one format byte and a msgpack array
of encoded records. The chain hash of a frame is SHA-256 over: the hash of the frame before, the run
id, the first seq, the token, and the SHA-256 of every record. So a record can later be erased and
only its digest kept, while the chain still verifies.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from perdure.errors import DecodeFailed
from perdure.model.records import Record

FRAME_FORMAT = 1
"""First byte of every frame body that this code writes."""

NO_HASH = bytes(32)
"""The hash before the first frame of a run."""

_FORMAT_BYTE = bytes([FRAME_FORMAT])
_encoder = msgspec.msgpack.Encoder()
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_frame_decoder = msgspec.msgpack.Decoder(list[bytes])

encode_record = _encoder.encode
"""Return the encoded record."""


def encode_frame(records: Sequence[bytes]) -> bytes:
    """Return the body of a frame of encoded records."""
    return _FORMAT_BYTE + _encoder.encode(records)


def split_frame(body: bytes) -> list[bytes]:
    """Return the encoded records of a frame body.

    Raises:
        DecodeFailed: damaged, or written by a newer format.
    """
    if not body or body[0] != FRAME_FORMAT:
        found = body[0] if body else "nothing"
        msg = (
            f"journal frame of format {found}; this Perdure reads format {FRAME_FORMAT}: install a "
            "newer one, nothing was changed"
        )
        raise DecodeFailed(msg)
    try:
        return _frame_decoder.decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"journal frame can't be decoded: {error}"
        raise DecodeFailed(msg) from error


def decode_record(encoded: bytes) -> Record:
    """Return the record.

    Raises:
        DecodeFailed: damaged, or of a kind that a newer Perdure wrote.
    """
    try:
        return _record_decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"journal record can't be decoded: {error}; was it written by a newer Perdure?"
        raise DecodeFailed(msg) from error


def chain_hash(
    prev_hash: bytes, run_id: str, first_seq: int, token: int, records: Sequence[bytes]
) -> bytes:
    """Return the hash of a frame (32 bytes)."""
    digests = b"".join([sha256(record).digest() for record in records])
    head = b"%b%b:%d:%d:" % (prev_hash, run_id.encode(), first_seq, token)
    return sha256(head + digests).digest()
