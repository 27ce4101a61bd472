"""Limits of the graph room, each with its unit and reason."""

NAME_LENGTH_MAX = 128
"""Characters of the name of a graph, node or effect: names are part of every key in the store."""

SUGGESTIONS_MAX = 3
"""Names offered after a misspelt one: more are noise."""

NAMES_SHOWN_MAX = 30
"""Names listed in one error message: a longer list hides the message."""

FRAMES_SEARCHED_MAX = 8
"""Calling frames searched for classes that an annotation names but its module does not define."""

TYPES_CACHED_MAX = 1024
"""TypedDicts and type aliases whose compiled checks are kept; more are compiled again."""

DURATION_S_MAX = 1e9
"""Longest timeout in seconds (30 years): beyond it, deadlines no longer fit a timestamp."""
