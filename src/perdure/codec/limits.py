"""Limits of the codec."""

VALUE_BYTES_MAX = 256 * 1024 * 1024
"""Largest encoded value, in bytes: far above any sane field, below SQLite's largest row (1 GB).
"""

DEPTH_MAX = 150
"""Deepest nesting of a value.

Also what stops a value that contains itself, before Python's own limit does.
"""

PATH_PARTS_MAX = 8
"""Most steps of a place inside a value that a message shows: its first and its last ones."""

PATH_PART_CHARS_MAX = 60
"""Longest text of one such step, in characters."""

SHOWN_INT_BITS_MAX = 4096
"""Widest integer that is shown in decimal, in bits; Python refuses to print much wider ones."""
