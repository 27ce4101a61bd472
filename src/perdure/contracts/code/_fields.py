"""What attributes and items may be."""

import ast
import posixpath
import re

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._configured import given, leaf_of
from perdure.contracts.code._index import index_of
from perdure.contracts.code._meanings import External, Module, Variable
from perdure.contracts.code._scopes import Assign, Scope, last_name, of_scope, walk
from perdure.contracts.code._settings import Settings
from perdure.contracts.code._values import (
    Bound,
    Evaluating,
    Frame,
    Instance,
    Kind,
    Leaf,
    Table,
    argument,
    const,
    unknown,
)
from perdure.contracts.evidence import Confidence, Evidence

_TELLING = (
    "checkpoint", "saver", "store", "memory", "graph", "pool", "config", "settings", "agent",
)  # fmt: skip
"""Names of attributes whose value is looked for everywhere when their object is not known."""

_SHARED = frozenset({"state", "ctx"})
"""Attributes of applications and requests that hold what a start makes."""
_DJANGO = "django.conf.settings."
_LIFE = regex(r"lifespan|startup|lifecycle", re.IGNORECASE)


class Fields:
    """Evaluates attributes and items."""

    def __init__(self, flow: Evaluating) -> None:
        """Ask `flow` for everything else."""
        self.flow = flow
        self.settings = Settings(flow)

    # ---------------------------------------------------------------------------- attributes

    def attribute(self, node: ast.Attribute, frame: Frame) -> list[Leaf]:
        """Return what `object.name` may be."""
        program = self.flow.program
        is_self = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        meaning = None if is_self else program.meaning(frame.scope, node)
        if isinstance(meaning, Variable):
            return self.flow.variable(meaning, self.flow.frame(meaning.scope), limits.LINE_LAST)
        if isinstance(meaning, External) and meaning.name.startswith(_DJANGO):
            return self._of_django(meaning.name.removeprefix(_DJANGO)) or [unknown()]
        if isinstance(meaning, External | Module) or (
            isinstance(meaning, Scope) and meaning.kind == "class"
        ):
            return [Leaf(kind=Kind.MEANING, value=meaning)]
        found: list[Leaf] = []
        for leaf in self.flow.leaves(node.value, frame):
            found.extend(one.under(leaf.conditions) for one in self.of(leaf, node.attr))
        if last_name(node.value) in _SHARED and all(one.kind is Kind.UNKNOWN for one in found):
            return self._shared(node.attr) or found
        return found

    def _of_django(self, name: str) -> list[Leaf]:
        """Return what a setting of Django may be: a variable of the module that is told."""
        here = Evidence(file="", line=1, note="")
        told = self.flow.environment.get("DJANGO_SETTINGS_MODULE", here)
        module = told.value if told.kind is Kind.CONST else None
        if not module:
            told_so = {
                call.node.args[1].value
                for _scope, call in self.flow.program.calls_of("setdefault")
                if len(call.node.args) > 1
                and isinstance(call.node.args[0], ast.Constant)
                and call.node.args[0].value == "DJANGO_SETTINGS_MODULE"
                and isinstance(call.node.args[1], ast.Constant)
            }
            module = told_so.pop() if len(told_so) == 1 else None
        path = self.flow.program.layout.module(str(module)) if module else None
        found = self.flow.program.member(Module(path), name) if path is not None else None
        if not isinstance(found, Variable) or self._is_set_elsewhere(found):
            return []
        frame = self.flow.frame(found.scope)
        return [
            one.after((), Confidence.DECLARED_DEFAULT)
            for one in self.flow.variable(found, frame, limits.LINE_LAST)
        ]

    def _is_set_elsewhere(self, setting: Variable) -> bool:
        """Whether something else than its assignments may say what a setting of Django is."""
        program, name = self.flow.program, setting.name
        last = max((one.line for one in setting.scope.assigns.get(name, ())), default=0)
        if any(one.line > last for one in setting.scope.stars):
            return True  # from proj.local import *
        if not {"globals", "locals", "vars"}.isdisjoint(setting.scope.names):
            return True
        if any(
            keyword.arg in {name, None}
            for _scope, call in program.calls_of("configure")
            for keyword in call.node.keywords
        ):
            return True
        for scope in program.live:
            if any(_key_of(one.target) == "DJANGO_SETTINGS_MODULE" for one in scope.items):
                return True
            for assign in scope.attributes:
                target = assign.target
                if isinstance(target, ast.Attribute) and target.attr == name:
                    meaning = program.meaning(scope, target.value)
                    if meaning == External(_DJANGO.rstrip(".")):
                        return True
        return False

    def _shared(self, name: str) -> list[Leaf]:
        """Return what is put into an application's state: `app.state.name`, or what it yields."""
        found: list[Leaf] = []
        for scope in self.flow.program.assigning(name)[: limits.CANDIDATES_MAX]:
            for assign in scope.attributes:
                target = assign.target
                if (
                    isinstance(target, ast.Attribute)
                    and target.attr == name
                    and last_name(target.value) in _SHARED
                ):
                    found.extend(self._initial(assign, self.flow.frame(scope)))
        for scope in self.flow.program.live if not found else ():
            for result in scope.results if scope.yields and _LIFE.search(scope.name) else ():
                for key, value in _entries(result.value):
                    if key == name:
                        found.extend(self.flow.leaves(value, self.flow.frame(scope)))
        return found

    def of(self, leaf: Leaf, name: str) -> list[Leaf]:
        """Return what an attribute of a leaf may be."""
        match leaf.kind:
            case Kind.INSTANCE:
                return self._of_instance(leaf.value, name)
            case Kind.MEANING:
                return self._of_meaning(leaf, name)
            case Kind.CONST if isinstance(leaf.value, str):
                return [_of_path(leaf, name)]
            case Kind.TABLE if leaf.value.plain is not None:
                return self.item(leaf, name)
            case Kind.UNKNOWN:
                return self._anywhere(name, leaf)
        return [unknown()]

    def _of_meaning(self, leaf: Leaf, name: str) -> list[Leaf]:
        meaning = leaf.value
        match meaning:
            case Scope() if meaning.kind == "class":
                return self._of_class(meaning, name)
            case External():
                return [Leaf(kind=Kind.MEANING, value=External(f"{meaning.name}.{name}"))]
            case Module():
                inside = self.flow.program.member(meaning, name)
                if isinstance(inside, Variable):
                    frame = self.flow.frame(inside.scope)
                    return self.flow.variable(inside, frame, limits.LINE_LAST)
                if inside is not None:
                    return [Leaf(kind=Kind.MEANING, value=inside)]
        return [unknown()]

    def _of_class(self, owner: Scope, name: str) -> list[Leaf]:
        if is_enum(owner):
            return self._member(owner, name)
        if self.settings.is_settings(owner):
            return self.settings.field(
                self.flow.instance(owner, None, self.flow.frame(owner)), name
            )
        method = self.flow.program.method(owner, name)
        if method is not None:
            return [Leaf(kind=Kind.MEANING, value=method)]
        found: list[Leaf] = []
        for one in self.flow.program.family(owner):
            for assign in one.assigns.get(name, []):
                found.extend(self._initial(assign, self.flow.frame(one)))
        found.extend(
            self._from_methods(self.flow.instance(owner, None, self.flow.frame(owner)), name)
        )
        return found or [unknown()]

    def _member(self, owner: Scope, name: str) -> list[Leaf]:
        for assign in owner.assigns.get(name, []):
            if isinstance(assign.value, ast.Constant):
                step = Evidence(file=owner.path, line=assign.line, note=f"{name} is its value")
                return [const(assign.value.value, (step,))]
            return [const(name.lower() if "Str" in _bases(owner) else f"{owner.name}.{name}")]
        return [unknown()]

    def _of_instance(self, instance: Instance, name: str) -> list[Leaf]:
        if self.settings.is_settings(instance.scope):
            found = self.settings.field(instance, name)
            if found:
                return found
        method = self.flow.program.method(instance.scope, name)
        if method is not None:
            if not _is_property(method):
                return [Leaf(kind=Kind.MEANING, value=Bound(method, instance))]
            given = self.flow.results(method, self.flow.inside(method, {}, instance))
            told = self._set_to(instance, name)
            is_open = any(leaf.kind is Kind.UNKNOWN for leaf in told)
            return [unknown()] if is_open else [*given, *told]
        found = [*self._passed(instance, name), *self._from_methods(instance, name)]
        if all(leaf.is_initial for leaf in found):  # others may put it there
            later = self._anywhere(name, unknown())
            found += later if not found or later[0].kind is not Kind.UNKNOWN else []
        return found

    def _set_to(self, instance: Instance, name: str) -> list[Leaf]:
        """Return what a property with a setter is told, by whatever object it is set on."""
        several = [one.inner.get(name, ()) for one in self.flow.program.family(instance.scope)]
        if max(map(len, several), default=0) == 1:  # a getter alone
            return []
        return [
            one
            for scope in self.flow.program.assigning(name)[: limits.CANDIDATES_MAX]
            for assign in scope.attributes
            if isinstance(assign.target, ast.Attribute)
            and assign.target.attr == name
            and not self.flow.is_left_out(scope)
            for one in self.flow.assigned(assign, self.flow.frame(scope))
        ]

    def _passed(self, instance: Instance, name: str) -> list[Leaf]:
        """Return what a dataclass or model got for a field, or the field's default."""
        for one in self.flow.program.family(instance.scope):
            assigns = one.assigns.get(name, [])
            if not assigns:
                continue
            if instance.node is not None and self.flow.program.method(one, "__init__") is None:
                told = next((k.value for k in instance.node.keywords if k.arg == name), None)
                if told is not None:
                    return self.flow.leaves(told, instance.frame)
                spread = given(self.flow, instance.node, name, instance.frame)
                if spread is not None:
                    return spread
            found = []
            for assign in assigns:
                default = self.settings.default(assign.value, one)
                if default is None:
                    found.extend(self._initial(assign, self.flow.frame(one)))
                else:
                    found.extend(default)
            return found
        return []

    def _initial(self, assign: Assign, frame: Frame) -> list[Leaf]:
        if assign.value is None:
            return []
        is_none = isinstance(assign.value, ast.Constant) and assign.value.value is None
        return [
            replace(leaf, is_initial=leaf.is_initial or is_none)
            for leaf in self.flow.assigned(assign, frame)
        ]

    def _from_methods(self, instance: Instance, name: str) -> list[Leaf]:
        found: list[Leaf] = []
        family = self.flow.program.family(instance.scope)
        for scope in self.flow.program.assigning(name):
            around = self.flow.program.class_around(scope)
            if around not in family or self.flow.is_left_out(scope):
                continue
            frame = self._constructed(scope, instance)
            for assign in scope.attributes:
                if _is_own(assign.target, name) and not _is_of_itself(assign, name):
                    found.extend(self._initial(assign, frame))
        return sorted(found, key=lambda leaf: not leaf.is_initial)

    def _constructed(self, scope: Scope, instance: Instance) -> Frame:
        """Return the frame of a method of an object; of its constructor, with what it was given."""
        node = instance.node
        if node is None or not scope.name.endswith(".__init__"):
            return (
                self.flow.frame(scope) if node is None else self.flow.inside(scope, {}, instance, 0)
            )
        arguments = {}
        for parameter in scope.parameters[1:]:
            given = argument(node, scope, parameter.arg)
            if given is not None:
                arguments[parameter.arg] = (given, instance.frame)
        if any(keyword.arg is None for keyword in node.keywords):
            return self.flow.inside(scope, arguments, instance, 0)
        return self.flow.inside(scope, arguments, instance)

    def _anywhere(self, name: str, leaf: Leaf) -> list[Leaf]:
        """Look for an attribute by its name alone, if the name says enough."""
        if not any(word in name.lower() for word in _TELLING):
            return [leaf]
        found: list[Leaf] = []
        for scope in self.flow.program.assigning(name)[: limits.CANDIDATES_MAX]:
            for assign in scope.attributes if not self.flow.is_left_out(scope) else ():
                if isinstance(assign.target, ast.Attribute) and assign.target.attr == name:
                    found.extend(self._initial(assign, self.flow.frame(scope)))
        return [one.after((), Confidence.INFERRED) for one in found] or [leaf]

    # --------------------------------------------------------------------------------- items

    def subscript(self, node: ast.Subscript, frame: Frame) -> list[Leaf]:
        """Return what `object[key]` may be."""
        place = Evidence(file=frame.scope.path, line=node.lineno, note="")
        key = self.flow.only(node.slice, frame)
        found: list[Leaf] = []
        for leaf in self.flow.leaves(node.value, frame):
            found.extend(one.under(leaf.conditions) for one in self._at(leaf, key, place))
        if all(leaf.kind is Kind.UNKNOWN for leaf in found):
            return self._stored(node.value, frame) or found
        if key is not None and all(
            leaf.kind is Kind.CONST and leaf.value is None for leaf in found
        ):
            stored = self._stored_once(node, frame, key.value)
            begun = [replace(leaf, is_initial=True) for leaf in found]
            return [*begun, *stored] if stored else found
        return found

    def _at(self, leaf: Leaf, key: Leaf | None, place: Evidence) -> list[Leaf]:
        if key is None or key.kind is not Kind.CONST:
            return [unknown()]
        at = key.value
        match leaf.kind:
            case Kind.MEANING if leaf.value == External("os.environ") and isinstance(at, str):
                found = self.flow.environment.get(at, place)
                if found.is_unset:
                    return [replace(unknown(f"the value of {at}"), settings=(at,))]
                return [found]
            case Kind.TABLE:
                return self.item(leaf, at)
            case Kind.LIST if isinstance(at, int) and -1 <= at < len(leaf.value.items):
                return self.flow.leaves(leaf.value.items[at], leaf.value.frame)
            case Kind.CONST if isinstance(at, int) and isinstance(leaf.value, tuple):
                return [replace(leaf, value=leaf.value[at])] if 0 <= at < len(leaf.value) else []
        return [unknown()]

    def item(self, leaf: Leaf, key: object, depth: int = 0) -> list[Leaf]:
        """Return what a dict holds under a key; unknown if it doesn't say."""
        if depth > limits.FLOW_DEPTH_MAX:
            return [unknown()]  # a dict that is made of itself: x = {**x}
        table: Table = leaf.value
        if table.plain is not None:
            return [self._plain(table, key)]
        if table.node is None:
            return [unknown()]
        for name, value in reversed(list(zip(table.node.keys, table.node.values, strict=True))):
            if name is None:
                for inner in self.flow.leaves(value, table.frame):
                    found = self.item(inner, key, depth + 1) if inner.kind is Kind.TABLE else []
                    if found and found[0].kind is not Kind.UNKNOWN:
                        return found
            elif isinstance(name, ast.Constant) and name.value == key:
                step = Evidence(
                    file=table.frame.scope.path, line=value.lineno, note=f"{key!r} has its default"
                )
                return [one.after((step,)) for one in self.flow.leaves(value, table.frame)]
        return [unknown()]

    def _plain(self, table: Table, key: object) -> Leaf:
        node = (table.plain or {}).get(key) if isinstance(key, str) else None
        return unknown() if node is None else leaf_of(self.flow, str(key), node, table.frame)

    def _stored_once(self, node: ast.Subscript, frame: Frame, key: object) -> list[Leaf]:
        """Return what functions put into a dict of their module under a key.

        Empty where anything else is done to the dict but to read and to fill such entries, or where
        several things are put there: which one it is depends on their order.
        """
        scope = frame.scope
        dict_of = self.flow.program.meaning(scope, node.value)
        is_own = isinstance(dict_of, Variable) and dict_of.scope is scope.module
        if not isinstance(dict_of, Variable) or not is_own or self._is_shared(scope, dict_of.name):
            return []
        keyed = index_of(scope.module).keyed.get((dict_of.name, key), [])
        if len(keyed) > limits.LEAVES_MAX:
            return []
        puts = [
            (where, assign)
            for where, assign in keyed
            if self.flow.program.is_live(where)
            and isinstance(assign.target, ast.Subscript)
            and self.flow.program.meaning(where, assign.target.value) == dict_of
        ]
        if len({id(where) for where, _assign in puts}) != 1 or puts[0][0].kind != "function":
            return []
        where = puts[0][0]
        return [
            one for _where, put in puts for one in self.flow.assigned(put, self.flow.frame(where))
        ]

    def _is_shared(self, scope: Scope, name: str) -> bool:
        """Whether something else may be done to a dict of a module, there or elsewhere."""
        return name not in _plainly_used(scope.module) or any(
            name in one.imports for one in self.flow.program.live if one.module is not scope.module
        )

    def _stored(self, node: ast.expr, frame: Frame) -> list[Leaf]:
        """Return what is put into a container of this name anywhere in its module or class."""
        name = last_name(node)
        found: list[Leaf] = []
        for scope, assign in index_of(frame.scope.module).stored.get(name, ()):
            if self.flow.program.is_live(scope):
                found.extend(self.flow.assigned(assign, self.flow.frame(scope)))
        return found[: limits.LEAVES_MAX]


