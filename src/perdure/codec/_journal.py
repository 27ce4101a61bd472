"""Records to frames and back, and the hash chain over them.

A frame is what one commit made durable for one run. Its body is one format byte and a msgpack array
of encoded records, which format 2 compresses. The chain hash of a frame is SHA-256 over: the hash
of the frame before, the run id, the first seq, the token, the time of the frame, and the SHA-256 of
every record. So how a frame is packed is no matter of the chain, and a record can later be erased
and only its digest kept, while the chain still verifies. Frames that were written before the time
was part of it are recognised by their hash.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from perdure.codec._compress import compressed, expanded
from perdure.errors import DecodeFailed, RecordErased
from perdure.model import FrameRow
from perdure.model.records import Record

FRAME_FORMAT = 1
"""First byte of a frame body whose records are as they are."""

PACKED_FORMAT = 2
"""First byte of a frame body whose array of records is compressed (Zstandard)."""

ERASED_FORMAT = 0xEE
"""First byte of the body of an erased frame; see `codec._erased`."""

NO_HASH = bytes(32)
"""The hash before the first frame of a run."""

_FORMAT_BYTE = bytes([FRAME_FORMAT])
_PACKED_BYTE = bytes([PACKED_FORMAT])
_ERASED_BYTE = bytes([ERASED_FORMAT])
_encoder = msgspec.msgpack.Encoder()
_record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_frame_decoder = msgspec.msgpack.Decoder(list[bytes])

encode_record = _encoder.encode
"""Return the encoded record."""


def encode_frame(records: Sequence[bytes]) -> bytes:
    """Return the body of a frame of encoded records."""
    array = _encoder.encode(records)
    packed = compressed(array)
    return _FORMAT_BYTE + array if packed is None else _PACKED_BYTE + packed


def split_frame(body: bytes) -> list[bytes]:
    """Return the encoded records of a frame body.

    Raises:
        RecordErased: only the digests of the records were kept.
        DecodeFailed: damaged, or written by a newer format.
    """
    if body[:1] == _ERASED_BYTE:
        msg = (
            "the records of this journal frame were pruned, or erased on purpose; their digests "
            "were kept, so that the journal can still be verified ('perdure audit verify')"
        )
        raise RecordErased(msg)
    array: bytes | memoryview = memoryview(body)[1:]
    if body[:1] == _PACKED_BYTE:
        array = expanded(array)
    elif body[:1] != _FORMAT_BYTE:
        found = body[0] if body else "nothing"
        msg = (
            f"journal frame of format {found}; this Perdure reads formats {FRAME_FORMAT} and "
            f"{PACKED_FORMAT}: install a newer one, nothing was changed"
        )
        raise DecodeFailed(msg)
    try:
        return _frame_decoder.decode(array)
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


def record_digests(records: Sequence[bytes]) -> list[bytes]:
    """Return the SHA-256 of every encoded record."""
    return [sha256(record).digest() for record in records]


def chain_hash(
    prev_hash: bytes,
    run_id: str,
    first_seq: int,
    token: int,
    records: Sequence[bytes],
    *,
    at_us: int | None = None,
) -> bytes:
    """Return the hash of a frame (32 bytes).

    `at_us`: the frame's time; None: as frames were hashed that do not say theirs.
    """
    digests = record_digests(records)
    return chain_hash_of(prev_hash, run_id, first_seq, token, digests, at_us=at_us)


def chain_hash_of(
    prev_hash: bytes,
    run_id: str,
    first_seq: int,
    token: int,
    digests: Sequence[bytes],
    *,
    at_us: int | None = None,
) -> bytes:
    """Return the hash of a frame whose records have these digests; see `chain_hash`."""
    head = b"%b%b:%d:%d:" % (prev_hash, run_id.encode(), first_seq, token)
    if at_us is not None:
        head += b"%d:" % at_us
    return sha256(head + b"".join(digests)).digest()


def is_hash_right(frame: FrameRow, digests: Sequence[bytes]) -> bool:
    """Return whether a frame's hash is that of its columns and of its records' digests."""
    return frame.hash == _hash_of(frame, digests, frame.at_us) or not is_time_hashed(frame, digests)


def is_time_hashed(frame: FrameRow, digests: Sequence[bytes]) -> bool:
    """Return False if a frame's hash is right, and was made without the frame's time."""
    return frame.hash != _hash_of(frame, digests, None)


def _hash_of(frame: FrameRow, digests: Sequence[bytes], at_us: int | None) -> bytes:
    return chain_hash_of(
        frame.prev_hash, frame.run_id, frame.first_seq, frame.token, digests, at_us=at_us
    )
