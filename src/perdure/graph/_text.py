"""How names and types read in messages; which names are allowed."""

import re
from collections.abc import Iterable
from typing import Any

from perdure.graph.limits import (
    DURATION_S_MAX,
    NAME_LENGTH_MAX,
    NAMES_SHOWN_MAX,
    SUGGESTIONS_MAX,
)

_NAME = re.compile(r"\w(?:[\w.\- ]*\w)?")

NAME_RULE = (
    f"use letters, digits, '_', '.', '-' and inner spaces, at most {NAME_LENGTH_MAX} characters"
)


def is_name(text: object) -> bool:
    """Return whether the text can name a graph, node or effect."""
    return isinstance(text, str) and len(text) <= NAME_LENGTH_MAX and bool(_NAME.fullmatch(text))


def is_duration(value: Any) -> bool:
    """Return whether a value is a number of seconds above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and bool(0 < value <= DURATION_S_MAX)


def type_text(annotation: Any) -> str:
    """Return an annotation as its author would write it."""
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    text = re.sub(r"[\w.]+\.<locals>\.", "", str(annotation))
    return re.sub(r"\b(?:typing|typing_extensions|collections\.abc|builtins)\.", "", text)


def names_text(names: Iterable[str]) -> str:
    """Return the names quoted, sorted and shortened to what a reader can take in."""
    known = sorted(names)
    shown = ", ".join(repr(name) for name in known[:NAMES_SHOWN_MAX])
    left = len(known) - NAMES_SHOWN_MAX
    return (shown + (f" and {left} more" if left > 0 else "")) or "none"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' or nothing."""
    import difflib  # noqa: PLC0415  # costs start-up time; needed for a message only

    close = difflib.get_close_matches(name, list(known), n=SUGGESTIONS_MAX, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(each) for each in close)}?" if close else ""
