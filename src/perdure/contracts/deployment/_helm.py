"""Helm charts: rendered by `helm` where that is there and allowed, else as far as values say.

Without `helm`, templates are evaluated here on values.yaml. Every line of what comes out knows the
line of the template that it is from. What can't be told stays as an open word, and whatever depends
on it is a question; where a condition can't be told, its first way is taken.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from perdure.contracts import limits
from perdure.contracts._defended import defended
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._objects import read_objects
from perdure.contracts.deployment._template_functions import (
    OPEN,
    Open,
    called,
    looked_up,
    text_of,
    truth_of,
)
from perdure.contracts.deployment._templates import Expression, Piece, parsed
from perdure.contracts.deployment._yaml import Node, read_yaml
from perdure.contracts.files import Project, TooMuchError

__all__ = ["OPEN", "read_chart"]

_ALLOWED = "PERDURE_CHECK_HELM"
"""Set to 1, `helm template` is executed: it runs a program that is not ours."""

_OBJECT = regex(r"\bkind:|\{\{-?\s*(include|template)\b")
"""What a template has that makes objects, by itself or by a named template."""

_INCLUDED_MAX = 12
"""Named templates that include one another."""


def read_chart(project: Project, path: str) -> list[Node]:
    """Return the objects of the chart whose Chart.yaml is at `path`."""
    folder = posixpath.dirname(path)
    rendered = _by_helm(project, folder)
    if rendered is not None:
        return read_objects(project, path, rendered)
    chart = _Chart(project=project, top=_top(project, path, _values_of(project, path, 0)))
    start = f"{folder}/templates/" if folder else "templates/"
    found: list[Node] = []
    names = [name for name in project.paths if name.startswith(start)]
    beside = re.compile(
        re.escape(f"{folder}/charts/" if folder else "charts/") + r"[^/]+/templates/"
    )
    for name in [*names, *(other for other in project.paths if beside.match(other))]:
        text = project.read(name) if name.endswith(".tpl") else None
        if text is not None and len(text) <= limits.YAML_BYTES_MAX:
            with defended(project, name, "this template"):
                chart.named = parsed(text).named | chart.named
    for name in names:
        if name.endswith((".yaml", ".yml")) and "/tests/" not in name:
            text = project.read(name)
            if text is not None and len(text) <= limits.YAML_BYTES_MAX and _OBJECT.search(text):
                with defended(project, name, "this template"):
                    out = chart.rendered(text)
                    objects = read_objects(project, name, chart.without_doubles(out))
                    found += [_placed(node, out.lines, set()) for node in objects]
    return found


def _by_helm(project: Project, folder: str) -> str | None:
    if os.environ.get(_ALLOWED) != "1":
        return None
    import shutil  # noqa: PLC0415  # as little is started as can be
    import subprocess  # noqa: PLC0415

    program = shutil.which("helm")
    if program is None:
        return None
    command = [program, "template", "check", str(project.folder / folder)]
    try:
        done = subprocess.run(  # noqa: S603  # asked for by name, with no shell
            command, capture_output=True, check=False, timeout=limits.HELM_S, text=True
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout[: limits.YAML_BYTES_MAX] if done.returncode == 0 else None


def _top(project: Project, path: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return what `$` is in the templates of a chart."""
    about = _document(project, path)
    name = text_of(about.get("name")) or "release"
    return {
        "Values": values,
        "Chart": {key[:1].upper() + key[1:]: value for key, value in about.items()},
        "Release": {
            "Name": name, "Namespace": "default", "Service": "Helm", "IsInstall": True,
            "IsUpgrade": False, "Revision": 1,
        },
        "Template": {"Name": "template", "BasePath": "templates"},
        "Capabilities": Open("Capabilities"),
        "Files": Open("Files"),
    }  # fmt: skip


def _values_of(project: Project, path: str, depth: int) -> dict[str, Any]:
    """Return the values of a chart: its own, and over them what the chart above it says.

    One that is switched off there is read all the same: somebody switches it on.
    """
    folder = posixpath.dirname(path)
    own = _document(project, posixpath.join(folder, "values.yaml"))
    above, name = posixpath.split(folder)
    parent = posixpath.join(posixpath.dirname(above), "Chart.yaml")
    is_within = posixpath.basename(above) == "charts" and project.has(parent)
    if not is_within or depth >= _CHARTS_DEPTH_MAX:
        return own
    given = _values_of(project, parent, depth + 1)
    made = _laid_over(own, given.get(_alias(project, parent, name)), project, 0)
    shared = given.get("global")
    if isinstance(shared, dict):
        made["global"] = _laid_over(_mapping(made.get("global")), shared, project, 0)
    return made


