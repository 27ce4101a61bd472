"""Limits and default settings of the engine, each with its unit and its reason."""

LEASE_TTL_S = 15.0
"""How long a lease lasts without renewal.

Longer than any pause of a healthy process, short enough to wait for.
"""

HEARTBEAT_S = 5.0
"""How often leases are renewed: three chances within one TTL."""

OUTAGE_S_MAX = 120.0
"""How long calls of a remote store are repeated before an outage is an error of the call.

Longer than a failover of a database. Far shorter than a store remembers postings (10 minutes).
"""

OUTAGE_BASE_S = 0.05
"""Backoff base between the repeats."""

OUTAGE_CAP_S = 2.0
"""Longest backoff between them: how late an outage's end may be noticed."""

LEASE_MARGIN_S = 2.0
"""No new outside effect is dispatched when less than this is left of the lease.

It is measured from the sending of the last renewal that was accepted: clocks drift and dispatch
takes time.
"""

PENDING_RECORDS_MAX = 2048
"""Most records of one run that may wait for their commit before its next step waits too."""

PENDING_BYTES_MAX = 4 * 1024 * 1024
"""The same in bytes."""

PENDING_AGE_S_MAX = 0.5
"""The same in seconds since the oldest of them was written: what a crash can lose of pure work."""

BATCH_RUNS_MAX = 512
"""Most runs in one group commit, so that one commit stays short."""

YIELD_STEPS = 8
"""Steps that a run takes at most before other runs and the commit queue get a turn."""

LINGER_S = 0.2
"""A wait that ends by itself within this time stays in memory; a longer one releases the run."""

SETTLE_TURNS = 3
"""Turns of the event loop without any change before a run counts as waiting.

They let awaits that are ready go on.
"""

DIVERGENCE_GRACE_S = 0.05
"""How long a new effect waits for recorded ones of its name to be asked for first."""

CANCEL_GRACE_S = 1.0
"""How long effects in flight may still end when their run is failing."""

CLAIMS_MAX = 5
"""Claims of a run without progress before it is parked.

A run that kills its workers must not kill them for ever.
"""

CONCURRENCY = 256
"""Runs that one worker executes at once."""

CLAIM_BATCH = 64
"""Most runs that one claim takes."""

LIVENESS_POLL_S = 0.03
"""How often a worker looks whether a peer on its host died."""

DRAIN_WINDOW_S = 20.0
"""How long a drain lets nodes reach a boundary before it stops them.

Below the usual 30 s grace period.
"""

DRAIN_MARGIN_S = 4.0
"""How long runs may take to be released once a drain's window is over.

With `CLOSE_S`, all that a drain takes beyond its window: it must fit into the grace period.
"""

OUTLAST_S = 3.0
"""How long a release waits for effects that still run in OS threads: below `DRAIN_MARGIN_S`."""

PAGES_READ_MAX = 1024
"""Most pages that are read with one query: about ten megabytes."""

SNAPSHOT_BYTES_MIN = 8 * 1024
"""A thread's state is written whole again when the journal since the last copy exceeds this.

It is what a load of a small state reads at most, however long the thread is.
"""

COPY_RUNS_MAX = 24
"""Most runs of a thread from one whole copy to the next: a load reads twice as many at most.

Each run is read by itself, so a conversation of many short runs would be slow to load, though it is
small.
"""

WHOLE_COPY_SHARE = 3
"""How much longer the journal since a whole copy is than the copy at least.

Of the copy count the bytes that it wrote, and what it holds of fields that are appended to, which
it writes a second time. More: loads read more, less is written twice.
"""

STATE_BYTES_SHARE = 16
"""Of which share of the whole state the journal since a copy is at least.

Fields in pages that did not change cost a copy no bytes, but they are encoded for it.
"""

ERROR_CHARS_MAX = 2000
"""Longest error text that is stored."""

RECONCILE_ATTEMPTS_MAX = 5
"""Tries to find out what became of an uncertain effect before a person is asked."""

RECONCILE_BASE_S = 0.5
"""Backoff base between those tries."""

RECONCILE_CAP_S = 30.0
"""Longest backoff between those tries."""

RECANCEL_S = 1.0
"""How often a node that swallows its cancellation is cancelled again."""

STARTS_MAX = 256
"""Most runs that one transaction creates."""

OUTLOOK_DEPTH_MAX = 20
"""How many children of children, or runs queued behind runs, are followed to say what one needs."""

