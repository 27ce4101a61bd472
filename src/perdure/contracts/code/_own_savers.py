"""Where a saver that the project wrote itself keeps what it is given: by what its writes call.

A saver is written to through `put` and its kin. What these call, in the class and beside it, says
where it lives: a driver, a file that is opened for writing, tables of SQLAlchemy (then the engine
says in which database), or dicts of the object and nothing else. A class that derives from a saver
in memory and writes a file at each `put` keeps a file.
"""

import ast
import re
from collections.abc import Iterator

from msgspec import Struct

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._meanings import External, Variable
from perdure.contracts.code._objects import made_by
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Call, Scope, last_name
from perdure.contracts.code._urls import begins
from perdure.contracts.code._values import Evaluating, Frame, Instance, Kind
from perdure.contracts.code.facts import Medium

_WRITES = ("put", "aput", "put_writes", "aput_writes")
_SAYS = ("add_items", "add_messages", "aadd_messages", "add_message", "aadd_message")
"""What sessions and histories are written to through."""

_GIVES = ("get_items", "messages", "get_messages", "aget_messages")
"""What gives them again."""

_OF_SESSION = ("get_items", "add_items", "clear_session")
_RUNS = ("run", "run_sync", "run_streamed")
_DRIVERS = (
    (("psycopg", "psycopg_pool", "psycopg2", "asyncpg"), Medium.POSTGRES),
    (("redis", "aioredis", "valkey", "coredis"), Medium.REDIS),
    (("motor", "pymongo", "beanie"), Medium.MONGO),
    (("sqlite3", "aiosqlite", "apsw", "duckdb", "shelve", "diskcache"), Medium.FILE),
    (
        ("boto3", "aioboto3", "botocore", "aiobotocore", "supabase", "google", "azure", "typesense",
         "elasticsearch", "opensearchpy", "pymysql", "aiomysql", "asyncmy", "MySQLdb", "cassandra",
         "neo4j", "oracledb", "httpx", "requests", "aiohttp"),
        Medium.NETWORK,
    ),
)  # fmt: skip
"""Packages through which something is written, and where it is then."""

_BY_NAME = (
    (("psycopg", "asyncpg", "postgres"), Medium.POSTGRES),
    (("redis", "valkey"), Medium.REDIS),
    (("motor", "pymongo", "mongo"), Medium.MONGO),
    (("sqlite3", "aiosqlite"), Medium.FILE),
    (("mysql", "mariadb", "supabase", "typesense", "dynamodb", "firestore", "elasticsearch",
      "cassandra", "boto3"), Medium.NETWORK),
)  # fmt: skip
"""Words in the names that a saver uses, where its driver comes as an argument."""

_ENGINES = ("create_engine", "create_async_engine")
_SCHEMES = (
    (regex(r"^postgres"), Medium.POSTGRES),
    (regex(r"^sqlite"), Medium.FILE),
    (regex(r"^[a-z]"), Medium.NETWORK),
)
_DUMPS = {
    f"{module}.dump" for module in ("pickle", "json", "yaml", "joblib", "marshal", "cloudpickle")
}
_WRITES_WHOLE = {"write_text", "write_bytes"}
_OPENS = regex(r"^[rb+t]*[wax]")
_PATHS = regex(r"path|file|folder|dir$|directory", re.IGNORECASE)
_EMPTY = {"dict", "defaultdict", "OrderedDict", "Counter"}


class Kept(Struct, frozen=True):
    """Where a saver of the project's own keeps things; `location` is evaluated in `frame`."""

    medium: Medium
    location: ast.expr | None = None
    frame: Frame | None = None
    is_shared: bool = False
    """All objects of the class have it together."""


def is_session(program: Program, owner: Scope) -> bool:
    """Whether a class has the methods of a session of the OpenAI Agents SDK, and is given as one.

    Runs are given it as their `session`, or something that may be it.
    """
    if owner.kind != "class" or any(program.method(owner, one) is None for one in _OF_SESSION):
        return False
    for name in _RUNS:
        for scope, call in program.calls_of(name):
            for one in call.node.keywords:
                maker = made_by(program, scope, one.value) if one.arg == "session" else owner
                if one.arg in {"session", None} and (
                    not isinstance(maker, Scope) or owner in program.family(maker)
                ):
                    return True
    return False


def kept_by(flow: Evaluating, owner: Scope, instance: Instance, *, base: Medium) -> Kept | None:
    """Return where a saver writes, by its own methods; `None`: they don't say.

    Args:
        flow: the evaluation.
        owner: the class.
        instance: the object, with what its constructor was given.
        base: where the library class that it derives from keeps things.
    """
    scopes = _writing(flow.program, owner, (*_WRITES, *_SAYS))
    if not scopes:
        return None
    file = _file(flow, scopes, instance)
    if base is not Medium.UNKNOWN:
        return file
    elsewhere = _driver(flow.program, scopes) or _tables(flow, scopes) or file or _named(owner)
    if elsewhere is not None:
        return None if _gives_what_it_holds(flow.program, owner, scopes) else elsewhere
    if _in_dicts(owner, scopes):
        return Kept(Medium.MEMORY)
    return _of_turns(flow.program, owner, scopes)


