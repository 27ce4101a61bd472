"""Conversations that a project keeps in a file for each: `sessions/<id>.json`.

Only where a path is made of the id of a conversation, what uses the path writes the file and reads
it again, and what reads it puts messages before a model. The folder says how long they live.
"""

import ast
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import Call, Scope, of_scope, walk
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._speaking import IDS, Speaking, id_in
from perdure.contracts.code.facts import Medium, Role, Site

_ENDS = regex(r"^(_\w+)?\.(jsonl?|pkl|pickle|txt|ya?ml|md)$")
_MODE = regex(r"^[rwabxt+]{1,3}$")
_WRITES = {"write_text", "write_bytes", "dump"}
_READS = {"read_text", "read_bytes", "load"}


def files_of(flow: Flow, sites: Sites, speaking: Speaking) -> tuple[Site, ...]:
    """Find the folders in which the reachable code keeps a file for each conversation."""
    found: dict[str | None, Site] = {}
    for scope in flow.program.live:
        text = _path(scope) if scope.kind == "function" else None
        if text is None:
            continue
        users = [scope, *(where for where, _call in flow.callers(scope)[: limits.CALLERS_MAX])]
        written = next(_uses(users, _WRITES, "wa"), None)
        read = next(_uses(users, _READS, "r"), None)
        told = speaking.near(read[0]) if read is not None else None
        if written is None or read is None or told is None:
            continue
        folder = _folder(scope, text)
        location = sites.located(folder, flow.frame(scope)) if folder is not None else None
        site = Site(
            role=Role.HISTORY,
            medium=Medium.FILE,
            evidence=(
                *flow.program.way_to(scope.path)[-2:],
                evidence(scope, text.lineno, "a file for each conversation"),
                evidence(*written, "keeps a conversation in it"),
                evidence(*read, "reads it again"),
                evidence(*told, "gives it to the model"),
            ),
            class_name="a file for each",
            location=location,
            survives_process=True,
        )
        found.setdefault(location.value if location is not None else None, site)
    return tuple(found.values())[: limits.STORY_MAX]


@of_scope
def _path(scope: Scope) -> ast.JoinedStr | None:
    """Return the text of a function that makes a file's name of an id."""
    if not any(IDS.search(name) for name in scope.names | scope.attribute_names):
        return None  # most functions: their whole tree need not be walked
    for node in walk(scope.node):
        if not isinstance(node, ast.JoinedStr) or len(node.values) < len(("id", "end")):
            continue
        end = node.values[-1]
        is_file = isinstance(end, ast.Constant) and bool(_ENDS.match(str(end.value)))
        if is_file and id_in(node, scope):
            return node
    return None


def _folder(scope: Scope, text: ast.JoinedStr) -> ast.expr | None:
    """Return the expression of the folder: `FOLDER / name`, `join(FOLDER, name)`, or its text."""
    for node in walk(scope.node):
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right) if right is text:
                return left
            case ast.Call(args=[first, *others]) if any(one is text for one in others):
                return first
    first = text.values[0]
    if isinstance(first, ast.Constant):
        return ast.copy_location(ast.Constant(str(first.value).rpartition("/")[0] or "."), text)
    is_folder = isinstance(first, ast.FormattedValue) and not id_in(first.value, scope)
    return first.value if isinstance(first, ast.FormattedValue) and is_folder else None


def _uses(users: list[Scope], names: set[str], modes: str) -> Iterator[tuple[Scope, int]]:
    for scope in users:
        for call in scope.calls:
            if call.name in names or _is_opened(call, modes):
                yield scope, call.node.lineno


def _is_opened(call: Call, modes: str) -> bool:
    if call.name != "open":
        return False
    given = [*call.node.args, *(one.value for one in call.node.keywords if one.arg == "mode")]
    told = [
        one.value for one in given if isinstance(one, ast.Constant) and _MODE.match(str(one.value))
    ]
    mode = str(told[0]) if told else "r"
    return any(one in mode for one in modes)
