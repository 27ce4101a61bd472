"""Bytes <-> values: records, frames, hashes, schema versions. Pure."""