@of_scope
def _plainly_used(module: Scope) -> frozenset[str]:
    """Return the names of a module that are only used with a constant key: `state["saver"]`."""
    kept: set[str] = set()
    others: set[str] = set()
    keyed: set[int] = set()
    for node in ast.walk(module.node):
        match node:
            case ast.Subscript(value=ast.Name() as name, slice=ast.Constant()):
                keyed.add(id(name))
                kept.add(name.id)
            case ast.Name(id=used, ctx=ast.Load() | ast.Del()) if id(node) not in keyed:
                others.add(used)
    return frozenset(kept - others)


def _entries(node: ast.expr | None) -> list[tuple[object, ast.expr]]:
    if not isinstance(node, ast.Dict):
        return []
    pairs = zip(node.keys, node.values, strict=True)
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]


def is_enum(owner: Scope) -> bool:
    """Whether a class is an enumeration."""
    return "Enum" in _bases(owner)


def _bases(owner: Scope) -> str:
    bases = " ".join(last_name(base) for base in getattr(owner.node, "bases", ()))
    return bases.replace("str Enum", "StrEnum")


def _is_property(method: Scope) -> bool:
    decorators = getattr(method.node, "decorator_list", ())
    return any(
        last_name(one) in {"property", "cached_property", "computed_field"} for one in decorators
    )


