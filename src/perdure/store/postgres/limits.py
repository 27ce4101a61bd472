"""Named limits of the PostgreSQL store: unit and reason each."""

LANES_MAX = 4
"""Connections for reads and small writes, opened when they are needed. Appends, heartbeats and the
news have one each of their own: none of them may stand behind a slow read."""

LANE_IDLE_S = 5.0
"""A connection for calls that had none for so long is given back to the server, but for one."""

RETRIES_MAX = 20
"""Times that a write is called again which the server rolled back for a deadlock, or a key that was
taken at the same moment."""

RETRY_PAUSE_S = 0.002
RETRY_PAUSE_S_MAX = 0.1
"""Longest pause before the first of them, drawn at random, doubled each time up to the second."""

CONNECT_TIMEOUT_S = 10
"""How long a connection may take to open."""

RECONNECT_PAUSE_S = 0.05
RECONNECT_PAUSE_S_MAX = 1.0
"""First and longest pause before the connection for news is opened again."""

BLIND_POLL_S = 1.0
"""How often waiters look for themselves while the connection for news is down."""

NOTIFY_SOON_S = 0.005
"""Pause before others are told of a write that gives them work: what comes meanwhile shares one
notification."""

NOTIFY_LATER_S = 0.1
"""The same for writes that only somebody who watches a run wants to know of."""

STRIKE_S = 0.2
"""A worker whose lock is gone, and whose process can't be looked at from here, is looked at again
after so long: one that lives and lost its
connection has taken it again by then, on a busy machine or a slow network too. Too short, and a cut
connection takes its runs away, which leaves effects of kind `once` to a person."""

LOOKERS_FREE = 4
"""So many workers look for dead ones as often as they like (each 30 ms)."""

LOOK_SHARE_S = 0.0075
LOOK_S_MAX = 1.0
"""Of more workers each looks after this times their number, and after a second at the latest: all
together about 130 times a second, so that somebody looks soon. If most of them die at once, those
that are left may look only after that second. 32 idle workers that looked each 30 ms took 416 ms of
the server's CPU per second; so they take 100 ms."""

CLAIM_WINDOW = 2048
"""Due runs that one claim looks at one by one; more are a backlog, looked at by the heads of its
lines."""

RENEW_AGAIN_S = (0.005, 0.02, 0.05, 0.1)
"""Pauses before a heartbeat looks again at runs whose row was locked. One that stays locked is in a
transaction of its run: nobody can claim it before that ends, which renews the lease."""

WORKER_FORGOTTEN_US = 24 * 3600 * 1_000_000
"""A worker row without a heartbeat for so long is removed when another worker registers."""

UNREADABLE_PAUSE_US = 60 * 1_000_000
"""How long claims pass over a run whose row is damaged, so that it doesn't hold up the others."""

TRANSACTION_IDLE_S = 60
"""A transaction body that runs no statement for so long is rolled back: what it has locked in the
user's tables stays locked meanwhile, and one of few connections is taken."""

ANSWER_S_MAX = 120.0
"""How long a statement may go without an answer before its connection counts as broken. Longer than
any wait for a row (`TRANSACTION_IDLE_S`). Keepalives notice most of it far sooner, but not a middle
box that answers them and forwards nothing."""

CLAIM_IDLE_S = 3
"""A claim under limits that is silent for so long between two statements is rolled back: no other
claim goes on meanwhile."""

SESSIONS_MAX = 8
"""Transaction bodies under way at once in one process, each with a connection of its own."""

TIME_ANSWER_S_MAX = 0.5
"""An answer to the question for the server's time that took longer is too inexact."""

TIME_STEP_US = 50_000
"""Difference to the server's time that is followed; leases have a margin of two seconds."""

KEEPALIVES_IDLE_S = 5
KEEPALIVES_INTERVAL_S = 2
KEEPALIVES_COUNT = 3
"""When a silent connection is asked whether its other end lives, and when it counts as dead."""

UNANSWERED_MS = 15_000
"""How long sent data may stay without an acknowledgement (`tcp_user_timeout`)."""

REWRITING_LOCK_MS = 10_000
"""How long who rewrites the store waits for its tables: a transaction of others is shorter."""
