"""What a call returns: of the project's functions, of savers, and of a few of Python's own.

Size: one function for each shape of a call; they share the reader's state.
"""

import ast
import posixpath
from collections.abc import Callable

from msgspec.structs import replace

from perdure.contracts.code import _catalog, limits
from perdure.contracts.code._configured import LOADS, READS, validated
from perdure.contracts.code._meanings import External, Module
from perdure.contracts.code._own_savers import is_session, kept_by
from perdure.contracts.code._scopes import Call, Scope, last_name
from perdure.contracts.code._values import (
    Bound,
    Evaluating,
    Frame,
    Instance,
    Kind,
    Leaf,
    Made,
    Resource,
    Table,
    Unnamed,
    argument,
    const,
    joined,
    settled,
    unknown,
)
from perdure.contracts.code.facts import Medium, Role
from perdure.contracts.evidence import Confidence, Evidence

_SAME = {
    "str", "Path", "PurePath", "PosixPath", "SecretStr", "cast", "deepcopy", "copy", "resolve",
    "absolute", "expanduser", "as_posix", "strip", "rstrip", "lstrip", "get_secret_value",
    "abspath",
    "realpath", "normpath", "fspath", "list", "tuple", "dict", "bind", "with_config",
    "with_fallbacks", "shield", "create_task", "ensure_future", "wait_for", "encode", "decode",
    "aclosing", "closing", "__aenter__", "__enter__", "unwrap", "expandvars", "with_retry",
}  # fmt: skip
"""Calls that give back what they got, for all that is asked here."""

_ENTERS = {"enter_async_context", "enter_context", "__aenter__", "__enter__"}
_IN_THREAD = {"to_thread", "run_in_threadpool", "run_sync", "run", "run_until_complete", "submit"}
_OTHER_WAYS = {
    "from_conn_string", "from_conn_info", "from_url", "from_connection_string", "from_client",
    "from_uri", "create", "from_pool", "connect",
}  # fmt: skip
_COMMON = {
    "get", "run", "invoke", "ainvoke", "execute", "close", "open", "read", "write", "send", "put",
    "append", "items", "keys", "values", "update", "pop", "setup", "info", "format", "join", "dict",
}  # fmt: skip
"""Names of methods that say nothing about their object."""


