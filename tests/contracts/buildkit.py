"""Dockerfiles as our reader and as BuildKit's own parser read them."""

import importlib
from typing import Any

from perdure.contracts.deployment._dockerfile import KNOWN, parse

__all__ = ["KNOWN", "buildkit", "reference", "shape"]

buildkit: Any
try:
    buildkit = importlib.import_module("dockerfile")
except ModuleNotFoundError:
    buildkit = None

Shape = list[tuple[str, int, int, bool]]
"""Name, first line, last line and form (whether it is a list) of each instruction."""


def shape(text: str) -> Shape:
    """Return the shape of a Dockerfile as we read it."""
    return [
        (each.name, each.line, each.end_line, each.words is not None)
        for each in parse(text, "Dockerfile").instructions
        if each.name != "HEALTHCHECK"
    ]


def reference(text: str) -> Shape | None:
    """Return the same by BuildKit's parser; `None`: it refuses the text, or is not installed."""
    if buildkit is None:
        return None
    try:
        read = buildkit.parse_string(text)
    except (buildkit.GoParseError, UnicodeError):
        return None
    if any(each.cmd is None for each in read):
        return None
    return [
        (each.cmd.upper(), each.start_line, each.end_line, each.json)
        for each in read
        if each.cmd.upper() != "HEALTHCHECK"
    ]
