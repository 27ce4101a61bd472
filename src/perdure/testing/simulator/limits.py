"""Limits of the simulator, each with its unit and its reason."""

EVENTS_SHOWN = 40
"""Events before a violation that its report shows: enough to see what led to it."""

HORIZON_S = 1800.0
"""Virtual seconds after the last fault within which every run must have ended.

Far above the longest lease, backoff and park of the default scenario: what takes longer is stuck.
"""

TRANSIT_S_MAX = 0.4
"""Longest way of a request to the outside world, in seconds, and of its answer back.

A lookup waits 1 s for requests that are on their way (`LOOKUP_GRACE_S`); slower ones nobody could
know of.
"""

NOTICE_S_MAX = 4.0
"""How late news of a write reaches a host when the network loses them: it polls, as stores do."""

FORGOTTEN_BEATS = 2
"""Heartbeats in a row, nothing failing between, in which a worker's own run may not be missing."""

BEAT_S_MIN = 2.0
"""Seconds between two heartbeats that count: after an outage several may come at once."""

TEARDOWN_ROUNDS = 20
"""Times that left-over tasks are cancelled at the end: code may catch the first few."""
