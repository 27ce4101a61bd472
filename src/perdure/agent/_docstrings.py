"""What a docstring in Google style says about a function and each of its parameters."""

import inspect
import re
from typing import Any

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Raises|Yields|Attributes|Examples?):\s*")
_PARAMETER = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters"})


def described(function: Any) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the text of each parameter."""
    lines = (inspect.getdoc(function) or "").splitlines()
    sections = [(n, found) for n, line in enumerate(lines) if (found := _SECTION.fullmatch(line))]
    first = sections[0][0] if sections else len(lines)
    parameters: dict[str, str] = {}
    for place, (number, found) in enumerate(sections):
        if found[1] in _ARGUMENTS:
            end = sections[place + 1][0] if place + 1 < len(sections) else len(lines)
            parameters.update(_parameters(lines[number + 1 : end]))
    return "\n".join(lines[:first]).strip(), parameters


def _parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name, indent = "", None
    for line in filter(str.strip, lines):
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        begun = _PARAMETER.fullmatch(line.strip()) if depth == indent else None
        if begun is not None:
            name = begun[1]
            found[name] = begun[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
