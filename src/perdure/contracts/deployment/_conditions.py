"""`if` and `case` of a shell: which ways are open, with what is known of the variables."""

import fnmatch
import re
from collections.abc import Callable

from msgspec import Struct

from perdure.contracts.deployment._shell import Choice, Part
from perdure.contracts.numbers import whole


class Known(Struct, frozen=True, kw_only=True):
    """What a shell knows when it decides."""

    arguments: tuple[str, ...]
    expand: Callable[[str], str]
    """Replaces variables; what is not known stays as it is written."""


def open_ways(choice: Choice, known: Known) -> list[Part | None]:
    """Return the ways that may be taken; `None` is the way past all of them."""
    if choice.word is not None:
        word = _case_word(choice.word, known)
        if word is not None:
            for patterns, part in choice.ways:
                if any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns):
                    return [part]
            return [None]
        fallthrough: list[Part | None] = [] if choice.has_else else [None]
        return [part for _, part in choice.ways] + fallthrough
    open_ways: list[Part | None] = []
    for conditions, part in choice.ways:
        decided = _decide(conditions[0], known) if conditions else True
        if decided is not False:
            open_ways.append(part)
        if decided is True:
            return open_ways
    return [*open_ways, None]


def _case_word(word: str, known: Known) -> str | None:
    if re.fullmatch(r"\$(1|\{1[^}]*\})", word) and not known.arguments:
        default = re.search(r":?-([^}]*)\}", word)
        return default.group(1) if default else ""
    expanded = known.expand(word)
    return None if "$" in expanded else expanded


def _decide(condition: str, known: Known) -> bool | None:
    """Decide a condition on known words; `None`: open."""
    text = (
        condition.strip().removeprefix("[[").removeprefix("[").removesuffix("]").removesuffix("]")
    )
    text = text.strip()
    if re.search(r"&&|\|\||\s-[ao]\s|^!", text):
        return None
    if re.fullmatch(r'"?\$#"?\s+-(eq|gt|ge|ne)\s+\d+', text):
        left, operator, right = len(known.arguments), text.split()[1], whole(text.split()[2])
        if right is None:
            return None
        return {"-eq": left == right, "-gt": left > right, "-ge": left >= right}.get(
            operator, left != right
        )
    if found := re.fullmatch(r"-([nz])\s+\"?(\$[\w{}:\-]+)\"?", text):
        value = _value(found.group(2), known)
        return None if value is None else (value != "") == (found.group(1) == "n")
    if found := re.fullmatch(r"\"?(\$[\w{}:\-]+)\"?\s*(==?|!=)\s*\"?'?([\w./:\-]*)'?\"?", text):
        value = _value(found.group(1), known)
        if value is None:
            return None
        return (value == found.group(3)) == (found.group(2) != "!=")
    return None


def _value(word: str, known: Known) -> str | None:
    expanded = known.expand(word)
    if re.fullmatch(r"\$\d|\$\{\d\}", expanded):
        return ""
    return None if "$" in expanded else expanded
