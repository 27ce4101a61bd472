"""Limits of the sandbox: unit and reason each."""

ENTRIES_MAX = 200_000
"""Files, folders and links of one snapshot: a large checkout, and a manifest of some 30 MB."""

BYTES_MAX = 16 * 1024**3
"""Bytes of all files of one snapshot: what a slow disk copies in a few minutes."""

DEPTH_MAX = 128
"""Folders within folders: far above real trees, far below Python's limit on recursion."""

CHUNK_BYTES = 1024 * 1024
"""Bytes read at once when a file is hashed or copied."""

READ_TRIES_MAX = 3
"""How often a file that changes while it is read is read again."""

RACY_NS = 100_000_000
"""A file changed so shortly before it was hashed is hashed again next time: file systems stamp
changes with a clock of 1 to 10 ms, so that a later change could carry the same time."""

LOCK_WAIT_S = 10.0
"""How long `take` and `restore` wait for another process that is at work on the same sandbox."""

LOCK_STEP_S = 0.005
"""Pause between two tries for that lock."""
