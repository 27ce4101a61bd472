"""YAML as nodes that know their lines: never constructed, never expanded, bounded.

An alias is the same node again, so a bomb costs what its text costs. Merge keys (`<<`) are
flattened when a mapping is made. Tags are kept as text and never acted on.
"""

import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct, field

from perdure.contracts import limits
from perdure.contracts.evidence import Evidence
from perdure.contracts.files import Project, TooMuchError

_TOO_DEEP = "its values are nested too deep"
_TOO_MANY = f"it has more than {limits.YAML_NODES_MAX:,} values"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "yes", "on", "y"})
_FALSE = frozenset({"false", "no", "off", "n"})


class Node(Struct, kw_only=True, eq=False):
    """A value of a YAML file: a scalar, a sequence (`items`) or a mapping (`entries`)."""

    file: str
    line: int
    tag: str | None = None
    scalar: str | None = None
    is_plain: bool = False
    items: list["Node"] = field(default_factory=list)
    entries: dict[str, "Node"] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)
    kind: str = "scalar"

    @property
    def text(self) -> str | None:
        """The text of a scalar; `None` for null and for what is no scalar."""
        if self.kind != "scalar" or (self.is_plain and self.scalar in _NULLS):
            return None
        return self.scalar

    def get(self, key: str) -> "Node | None":
        """Return the value of a key; `None`: not there, or no mapping."""
        return self.entries.get(key)

    def at(self, *keys: str) -> "Node | None":
        """Return the value at a path of keys."""
        node: Node | None = self
        for key in keys:
            node = node.get(key) if node is not None else None
        return node

    def text_at(self, *keys: str) -> str | None:
        """Return the text of the scalar at a path of keys."""
        node = self.at(*keys)
        return node.text if node is not None else None

    def line_of(self, key: str) -> int:
        """Return the line of a key."""
        return self.key_lines.get(key, self.line)

    def evidence(self, note: str, line: int | None = None) -> Evidence:
        """Return this place with a note."""
        return Evidence(file=self.file, line=line or self.line, note=note)

    def place_of(self, key: str, note: str) -> Evidence:
        """Return the place of a key with a note; the mapping's own where the key is not there."""
        node = self.entries.get(key)
        file = node.file if node is not None else self.file
        return Evidence(file=file, line=self.line_of(key), note=note)


def mapping(
    of: Node, entries: Mapping[str, Node], key_lines: Mapping[str, int] | None = None
) -> Node:
    """Return a mapping at the place of another node."""
    lines = dict(key_lines) if key_lines is not None else {k: n.line for k, n in entries.items()}
    return Node(file=of.file, line=of.line, entries=dict(entries), key_lines=lines, kind="mapping")


def sequence(of: Node, items: list[Node]) -> Node:
    """Return a sequence at the place of another node."""
    return Node(file=of.file, line=of.line, items=items, kind="sequence")


def scalar(of: Node, text: str, *, is_plain: bool = False) -> Node:
    """Return a scalar at the place of another node."""
    return Node(file=of.file, line=of.line, scalar=text, is_plain=is_plain)


def truth(text: str | None) -> bool | None:
    """Return what a word says, as YAML 1.1 reads it; `None`: neither yes nor no."""
    word = (text or "").lower()
    return True if word in _TRUE else False if word in _FALSE else None


def read_yaml(
    project: Project, path: str, text: str | None = None, *, last_wins: bool = False
) -> list[Node]:
    """Return the documents of a file; what can't be read is remembered in `project.unread`.

    A duplicate key makes the file unread, as it does for Compose and kubectl; with `last_wins` the
    last one counts, as it does for Helm.
    """
    if text is not None:
        return _parsed(project, path, text, last_wins=last_wins)
    read = _READ.setdefault(project, {})
    if (path, last_wins) not in read:
        content = project.read(path)
        read[path, last_wins] = (
            _parsed(project, path, content, last_wins=last_wins) if content is not None else []
        )
    return read[path, last_wins]


_READ: WeakKeyDictionary[Project, dict[tuple[str, bool], list[Node]]] = WeakKeyDictionary()
"""Documents by file: bases are read once, however many overlays there are. Nodes never change."""


