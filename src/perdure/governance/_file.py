r"""The file that an audit export is: blocks, each with its length before it.

Format 2. `PERDURE-AUDIT\n`, one byte with the number of the format, then blocks: four bytes with
the length (unsigned, big-endian), and a msgpack array that begins with the kind of the block. In
this order:

    head (1)
    for each thread:    thread (2)
        for each run:   run begins (3), frames (4), run (5), effects (6), asks (7), run ends (8)
                        after a frame: pages (12) that it refers to, each once for a thread
    unreadable (13)     in place of what the store could not read: behind a thread its row; among
                        frames a frame; in place of a run its row; behind a run other rows
    end (9)             how many blocks and bytes came before it, and their SHA-256
    signature (10)      of all bytes before it; or unsigned (11)

Format 1 is the same without unreadable (13), and is read for ever.

Nothing follows. A frame is as the store has it, so that its hash can be made again; a row is a
msgpack map of its fields. Kinds and fields are only ever added in a new format.

Invariants of reading: a block takes no more memory than the file is long (and, where a frame in it
is compressed, than the codec lets a frame grow: 1 GB); whatever is wrong is an `ExportInvalid` that
names the offset.
"""

import io
import os
from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO

import msgspec
from msgspec import Struct

from perdure.errors import ExportInvalid
from perdure.governance.limits import BLOCK_BYTES_MAX
from perdure.model import AskRow, EffectRow, RunRow, ThreadRow

FORMAT = 2
"""Number of the format that this code writes."""

FORMATS = (1, FORMAT)
"""Formats that it reads."""

MAGIC = b"PERDURE-AUDIT\n"
"""First bytes of every export."""

SIGNED_CONTEXT = b"perdure-audit-export-1\n"
"""What is signed begins with this, so that a signature fits nothing else that a key may sign."""


class Head(Struct, array_like=True, frozen=True, tag=1):
    """What was exported: one run, one thread, one tenant, or all (each empty)."""

    made_at_us: int
    perdure: str
    tenant: str = ""
    thread: str = ""
    run_id: str = ""


class ThreadOf(Struct, array_like=True, frozen=True, tag=2):
    """The thread whose runs follow; `is_whole`: whether all of its runs do."""

    tenant: str
    thread: str
    is_whole: bool
    row: ThreadRow | None = None


class RunBegins(Struct, array_like=True, frozen=True, tag=3):
    """The run whose frames follow."""

    run_id: str
    ordinal: int


class FrameOf(Struct, array_like=True, frozen=True, tag=4):
    """One frame, as the store has it."""

    first_seq: int
    count: int
    token: int
    at_us: int
    prev_hash: bytes
    hash: bytes
    body: bytes


class RunOf(Struct, array_like=True, frozen=True, tag=5):
    """The run's row; `is_settled`: whether nobody wrote to it since its frames were read."""

    row: RunRow
    is_settled: bool
    has_all_rows: bool


class EffectOf(Struct, array_like=True, frozen=True, tag=6):
    """One effect's row."""

    row: EffectRow


class AskOf(Struct, array_like=True, frozen=True, tag=7):
    """One ask's row."""

    row: AskRow


class RunEnds(Struct, array_like=True, frozen=True, tag=8):
    """Where the run's journal ended when it was exported."""

    run_id: str
    last_seq: int
    last_hash: bytes


class End(Struct, array_like=True, frozen=True, tag=9):
    """What came before."""

    blocks: int
    size: int
    digest: bytes


class Signature(Struct, array_like=True, frozen=True, tag=10):
    """Ed25519 over the context and the SHA-256 of all bytes before this block."""

    algorithm: str
    public_key: bytes
    signature: bytes


class Unsigned(Struct, array_like=True, frozen=True, tag=11):
    """Nobody signed it."""


class PageOf(Struct, array_like=True, frozen=True, tag=12):
    """One page of a large value, as the store has it."""

    name: bytes
    body: bytes


class UnreadableOf(Struct, array_like=True, frozen=True, tag=13):
    """What the store could not read; `of`: "thread", "frame", "run" or "row" (effect or ask)."""

    of: str
    what: str


Block = (
    Head
    | ThreadOf
    | RunBegins
    | FrameOf
    | RunOf
    | EffectOf
    | AskOf
    | RunEnds
    | End
    | Signature
    | Unsigned
    | PageOf
    | UnreadableOf
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Block] = msgspec.msgpack.Decoder(Block)
_LENGTH_BYTES = 4


