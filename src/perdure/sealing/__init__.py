"""Encryption of what users put into a store, as a layer between the engine and any store."""

from perdure.sealing._in_place import Progress, Sealing, preview_seal, seal
from perdure.sealing._keyring import STORE, context_of, is_sealed_store, unwrapped
from perdure.sealing._providers import (
    KeyProvider,
    LocalKeys,
    make_keys,
    new_key,
    parse_keys,
    read_key_file,
)
from perdure.sealing._rotation import Rotation, Wrapping, rotate, wrappings
from perdure.sealing._store import SealedStore, sealed, stored_by

__all__ = [
    "STORE",
    "KeyProvider",
    "LocalKeys",
    "Progress",
    "Rotation",
    "SealedStore",
    "Sealing",
    "Wrapping",
    "context_of",
    "is_sealed_store",
    "make_keys",
    "new_key",
    "parse_keys",
    "preview_seal",
    "read_key_file",
    "rotate",
    "seal",
    "sealed",
    "stored_by",
    "unwrapped",
    "wrappings",
]
