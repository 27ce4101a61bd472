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

SUBJECT_PAGE = 1_000
"""Threads of a subject that are read at once."""

NEEDLES_MAX = 64
"""Pieces of what was erased that are looked for afterwards: each is a pass over the store."""

NEEDLE_NAMES_MAX = 1_000
"""Names of threads that no piece may hold, as they stay: each piece is compared with all."""

NEEDLE_BYTES_MIN = 12
"""Shortest of them: shorter ones are found by chance, or in others' data."""

NEEDLE_BYTES_MAX = 32
"""Longest of them: more proves nothing more, and may be cut in two by the pages of a file."""

ERASED_THREADS_MAX = 10_000
"""Threads of one erasure in the store: bounds its row and its first transaction."""

FRAMES_ERASED = 64
"""Frames erased in one transaction."""

END_TRIES = 100
"""Rounds in which unfinished runs of an erasure are ended: each frees those that stood behind."""

RECEIPT_BYTES_MAX = 64 * 1024 * 1024
"""Largest receipt that is read: 10,000 threads and their effects take a few MB."""

PIN_GRACE_US = 600_000_000
"""How long a fork's tag on its origin waits for its fork to be started: ten minutes."""

OTHERS_TRIES = 20
OTHERS_PAUSE_S = 1.0
"""How often, and how long apart, an erasure looks again for what another one may erase just now."""