class Calls:
    """Evaluates calls."""

    def __init__(self, flow: Evaluating) -> None:
        """Ask `flow` for everything else."""
        self.flow = flow
        self._kinds: dict[int, tuple[Role, Medium] | None] = {}

    def call(self, node: ast.Call, frame: Frame) -> list[Leaf]:
        """Return what a call may give."""
        name = last_name(node.func)
        if name in _ENTERS and node.args:
            return self._enter_all(self.flow.leaves(node.args[0], frame))
        if name in _IN_THREAD and node.args and isinstance(node.func, ast.Attribute):
            return self._in_thread(node, frame)
        if name in {"Depends", "Security", "partial"} and node.args:
            return self._of_leaves(self.flow.leaves(node.args[0], frame), node, frame, bare=True)
        meaning = self.flow.program.meaning(frame.scope, node.func)
        if meaning is None or isinstance(meaning, Scope | External):
            found = self._of_meaning(meaning, node, frame)
            if found is not None:
                return found
        if isinstance(node.func, ast.Attribute):
            return self._method(node.func, node, frame)
        return self._of_leaves(self.flow.leaves(node.func, frame), node, frame)

    def _enter_all(self, leaves: list[Leaf]) -> list[Leaf]:
        return [more for leaf in leaves for more in self.entered(leaf)]

    def entered(self, leaf: Leaf) -> list[Leaf]:
        """Return what entering a context manager gives."""
        if leaf.kind is Kind.SITE:
            return [replace(leaf, value=replace(leaf.value, is_entered=True))]
        if leaf.kind is Kind.INSTANCE:
            for name in ("__aenter__", "__enter__"):
                method = self.flow.program.method(leaf.value.scope, name)
                if method is not None:
                    found = self.flow.results(method, self.flow.inside(method, {}, leaf.value))
                    return [one.under(leaf.conditions) for one in found]
        return [leaf]

    def _in_thread(self, node: ast.Call, frame: Frame) -> list[Leaf]:
        first = node.args[0]
        if isinstance(first, ast.Call):
            return self.flow.leaves(first, frame)
        inner = ast.copy_location(
            ast.Call(func=first, args=node.args[1:], keywords=node.keywords), node
        )
        return self.call(inner, frame)

    # ------------------------------------------------------------------------------ by meaning

    def _of_meaning(
        self, meaning: Scope | External | None, node: ast.Call, frame: Frame
    ) -> list[Leaf] | None:
        match meaning:
            case External():
                return self._library(meaning.name, node, frame)
            case Scope() if meaning.kind == "class":
                return self._made(meaning, node, frame)
            case Scope():
                return self.results(meaning, self._entered_frame(meaning, node, frame))
        return None

    def _entered_frame(
        self, scope: Scope, node: ast.Call, frame: Frame, instance: Instance | None = None
    ) -> Frame:
        arguments = {}
        for parameter in scope.parameters:
            given = argument(node, scope, parameter.arg)
            if given is not None:
                arguments[parameter.arg] = (given, frame)
        if instance is None and frame.instance is not None and isinstance(node.func, ast.Attribute):
            value = node.func.value
            if isinstance(value, ast.Name) and value.id == "self":
                instance = frame.instance
        return self.flow.inside(scope, arguments, instance, frame.depth + 1)

    def _made(self, owner: Scope, node: ast.Call, frame: Frame) -> list[Leaf]:
        kind = self.kind_of(owner)
        if kind is not None:
            wrapped = self._wrapped(owner, node, frame) if kind[1] is Medium.UNKNOWN else []
            if wrapped:
                return wrapped
            made = self._own(owner, kind, node, frame)
            note = f"{owner.name} keeps it in {made.medium.value}"
            step = Evidence(file=owner.path, line=owner.line, note=note)
            return [Leaf(kind=Kind.SITE, value=made, evidence=(step,))]
        return [Leaf(kind=Kind.INSTANCE, value=self.flow.instance(owner, node, frame))]

    def _own(self, owner: Scope, kind: tuple[Role, Medium], node: ast.Call, frame: Frame) -> Made:
        """Describe a saver of the project's own: where its writes go, or its base keeps things."""
        made = Made(kind[0], kind[1], owner.name, node, frame, is_own=True)
        if kind[1] not in {Medium.UNKNOWN, Medium.MEMORY}:
            return made
        instance = self.flow.instance(owner, node, frame)
        kept = kept_by(self.flow, owner, instance, base=kind[1])
        if kept is None:
            return made
        return replace(
            made,
            medium=kept.medium,
            place=kept.location,
            place_frame=kept.frame,
            is_shared=kept.is_shared,
        )

    def _wrapped(self, owner: Scope, node: ast.Call, frame: Frame) -> list[Leaf]:
        """Return the saver that a saver of the project's own is made around."""
        for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
            found = [one for one in self.flow.leaves(given, frame) if one.kind is Kind.SITE]
            if found:
                return found
        instance = self.flow.instance(owner, node, frame)
        for scope in owner.all_inner():
            for assign in scope.attributes:
                if not isinstance(assign.target, ast.Attribute):
                    continue
                name = assign.target.attr
                if any(word in name for word in ("saver", "checkpointer", "inner", "store")):
                    leaf = Leaf(kind=Kind.INSTANCE, value=instance)
                    inner = self.flow.attribute_of(leaf, name)
                    found = [one for one in inner if one.kind is Kind.SITE]
                    if found:
                        return found
        return []

    def kind_of(self, owner: Scope) -> tuple[Role, Medium] | None:
        """Return what a class of the project keeps, by the library class it derives from."""
        if id(owner) not in self._kinds:
            self._kinds[id(owner)] = self._kind_of(owner, 0)
        return self._kinds[id(owner)]

    def _kind_of(self, owner: Scope, depth: int) -> tuple[Role, Medium] | None:
        if depth > limits.FLOW_DEPTH_MAX:
            return None
        for base in getattr(owner.node, "bases", ()):
            meaning = self.flow.program.meaning(owner.parent or owner, base)
            found = None
            if isinstance(meaning, External):
                found = _catalog.kind_of(meaning.name)
            elif isinstance(meaning, Scope) and meaning.kind == "class" and meaning is not owner:
                found = self._kind_of(meaning, depth + 1)
            if found is not None:
                return found
        if depth == 0 and is_session(self.flow.program, owner):
            return Role.HISTORY, Medium.UNKNOWN
        return None

    # ------------------------------------------------------------------------------ libraries

    def constructs(self, node: ast.Call, frame: Frame) -> Leaf | None:
        """Return the saver that a call itself makes, if it makes one."""
        meaning = self.flow.program.meaning(frame.scope, node.func)
        if isinstance(meaning, External):
            owner, _, last = meaning.name.rpartition(".")
            if _catalog.kind_of(meaning.name) or (last in _OTHER_WAYS and _catalog.kind_of(owner)):
                found = self._library(meaning.name, node, frame)
                return found[0] if found else None
        if isinstance(meaning, Scope) and meaning.kind == "class" and self.kind_of(meaning):
            leaf = self._made(meaning, node, frame)[0]
            return leaf if leaf.kind is Kind.SITE and leaf.value.node is node else None
        return None

    def making(self, scope: Scope) -> list[Call]:
        """Return the calls of a scope that `constructs` may say something of."""
        known = self.flow.program.making
        if id(scope) not in known:
            known[id(scope)] = [one for one in scope.calls if self._may_make(scope, one)]
        return known[id(scope)]

    def _may_make(self, scope: Scope, call: Call) -> bool:
        meaning = self.flow.program.meaning(scope, call.node.func)
        if isinstance(meaning, External):
            owner = meaning.name.rpartition(".")[0]
            return bool(_catalog.kind_of(meaning.name) or _catalog.kind_of(owner))
        return isinstance(meaning, Scope) and meaning.kind == "class"

    def _library(self, dotted: str, node: ast.Call, frame: Frame) -> list[Leaf] | None:
        owner, _, last = dotted.rpartition(".")
        kind = _catalog.kind_of(dotted)
        is_entered = True
        if kind is None and last in _OTHER_WAYS:
            kind = _catalog.kind_of(owner)
            is_entered = last != "from_conn_string"
            last = owner.rpartition(".")[2]
        if kind is not None:
            made = Made(kind[0], kind[1], last, node, frame, is_entered)
            return [Leaf(kind=Kind.SITE, value=made)]
        known = _KNOWN.get(dotted) or _KNOWN.get(f"*.{last}")
        if known is not None:
            return known(self.flow, node, frame)
        if last in _SAME and node.args:
            return self.flow.leaves(node.args[-1 if last == "cast" else 0], frame)
        if dotted == "dict" or dotted.endswith(".dict"):
            return [unknown()]
        return None if isinstance(node.func, ast.Attribute) else [unknown()]

    # -------------------------------------------------------------------------------- methods

    def _method(self, func: ast.Attribute, node: ast.Call, frame: Frame) -> list[Leaf]:
        found: list[Leaf] = []
        for leaf in self.flow.leaves(func.value, frame):
            got = self._on(leaf, func, node, frame)
            found.extend(one.under(leaf.conditions) for one in got)
        return found

    def _on(self, leaf: Leaf, func: ast.Attribute, node: ast.Call, frame: Frame) -> list[Leaf]:
        name = func.attr
        match leaf.kind:
            case Kind.CONST if isinstance(leaf.value, str) and name in READS:
                return [Leaf(kind=Kind.RESOURCE, value=Resource(func.value, frame, node))]
            case Kind.RESOURCE if name in READS:
                return [leaf]
            case Kind.CONST if isinstance(leaf.value, str):
                return [self._text(leaf, name, node, frame)]
            case Kind.TABLE:
                return self._of_table(leaf, name, node, frame)
            case Kind.INSTANCE:
                method = self.flow.program.method(leaf.value.scope, name)
                if method is not None:
                    inside = self._entered_frame(method, node, frame, leaf.value)
                    return self.results(method, inside)
                got = self.flow.attribute_of(leaf, name)
                return self._of_leaves(got, node, frame) if got else [unknown()]
            case Kind.MEANING:
                return self._on_meaning(leaf, name, node, frame)
            case Kind.SITE if name in _ENTERS:
                return self.entered(leaf)
            case Kind.SITE | Kind.RESOURCE:
                # A library's object: methods of the project with this name are others.
                return [leaf if name in _SAME else leaf.lost()]
        return self._by_name(leaf, name, node, frame)

    def _on_meaning(self, leaf: Leaf, name: str, node: ast.Call, frame: Frame) -> list[Leaf]:
        if isinstance(leaf.value, External):
            return self._library(f"{leaf.value.name}.{name}", node, frame) or [unknown()]
        made = validated(node)
        if made is not None and isinstance(leaf.value, Scope):
            return self._made(leaf.value, made, frame)
        return self._of_leaves(self.flow.attribute_of(leaf, name), node, frame)

    def _by_name(self, leaf: Leaf, name: str, node: ast.Call, frame: Frame) -> list[Leaf]:
        """Try the reachable methods of this name, if there are few and the name says something."""
        candidates = self.flow.program.methods_named(name)
        if name in _COMMON or not candidates or len(candidates) > limits.CANDIDATES_MAX:
            return [leaf.lost()]
        found: list[Leaf] = []
        for scope in candidates:
            got = self.results(scope, self._entered_frame(scope, node, frame))
            found.extend(one.after((), Confidence.INFERRED) for one in got)
        return found

    def _of_leaves(
        self, leaves: list[Leaf], node: ast.Call, frame: Frame, *, bare: bool = False
    ) -> list[Leaf]:
        if bare:
            node = ast.copy_location(ast.Call(func=node.func, args=[], keywords=[]), node)
        found: list[Leaf] = []
        for leaf in leaves:
            got: list[Leaf] | None = None
            value = leaf.value
            if leaf.kind is Kind.MEANING and isinstance(value, Bound):
                inside = self._entered_frame(value.scope, node, frame, value.instance)
                got = self.results(value.scope, inside)
            elif leaf.kind is Kind.MEANING and isinstance(value, Unnamed):
                # Its parameters are not known; what it makes is, most often.
                got = self.flow.leaves(value.node.body, value.frame)
            elif leaf.kind is Kind.MEANING and isinstance(value, Scope | External):
                got = self._of_meaning(value, node, frame)
            elif leaf.kind is Kind.INSTANCE:
                method = self.flow.program.method(value.scope, "__call__")
                if method is not None:
                    got = self.results(method, self._entered_frame(method, node, frame, value))
            found.extend(one.under(leaf.conditions) for one in got or [leaf.lost()])
        return found

    def results(self, scope: Scope, frame: Frame) -> list[Leaf]:
        """Return what a function returns or yields."""
        found: list[Leaf] = []
        for result in scope.results:
            guards = [(frame, guard) for guard in result.guards]
            leaves = settled(self.flow.leaves(result.value, frame))
            found.extend(leaf.under(guards) for leaf in leaves)
        if scope.end is not None and not scope.yields:
            found.append(const(None).under((frame, guard) for guard in scope.end))
        return found

    # ------------------------------------------------------------------------------- builtins

    def _text(self, leaf: Leaf, name: str, node: ast.Call, frame: Frame) -> Leaf:
        text: str = leaf.value
        if name in {"lower", "casefold", "upper", "strip"} and not node.args:
            method = "lower" if name == "casefold" else name
            return replace(leaf, value=getattr(text, method)())
        if name == "joinpath" and node.args:
            other = self.flow.only(node.args[0], frame)
            if other is not None and isinstance(other.value, str):
                return replace(leaf, value=joined(text, other.value))
        if name == "replace" and len(node.args) == len(("old", "new")):
            old, new = (self.flow.only(one, frame) for one in node.args)
            if (
                old
                and new
                and isinstance(old.value, str)
                and isinstance(new.value, str)
                and old.value
            ):
                return replace(leaf, value=text.replace(old.value, new.value)[: limits.TEXT_MAX])
        if name in {"startswith", "endswith"} and node.args:
            other = self.flow.only(node.args[0], frame)
            if other is not None and isinstance(other.value, str | tuple):
                is_so = (
                    text.startswith(other.value) if name[0] == "s" else text.endswith(other.value)
                )
                return replace(leaf, value=is_so)
        return leaf if name in _SAME else unknown()

    def _of_table(self, leaf: Leaf, name: str, node: ast.Call, frame: Frame) -> list[Leaf]:
        if name == "copy":
            return [leaf]
        if name == "get" and node.args:
            key = self.flow.only(node.args[0], frame)
            if key is None or key.kind is not Kind.CONST:
                return [unknown()]
            found = self.flow.item_of(leaf, key.value) if _is_plain(leaf) else []
            if not found and leaf.value.node is not None:
                wanted = ast.copy_location(
                    ast.Subscript(value=leaf.value.node, slice=ast.Constant(value=key.value)), node
                )
                ast.fix_missing_locations(wanted)
                found = self.flow.leaves(wanted, leaf.value.frame)
            if found and found[0].kind is not Kind.UNKNOWN:
                return found
            if len(node.args) > 1:
                return self.flow.leaves(node.args[1], frame)
            return [const(None)]
        return [unknown()]


