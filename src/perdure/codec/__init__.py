"""Bytes to values and back: values, records, frames, the hash chain. Pure."""

from perdure.codec._journal import (
    FRAME_FORMAT,
    NO_HASH,
    PACKED_FORMAT,
    chain_hash,
    decode_record,
    encode_frame,
    encode_record,
    split_frame,
)
from perdure.codec._old_types import OldTypes, unbuilt_types
from perdure.codec._pages import (
    Paged,
    Pager,
    PageRef,
    is_large,
    joined,
    names_in,
    opened,
    ref_of,
)
from perdure.codec._registry import TypeRegistry, default_name, register_type
from perdure.codec._values import ValueCodec, describe

__all__ = [
    "FRAME_FORMAT",
    "NO_HASH",
    "PACKED_FORMAT",
    "OldTypes",
    "PageRef",
    "Paged",
    "Pager",
    "TypeRegistry",
    "ValueCodec",
    "chain_hash",
    "decode_record",
    "default_name",
    "describe",
    "encode_frame",
    "encode_record",
    "is_large",
    "joined",
    "names_in",
    "opened",
    "ref_of",
    "register_type",
    "split_frame",
    "unbuilt_types",
]
