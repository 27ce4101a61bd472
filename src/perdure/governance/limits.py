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