_CHARTS_DEPTH_MAX = 4
"""Charts that lie in one another."""


def _alias(project: Project, parent: str, name: str) -> str:
    """Return the name by which a chart's values speak of another one within it."""
    listed = _document(project, parent).get("dependencies")
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and each.get("name") == name:
            return text_of(each.get("alias") or name)
    return name


def _laid_over(own: dict[str, Any], over: Any, project: Project, depth: int) -> dict[str, Any]:
    """Return values with others over them, as Helm merges: mappings by key, all else replaced."""
    if not isinstance(over, dict) or depth >= limits.YAML_DEPTH_MAX:
        return dict(own)
    project.spend(1 + len(over))
    made = dict(own)
    for key, value in over.items():
        if isinstance(value, dict):
            made[key] = _laid_over(_mapping(made.get(key)), value, project, depth + 1)
        else:
            made[key] = value
    return made


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _document(project: Project, path: str) -> dict[str, Any]:
    documents = read_yaml(project, path, last_wins=True) if project.has(path) else []
    found = _plain(documents[0], {}) if documents else {}
    return found if isinstance(found, dict) else {}


def _plain(node: Node, made: dict[int, Any]) -> Any:
    """Return a node as values; the same node is the same value, so that bombs stay small."""
    if id(node) in made:
        return made[id(node)]
    if node.kind == "sequence":
        items: list[Any] = []
        made[id(node)] = items
        items += [_plain(item, made) for item in node.items]
        return items
    if node.kind == "mapping":
        entries: dict[str, Any] = {}
        made[id(node)] = entries
        entries.update({name: _plain(value, made) for name, value in node.entries.items()})
        return entries
    text = node.text
    if text is not None and node.is_plain:
        if re.fullmatch(r"-?\d{1,15}", text):
            return int(text)
        if re.fullmatch(r"-?\d{1,15}\.\d{1,9}", text):
            return float(text)
        return {"true": True, "false": False}.get(text.lower(), text)
    return text


def _placed(node: Node, lines: list[int], done: set[int]) -> Node:
    """Give a node, and all in it, the lines of the template; the same node is met once."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) in done:
            continue
        done.add(id(one))
        one.line = _source(one.line, lines)
        one.key_lines = {key: _source(line, lines) for key, line in one.key_lines.items()}
        waiting += [*one.items, *one.entries.values()]
    return node


def _source(line: int, lines: list[int]) -> int:
    return lines[min(line, len(lines)) - 1] if lines else 1


class _Out(Struct, kw_only=True):
    """What a template puts out, and the line of the template of each of its lines."""

    parts: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=lambda: [1])
    is_blank: bool = True
    """Whether the last line has nothing in it so far."""

    def write(self, text: str, line: int, *, is_written: bool) -> None:
        """Add text; `is_written`: it is the template's own, and goes on line by line."""
        for number, part in enumerate(text.split("\n")):
            here = line + number if is_written else line
            if number:
                self.lines.append(here)
                self.is_blank = True
            if self.is_blank and part.strip():
                self.lines[-1] = here
                self.is_blank = False
        self.parts.append(text)


_Variables = dict[str, Any]