def _writing(program: Program, owner: Scope, names: tuple[str, ...]) -> list[Scope]:
    """Return the methods that write, and what they call of the project."""
    pending = [scope for name in names for scope in owner.inner.get(name, ())]
    found: list[Scope] = []
    while pending and len(found) < limits.WRITING_MAX:
        scope = pending.pop(0)
        if any(scope is one for one in found):
            continue
        found.append(scope)
        pending += [one for several in scope.inner.values() for one in several]
        for call in scope.calls:
            # Work is handed to threads by name.
            for node in (call.node.func, *call.node.args):
                meaning = program.meaning(scope, node)
                if isinstance(meaning, Scope) and meaning.kind == "function":
                    pending.append(meaning)
                elif meaning is None and isinstance(node, ast.Attribute):
                    # The one method of this name, of a client that comes from somewhere.
                    named = program.methods_named(node.attr)
                    pending += named if len(named) == 1 else []
    return found


def _gives_what_it_holds(program: Program, owner: Scope, scopes: list[Scope]) -> bool:
    """Whether a session gives what a list or dict has, though a driver is used beside: a question.

    What is written may be a number or a line of a log; what nobody reads again keeps nothing.
    """
    held = {
        ast.unparse(base)
        for scope in scopes
        for call in scope.calls
        if isinstance(call.node.func, ast.Attribute) and call.name in _ADDS
        if _begun(program, owner, scope, base := _base_of(call.node.func.value)) is not None
    }
    reads = _writing(program, owner, _GIVES)
    if not held or not any(one.name.rpartition(".")[2] in _SAYS for one in scopes):
        return False
    if not reads and not any(one.endswith("messages") for one in held):
        return False
    is_filled = _uses_driver(program, owner.inner.get("__init__", [])) and _uses_driver(
        program, scopes
    )
    return not is_filled and all(
        call.name in _HARMLESS | _ADDS or _is_harmless(program, scope, call.node.func)
        for scope in reads
        for call in scope.calls
    )


def _uses_driver(program: Program, scopes: list[Scope]) -> bool:
    known = {name for names, _medium in _DRIVERS for name in names}
    used = {name.partition(".")[0] for one in scopes for name in _libraries(program, one)}
    return bool(known & used)


def _driver(program: Program, scopes: list[Scope]) -> Kept | None:
    made = [one for scope in scopes if scope.owner for one in scope.owner.inner.get("__init__", ())]
    packages = {
        name.partition(".")[0] for one in (*scopes, *made) for name in _libraries(program, one)
    }
    for names, medium in _DRIVERS:
        if packages.intersection(names):
            return Kept(medium)
    return None


def _libraries(program: Program, scope: Scope) -> Iterator[str]:
    for name in scope.names:
        meaning = program.resolve(scope, name)
        if isinstance(meaning, External):
            yield meaning.name


def _tables(flow: Evaluating, scopes: list[Scope]) -> Kept | None:
    """Return the database of the project's one engine, if rows are written through SQLAlchemy."""
    used = {name for scope in scopes for name in scope.attribute_names}
    if not used & {"commit", "flush", "begin", "merge"} or not used & {"add", "execute", "merge"}:
        return None
    engines = [
        (scope, call)
        for name in _ENGINES
        for scope, call in flow.program.calls_of(name)
        if call.node.args and _is_of(flow.program, scope, call, ("sqlalchemy", "sqlmodel"))
    ]
    media = {_by_scheme(flow, scope, call.node.args[0]) for scope, call in engines}
    if len(media) != 1:
        return None
    scope, call = engines[0]
    medium = media.pop()
    given = call.node.args[0] if len(engines) == 1 else None
    return Kept(medium, given, flow.frame(scope)) if medium is not Medium.UNKNOWN else None


def _is_of(program: Program, scope: Scope, call: Call, packages: tuple[str, ...]) -> bool:
    meaning = program.meaning(scope, call.node.func)
    return isinstance(meaning, External) and meaning.name.startswith(packages)


def _by_scheme(flow: Evaluating, scope: Scope, given: ast.expr) -> Medium:
    leaf = flow.only(given, flow.frame(scope))
    is_text = leaf is not None and leaf.kind is Kind.CONST and isinstance(leaf.value, str)
    text = leaf.value if leaf is not None and is_text else begins(flow, scope, given)
    return next((one for scheme, one in _SCHEMES if scheme.match(text)), Medium.UNKNOWN)


