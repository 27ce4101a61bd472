"""Limits of agents, each with its unit and its reason."""

TURNS_MAX = 50
"""Replies of the model in one run unless told: more than most work needs, and an end to a loop."""

TOKENS_MAX = 1_000_000
"""Tokens in and out of one run unless told."""

RESULT_CHARS_MAX = 30_000
"""Characters of a tool's result that the model sees unless told: some 8,000 tokens."""

REPLY_S_MAX = 600.0
"""Seconds that one reply may take unless told: models that think long take minutes."""

REPLY_ATTEMPTS_MAX = 8
"""Tries of one reply unless told: with the pauses, some five minutes of an outage."""

REPEATS_MAX = 4
"""How often the same calls may give the same results in a row, until it counts as a loop."""

SILENCES_MAX = 2
"""Empty replies in a row that are answered with a request to say something."""

CALLS_MAX = 64
"""Calls of tools in one reply: far above what models send on purpose."""

ARGUMENTS_CHARS_MAX = 256 * 1024
"""Characters of the arguments of one call: a large source file fits."""

ARGUMENTS_DEPTH_MAX = 100
"""Levels of the arguments of one call: below what a record can hold."""

RETRY_AFTER_S_MAX = 3600.0
"""Longest pause that an endpoint may ask for: a run is not to wait for ever on a wrong header."""

TEXT_CHARS_MAX = 1_000_000
"""Characters of the text of one reply: far above the longest outputs of models."""

ALIAS_CHARS_MAX = 200
"""Characters of the id that a model gives to a call, and of the name that it calls."""

TOKENS_COUNTED_MAX = 1 << 40
"""Tokens that an endpoint may claim for one reply: more is no count."""

CHARS_PER_TOKEN = 4
"""Used where an endpoint counts no tokens: usual for English and for code."""

TOOLS_MAX = 128
"""Tools of one agent: what endpoints take."""

TOOL_BYTES_MAX = 32 * 1024
"""Bytes of one tool's description and schema: it is sent with every request."""

QUESTION_CHARS_MAX = 2_000
"""Characters of a call that a person is shown who is asked to allow it."""

ERROR_CHARS_MAX = 1_000
"""Characters of what went wrong, as the model is told."""

CHUNK_CHARS = 48
"""Characters of a reply that are emitted at once: a record for every token would cost more than
the reply itself."""

STREAM_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of one streamed reply: each token comes in some 200 bytes of JSON."""

ERROR_BODY_BYTES_MAX = 64 * 1024
"""Bytes that are read of an endpoint's answer that says what is wrong."""

CONNECT_S_MAX = 10.0
"""Seconds until an endpoint has taken the connection."""

SILENCE_S_MAX = 300.0
"""Seconds between two pieces of a stream unless told: models are silent while they think."""

READ_LINES_MAX = 2_000
"""Lines that one `read` gives unless told."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a file that `read` and `edit` take."""

SEARCH_MATCHES_MAX = 50
"""Matches in one file that `search` gives."""

SEARCH_BYTES_MAX = 256 * 1024
"""Bytes of matches that are kept: far above what the model sees."""

LEFT_SHOWN_MAX = 5
"""Command lines shown of what a command had left running."""

LINE_BYTES_MAX = 64 * 1024
"""Bytes of a command, a path or a pattern: what a sandbox takes, with room for variables."""

CONTACTS_SHOWN_MAX = 20
"""Connections of a command that are looked at for refused ones."""

SERVICE_CHARS_MAX = 64
"""Characters of the name of a service."""

SERVICES_MAX = 8
"""Services of one sandbox that a model may start: each is started for every command."""
