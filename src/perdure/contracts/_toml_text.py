"""TOML within bounds: what would take a parser long, or much memory, is not parsed.

`tomllib` needs time and memory that grow with the square of the parts of a dotted key. Strings are
left out before its dots are counted, so that lists of versions and addresses are read.
"""

from typing import Any

from perdure.contracts import limits
from perdure.contracts._patterns import regex

_STRINGS = regex(r"\"[^\"\n]*\"|'[^'\n]*'")


def parsed(text: str) -> dict[str, Any] | None:
    """Return what a TOML document says; `None`: it is none, or it is beyond the bounds."""
    if len(text) > limits.TOML_CHARACTERS_MAX or is_deep(text):
        return None
    import tomllib  # noqa: PLC0415  # few projects have such a file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):  # also of a number with thousands of digits
        return None


def is_deep(text: str) -> bool:
    """Whether a line has more dots outside of strings than a key or a value needs.

    Which texts are strings is only guessed by the line, so that all dots have a bound, too.
    """
    most = limits.TOML_DOTS_MAX
    return any(
        (dots := line.count(".")) > limits.TOML_ALL_DOTS_MAX
        or (dots > most and _STRINGS.sub("", line).count(".") > most)
        for line in text.split("\n")  # the only end of a line to a parser
    )


def text_of(value: object) -> str:
    """Return a plain value as it would be written; empty for a number beyond all use."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > limits.TOML_NUMBER_BITS_MAX:
        return ""
    return str(value)
