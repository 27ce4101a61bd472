"""Limits and default settings of the command line, each with its unit and its reason."""

FOREGROUND_WAIT_S = 60.0
"""`perdure run` stays through timers that are due within so many seconds, and leaves at others."""

LIST_LIMIT = 100
"""Rows that a list shows unless told otherwise."""

CELL_CHARS_MAX = 2000
"""Longest text of one cell or line for people; `--json` is never shortened."""

STATUS_CHARS_MAX = 60
"""Longest status in a list of runs; `show` says the rest."""

SIGNAL_ECHO_S = 0.2
"""The same signal within so short a time is the same request to stop."""

STUBBORN_S = 0.5
"""How long a worker that has drained waits for tasks that were cancelled, before it just ends."""

PORT_MAX = 65535
"""Highest TCP port."""

STAYS_SHOWN = 5
"""Reasons why checkpoints stay that a line of `prune` shows; `--json` has all of them."""
