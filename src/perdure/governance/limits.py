"""Limits of the audit, each with its unit and its reason."""

FRAMES_PAGE = 16
"""Frames read at once: a frame is what one commit wrote of a run, a few MB at most."""

PAGES_READ = 128
"""Pages of large values read at once: 4 MB at most."""

RUNS_PAGE = 500
"""Rows of runs listed at once."""

SETTLE_TRIES = 5
"""How often a run that is being written to is read on before its rows are left uncompared."""

FINDINGS_MAX = 10_000
"""Findings kept; more are counted. Whoever damaged that much need not have each one named."""

ROWS_MAX = 100_000
"""Effects or asks of one run that are compared: the most that a store lists."""

BLOCK_BYTES_MAX = 1024 * 1024 * 1024
"""Largest block of an export: no store holds a larger row."""

KEY_FILE_BYTES_MAX = 16 * 1024
"""Largest key file that is read; an Ed25519 key takes about 120 bytes."""

TIPS_MAX = 2_000_000
"""Most runs of an earlier export that are compared, as their ends are kept in memory (200 B each).
"""

MARK_BITS = 16
"""Bits for each page of a tenant while its pages are collected: 2 MB for a million pages."""

MARK_BITS_MIN = 1 << 16
"""Fewest of all: what is written meanwhile has room too."""

MARK_PROBES = 11
"""Bits that each page sets: with 16 for each page the fewest mistakes."""

SWEEP_PAGES = 500
"""Pages removed in one transaction, about 4 MB: writers wait for it."""

ERASE_FRAMES = 256
"""Frames erased in one transaction."""

ERASE_BYTES = 4 * 1024 * 1024
"""The same in bytes of what they held."""

PLAN_TRIES = 5
"""How often it is decided anew what goes of a thread, where its tags change all the time."""

COLLECT_TRIES = 5
"""How often a collection is begun anew after somebody else's erasure or collection ended it."""
