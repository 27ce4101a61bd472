"""In which database tables are: what an engine, or a connection, is told."""

from collections.abc import Sequence

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import imports
from perdure.contracts.code._meanings import External
from perdure.contracts.code._objects import made_by
from perdure.contracts.code._scopes import Call, Scope
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._urls import begins
from perdure.contracts.code.facts import Medium
from perdure.contracts.evidence import Known

_SQLITE = ("sqlite3", "aiosqlite")
_CONNECTS = {
    Medium.FILE: ("connect",),
    Medium.POSTGRES: ("connect", "create_pool", "ConnectionPool", "AsyncConnectionPool"),
    Medium.REDIS: ("from_url", "Redis", "StrictRedis"),
    Medium.MONGO: ("MongoClient", "AsyncIOMotorClient", "AsyncMongoClient"),
}
_LIBRARIES = {
    Medium.FILE: _SQLITE,
    Medium.POSTGRES: ("psycopg", "psycopg_pool", "psycopg2", "asyncpg"),
    Medium.REDIS: ("redis", "valkey"),
    Medium.MONGO: ("pymongo", "motor"),
}
ENGINES = ("create_engine", "create_async_engine")
_DIALECTS = (
    (regex(r"^(postgres|cockroach)"), Medium.POSTGRES),
    (regex(r"^sqlite"), Medium.FILE),
    (regex(r"^[a-z][a-z+\d]+:"), Medium.NETWORK),
)
_ENGINE_OF = ("sessionmaker", "async_sessionmaker", "Session", "AsyncSession")
_SQLALCHEMY = ("sqlalchemy", "sqlmodel")
_HOSTED = (
    "create_client", "acreate_client", "create_async_client", "SyncPostgrestClient",
    "AsyncPostgrestClient",
)  # fmt: skip
_PRETEND = {Medium.MONGO: ("mongomock",), Medium.REDIS: ("fakeredis", "mockredis", "birdisle")}
"""Databases that are none, but in memory."""


def place_of(
    flow: Flow,
    sites: Sites,
    medium: Medium | None,
    name: str,
    written: Sequence[tuple[Scope, int]],
) -> tuple[Medium, Known[str] | None]:
    """Return in which database a table is; unknown if several could be meant.

    Args:
        flow: the evaluation.
        sites: what evaluates URLs.
        medium: the kind of database; `None`: that of the program's engine.
        name: what the table is called.
        written: where it is written.
    """
    if medium is None:
        return _engine(flow, sites)
    pretend = _PRETEND.get(medium, ())
    if any(imports(one, pretend) for one in flow.program.live if one.kind == "module"):
        return Medium.UNKNOWN, None
    calls = [
        (scope, call)
        for name in _CONNECTS.get(medium, ())
        for scope, call in flow.program.calls_of(name)
        if _is_of(flow, scope, call, _LIBRARIES[medium])
    ]
    here = {id(scope.module) for scope, _line in written}
    near = [one for one in calls if id(one[0].module) in here] or calls
    places = [_located(flow, sites, scope, call) for scope, call in near]
    known = {one.value if one is not None else None for one in places}
    if len(known) > 1:
        scope, line = written[0]
        asked = f"which of several databases {name} is in ({scope.path}:{line})"
        return medium, Known(value=None, question=asked)
    if len(known) == 1 and None not in known:
        return medium, next(one for one in places if one and one.value is not None)
    if medium is Medium.FILE and not places:
        return Medium.UNKNOWN, None
    return medium, next((one for one in places if one is not None), None)


def _is_of(flow: Flow, scope: Scope, call: Call, libraries: tuple[str, ...]) -> bool:
    meaning = flow.program.meaning(scope, call.node.func)
    return isinstance(meaning, External) and meaning.name.startswith(libraries)


def _located(flow: Flow, sites: Sites, scope: Scope, call: Call) -> Known[str] | None:
    told = ("dsn", "conninfo", "url", "database", "host", "uri")
    given = next((one.value for one in call.node.keywords if one.arg in told), None)
    given = call.node.args[0] if call.node.args else given
    return sites.located(given, flow.frame(scope)) if given is not None else None


def located_hosted(flow: Flow, sites: Sites) -> Known[str] | None:
    """Return which server the one client of a hosted service is told, if it is known."""
    calls = [
        (scope, call)
        for name in _HOSTED
        for scope, call in flow.program.calls_of(name)
        if _is_of(flow, scope, call, ("supabase", "postgrest"))
    ]
    places = [_located(flow, sites, scope, call) for scope, call in calls]
    told = next((one for one in places if one is not None and one.value), None)
    return told if len({one.value for one in places if one is not None}) == 1 else None


def _is_engine_of_others(flow: Flow) -> bool:
    """Whether sessions are given an engine that another library makes."""
    for name in _ENGINE_OF:
        for scope, call in flow.program.calls_of(name):
            if not _is_of(flow, scope, call, _SQLALCHEMY):
                continue
            given = [one.value for one in call.node.keywords if one.arg in {"bind", "engine"}]
            for one in (*call.node.args[:1], *given):
                maker = made_by(flow.program, scope, one)
                if isinstance(maker, External) and not maker.name.startswith(_SQLALCHEMY):
                    return True
    return False


def _engine(flow: Flow, sites: Sites) -> tuple[Medium, Known[str] | None]:
    """Return the database of the program's engines, if all of them are of one kind."""
    if _is_engine_of_others(flow):
        return Medium.UNKNOWN, None
    calls = [one for name in ENGINES for one in flow.program.calls_of(name)]
    places: list[tuple[Medium, Known[str]]] = []
    for scope, call in calls:
        found = _located(flow, sites, scope, call)
        if found is None:
            continue
        text = found.value or _begins(flow, scope, call)
        medium = next((one for way, one in _DIALECTS if text and way.match(text)), Medium.UNKNOWN)
        places.append((medium, found))
    media = {medium for medium, _found in places}
    values = {found.value for _medium, found in places}
    if len(media) != 1:
        return Medium.UNKNOWN, None
    medium, place = places[0]
    if len(values) > 1 and medium is Medium.FILE:
        return Medium.UNKNOWN, None
    return medium, place


def _begins(flow: Flow, scope: Scope, call: Call) -> str:
    """Return how a URL that is put together begins."""
    told = [one.value for one in call.node.keywords if one.arg in {"url", "name_or_url"}]
    given = [*call.node.args[:1], *told]
    return begins(flow, scope, given[0]) if given else ""
