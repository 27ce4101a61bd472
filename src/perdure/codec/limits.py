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

COMPRESSED_MIN = 400
"""Smallest payload that is compressed, in bytes: below it there is little to save."""

EXPANSION_MAX = 200
"""How many times as large as its packed form something may be; what packs better stays as it is."""

EXPANDED_FREE = 1024 * 1024
"""Up to how many bytes that does not matter."""

FRAME_BYTES_MAX = 1024 * 1024 * 1024
"""Largest frame that is read, in bytes once expanded; SQLite's largest row."""

PAGED_MIN = 16 * 1024
"""Smallest encoded value that is stored as pages, in bytes; what is smaller stays in its record."""

PAGE_BYTES_MEAN = 8 * 1024
"""Size that pages are cut towards, in bytes.

A change of one field writes about one and a half of them, and 32 bytes for each page of the value.
"""

PAGE_BYTES_MAX = 32 * 1024
"""Largest page, in bytes."""

PAGE_LISTS_MIN = 6 * 1024
"""From how many bytes on a list of page hashes is itself stored as pages."""

PAGE_DEPTH_MAX = 4
"""Most levels of such lists: enough for the largest value."""

ARRAY_DIMENSIONS_MAX = 64
"""Most dimensions of an array: as many as NumPy has."""

TYPE_DEPTH_MAX = 16
"""Deepest nesting of an array's structured type."""

SEALED_BYTES_MAX = FRAME_BYTES_MAX + 1024
"""Largest sealed form that is read, in bytes: a largest frame and what sealing adds."""

ELEMENTS_COMPARED_MAX = 20_000_000
"""Most elements of two arrays that are compared one by one for people: about half a second."""
