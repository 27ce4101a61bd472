"""Code that needs a database to be there: tables, indexes and migrations made at a start."""

import ast
import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence, imports
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._startup import startup_of
from perdure.contracts.code._values import Kind
from perdure.contracts.code.facts import Medium, Migration
from perdure.contracts.evidence import Evidence, Known

_TABLES = {"create_all", "run_migrations", "generate_schemas", "create_tables"}
_INDEXES = {"create_index", "create_indexes", "create_collection", "ensure_index"}
_COLLECTIONS = {
    "create_collection": ("qdrant", "milvus", "chroma"),
    "recreate_collection": ("qdrant",),
    "get_or_create_collection": ("chroma",),
    "create": ("elasticsearch", "opensearch", "weaviate"),
    "create_from_dict": ("weaviate",),
    "create_class": ("weaviate",),
    "build_indices_and_constraints": ("neo4j", "falkordb"),
}
"""Calls that make collections and indices, and whose they can be."""

_SERVERS = {
    "qdrant": ("qdrant_client",),
    "milvus": ("pymilvus",),
    "chroma": ("chromadb",),
    "elasticsearch": ("elasticsearch",),
    "opensearch": ("opensearchpy",),
    "weaviate": ("weaviate",),
    "neo4j": ("graphiti_core", "neo4j"),
    "falkordb": ("graphiti_core.driver.falkordb_driver", "falkordb"),
}
_NAMES = {"setup", "asetup", "run_sync", "upgrade"} | _TABLES | _INDEXES
_PASSED_OVER = regex(r"Exception$|Connect|OSError|Timeout|Unavailable|Handling")
_CALLERS_DEEP = 3
_RETRIES = regex(r"retry|backoff|stamina", re.IGNORECASE)


def migrations_of(flow: Flow, sites: Sites) -> tuple[Migration, ...]:
    """Find what changes a database's schema, at the start or with the first request."""
    startup = startup_of(flow)
    found: list[tuple[Scope, Call, Migration]] = []
    for scope in flow.program.live:
        for call in scope.called_as(_NAMES):
            for medium, location, note in _of_call(flow, sites, scope, call):
                way = _way(startup, scope)
                made = Migration(
                    evidence=(
                        *flow.program.way_to(scope.path),
                        evidence(scope, call.node.lineno, note),
                    ),
                    medium=medium,
                    location=location,
                    retries=_retries([scope, *way]),
                    is_lazy=id(scope) not in startup,
                )
                found.append((scope, call, made))
        found.extend(_collections(flow, startup, scope))
    # Last, as it takes most of the steps that are left: what is cut short then may run.
    run = [made for scope, call, made in found if _may_run(flow, scope, call)]
    return tuple(_unlike(run)[: limits.UNREACHABLE_MAX])


def _collections(
    flow: Flow, startup: dict[int, Scope | None], scope: Scope
) -> Iterator[tuple[Scope, Call, Migration]]:
    """Find collections and indices of search engines and vector databases that code makes."""
    for call in scope.called_as(_COLLECTIONS):
        server = _server_of(scope, call)
        if server is None:
            continue
        way = _way(startup, scope)
        note = f"{call.name} needs {server}"
        made = Migration(
            evidence=(
                *flow.program.way_to(scope.path),
                evidence(scope, call.node.lineno, note),
            ),
            medium=Medium.NETWORK,
            location=None,
            retries=_retries([scope, *way]),
            is_lazy=id(scope) not in startup,
            server=server,
            is_passed_over=_is_passed_over(scope, call, way),
        )
        yield scope, call, made


def _server_of(scope: Scope, call: Call) -> str | None:
    """Return whose collection a call makes, by what its file imports."""
    func = call.node.func
    possible = _COLLECTIONS.get(last_name(func), ())
    if not possible or not isinstance(func, ast.Attribute):
        return None
    if func.attr == "create" and last_name(func.value) not in {"indices", "collections"}:
        return None
    found = [one for one in possible if imports(scope.module, _SERVERS[one])]
    return found[0] if len(found) == 1 else None


def _is_passed_over(scope: Scope, call: Call, way: list[Scope]) -> bool:
    """Whether the start goes on when a call fails, for want of the server."""
    if _is_caught(scope, call):
        return True
    inner = scope
    for outer in way:
        names = {inner.name.rpartition(".")[2], inner.parent.name if inner.parent else ""}
        calls = [one for one in outer.calls if one.name in names]
        if calls and all(_is_caught(outer, one) for one in calls):
            return True
        inner = outer
    return False


