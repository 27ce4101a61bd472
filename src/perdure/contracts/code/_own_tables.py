"""Conversations that a project keeps in a database of its own: rows, documents, keys.

Only with positive evidence: reachable code writes messages (who says, and what) under the id of a
conversation, reachable code reads the same table again, and what reads it, or calls what reads it,
puts messages before a model. Where the database is, the one engine or connection says.
"""

import ast
import re
from collections.abc import Callable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._hosted import hosted
from perdure.contracts.code._kept import chosen_of
from perdure.contracts.code._marks import evidence, imports
from perdure.contracts.code._objects import made_by, own_values
from perdure.contracts.code._scopes import Call, Scope, last_name
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._speaking import TELLS, TELLS_TEXT, Speaking
from perdure.contracts.code._whereabouts import ENGINES, located_hosted, place_of
from perdure.contracts.code.facts import Medium, Role, Site
from perdure.contracts.evidence import Known

_WHO = {
    "role", "sender", "sender_type", "sender_role", "author", "speaker", "is_user", "message_type",
    "from_user", "author_type", "type", "author_id", "sender_id", "sender_name", "from_id",
    "message_role", "is_bot", "is_ai", "direction",
}  # fmt: skip
_WHAT = {"content", "message", "text", "body", "parts", "content_json", "payload", "message_text"}
_WHOLE = {
    "messages", "history", "chat_history", "conversation_history", "message_history", "transcript",
    "messages_json", "history_json", "message_list", "model_messages", "all_messages",
}  # fmt: skip
_ASKED = {"user_message", "question", "query", "prompt", "user_input", "human_message", "user_text"}
_ANSWERED = {
    "bot_response", "ai_response", "response", "answer", "reply", "assistant_message",
    "assistant_response", "bot_message", "ai_message", "agent_response", "bot_reply",
}  # fmt: skip
_MAIL = {"subject", "recipient", "to_email", "to_address", "from_email", "cc", "bcc"}
"""Columns of an inbox, which is no conversation with a model."""
_OF_MAIL = regex(r"(?i)mail|inbox")
_NAMED = regex(rf"{TELLS_TEXT}|turn|utterance")
_INSERTS = regex(
    r"\binsert\s+(?:or\s+\w+\s+|ignore\s+)?into\s+[\"`\[]?(?:\w+[\"`\]]?\.[\"`\[]?)?(\w+)[\"`\]]?\s*\(([^)]*)\)",
    re.IGNORECASE,
)
_SELECTS = regex(
    r"\bselect\b.*?\bfrom\s+[\"`\[]?(?:\w+[\"`\]]?\.[\"`\[]?)?(\w+)", re.IGNORECASE | re.DOTALL
)
_COUNTS = regex(
    r"^\s*select\s+(?:count|exists|max|min|sum|avg)\s*\(|^\s*select\s+1\b", re.IGNORECASE
)
_QUERIES = (
    "execute", "executemany", "fetch", "fetchrow", "fetchall", "fetch_all", "fetch_one",
    "fetchval", "text", "execute_query", "query", "run",
)  # fmt: skip
_READS = {
    "select", "query", "find", "find_all", "find_one", "filter", "filter_by", "scalars", "get",
    "objects", "order_by", "all", "aggregate", "exec",
}  # fmt: skip
_DOCUMENTS_IN = ("insert_one", "insert_many", "update_one", "replace_one", "find_one_and_update")
_DOCUMENTS_OUT = ("find_one", "find", "aggregate")
_KEYS_IN = ("rpush", "lpush", "set", "setex", "hset", "zadd", "xadd", "arpush")
_KEYS_OUT = ("lrange", "get", "hget", "hgetall", "zrange", "xrange", "mget")
_REDIS = regex(r"(?i)redis|valkey|cache|\br\b|client|pipe")
_SQLITE = ("sqlite3", "aiosqlite")
_DRIVERS = (
    (_SQLITE, Medium.FILE),
    (("psycopg", "psycopg_pool", "psycopg2", "asyncpg"), Medium.POSTGRES),
    (("pymysql", "aiomysql", "asyncmy", "mysql", "MySQLdb", "oracledb", "libsql"), Medium.NETWORK),
)


class _Table(Struct):
    """What is done to one table, collection or family of keys."""

    name: str
    made: list[tuple[Scope, int]]
    medium: Medium | None
    """`None`: what the engine of the program is."""
    written: list[tuple[Scope, int]] = field(default_factory=list)
    read: list[tuple[Scope, int]] = field(default_factory=list)
    is_hosted: bool = False
    """It is one of a service, by its client."""