class _Chart(Struct, kw_only=True):
    """Evaluates templates of one chart."""

    project: Project
    top: Mapping[str, Any]
    named: dict[str, list[Piece]] = field(default_factory=dict)
    depth: int = 0

    def rendered(self, text: str) -> _Out:
        """Return what a template makes of the chart's values.

        Raises:
            TooMuchError: the values make more of it than is read.
        """
        template = parsed(text)
        self.named = template.named | self.named
        out = _Out()
        self._play(template.pieces, self.top, {"$": self.top}, out)
        return out

    def without_doubles(self, out: _Out) -> str:
        """Return what was put out; a release is named like its chart, so that names are doubled."""
        name = text_of(looked_up(self.top, ("Release", "Name"), "Release.Name"))
        return "".join(out.parts).replace(f"{name}-{name}", name)

    def _play(self, pieces: list[Piece], dot: Any, variables: _Variables, out: _Out) -> None:
        for piece in pieces:
            lines = piece.text.count("\n") // 4
            self.project.spend(1 + len(piece.text) // 100 + lines)
            if piece.kind == "text":
                out.write(piece.text, piece.line, is_written=True)
            elif piece.kind == "put":
                self._put(piece, dot, variables, out)
            elif piece.kind == "range":
                self._range(piece, dot, variables, out)
            else:
                self._choose(piece, dot, variables, out)

    def _put(self, piece: Piece, dot: Any, variables: _Variables, out: _Out) -> None:
        if piece.expression is None:
            return
        value = self._value(piece.expression, dot, variables)
        if piece.names:
            variables[piece.names[0]] = value
            return
        if value is None and piece.expression.kind == "field":
            value = Open(piece.expression.text)
        is_block = piece.expression.root in {"indent", "nindent"}
        if isinstance(value, Open) and (out.is_blank or is_block):
            return  # lines of their own that nobody can say: what is around them stays readable
        text = text_of(value)
        self.project.spend(len(text))
        out.write(text, piece.line, is_written=False)

    def _choose(self, piece: Piece, dot: Any, variables: _Variables, out: _Out) -> None:
        for arm in piece.arms:
            inner = dict(variables) if arm.names else variables
            value = True if arm.expression is None else self._value(arm.expression, dot, inner)
            for name in arm.names:
                inner[name] = value
            if truth_of(value) is not False:
                is_with = piece.kind == "with" and arm.expression is not None
                self._play(arm.pieces, value if is_with else dot, inner, out)
                return

    def _range(self, piece: Piece, dot: Any, variables: _Variables, out: _Out) -> None:
        first = piece.arms[0]
        value = self._value(first.expression, dot, variables) if first.expression else None
        count = 0
        for key, item in _entries(value):
            count += 1
            self.project.spend(1 + len(variables) // 20)
            inner = dict(variables)
            names = first.names
            if names:
                inner[names[-1]] = item
            if len(names) > 1:
                inner[names[0]] = key
            self._play(first.pieces, item, inner, out)
        if not count and len(piece.arms) > 1:
            self._play(piece.arms[1].pieces, dot, variables, out)

    def _value(self, expression: Expression, dot: Any, variables: _Variables) -> Any:
        self.project.spend(1 + len(expression.path) // 8)
        match expression.kind:
            case "literal":
                return expression.literal
            case "field":
                return self._looked_up(expression, dot, variables)
            case "open":
                return Open(expression.text)
        if expression.root in {"include", "tpl"} and expression.arguments:
            return self._included(expression, dot, variables)
        if expression.root in {"and", "or"}:
            return self._lazily(expression, dot, variables)
        values = [self._value(each, dot, variables) for each in expression.arguments]
        made = called(expression.root, values, self.project.spend)
        if isinstance(made, Open) and made.name == expression.root:
            return Open(expression.text)
        return made

    def _lazily(self, expression: Expression, dot: Any, variables: _Variables) -> Any:
        """Return what `and` and `or` do: they stop at the first value that settles it."""
        found: list[Any] = []
        for each in expression.arguments:
            found.append(self._value(each, dot, variables))
            if truth_of(found[-1]) is (expression.root == "or"):
                return found[-1]
        return called(expression.root, found, self.project.spend) if found else None

    def _looked_up(self, expression: Expression, dot: Any, variables: _Variables) -> Any:
        if expression.root == "(":
            start = self._value(expression.arguments[0], dot, variables)
        elif expression.root:
            start = variables.get(expression.root, Open(expression.root))
        else:
            start = dot
        return looked_up(start, expression.path, expression.text)

    def _included(self, expression: Expression, dot: Any, variables: _Variables) -> Any:
        values = [self._value(each, dot, variables) for each in expression.arguments[:2]]
        inner = values[1] if len(values) > 1 else dot
        if expression.root == "tpl":
            text = values[0]
            if not isinstance(text, str) or "{{" not in text:
                return text
            text = text[: limits.TEXT_MAX]
            self.project.spend(len(text))
            pieces = parsed(text).pieces
        else:
            name = text_of(values[0])
            if name not in self.named:
                return self._named_like(name)
            pieces = self.named[name]
        if self.depth >= _INCLUDED_MAX:
            return Open("template")
        self.depth += 1
        try:
            out = _Out()
            self._play(pieces, inner, {"$": inner}, out)
        finally:
            self.depth -= 1
        made = "".join(out.parts)
        if len(made) > limits.YAML_BYTES_MAX:
            msg = "its named templates make too much of it"
            raise TooMuchError(msg)
        return made

    def _named_like(self, name: str) -> Any:
        """Return what a template of a library that is not here stands for: names of the chart."""
        if re.search(r"name$", name, re.IGNORECASE):
            return text_of(looked_up(self.top, ("Chart", "Name"), "Chart.Name"))
        return Open(name.rpartition(".")[2] or "template")


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a `range` goes through: keys and values, or places and values."""
    if isinstance(value, dict):
        yield from sorted(value.items())
    elif isinstance(value, list):
        yield from enumerate(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from ((at, at) for at in range(min(value, limits.SOURCES_MAX)))