def _is_own(target: ast.expr, name: str) -> bool:
    return (
        isinstance(target, ast.Attribute)
        and target.attr == name
        and isinstance(target.value, ast.Name)
        and target.value.id in {"self", "cls"}
    )


def _is_of_itself(assign: Assign, name: str) -> bool:
    """Whether a value is made of what was there: `self.url = self.url.replace(...)`."""
    if not isinstance(assign.value, ast.Call):
        return False
    return any(isinstance(node, ast.expr) and _is_own(node, name) for node in walk(assign.value))


def _parents(text: str) -> tuple[str, ...]:
    found: list[str] = []
    while len(found) < limits.FLOW_DEPTH_MAX and posixpath.dirname(text) not in {"", text}:
        text = posixpath.dirname(text)
        found.append(text)
    return tuple(found)


def _of_path(leaf: Leaf, name: str) -> Leaf:
    """Return an attribute of a path, which is kept as its text."""
    text: str = leaf.value
    match name:
        case "parent":
            return replace(leaf, value=posixpath.dirname(text) or ".")
        case "name":
            return replace(leaf, value=posixpath.basename(text))
        case "parents":
            return replace(leaf, value=_parents(text))
        case "value":
            return leaf
    return unknown()


def _key_of(target: ast.AST) -> object:
    """Return the key under which something is put into a container."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value
    return None