class Tables(Struct):
    """Databases of conversations, and the functions that use any."""

    sites: tuple[Site, ...] = ()
    users: frozenset[int] = frozenset()
    """The ids of their scopes."""


def tables_of(flow: Flow, sites: Sites, speaking: Speaking) -> Tables:
    """Find the databases in which the reachable code keeps conversations of its own."""
    found: list[Site] = []
    users: set[int] = set()
    known: set[tuple[Medium, str | None]] = set()
    for table in [
        *_models(flow),
        *_of_queries(flow),
        *_documents(flow),
        *_keys(flow),
        *_of_services(flow),
    ]:
        users.update(id(scope) for scope, _line in (*table.written, *table.read))
        if not table.written or not table.read or len(found) >= limits.STORY_MAX:
            continue
        told = next((one for reader, _line in table.read if (one := speaking.way(reader))), ())
        if not told:
            continue
        medium, location = place_of(flow, sites, table.medium, table.name, table.written)
        location = located_hosted(flow, sites) if table.is_hosted else location
        key = (medium, location.value if location is not None else None)
        if medium is not Medium.UNKNOWN and key not in known:
            known.add(key)
            found.append(_site(flow, table, medium, location, told))
    return Tables(tuple(found), frozenset(users))


def _site(
    flow: Flow,
    table: _Table,
    medium: Medium,
    location: Known[str] | None,
    told: tuple[tuple[Scope, int], ...],
) -> Site:
    scope, line = table.written[0]
    reader, at = table.read[0]
    return Site(
        role=Role.HISTORY,
        medium=medium,
        evidence=(
            *flow.program.way_to(scope.path)[-2:],
            *(evidence(*one, f"{table.name} holds messages") for one in table.made[:1]),
            evidence(scope, line, f"keeps a conversation in {table.name}"),
            evidence(reader, at, f"reads {table.name} again"),
            *(evidence(*step, "asks for it") for step in told[:-1]),
            evidence(*told[-1], "gives it to the model"),
        ),
        class_name=f"its own {table.name}",
        location=location,
        chosen=chosen_of(flow, scope.owner),
        survives_process=True,
    )


# ------------------------------------------------------------------------------------ what holds


def _holds_messages(fields: set[str], name: str) -> bool:
    """Whether columns are those of messages: who says what, a whole history, or both sides."""
    if fields & _MAIL:
        return False
    if fields & _WHO and fields & _WHAT:
        return bool(_NAMED.search(name))
    if fields & _WHOLE:
        return bool(_NAMED.search(name))
    return bool(fields & _ASKED and fields & _ANSWERED and _NAMED.search(name))


def _models(flow: Flow) -> Iterator[_Table]:
    """Find classes of rows or documents that hold messages, and what makes and selects them."""
    aliases = _aliases(flow)
    repositories = _repositories(flow)
    for owner in flow.program.live:
        if owner.kind != "class" or not owner.assigns:
            continue
        kind = _kind_of_model(owner)
        name = owner.name.rpartition(".")[2]
        if kind is None or not _holds_messages({one.lower() for one in owner.assigns}, name):
            continue
        table = _Table(name, [(owner, owner.line)], kind if isinstance(kind, Medium) else None)
        called = {name, *aliases.get(name, ())}
        if any(_OF_MAIL.search(one) for one in called - {name}):
            continue
        for scope in flow.program.live:
            for one in called & scope.names if scope.kind == "function" else ():
                if flow.program.resolve(scope, one) is owner:
                    _use_of_model(scope, one, table)
        _use_of_repositories(flow, repositories.get(id(owner), []), table)
        yield table


def _aliases(flow: Flow) -> dict[str, set[str]]:
    """Return the other names that things are imported by: `from models import Message as Row`."""
    found: dict[str, set[str]] = {}
    for scope in flow.program.live:
        for bound, several in scope.imports.items():
            for one in several:
                if one.name is not None and one.name != bound:
                    found.setdefault(one.name, set()).add(bound)
    return found


def _use_of_repositories(flow: Flow, repositories: list[Scope], table: _Table) -> None:
    """Add what repositories of a class do to it: `class Messages(Repository[Message])`.

    What their bases read says nothing: who calls that may read rows of any other class.
    """
    for repository in repositories:
        for each in _above(flow, repository):
            used = table if each is repository else replace(table, read=[])
            for method in each.all_inner():
                is_own = each is repository or _is_called_on(flow, repository, method)
                if is_own and method.kind == "function" and ("self", "model") in method.dotted:
                    _use_of_model(method, "model", used)