def _is_plain(leaf: Leaf) -> bool:
    table: Table = leaf.value
    return table.plain is not None


# What libraries' functions return, by dotted name.


def _environment(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    key = flow.only(node.args[0], frame) if node.args else None
    if key is None or not isinstance(key.value, str):
        return [unknown()]
    name = key.value
    place = Evidence(file=frame.scope.path, line=node.lineno, note=f"reads {name}")
    found = flow.environment.get(name, place)
    if not found.is_unset:
        return [found]
    given = node.args[1] if len(node.args) > 1 else None
    given = next((k.value for k in node.keywords if k.arg == "default"), given)
    if given is None:
        note = f"{name} is set nowhere"
        return [replace(found, evidence=(replace(place, note=note),))]
    step = replace(place, note=f"{name} is set nowhere, so the code's default applies")
    return [
        replace(leaf, settings=(name, *leaf.settings)).after((step,), Confidence.DECLARED_DEFAULT)
        for leaf in flow.leaves(given, frame)
    ]


def _join(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    whole = ""
    leaf = const("")
    for at, part in enumerate(node.args):
        known = flow.only(part, frame)
        if known is None or not isinstance(known.value, str):
            return [unknown(known.question if known else None)]
        whole = known.value if not at else joined(whole, known.value)
        leaf = leaf.after(known.evidence, known.confidence)
    return [replace(leaf, value=posixpath.normpath(whole) if whole else "")]


def _folder(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    known = flow.only(node.args[0], frame) if node.args else None
    if known is None or not isinstance(known.value, str):
        return [unknown()]
    return [replace(known, value=posixpath.dirname(known.value))]


def _work_folder(flow: Evaluating, _node: ast.Call, _frame: Frame) -> list[Leaf]:
    return [const(flow.program.layout.workdir)]


def _home(_flow: Evaluating, _node: ast.Call, _frame: Frame) -> list[Leaf]:
    return [const("~")]


def _integer(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    return _number(flow, node, frame, int)


def _floating(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    return _number(flow, node, frame, float)


def _number(
    flow: Evaluating, node: ast.Call, frame: Frame, make: Callable[[str], float]
) -> list[Leaf]:
    known = flow.only(node.args[0], frame) if node.args else None
    if known is None or known.kind is not Kind.CONST:
        return [unknown(known.question if known else None)]
    try:
        return [replace(known, value=make(str(known.value)[:40]))]
    except ValueError:
        return [unknown()]


def _truth(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    if not node.args:
        return [const(value=False)]
    decision = flow.decider.truth(node.args[0], frame)
    if decision.is_met is None:
        return [unknown(decision.question, decision.evidence)]
    return [
        Leaf(
            kind=Kind.CONST,
            value=decision.is_met,
            evidence=decision.evidence,
            confidence=decision.confidence,
            assumed=decision.assumed,
            settings=decision.settings,
        )
    ]


def _connection(_flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    given = next((k.value for k in node.keywords if k.arg in _catalog.LOCATION_WORDS), None)
    if given is None and node.args:
        given = node.args[0]
    return [Leaf(kind=Kind.RESOURCE, value=Resource(given, frame, node))]


def _lacks(flow: Evaluating, of: ast.expr, name: str, frame: Frame) -> bool:
    """Whether an object of the project surely has no attribute of a name: nothing sets one."""
    leaves = flow.leaves(of, frame)
    if not all(leaf.kind is Kind.INSTANCE for leaf in leaves) or flow.program.assigning(name):
        return False
    for leaf in leaves:
        for one in flow.program.family(leaf.value.scope):
            if name in one.assigns or name in one.inner or "__getattr__" in one.inner:
                return False
            bases = {last_name(base) for base in getattr(one.node, "bases", ())}
            own = {base.name.rpartition(".")[2] for base in flow.program.bases(one)}
            if bases - own - _PLAIN or any(
                "allow" in ast.unparse(assign.value)
                for assign in one.assigns.get("model_config", [])
                if assign.value is not None
            ):
                return False
    return True


_PLAIN = {"BaseSettings", "BaseModel", "object", "ABC"}
"""Bases that bring no attributes of a service's own."""


def _attribute(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    if not node.args[1:]:
        return [unknown()]
    key = flow.only(node.args[1], frame)
    if key is None or not isinstance(key.value, str) or not key.value.isidentifier():
        return [unknown()]
    if node.args[2:] and _lacks(flow, node.args[0], key.value, frame):
        note = f"there is no {key.value}, so the default applies"
        step = Evidence(file=frame.scope.path, line=node.lineno, note=note)
        return [
            replace(leaf, settings=(key.value,)).after((step,))
            for leaf in flow.leaves(node.args[2], frame)
        ]
    inner = ast.copy_location(
        ast.Attribute(value=node.args[0], attr=key.value, ctx=ast.Load()), node
    )
    found = flow.leaves(inner, frame)
    if node.args[2:] and all(leaf.kind is Kind.UNKNOWN for leaf in found):
        found = [*found, *flow.leaves(node.args[2], frame)]
    return found


def _imported(flow: Evaluating, node: ast.Call, frame: Frame) -> list[Leaf]:
    """Return the module that `import_module` gives for a name that is known."""
    key = flow.only(node.args[0], frame) if node.args else None
    if key is None or not isinstance(key.value, str) or key.value.startswith("."):
        return [unknown()]
    path = flow.program.layout.module(key.value)
    meaning = External(key.value) if path is None else Module(path)
    return [Leaf(kind=Kind.MEANING, value=meaning)]


_KNOWN: dict[str, Callable[[Evaluating, ast.Call, Frame], list[Leaf]]] = {
    **LOADS,
    "os.getenv": _environment,
    "os.environ.get": _environment,
    "os.environ.setdefault": _environment,
    "builtins.getattr": _attribute,
    "importlib.import_module": _imported,
    "decouple.config": _environment,
    "os.path.join": _join,
    "pathlib.Path": _join,
    "pathlib.PurePath": _join,
    "os.path.dirname": _folder,
    "os.getcwd": _work_folder,
    "pathlib.Path.cwd": _work_folder,
    "pathlib.Path.home": _home,
    "sqlite3.connect": _connection,
    "aiosqlite.connect": _connection,
    "psycopg.connect": _connection,
    "psycopg.Connection.connect": _connection,
    "psycopg.AsyncConnection.connect": _connection,
    "psycopg_pool.ConnectionPool": _connection,
    "psycopg_pool.AsyncConnectionPool": _connection,
    "pymongo.MongoClient": _connection,
    "pymongo.AsyncMongoClient": _connection,
    "motor.motor_asyncio.AsyncIOMotorClient": _connection,
    "redis.Redis.from_url": _connection,
    "redis.from_url": _connection,
    "redis.asyncio.from_url": _connection,
    "redis.asyncio.Redis.from_url": _connection,
    "redis.Redis": _connection,
    "redis.asyncio.Redis": _connection,
    "redis.StrictRedis": _connection,
    "aioredis.from_url": _connection,
    "builtins.int": _integer,
    "builtins.float": _floating,
    "builtins.bool": _truth,
}
