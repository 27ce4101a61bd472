"""Rows in tables of a hosted service, by its client: `client.table("messages").insert(row)`."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import imports
from perdure.contracts.code._scopes import Call, Scope

_LIBRARIES = ("supabase", "postgrest")
_INTO = ("insert", "upsert")
_OUT = "select"


class HostedUse(Struct, frozen=True):
    """A call that puts rows into a table of a hosted service, or gets some."""

    table: str
    scope: Scope
    line: int
    columns: frozenset[str]
    """Of what is put; empty for what is got, and where they are not written here."""
    is_write: bool


def hosted(flow: Flow) -> Iterator[HostedUse]:
    """Find what is done to tables of hosted services."""
    modules = [one for one in flow.program.live if one.kind == "module"]
    if not any(imports(one, _LIBRARIES) for one in modules):
        return
    for name in (*_INTO, _OUT):
        for scope, call in flow.program.calls_of(name):
            table = _table(call.node.func)
            if table:
                columns = frozenset(_columns(scope, call)) if name != _OUT else frozenset()
                yield HostedUse(table, scope, call.node.lineno, columns, name != _OUT)


def _table(func: ast.expr) -> str:
    """Return the table that a chain of calls begins with."""
    base = func.value if isinstance(func, ast.Attribute) else None
    match base:
        case ast.Call(
            func=ast.Attribute(attr="table" | "from_"), args=[ast.Constant(value=str(name))]
        ):
            return name
    return ""


def _columns(scope: Scope, call: Call) -> Iterator[str]:
    """Yield the columns of the rows that are put, as far as they are written here."""
    given = list(call.node.args[:1])
    seen: set[int] = set()
    for one in given:  # which grows meanwhile
        if id(one) in seen:
            continue  # rows = [rows]
        seen.add(id(one))
        match one:
            case ast.Dict():
                yield from (
                    str(key.value).lower() for key in one.keys if isinstance(key, ast.Constant)
                )
            case ast.List():
                given.extend(one.elts[:1])
            case ast.ListComp():
                given.append(one.elt)
            case ast.Name() if len(seen) <= limits.LEAVES_MAX:
                made = [each.value for each in scope.assigns.get(one.id, ())]
                given.extend(
                    each for each in made if isinstance(each, ast.Dict | ast.List | ast.ListComp)
                )
