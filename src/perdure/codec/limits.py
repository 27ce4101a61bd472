"""Limits of the codec."""

VALUE_BYTES_MAX = 256 * 1024 * 1024
"""Largest encoded value, in bytes: far above any sane field, below SQLite's largest row (1 GB).
"""

DEPTH_MAX = 150
"""Deepest nesting of a value.

Also what stops a value that contains itself, before Python's own limit does.
"""
