"""TOML as the nodes that YAML is read as: bounded, and each key with its line."""

from typing import Any

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts._toml_text import is_deep, parsed, text_of
from perdure.contracts.deployment._yaml import Node
from perdure.contracts.files import Project

_KEY = regex(r"^\s*[\"']?([\w\-]{1,100})[\"']?\s*=")


def read_toml(project: Project, path: str) -> Node | None:
    """Return a TOML file as a node; what can't be read is remembered in `project.unread`."""
    text = project.read(path)
    if text is None:
        return None
    if len(text) > limits.PLATFORM_CHARACTERS_MAX:
        project.not_read(path, f"it has more than {limits.PLATFORM_CHARACTERS_MAX:,} characters")
        return None
    content = parsed(text)
    if content is None:
        too_deep = is_deep(text)
        project.not_read(path, "its keys have too many parts" if too_deep else "it is not TOML")
        return None
    project.spend(len(text))
    return _Reading(path, _lines(text)).node(content, "", 1, 0)


def _lines(text: str) -> dict[str, int]:
    """Return the line of each table and key by its path: the first one of each name."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        header, key = line.strip(), _KEY.match(line)
        if header.startswith("["):
            section = header.lstrip("[ \t").partition("]")[0].rstrip().replace('"', "") + "."
            found.setdefault(section, number)
        elif key is not None:
            found.setdefault(section + key.group(1), number)
    return found


class _Reading:
    def __init__(self, path: str, lines: dict[str, int]) -> None:
        self._path = path
        self._lines = lines

    def node(self, value: Any, at: str, line: int, depth: int) -> Node:
        """Return a value whose names begin with `at`, and which stands in a line."""
        if depth > limits.YAML_DEPTH_MAX:
            return Node(file=self._path, line=line)
        if isinstance(value, dict):
            places = {k: self._lines.get(at + k, self._lines.get(f"{at}{k}.", line)) for k in value}
            entries = {
                key: self.node(each, f"{at}{key}.", places[key], depth + 1)
                for key, each in value.items()
            }
            kind = "mapping"
            return Node(file=self._path, line=line, entries=entries, key_lines=places, kind=kind)
        if isinstance(value, list):
            items = [self.node(each, at, line, depth + 1) for each in value]
            return Node(file=self._path, line=line, items=items, kind="sequence")
        return Node(file=self._path, line=line, scalar=text_of(value))
