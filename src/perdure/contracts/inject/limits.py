"""How long a trial waits, how much it reads, how many things it makes."""

ANSWER_S = 5.0
"""Seconds for one answer of an application to a probe."""

ANSWER_BYTES_MAX = 4_000_000
"""Bytes of one such answer: a thread with its history."""

STREAM_S = 60.0
"""Seconds of silence after which a stream counts as cut."""

LOG_BYTES_MAX = 2_000_000
"""Characters of an application's log that are looked at, the newest."""

LINE_CHARACTERS_MAX = 2_000
"""Characters of one line of a log or transcript that are kept."""

SAID_LINES_MAX = 40
"""Lines of a log that a transcript quotes."""

SETTINGS_BYTES_MAX = 64_000
"""Bytes of a file `perdure.inject.toml`."""

ARGV_MAX = 256
"""Words of a command in such a file."""

SETTING_MAX = 1_000_000_000
"""The largest number in such a file: a gigabyte of payload."""

PORT_MAX = 65_536
"""Ports are below it."""

COMMAND_S = 120.0
"""Seconds for one command of an engine, but for builds."""

REFERENCE_CHARACTERS_MAX = 512
"""Characters of the name of an image."""

BUILD_S = 900.0
"""Seconds for one build of an image."""

PROC_BYTES_MAX = 1_000_000
"""Bytes of one file of /proc."""

LOG_LINES_MAX = 20_000
"""Lines of a container's log that are read, the newest."""

PIDS_MAX = 512
"""Processes of one container."""

MEMORY_BYTES_MAX = 2_000_000_000
"""Bytes of one container whose deployment sets no limit."""

POLL_S = 0.05
"""Seconds between two looks at something that gives no notice."""

RESTART_S = 0.1
"""Seconds until a process is started again for the first time; doubled each time, as Docker does.
"""

RESTART_S_MAX = 60.0
"""Most of such seconds."""

COPY_BYTES_MAX = 500_000_000
"""Bytes of a project that is copied to be run as processes."""

TRANSCRIPT_LINES_MAX = 20_000
"""Lines of one transcript."""

OUTSIDE_S = 60.0
"""Seconds until the scripted outside must answer."""

SUBNETS_MAX = 16
"""Address ranges that are tried for the network of a trial."""

TOGETHER_S = 3.0
"""Seconds that each of several runs takes at least, so that they are under way together."""

RATE_MIN = 0.1
"""Requests a second during an update, at least."""

REQUESTS_MAX = 20_000
"""Requests of one update."""

REQUESTS_BEFORE = 20
"""Requests before the update begins, and after it has ended."""

REPLICAS_MAX = 3
"""Instances of the service that are updated; more show nothing new."""

LEASE_MARGIN_S = 5.0
"""Seconds beyond its lease until a resource must be free."""

EVENTS_BEFORE = 2
"""Events that a client has read when the stream is cut."""

EVENTS_MAX = 10_000
"""Events of one stream that are read."""

DEPENDENCY_GRACE_S = 10.0
"""Seconds that dependencies have to stop."""

AFTER_HOOK_S = 2.0
"""Seconds of grace that are left whatever a preStop hook took, as Kubernetes leaves them."""

TRIED_S = 5.0
"""Seconds that a run has to end once its database is back, if it took no longer before."""

TRIED_TIMES = 4
"""Such seconds for one that took longer: how often those that it took before."""

REPETITIONS_MAX = 100
"""Repetitions of one trial."""

TRIAL_S = 900.0
"""Seconds of one repetition, all waits together."""

CRASHES_MAX = 8
"""Restarts by its policy without getting ready, after which a service is given up."""
