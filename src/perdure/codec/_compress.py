"""Compression of what is stored: Zstandard, level 1, of the standard library where it is there.

Loaded when first used: a process that stores nothing large does without.
"""

import sys
from functools import cache
from types import ModuleType
from typing import Any

from perdure.codec.limits import (
    COMPRESSED_MIN,
    EXPANDED_FREE,
    EXPANSION_MAX,
    FRAME_BYTES_MAX,
)
from perdure.errors import DecodeFailed

_LEVEL = 1


@cache
def _zstd() -> ModuleType:
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415  # costs start-up time
    else:
        from backports import zstd  # noqa: PLC0415  # costs start-up time
    return zstd


@cache
def _compressor() -> Any:
    return _zstd().ZstdCompressor(level=_LEVEL)


def _most(packed_bytes: int, free: int) -> int:
    """Return how many bytes a packed form may stand for: what is damaged can't fill the memory."""
    return max(free, packed_bytes * EXPANSION_MAX)


def compressed(payload: bytes, *, free: int = EXPANDED_FREE) -> bytes | None:
    """Return the payload compressed; None: it stays as it is, as that saves little or too much.

    `free`: up to how many bytes it never saves too much, as who reads it bears them.
    """
    if len(payload) < COMPRESSED_MIN:
        return None
    compressor = _compressor()
    packed: bytes = compressor.compress(payload, compressor.FLUSH_FRAME)
    is_worth_it = len(packed) < len(payload) * 9 // 10
    return packed if is_worth_it and len(payload) <= _most(len(packed), free) else None


def expanded(
    packed: bytes | memoryview, *, bytes_max: int = FRAME_BYTES_MAX, free: int = EXPANDED_FREE
) -> bytes:
    """Return what was compressed; `free`: as it was compressed with.

    Raises:
        DecodeFailed: damaged, or larger than `bytes_max`; nothing larger was kept in memory.
    """
    bytes_max = min(bytes_max, _most(len(packed), free))
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        payload: bytes = decompressor.decompress(packed, max_length=bytes_max + 1)
    except (zstd.ZstdError, EOFError) as error:
        msg = f"compressed bytes can't be read: {error}"
        raise DecodeFailed(msg) from error
    if len(payload) > bytes_max:
        msg = f"compressed bytes hold more than {bytes_max} bytes"
        raise DecodeFailed(msg)
    if not decompressor.eof or decompressor.unused_data:
        msg = "compressed bytes are cut short, or followed by others"
        raise DecodeFailed(msg)
    return payload