def _is_called_on(flow: Flow, repository: Scope, method: Scope) -> bool:
    """Whether a method of a base may be called on a repository: not where others' alone are."""
    for scope, call in flow.program.calls_of(method.name.rpartition(".")[2]):
        func = call.node.func
        if isinstance(func, ast.Attribute):
            maker = made_by(flow.program, scope, func.value)
            if maker is None or maker is repository:
                return True
    return False


def _above(flow: Flow, owner: Scope) -> list[Scope]:
    """Return a class with its bases."""
    found = [owner]
    for one in found:
        if len(found) < limits.CANDIDATES_MAX:
            found.extend(base for base in flow.program.bases(one) if base not in found)
    return found


def _repositories(flow: Flow) -> dict[int, list[Scope]]:
    """Return the classes that say what their `model` is: by a base, an attribute or a start.

    By that model's class (its `id`).
    """
    found: dict[int, list[Scope]] = {}
    for repository in flow.program.live:
        for one in _models_of(repository) if repository.kind == "class" else ():
            meaning = flow.program.resolve(repository.parent or repository, one)
            kept = found.setdefault(id(meaning), [])
            kept += [repository] if repository not in kept else []
    return found


def _models_of(repository: Scope) -> Iterator[str]:
    bases = getattr(repository.node, "bases", ())
    given = [one.slice for one in bases if isinstance(one, ast.Subscript)]
    given += [one.value for one in repository.assigns.get("model", ()) if one.value is not None]
    for begin in repository.inner.get("__init__", ()):
        given += [one for call in begin.called_as(("__init__",)) for one in call.node.args]
    return (one.id for one in given if isinstance(one, ast.Name))


def _kind_of_model(owner: Scope) -> Medium | str | None:
    """Return where rows of a class are: empty for what the engine says; `None`: no rows."""
    bases = [last_name(base) for base in getattr(owner.node, "bases", ())]
    if "__tablename__" in owner.assigns or "__table__" in owner.assigns:
        return ""
    if "Document" in bases:
        return Medium.MONGO
    is_table = any(one.arg == "table" for one in getattr(owner.node, "keywords", ()))
    return "" if is_table or "Model" in bases else None


def _use_of_model(scope: Scope, name: str, table: _Table) -> None:
    for call in scope.calls:
        called = call.name
        line = call.node.lineno
        if called == name or (called in {"insert", "create", "acreate", "bulk_create"}
                              and _names(call.node, name)):  # fmt: skip
            table.written.append((scope, line))
        elif called in _READS and _names(call.node, name):
            table.read.append((scope, line))


def _names(node: ast.Call, name: str) -> bool:
    """Whether a call has a class among its arguments, or is a method of it."""
    pending: list[ast.AST] = [*node.args, node.func]
    while pending:
        here = pending.pop()
        if isinstance(here, ast.Name) and here.id == name:
            return True
        if isinstance(here, ast.Attribute) and here.attr == name == "model":
            return True
        if isinstance(here, ast.Attribute | ast.Call):
            pending.append(here.value if isinstance(here, ast.Attribute) else here.func)
    return False


def _of_queries(flow: Flow) -> Iterator[_Table]:
    """Find tables of messages in the text of queries."""
    found: dict[str, _Table] = {}
    selects: list[tuple[str, Scope, int]] = []
    for name in _QUERIES:
        for scope, call in flow.program.calls_of(name):
            text = _query(scope, call)
            for match in _INSERTS.finditer(text):
                columns = {one.strip().strip('"`[]').lower() for one in match[2].split(",")}
                if _holds_messages(columns, match[1]):
                    table = found.setdefault(
                        match[1].lower(), _Table(match[1], [], _driver(flow, scope))
                    )
                    table.written.append((scope, call.node.lineno))
            selected = None if _COUNTS.search(text) else _SELECTS.search(text)
            if selected is not None and not _INSERTS.search(text):
                selects.append((selected[1].lower(), scope, call.node.lineno))
    for name, scope, line in selects:
        if name in found:
            found[name].read.append((scope, line))
    yield from found.values()


def _query(scope: Scope, call: Call) -> str:
    """Return the text of a query, as far as it is written here."""
    given = call.node.args[0] if call.node.args else None
    if isinstance(given, ast.Name):
        for where in (scope, scope.module):
            values = [one.value for one in where.assigns.get(given.id, ())]
            if len(values) == 1:
                given = values[0]
                break
    parts = given.values if isinstance(given, ast.JoinedStr) else [given]
    text = "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "x"
        for part in parts
    )
    return text[: limits.TEXT_MAX]


