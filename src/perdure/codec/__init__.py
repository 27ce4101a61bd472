"""Bytes to values and back: values, records, frames, the hash chain. Pure."""

from perdure.codec._arrays import ShownArray
from perdure.codec._compress import compressed, expanded
from perdure.codec._envelope import (
    KEY_BYTES,
    KEY_ID_BYTES,
    NONCE_BYTES,
    SEALED_BYTE,
    Batch,
    DataKey,
    is_sealed,
    key_id_of,
)
from perdure.codec._erased import digests_of, erase_frame, erased_blank, is_erased
from perdure.codec._journal import (
    ERASED_FORMAT,
    FRAME_FORMAT,
    NO_HASH,
    PACKED_FORMAT,
    chain_hash,
    chain_hash_of,
    decode_record,
    encode_frame,
    encode_record,
    is_hash_right,
    is_time_hashed,
    record_digests,
    split_frame,
)
from perdure.codec._langchain import register_langchain
from perdure.codec._old_types import OldTypes, unbuilt_types
from perdure.codec._pages import (
    HASH_BYTES,
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
    "ERASED_FORMAT",
    "FRAME_FORMAT",
    "HASH_BYTES",
    "KEY_BYTES",
    "KEY_ID_BYTES",
    "NONCE_BYTES",
    "NO_HASH",
    "PACKED_FORMAT",
    "SEALED_BYTE",
    "Batch",
    "DataKey",
    "OldTypes",
    "PageRef",
    "Paged",
    "Pager",
    "ShownArray",
    "TypeRegistry",
    "ValueCodec",
    "chain_hash",
    "chain_hash_of",
    "compressed",
    "decode_record",
    "default_name",
    "describe",
    "digests_of",
    "encode_frame",
    "encode_record",
    "erase_frame",
    "erased_blank",
    "expanded",
    "is_erased",
    "is_hash_right",
    "is_large",
    "is_sealed",
    "is_time_hashed",
    "joined",
    "key_id_of",
    "names_in",
    "opened",
    "record_digests",
    "ref_of",
    "register_langchain",
    "register_type",
    "split_frame",
    "unbuilt_types",
]