def _file(flow: Evaluating, scopes: list[Scope], instance: Instance) -> Kept | None:
    """Return the file that a write leaves behind: its path is an attribute of the saver."""
    written = [
        (scope, call.node)
        for scope in scopes
        for call in scope.calls
        if _writes_file(flow.program, scope, call)
    ]
    if not written:
        return None
    for scope in scopes:
        names = sorted(attribute for base, attribute in scope.dotted if base == "self")
        for name in names:
            if _PATHS.search(name) and name not in instance.scope.inner:
                here = ast.Name(id="self", ctx=ast.Load())
                node = ast.copy_location(
                    ast.Attribute(value=here, attr=name, ctx=ast.Load()), scope.node
                )
                ast.copy_location(here, node)
                return Kept(Medium.FILE, node, flow.inside(scope, {}, instance))
    for scope, call in written:
        if isinstance(call.func, ast.Name) and call.func.id == "open" and call.args:
            return Kept(Medium.FILE, call.args[0], flow.inside(scope, {}, instance))
    return Kept(Medium.FILE)


def _writes_file(program: Program, scope: Scope, call: Call) -> bool:
    name = call.name
    if name in _WRITES_WHOLE:
        return True
    if name == "open":
        is_method = isinstance(call.node.func, ast.Attribute)
        modes = [
            *call.node.args[0 if is_method else 1 :],
            *(one.value for one in call.node.keywords if one.arg == "mode"),
        ]
        return any(
            isinstance(one, ast.Constant) and isinstance(one.value, str) and _OPENS.match(one.value)
            for one in modes
        )
    meaning = program.meaning(scope, call.node.func)
    return isinstance(meaning, External) and meaning.name in _DUMPS


def _named(owner: Scope) -> Kept | None:
    """Guess by the words of its names, where the driver comes from somewhere else."""
    names = {owner.name.lower()}
    for scope in owner.all_inner():
        names.update(name.lower() for name in scope.names | scope.attribute_names)
    for words, medium in _BY_NAME:
        if any(word in name for word in words for name in names):
            return Kept(medium)
    return None


def _in_dicts(owner: Scope, scopes: list[Scope]) -> bool:
    """Whether writes put items into dicts that the object begins with, and call nobody else."""
    stored = {
        target.value.attr
        for scope in scopes
        for assign in scope.items
        if isinstance(target := assign.target, ast.Subscript)
        and isinstance(target.value, ast.Attribute)
        and last_name(target.value.value) == "self"
    }
    begun = {
        assign.target.attr
        for scope in owner.inner.get("__init__", ())
        for assign in scope.attributes
        if isinstance(assign.target, ast.Attribute) and _is_dict(assign.value)
    }
    called = {
        last_name(call.node.func.value)
        for scope in scopes
        for call in scope.calls
        if isinstance(call.node.func, ast.Attribute)
    }
    return bool(stored & begun) and not called & {"db", "session", "conn", "client", "pool"}


def _is_dict(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Dict) or (
        isinstance(value, ast.Call) and last_name(value.func) in _EMPTY
    )


_ADDS = {"append", "extend", "insert", "setdefault"}
_HARMLESS = {
    "copy", "model_copy", "info", "debug", "lower", "strip", "items", "get", "values", "pop",
}  # fmt: skip
_PURE = (
    "builtins.", "copy.", "datetime.", "time.", "uuid.", "typing.", "collections.", "itertools.",
    "langchain_core.messages", "langchain.schema", "agents.",
)  # fmt: skip
"""What is called by its name and keeps nothing."""

_OF_PYTHON = {
    "list", "dict", "tuple", "set", "len", "str", "int", "bool", "sorted", "reversed", "enumerate",
    "zip", "isinstance", "range", "min", "max", "iter", "next", "any", "all", "ValueError", "print",
}  # fmt: skip

_STORES = regex(
    r"^(execute|commit|insert|upsert|dump|dumps|save|persist|write|put|hset|rpush|flush|sync)"
    r"(_\w{1,60}|many)?$"
)

_GIVES_AS = {"model_dump", "model_dump_json", "dict", "to_dict"}


def _of_turns(program: Program, owner: Scope, scopes: list[Scope]) -> Kept | None:
    """Return that a session puts what is said into a list or dict, and calls nothing else.

    A list of the object goes with it; a dict of the class or the module is that of all objects.
    What is put into two of these, or taken from there into a store, may be kept by who takes it.
    """
    if not any(one.name.rpartition(".")[2] in _SAYS for one in scopes):
        return None
    found: dict[str, bool] = {}
    for scope in scopes:
        for call in scope.calls:
            if not _is_put(program, owner, scope, call, found):
                return None
        for assign in (*scope.items, *scope.attributes):
            base = _base_of(assign.target)
            shared = _begun(program, owner, scope, base)
            if shared is not None:
                found[ast.unparse(base)] = shared
            elif not _is_of_here(owner, scope, assign.target):
                return None
    if not found or sum(found.values()) > 1 or _is_drained(program, found):
        return None
    return Kept(Medium.MEMORY, is_shared=any(found.values()))