def _is_caught(scope: Scope, call: Call) -> bool:
    return any(
        tried.node.body[0].lineno <= call.node.lineno <= (tried.node.body[-1].end_lineno or 0)
        and any(_goes_on(handler) for handler in tried.node.handlers)
        for tried in scope.tries
    )


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes an error of the connection, and raises nothing."""
    if handler.type is not None and not _PASSED_OVER.search(ast.unparse(handler.type)):
        return False
    return not any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and last_name(node.func) in {"exit", "_exit"})
        for node in walk(handler)
    )


def _may_run(flow: Flow, scope: Scope, call: Call, depth: int = 0) -> bool:
    """Whether no branch that is known not to be taken leads to a call."""
    if flow.under(scope, call.guards).is_met is False:
        return False
    callers = flow.callers(scope) if scope.kind == "function" else []
    if not callers or depth >= _CALLERS_DEEP:
        return True
    with flow.briefly():  # of callers, only settings matter
        return any(
            _may_run(flow, where, one, depth + 1) for where, one in callers[: limits.CANDIDATES_MAX]
        )


def _unlike(found: list[Migration]) -> list[Migration]:
    seen: dict[tuple[str, int], Migration] = {}
    for one in found:
        seen.setdefault((one.evidence[-1].file, one.evidence[-1].line), one)
    return sorted(seen.values(), key=lambda one: one.is_lazy)


def _of_call(
    flow: Flow, sites: Sites, scope: Scope, call: Call
) -> Iterator[tuple[Medium, Known[str] | None, str]]:
    name = call.name
    if not isinstance(call.node.func, ast.Attribute):
        return
    base = call.node.func.value
    if name in {"setup", "asetup"} and not call.node.args:
        for leaf in flow.likely(base, flow.frame(scope)):
            if leaf.kind is Kind.SITE and leaf.value.medium not in {
                Medium.MEMORY,
                Medium.FILE,
            }:
                location = sites.location(leaf.value)
                yield leaf.value.medium, location, f"{leaf.value.class_name} makes its tables"
                return
    elif name in _TABLES:
        yield Medium.POSTGRES, _engine(flow, sites, scope, call), f"{name} makes tables"
    elif name == "run_sync" and call.node.args and "create_all" in ast.unparse(call.node.args[0]):
        yield Medium.POSTGRES, _only_engine(flow, sites), "create_all makes tables"
    elif name == "upgrade" and last_name(base) == "command":
        yield Medium.POSTGRES, None, "alembic migrates"
    elif name in _INDEXES and re.search(r"redis|\bft\b|\.ft\(", ast.unparse(base).lower()):
        yield Medium.REDIS, None, f"{name} makes an index"


def _engine(flow: Flow, sites: Sites, scope: Scope, call: Call) -> Known[str] | None:
    """Return where the tables are made, if the engine's URL can be traced."""
    for given in [*call.node.args, *(one.value for one in call.node.keywords)]:
        found = sites.located(given, flow.frame(scope))
        if found.value is not None:
            return found
    return _only_engine(flow, sites)


_MAKES_ENGINES = ("create_engine", "create_async_engine")


def _only_engine(flow: Flow, sites: Sites) -> Known[str] | None:
    """Return the URL of a program's engines, if all of them are SQLite: it waits for nobody."""
    found = [
        sites.located(url, flow.frame(scope))
        for scope in flow.program.live
        for call in scope.called_as(_MAKES_ENGINES)
        if (url := _url(call.node)) is not None
    ]
    is_sqlite = bool(found) and all((one.value or "").startswith("sqlite") for one in found)
    return found[0] if is_sqlite else None


def _url(node: ast.Call) -> ast.expr | None:
    given = next((one.value for one in node.keywords if one.arg == "url"), None)
    return node.args[0] if node.args else given


def _way(startup: dict[int, Scope | None], scope: Scope) -> list[Scope]:
    """Return the callers through which a start comes to a scope."""
    found: list[Scope] = []
    here = startup.get(id(scope))
    while here is not None and len(found) < limits.STORY_MAX:
        found.append(here)
        here = startup.get(id(here))
    return found


def _retries(scopes: list[Scope]) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    for scope in scopes:
        found.extend(
            evidence(scope, decorator.lineno, "is tried again when it fails")
            for decorator in getattr(scope.node, "decorator_list", ())
            if _RETRIES.search(last_name(decorator))
        )
        for call in scope.calls:
            name = call.name
            is_wait = name == "wait" and "pool" in ast.unparse(call.node.func).lower()
            if is_wait or name in {"AsyncRetrying", "Retrying", "wait_for_db", "wait_for_database"}:
                found.append(evidence(scope, call.node.lineno, "waits for the database"))
        if scope.kind == "function":
            found.extend(_loops(scope))
    return tuple(found)


def _loops(scope: Scope) -> Iterator[Evidence]:
    """Find loops that try, sleep and try again."""
    for node in walk(scope.node):
        if isinstance(node, ast.For | ast.While):
            inside = list(walk(node))
            tries = any(isinstance(one, ast.Try) for one in inside)
            sleeps = any(
                isinstance(one, ast.Call) and last_name(one.func) == "sleep" for one in inside
            )
            if tries and sleeps:
                yield evidence(scope, node.lineno, "tries again in a loop")
                return