def _parsed(project: Project, path: str, content: str, *, last_wins: bool = False) -> list[Node]:
    if len(content) > limits.YAML_BYTES_MAX:
        project.not_read(path, f"it is YAML of more than {limits.YAML_BYTES_MAX:,} characters")
        return []
    try:
        project.spend_yaml(len(content))
    except TooMuchError as error:
        project.not_read(path, str(error))
        return []
    if _is_too_deep(content):
        project.not_read(path, _TOO_DEEP)
        return []
    from ruamel.yaml import YAML  # noqa: PLC0415  # 60 ms, only for checks that meet YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    documents: list[Node] = []
    try:
        parser = YAML(typ="safe", pure=True)
        parser.composer.warn_double_anchors = False  # allowed: the newer one counts from there on
        composed = parser.compose_all(content)
        documents.extend(
            _Reading(project, path, last_wins=last_wins).node(root, 0)
            for root in composed
            if root is not None
        )
    except RecursionError:
        project.not_read(path, "its values are nested too deep")
    except TooMuchError as error:
        project.not_read(path, str(error))
    except _DuplicateError as error:
        project.not_read(path, f"the key {error.key[:60]!r} is there twice", error.line)
        return []
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        project.not_read(
            path,
            f"it is not YAML: {error.problem or error.context}",
            mark.line + 1 if mark is not None else None,
        )
    except (YAMLError, ValueError, TypeError, AttributeError, AssertionError, IndexError) as error:
        # The parser's own slips on text that is no YAML; none of them may end a check.
        project.not_read(path, f"it is not YAML: {type(error).__name__}")
    return documents


def _is_too_deep(content: str) -> bool:
    """Whether more brackets are open at once than any file has: the parser is slow on those."""
    depth = 0
    for sign in re.findall(r"[\[\]{}]", content):
        depth = max(0, depth + (1 if sign in "[{" else -1))
        if depth > limits.YAML_BRACKETS_MAX:
            return True
    return False


class _DuplicateError(Exception):
    def __init__(self, key: str, line: int) -> None:
        super().__init__(key)
        self.key = key
        self.line = line


class _Reading:
    """One document on its way from the parser's nodes to ours; aliases stay one node."""

    def __init__(self, project: Project, file: str, *, last_wins: bool) -> None:
        self._project = project
        self._last_wins = last_wins
        self._file = file
        self._made: dict[int, Node] = {}

    def node(self, given: Any, depth: int) -> Node:
        made = self._made.get(id(given))
        if made is not None:
            return made
        if depth > limits.YAML_DEPTH_MAX:
            raise TooMuchError(_TOO_DEEP)
        if len(self._made) > limits.YAML_NODES_MAX:
            raise TooMuchError(_TOO_MANY)
        made = Node(file=self._file, line=given.start_mark.line + 1, tag=_own_tag(given))
        self._made[id(given)] = made
        if isinstance(given.value, str):
            made.scalar = given.value
            made.is_plain = not given.style
        elif given.id == "sequence":
            made.kind = "sequence"
            made.items = [self.node(item, depth + 1) for item in given.value]
        else:
            made.kind = "mapping"
            self._fill(made, given, depth)
        return made

    def _fill(self, made: Node, given: Any, depth: int) -> None:
        merged: list[Node] = []
        for key, value in given.value:
            node = self.node(value, depth + 1)
            name = key.value if isinstance(key.value, str) else None
            if name == "<<" and not key.style:
                merged += node.items if node.kind == "sequence" else [node]
                continue
            if name is None:
                continue
            if name in made.entries and not self._last_wins:
                raise _DuplicateError(name, key.start_mark.line + 1)
            made.entries[name] = node
            made.key_lines[name] = key.start_mark.line + 1
        for source in merged:
            self._project.spend(len(source.entries))
            for name, node in source.entries.items():
                if name not in made.entries:
                    made.entries[name] = node
                    made.key_lines[name] = source.line_of(name)


def _own_tag(given: Any) -> str | None:
    tag = str(given.tag or "")
    return tag if tag.startswith("!") else None
