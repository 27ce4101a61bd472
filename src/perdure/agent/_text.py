"""Texts that are cut, and say so."""


def clean(text: str) -> str:
    """Return the text without lone surrogates, which no endpoint takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def cut(text: str, chars_max: int) -> str:
    """Return the text; a longer one without its middle, with a note of how much is gone.

    Beginning and end are kept: a command says at its end how it ended.
    """
    if len(text) <= chars_max:
        return text
    gone = len(text) - chars_max
    head = chars_max - chars_max // 2
    tail = text[len(text) - chars_max // 2 :] if chars_max > 1 else ""
    return f"{text[:head]}\n[... {gone:,} of {len(text):,} characters left out ...]\n{tail}"


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers, the first being `first`."""
    return "\n".join(f"{number:>6}  {line}" for number, line in enumerate(lines, first))


def plain(text: str) -> str:
    """Return the text with every character that is not shown as it is written as an escape.

    For people who decide by it: no line break, colour or change of direction hides what it says.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
