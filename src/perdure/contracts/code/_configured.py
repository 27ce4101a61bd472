"""Settings in files of the project that its code reads: YAML, TOML and JSON.

A value of such a file counts as a declared default: whoever deploys may mount another file in its
place. What a file takes from the environment (`${NAME:-default}`) is asked there. Files are read
through the project, within its bounds, and nothing of them is ever executed.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from perdure.contracts._patterns import regex
from perdure.contracts._toml_text import parsed, text_of
from perdure.contracts.code import limits
from perdure.contracts.code._scopes import Scope, last_name
from perdure.contracts.code._values import (
    Evaluating,
    Frame,
    Kind,
    Leaf,
    Resource,
    Table,
    const,
    unknown,
)
from perdure.contracts.deployment._yaml import Node, mapping, read_yaml, scalar, sequence
from perdure.contracts.evidence import Confidence, Evidence

_FROM_ENVIRONMENT = regex(r"^\$\{(\w+)(?::?-([^}]*))?\}$")
_INTEGER = regex(r"^[-+]?\d{1,15}$")
_FLOAT = regex(r"^[-+]?\d{1,15}\.\d{1,15}$")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def opened(_flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    """Return the file that `open(path)` gives."""
    given = node.args[0] if node.args else None
    return [Leaf(kind=Kind.RESOURCE, value=Resource(given, frame, node))]


def loaded(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    """Return what a file of settings holds, if it is one of the project's."""
    path = _path(flow, node.args[0], frame, 0) if node.args else None
    found = of_file(flow, path) if path is not None else None
    if found is None or path is None:
        return [unknown()]
    place = flow.program.layout.file(path)
    if place is not None and flow.program.layout.may_differ(path, place):
        return [unknown(f"what {path} of the container has, as it may be another file there")]
    if _is_changed(flow, node, frame):
        return [unknown(f"what code changes of what {path} has")]
    return [Leaf(kind=Kind.TABLE, value=Table(None, frame, found.entries, None))]


def _is_changed(flow: Evaluating, node: ast.Call, frame: Frame) -> bool:
    """Whether code may put other values into what a file had: by names, and too much for it."""
    names = _named(frame.scope, node)
    function = frame.scope.name.rpartition(".")[2]
    if frame.scope.kind == "function":
        for where, call in flow.program.calls_of(function):
            names |= _named(where, call.node)
    for scope in flow.program.live if names else ():
        for name, assigns in scope.assigns.items():  # storage = config["storage"]
            parts = (one.value for one in assigns if not isinstance(one.value, ast.Name))
            names |= {name} if any(_root(one) in names for one in parts) else set()
    for scope in flow.program.live if names else ():
        if any(_root(one.target) in names for one in scope.items):
            return True
        if any(
            isinstance(one.node.func, ast.Attribute)
            and one.node.func.attr in _CHANGES
            and _root(one.node.func.value) in names
            for one in scope.calls
        ):
            return True
    return False


def _named(scope: Scope, node: ast.Call) -> set[str]:
    """Return the names that a scope gives to what a call returns, or to a part of it."""
    found: set[str] = set()
    for name, assigns in scope.assigns.items():
        for assign in assigns:
            inner: ast.AST | None = assign.value
            while inner is not None and inner is not node:
                inner = _behind(inner)
            if inner is node:
                found.add(name)
    return found