class Writer:
    """Writes blocks, and keeps count and digest of them."""

    def __init__(self, to: BinaryIO) -> None:
        """Write the first bytes."""
        self._to = to
        self._hash = sha256()
        self.size = 0
        self.blocks = 0
        self._put(MAGIC + bytes([FORMAT]))

    def _put(self, data: bytes) -> None:
        self._to.write(data)
        self._hash.update(data)
        self.size += len(data)

    def block(self, block: Block) -> None:
        """Write one block.

        Raises:
            ExportInvalid: it is larger than what may be read.
        """
        encoded = _encoder.encode(block)
        if len(encoded) > BLOCK_BYTES_MAX:
            msg = f"a block of {len(encoded)} bytes is larger than {BLOCK_BYTES_MAX}"
            raise ExportInvalid(msg, bytes=len(encoded))
        self._put(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)
        self.blocks += 1

    def end(self) -> bytes:
        """Write the end; return the digest of all bytes, to be signed."""
        self.block(End(self.blocks, self.size, self._hash.digest()))
        return self._hash.digest()


class Reader:
    """Reads blocks from a file that can be sought in."""

    def __init__(self, source: BinaryIO) -> None:
        """Read the first bytes.

        Raises:
            ExportInvalid: it is no export, or one of a format that is unknown here.
        """
        self._from = source
        self._size = source.seek(0, os.SEEK_END)
        source.seek(0)
        self.offset = 0
        first = source.read(len(MAGIC) + 1)
        if first[: len(MAGIC)] != MAGIC:
            msg = "it does not begin as an audit export does; 'perdure audit export' makes one"
            raise self.invalid(msg)
        if first[len(MAGIC) :] not in {bytes([known]) for known in FORMATS}:
            known = " and ".join(map(str, FORMATS))
            msg = f"format {first[len(MAGIC) :].hex()} is unknown here; this Perdure reads {known}"
            raise self.invalid(msg)
        self._hash = sha256(first)
        self.offset = len(first)
        self.blocks = 0

    def invalid(self, what: str) -> ExportInvalid:
        """Return the error that says what is wrong at the present offset."""
        msg = f"the file can't be read at byte {self.offset}: {what}"
        return ExportInvalid(msg, offset=self.offset)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of all that was read so far."""
        return self._hash.digest()

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        return self.offset >= self._size

    def encoded(self) -> bytes:
        """Return the next block as it is encoded.

        Raises:
            ExportInvalid: the file ends before the block does.
        """
        left = self._size - self.offset - _LENGTH_BYTES
        if left < 0:
            msg = "the file ends where a block should begin; it was cut off"
            raise self.invalid(msg)
        prefix = self._from.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "big")
        if length > left or length > BLOCK_BYTES_MAX:
            msg = f"a block of {length} bytes, and {left} bytes are left; was it cut off?"
            raise self.invalid(msg)
        encoded = self._from.read(length)
        if len(encoded) != length:
            msg = "the file became shorter while it was read"
            raise self.invalid(msg)
        self._hash.update(prefix)
        self._hash.update(encoded)
        self.offset += _LENGTH_BYTES + length
        self.blocks += 1
        return encoded

    def decoded(self, encoded: bytes) -> Block:
        """Return an encoded block.

        Raises:
            ExportInvalid: it is none.
        """
        try:
            return _decoder.decode(encoded)
        except (msgspec.MsgspecError, RecursionError) as error:
            msg = f"the block that ends there can't be decoded: {error}"
            raise self.invalid(msg) from error

    def exact(self, encoded: bytes) -> Block:
        """Return an encoded block that is encoded in the one way in which it is written.

        Raises:
            ExportInvalid: it is none.
        """
        block = self.decoded(encoded)
        if _encoder.encode(block) != encoded:
            msg = "the block that ends there is not encoded as it is written"
            raise self.invalid(msg)
        return block

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks up to the end, which is not among them."""
        while True:
            block = self.decoded(self.encoded())
            if isinstance(block, End):
                return
            yield block


def kind_of(encoded: bytes) -> int:
    """Return the kind of an encoded block without decoding it; 0: it is none."""
    return encoded[1] if len(encoded) > 1 and encoded[0] & 0xF0 == 0x90 else 0  # noqa: PLR2004  # a short array


IS_END = 9
"""Kind of the block that ends the contents."""


def signed_bytes(digest: bytes) -> bytes:
    """Return what is signed for a file whose bytes have this digest."""
    return SIGNED_CONTEXT + digest


def reader_of(data: bytes) -> Reader:
    """Return a reader of bytes in memory."""
    return Reader(io.BytesIO(data))