def _is_put(
    program: Program, owner: Scope, scope: Scope, call: Call, found: dict[str, bool]
) -> bool:
    """Whether a call keeps nothing but in a list or dict: it is added to those that are found."""
    func = call.node.func
    if not isinstance(func, ast.Attribute):
        return _is_harmless(program, scope, func)
    if func.attr in _HARMLESS:
        return True
    base = _base_of(func.value)
    shared = _begun(program, owner, scope, base) if func.attr in _ADDS else None
    if shared is not None:
        found[ast.unparse(base)] = shared
        return True
    is_local = func.attr in _ADDS | _GIVES_AS and _is_local(scope, base)
    return isinstance(base, ast.Constant) or is_local


def _is_harmless(program: Program, scope: Scope, func: ast.expr) -> bool:
    """Whether a call surely keeps nothing: of Python, of a few libraries, of the project's own."""
    meaning = program.meaning(scope, func)
    if isinstance(meaning, External):
        return meaning.name.startswith(_PURE)
    if meaning is None and isinstance(func, ast.Name):
        return func.id in _OF_PYTHON
    return isinstance(meaning, Scope)  # whose own calls are looked at, or a class


def _is_of_here(owner: Scope, scope: Scope, target: ast.expr) -> bool:
    """Whether an assignment is to an attribute of the object, or to what the method makes."""
    if isinstance(target, ast.Attribute) and last_name(target.value) == "self":
        return target.attr not in owner.inner  # a property may write
    base = _base_of(target)
    made = scope.assigns.get(base.id, ()) if isinstance(base, ast.Name) else ()
    return bool(made) and all(
        isinstance(one.value, ast.Dict | ast.List | ast.Call | ast.DictComp | ast.ListComp)
        for one in made
    )


def _is_drained(program: Program, found: dict[str, bool]) -> bool:
    """Whether code beside the session takes what all objects share into a store."""
    shared = {name.rpartition(".")[2] for name, is_shared in found.items() if is_shared}
    return any(
        scope.kind == "function"
        and shared & (scope.names | scope.attribute_names)
        and (
            any(_STORES.match(call.name) for call in scope.calls)
            or _driver(program, [scope]) is not None
        )
        for scope in program.live
    )


def _base_of(node: ast.expr) -> ast.expr:
    """Return the name, or the object's attribute, that an expression begins with."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
                node = inner
            case ast.Attribute(value=ast.Attribute() | ast.Subscript() | ast.Call() as inner):
                node = inner
            case _:
                return node


def _is_local(scope: Scope, node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Name)
        and (node.id in scope.assigns or node.id in scope.parameter_names)
        and node.id not in {"self", "cls"}
    )


def _begun(program: Program, owner: Scope, scope: Scope, node: ast.expr) -> bool | None:
    """Return whether all objects share a list or dict; `None`: it is none that begins empty."""
    if isinstance(node, ast.Name):
        meaning = program.resolve(scope, node.id)
        if not isinstance(meaning, Variable) or meaning.scope.kind != "module":
            return None
        begun = meaning.scope.assigns.get(meaning.name, [])
        return True if len(begun) == 1 and _is_empty(begun[0].value) else None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    if node.value.id not in {"self", "cls", owner.name.rpartition(".")[2]}:
        return None
    of_object = [
        assign.value
        for begin in owner.inner.get("__init__", ())
        for assign in begin.attributes
        if isinstance(assign.target, ast.Attribute) and assign.target.attr == node.attr
    ]
    if of_object:
        return False if all(_is_empty(one) for one in of_object) else None
    of_class = [one.value for one in owner.assigns.get(node.attr, ())]
    if len(of_class) != 1:
        return None
    if isinstance(of_class[0], ast.Call) and last_name(of_class[0].func) in {"Field", "field"}:
        makes = [one.value for one in of_class[0].keywords if one.arg == "default_factory"]
        return False if any(last_name(one) in _EMPTY | {"list"} for one in makes) else None
    is_model = any(last_name(one) == "BaseModel" for one in getattr(owner.node, "bases", ()))
    return (not is_model) if _is_empty(of_class[0]) else None


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List):
        return not value.elts
    is_list = isinstance(value, ast.Call) and last_name(value.func) in {"list", "deque"}
    return is_list or (_is_dict(value) and not getattr(value, "keys", ()))
