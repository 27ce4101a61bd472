"""Text for people: nothing that a user stored may steer the terminal."""

import datetime as dt
import json
import unicodedata
from typing import Any

from perdure.cli.limits import CELL_CHARS_MAX

_UNSAFE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Control, format (bidirectional overrides), private, surrogate, line and paragraph separators."""

_JOINERS = frozenset("\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}\N{SOFT HYPHEN}")
"""Format characters that words and emoji are written with."""

_MARK = "\N{REPLACEMENT CHARACTER}"


def is_safe(character: str) -> bool:
    """Return whether a character only shows itself."""
    return unicodedata.category(character) not in _UNSAFE or character in _JOINERS


def clean(text: object, limit: int = CELL_CHARS_MAX) -> str:
    """Return one line without control characters, shortened to `limit` characters."""
    joined = " ".join(str(text).split())
    safe = "".join(c if is_safe(c) else _MARK for c in joined)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def indented(text: str) -> str:
    """Return one line without control characters that keeps the spaces that it begins with."""
    return " " * (len(text) - len(text.lstrip(" "))) + clean(text)


def clean_lines(text: str) -> str:
    """Return text without control characters, its lines kept."""
    return "".join(c if c == "\n" or is_safe(c) else _MARK for c in text.expandtabs())


def pretty_json(value: Any) -> str:
    """Return JSON for people, the same JSON still: what would steer a terminal is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return "".join(c if c == "\n" or is_safe(c) else json.dumps(c)[1:-1] for c in text)


def compact(value: Any, limit: int = 200) -> str:
    """Return JSON-like data as one short line."""
    return clean(json.dumps(value, ensure_ascii=False, default=str), limit)


def clock_time(at: dt.datetime | None) -> str:
    """Return the time of day (UTC) with milliseconds."""
    return "" if at is None else at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def full_time(at: dt.datetime | None) -> str:
    """Return date and time (UTC) to the second."""
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def age(from_us: int, to_us: int) -> str:
    """Return how long ago, in the largest fitting unit."""
    return duration((to_us - from_us) / 1_000_000)


def duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def size_text(count: int) -> str:
    """Return a number of bytes in its largest fitting unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 1000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def plural(count: int, one: str) -> str:
    """Return a count with its noun."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