def _behind(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Subscript | ast.Attribute | ast.Await):
        return node.value
    if isinstance(node, ast.BoolOp):
        return node.values[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value
    return None


def _root(node: ast.AST | None) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def of_file(flow: Evaluating, path: str) -> Node | None:
    """Return the mapping that a file has at a path of the container; `None`: nothing known."""
    place = flow.program.layout.file(path)
    found = _documents(flow, place) if place is not None else None
    return found if found is not None and found.kind == "mapping" else None


def _path(flow: Evaluating, node: ast.expr, frame: Frame, depth: int) -> str | None:
    """Return the path that is read: of an open file, of its text, or as it is given."""
    leaf = flow.only(node, frame)
    if leaf is None or depth > limits.CONNECTIONS_DEEP:
        return None
    if leaf.kind is Kind.RESOURCE and leaf.value.location is not None:
        return _path(flow, leaf.value.location, leaf.value.frame, depth + 1)
    return leaf.value if leaf.kind is Kind.CONST and isinstance(leaf.value, str) else None


def _documents(flow: Evaluating, path: str) -> Node | None:
    project = flow.program.modules.project
    if path.endswith((".yaml", ".yml", ".json")):
        documents = read_yaml(project, path)
        return documents[0] if documents else None
    if path.endswith(".toml"):
        text = project.read(path) or ""
        told = parsed(text)
        if told is None:
            return None
        return _node(told, Node(file=path, line=1, kind="mapping"), _lines(text), 0)
    return None


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found.setdefault(line.partition("=")[0].strip().strip('"'), number)
    return found


def _node(value: Any, of: Node, lines: Mapping[str, int], depth: int) -> Node:
    if depth > limits.CONFIG_DEPTH_MAX:
        return scalar(of, "")
    if isinstance(value, dict):
        entries = {}
        for key, inner in value.items():
            at = Node(file=of.file, line=lines.get(key, of.line))
            entries[key] = _node(inner, at, lines, depth + 1)
        return mapping(of, entries)
    if isinstance(value, list):
        return sequence(of, [_node(one, of, lines, depth + 1) for one in value])
    is_text = isinstance(value, str)
    return scalar(of, text_of(value), is_plain=not is_text)


def leaf_of(flow: Evaluating, key: str, node: Node, frame: Frame) -> Leaf:
    """Return a value of a file of settings, with its line."""
    if node.kind == "mapping":
        return Leaf(kind=Kind.TABLE, value=Table(None, frame, node.entries, None))
    place = Evidence(file=node.file, line=node.line, note=f"{key} is set in {node.file}")
    if node.kind == "sequence":
        items = [leaf_of(flow, key, one, frame) for one in node.items[: limits.LEAVES_MAX]]
        if all(one.kind is Kind.CONST for one in items):
            return const(tuple(one.value for one in items)).after((), Confidence.DECLARED_DEFAULT)
        return unknown()
    text = node.text
    match = _FROM_ENVIRONMENT.match(text or "")
    if match is not None:
        found = flow.environment.get(match[1], place)
        if not found.is_unset:
            return found
        if match[2] is None:
            return unknown(f"the value of {match[1]}", (place,))
        text = match[2]
    elif text is not None and "${" in text:
        return unknown(f"the value of {key}", (place,))  # its text may have a secret
    value: object = text if text is None or not node.is_plain else _typed(text)
    return const(value).after((place,), Confidence.DECLARED_DEFAULT)


def _typed(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def given(flow: Evaluating, node: ast.Call, name: str, frame: Frame) -> list[Leaf] | None:
    """Return what `**values` of a constructor give a field; `None` where there is no `**`.

    What they hold is not known: neither is the field, and its default says nothing.
    """
    spread = [one.value for one in node.keywords if one.arg is None]
    for value in spread:
        for leaf in flow.leaves(value, frame):
            if leaf.kind is not Kind.TABLE:
                return [unknown(f"what {ast.unparse(value)[: limits.SHOWN_MAX]} has for {name}")]
            found = [one for one in flow.item_of(leaf, name) if one.kind is not Kind.UNKNOWN]
            if found:
                return found
    return None


_CHANGES = frozenset(
    {"update", "setdefault", "pop", "clear", "merge", "merge_update", "__setitem__"}
)
"""Methods that change a dict."""

LOADS: dict[str, Callable[[Evaluating, ast.Call, Frame], list[Leaf]]] = {
    "builtins.open": opened,
    "yaml.safe_load": loaded,
    "yaml.load": loaded,
    "yaml.full_load": loaded,
    "tomllib.load": loaded,
    "tomllib.loads": loaded,
    "tomli.load": loaded,
    "tomli.loads": loaded,
    "toml.load": loaded,
    "toml.loads": loaded,
    "json.load": loaded,
    "json.loads": loaded,
    "omegaconf.OmegaConf.load": loaded,
}
"""Calls that open files of settings, and those that read them."""

READS = {"open", "read", "read_text", "read_bytes"}
"""Methods of paths and files that lead to what is in the file."""

VALIDATES = {"model_validate", "parse_obj"}
"""Methods of a model's class that make an object of a dict."""


def validated(node: ast.Call) -> ast.Call | None:
    """Return the constructor's call that `Model.model_validate(values)` stands for."""
    func = node.func
    if not isinstance(func, ast.Attribute) or last_name(func) not in VALIDATES or not node.args:
        return None
    made = ast.Call(func=func.value, args=[], keywords=[ast.keyword(arg=None, value=node.args[0])])
    return ast.copy_location(made, node)