SCAN_PAGE = 1000
"""Rows that one query of the invariant scan reads: the most that a store gives at once."""

WORKER_SILENT_S = 60.0
"""A worker that was not seen for so long is reported: four of the usual leases."""

CLAIM_OVERDUE_S = 30.0
"""A run that could be claimed for so long, with a live worker of its graph, is reported."""

MAIL_RETRY_S = 0.01
"""Pause before mail is read again for a run that was being loaded when it came."""

HAND_BACK_DELAY_S = 0.5
"""Pause before a run that the store would not let go on is claimed again."""

LOOK_PAUSE_S = 0.1
"""Shortest time between two looks at a run whose end somebody awaits."""

LEARNED_FROM_MAX = 100
"""Due runs of one graph that are looked at for a child among them."""

LOOKED_AT_MAX = 1000
"""Runs that one query looks at for those who wait for their ends."""

LOOK_S_MAX = 3600.0
"""Longest time between two looks when the store tells of no change: a safety net, no poll."""

UNSERVED_BEATS = 6
"""Heartbeats between two looks for due runs of graph versions that no worker executes."""

OS_THREADS_MAX = 128
"""Plain functions of users that run at once in this process; more of them queue."""

LOOKUP_GRACE_S = 1.0
"""Pause before an effect is looked up: a request that is on its way may still arrive."""

ROWS_MAX = 100_000
"""Most effects or children of one run that its end deals with."""

SETTING_S_MAX = 366 * 86400.0
"""Longest duration of a worker's setting: a year; what is longer is a mistake."""

CLOSE_S = 5.0
"""How long a closing worker waits for nodes that swallow their cancellation."""

SCHEDULE_MISSED_MAX = 100
"""Most runs that a schedule with missed="all" starts for due times that nobody fired.

The newest: who was away for a year does not want every minute of it.
"""

SCHEDULE_LATE_S = 60.0
"""A due time that is fired within this time was not missed: workers restart, clocks differ."""

SCHEDULE_BATCH = 100
"""Due schedules that are read at once."""

VERSION_GRACE_S = 60.0
"""How long due runs of a version that no live worker executes wait for one before they are parked,
while another version of their graph is executed: a deploy replaces one worker after the other."""

UNSERVED_MAX = 1000
"""Most due runs of versions that nobody executes that one look deals with."""

HEALTH_READ_S = 5.0
"""How long a health request may take to come in."""

HEALTH_HEAD_BYTES_MAX = 8192
"""Most bytes of a health request: a request line and its headers."""

HEALTH_CONNECTIONS_MAX = 16
"""Most health requests at once; more are closed unanswered."""

HEALTH_STALL_S = 5.0
"""An event loop that has not turned for so long is not alive."""

AGAIN_DEPTH_MAX = 20
"""How many children of children are looked into for effects that a fork would do again."""

FORK_DEPTH_MAX = 100
"""How many forks of forks are followed back to where a state came from, and down to show them."""

PHASE_STEPS_MAX = 100
"""Most steps from one checkpoint to the next in a graph that checkpoints at phases.

Whoever takes a run over executes the nodes of so many steps again.
"""

FORK_CHAIN_MAX = 8
"""How many origins, one inheriting from the other, a load reads through at most.

A fork that would be one more holds its state whole, and the next ones count from there.
"""

FRAMES_READ = 64
"""Frames that are read at once where the end of reading is a place inside a journal."""

FORKS_SCANNED_MAX = 100_000
"""Most rows of runs that are looked through for the forks of a thread, newest first."""

DIVERGENCES_MAX = 1000
"""Most divergences that one replay reports: whoever has so many needs no more of them."""

STILL_TURNS = 50
"""Turns of the event loop without anything new before a replayed node counts as standing still."""

UNWIND_TURNS = 100
"""Turns of the event loop that a replayed node has to end when it is stopped."""

QUOTA_LOOK_S = 10.0
"""How old what a process knows of quotas may be."""

DISK_LOOK_S = 5.0
"""How old what it knows of the disk may be."""

MEASURE_S = 60.0
"""Seconds between two measurements of what a tenant takes, at least."""

MEASURE_SHARE = 0.02
"""Share of the time that measuring may take: of a large store it is done more seldom."""

TAGS_SHOWN_MAX = 5
"""Tags of a thread that an error names."""
