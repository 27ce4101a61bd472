"""Named limits of the SQLite store: unit and reason each."""

BUSY_TIMEOUT_S = 10.0
"""How long a write waits for another process's commit; a commit takes milliseconds, a stuck disk
seconds."""

BUSY_STEP_S = 0.0005
BUSY_STEP_S_MAX = 0.005
"""First and longest pause between two tries for the write lock: SQLite's own steps (up to 100 ms)
cost latency."""

COALESCE_MAX = 512
"""Calls that may share one commit: bounds what one failed commit takes with it."""

CLAIM_WINDOW = 2048
"""Due runs that one claim looks at one by one; more are a backlog, looked at by the heads of its
lines."""

UNREADABLE_PAUSE_US = 60 * 1_000_000
"""How long claims pass over a run whose row is damaged, so that it doesn't hold up the others."""

POLL_S = 0.015
"""How often other processes' writes are looked for, while somebody waits."""

TRANSACTION_IDLE_S = 60.0
"""A transaction body that runs no statement for so long is rolled back: it blocks every other
writer."""

STATEMENT_CACHE = 256
"""Prepared statements kept per connection; the store has about a hundred."""

WORKER_FORGOTTEN_US = 24 * 3600 * 1_000_000
"""A worker row without a heartbeat for so long is removed when another worker registers."""

HOLD_TRIES = 100
HOLD_PAUSE_S = 0.01
"""How often, and how far apart, a worker tries for its lock: a survivor has it for milliseconds."""

REWRITE_BYTES_MAX = 256 * 1024 * 1024
"""Used bytes of a file that is rewritten without being asked for: other writers wait about a second
meanwhile."""

RESERVE_MB = 64.0
"""Room on the disk, in MiB, below which no run is started: those under way can go on."""

SCAN_BYTES = 16 * 1024 * 1024
"""Bytes of a file that are searched at once."""
