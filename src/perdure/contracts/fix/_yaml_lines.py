"""Where in a YAML file a key can be put or changed by lines alone, all else as it is, by bytes."""

import re
from typing import Protocol

from msgspec import Struct

from perdure.contracts.fix._applying import lines_of
from perdure.contracts.report import Edit


class Block(Protocol):
    """A mapping of a YAML file that knows the lines of its keys."""

    @property
    def key_lines(self) -> dict[str, int]:
        """The line of each key."""
        ...


class Lines(Struct, frozen=True):
    """The keys of a mapping that stand in its own place: none of an anchor or a merge."""

    key_lines: dict[str, int]


def own_lines(text: str, parent: Block, key: str, block: Block) -> Lines:
    """Return the keys of the mapping under a key, as far as they are written there."""
    span = block_lines(text, parent, key)
    begin, count = span if span is not None else (0, 0)
    inside = {k: n for k, n in block.key_lines.items() if begin < n < begin + count}
    return Lines(inside)


def indent_of(text: str, line: int, key: str) -> str | None:
    """Return what stands before a key that begins its line, `- ` counted as room; else `None`."""
    lines = lines_of(text)
    if not 0 < line <= len(lines):
        return None
    found = re.match(rf"^([ ]*(?:- +)?)[\"']?{re.escape(key)}[\"']?\s*:", lines[line - 1])
    return " " * len(found.group(1)) if found else None


def key_indent(text: str, block: Block) -> str | None:
    """Return the indentation of a block mapping's keys; `None`: a mapping in braces, or merged."""
    indents = {indent_of(text, line, key) for key, line in block.key_lines.items()}
    return indents.pop() if len(indents) == 1 else None


def inserted(text: str, file: str, block: Block, lines: list[str]) -> Edit | None:
    """Return the edit that puts lines into a block mapping, after its first key."""
    indent = key_indent(text, block)
    if indent is None or not block.key_lines:
        return None
    places = sorted(block.key_lines.values())
    all_lines = lines_of(text)
    if len(places) > 1:
        at = places[1]
        while at > places[0] + 1 and re.match(r"^\s*(#.*)?$", all_lines[at - 2]):
            at -= 1
    else:
        at = _end_of(all_lines, places[0], len(indent))
    return Edit(file=file, line=at, removed=0, lines=tuple(indent + each for each in lines))


def _end_of(lines: list[str], line: int, indent: int) -> int:
    """Return the line after all that belongs to the key on a line."""
    at = line
    last = line
    while at < len(lines):
        content = lines[at]
        if content.strip() and not content.lstrip().startswith("#"):
            depth = len(content) - len(content.lstrip(" "))
            if depth <= indent and not (depth == indent and content.lstrip().startswith("- ")):
                break
            last = at + 1
        at += 1
    return last + 1


def replaced(text: str, file: str, block: Block, key: str, value: str) -> Edit | None:
    """Return the edit that gives a key of one line another value; its comment stays."""
    line = block.key_lines.get(key)
    if line is None:
        return None
    old = lines_of(text)[line - 1].rstrip("\r\n")
    found = re.match(
        rf"^(\s*(?:- +)?[\"']?{re.escape(key)}[\"']?\s*:\s*)"
        r"(\"[^\"]*\"|'[^']*'|[^\s#'\"{\[|>&*][^#]*?)(\s+#.*)?\s*$",
        old,
    )
    if found is None:
        return None
    return Edit(
        file=file, line=line, removed=1, lines=(f"{found.group(1)}{value}{found.group(3) or ''}",)
    )


def block_lines(text: str, block: Block, key: str) -> tuple[int, int] | None:
    """Return the first line of a key and how many lines it and its value take."""
    line = block.key_lines.get(key)
    indent = indent_of(text, line, key) if line is not None else None
    if line is None or indent is None:
        return None
    return line, _end_of(lines_of(text), line, len(indent)) - line