def _driver(flow: Flow, scope: Scope) -> Medium | None:
    """Return where queries go: by what the file imports, else by the only driver there is."""
    for libraries, medium in _DRIVERS:
        if imports(scope.module, libraries):
            return medium
    is_by_engine = any(flow.program.calls_of(name) for name in ENGINES)
    if is_by_engine or imports(scope.module, ("sqlalchemy", "sqlmodel", "databases")):
        return None
    modules = [one for one in flow.program.live if one.kind == "module"]
    used = {
        medium for libraries, medium in _DRIVERS if any(imports(one, libraries) for one in modules)
    }
    return used.pop() if len(used) == 1 else None


def _of_services(flow: Flow) -> Iterator[_Table]:
    """Find tables of messages in hosted services."""
    found: dict[str, _Table] = {}
    for one in sorted(hosted(flow), key=lambda one: not one.is_write):
        if one.is_write and _holds_messages(set(one.columns), one.table):
            table = found.setdefault(
                one.table, _Table(one.table, [], Medium.NETWORK, is_hosted=True)
            )
            table.written.append((one.scope, one.line))
        elif not one.is_write and one.table in found:
            found[one.table].read.append((one.scope, one.line))
    yield from found.values()


def _documents(flow: Flow) -> Iterator[_Table]:
    """Find collections of conversations in MongoDB."""

    def collection(scope: Scope, call: Call) -> str:
        return _collection(flow, scope, call)

    yield from _by_name(flow, _DOCUMENTS_IN, _DOCUMENTS_OUT, collection, Medium.MONGO)


def _keys(flow: Flow) -> Iterator[_Table]:
    """Find keys of Redis under which conversations are."""
    yield from _by_name(flow, _KEYS_IN, _KEYS_OUT, _key, Medium.REDIS)


def _by_name(
    flow: Flow,
    into: tuple[str, ...],
    out: tuple[str, ...],
    name_of: Callable[[Scope, Call], str],
    medium: Medium,
) -> Iterator[_Table]:
    found: dict[str, _Table] = {}
    for names, is_write in ((into, True), (out, False)):
        for method in names:
            for scope, call in flow.program.calls_of(method):
                name = name_of(scope, call)
                if not name:
                    continue
                table = found.setdefault(name, _Table(name, [], medium))
                used = table.written if is_write else table.read
                used.append((scope, call.node.lineno))
    yield from found.values()


def _collection(flow: Flow, scope: Scope, call: Call) -> str:
    """Return the collection that a method is of, if its name tells of conversations."""
    func = call.node.func
    base = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(base, ast.Attribute) and last_name(base.value) == "self":
        made = own_values(flow.program, scope, base.attr)
        is_item = len(made) == 1 and isinstance(made[0][1], ast.Subscript | ast.Call)
        base = made[0][1] if is_item and not _NAMED.search(base.attr) else base
    if isinstance(base, ast.Subscript) and isinstance(base.slice, ast.Constant):
        name = str(base.slice.value)
    elif isinstance(base, ast.Call) and base.args and isinstance(base.args[0], ast.Constant):
        name = str(base.args[0].value)
    else:
        name = last_name(base) if base is not None else ""
    is_mongo = imports(scope.module, ("pymongo", "motor", "bson")) or "db" in ast.unparse(func)
    return name if is_mongo and _NAMED.search(name) else ""


def _key(scope: Scope, call: Call) -> str:
    """Return the words of a key of Redis, if they tell of conversations."""
    func = call.node.func
    if not isinstance(func, ast.Attribute) or not call.node.args:
        return ""
    if not _REDIS.search(ast.unparse(func.value)) or not imports(scope.module, ("redis", "valkey")):
        return ""
    key: ast.expr | None = call.node.args[0]
    if isinstance(key, ast.Name):
        made = [one.value for one in scope.assigns.get(key.id, ())]
        key = made[0] if len(made) == 1 else key
    if isinstance(key, ast.Call):
        made_by = last_name(key.func)
        return "keys of Redis" if TELLS.search(made_by) or made_by in {"_key", "key"} else ""
    text = "".join(
        one.value
        for one in (key.values if isinstance(key, ast.JoinedStr) else [key])
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
    return "keys of Redis" if TELLS.search(text) else ""
