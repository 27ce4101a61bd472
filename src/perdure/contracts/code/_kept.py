"""Dicts that live as long as the process: of modules, of classes, of objects that are made once.

An object is made once where a start makes it, where a cached function does, or where what makes it
puts it into a global, an attribute of its class, or the state of the application.
"""

import ast
from collections.abc import Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._meanings import Module, Variable
from perdure.contracts.code._scopes import Assign, Call, GuardKind, Scope, last_name
from perdure.contracts.code._sites import known_of
from perdure.contracts.code._startup import is_route, startup_of
from perdure.contracts.code.facts import Medium, Role, Site
from perdure.contracts.evidence import Known

_DICTS = {"dict", "defaultdict", "OrderedDict", "TTLCache", "LRUCache", "WeakValueDictionary"}
_CACHED = {"lru_cache", "cache", "singleton", "cached"}


class Kept(Struct, frozen=True):
    """A dict of the process, with the functions that use it."""

    variable: Variable
    line: int
    users: tuple[Scope, ...]
    value: ast.expr | None = None
    owner: Scope | None = None
    """The class, of a dict that its instances have."""
    is_served: bool | None = True
    chosen: Known[bool] = field(default_factory=lambda: Known(value=True))
    """Whether settings let its object be made here."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.variable.name

    @property
    def makes_items(self) -> bool:
        """Whether it makes an item of what is asked for: a `defaultdict`."""
        return isinstance(self.value, ast.Call) and last_name(self.value.func) == "defaultdict"


def dicts_of(flow: Flow) -> Iterator[Kept]:
    """Find the dicts that reachable code makes and uses."""
    yield from _of_modules(flow)
    yield from _of_classes(flow)
    yield from _of_instances(flow)
    yield from _of_states(flow)


def _of_modules(flow: Flow) -> Iterator[Kept]:
    by_name: dict[str, list[Scope]] = {}
    by_attribute: dict[str, list[tuple[Scope, str]]] = {}
    for scope in flow.program.live:
        for name in scope.names if scope.kind == "function" else ():
            by_name.setdefault(name, []).append(scope)
        for base, name in scope.dotted if scope.kind == "function" else ():
            by_attribute.setdefault(name, []).append((scope, base))
    for module in flow.program.live:
        for name, assigns in module.assigns.items() if module.kind == "module" else ():
            if len(assigns) != 1 or not _is_empty_dict(assigns[0]):
                continue
            variable = Variable(module, name)
            users = [
                one for one in by_name.get(name, ()) if flow.program.resolve(one, name) == variable
            ]
            users += [
                one
                for one, base in by_attribute.get(name, ())
                if one not in users and _is_module(flow, one, base, module.path)
            ]
            if users:
                yield Kept(variable, assigns[0].line, tuple(users), assigns[0].value)


def _is_module(flow: Flow, scope: Scope, base: str, path: str) -> bool:
    meaning = flow.program.resolve(scope, base)
    return isinstance(meaning, Module) and meaning.path == path


def _of_classes(flow: Flow) -> Iterator[Kept]:
    """Find dicts in the bodies of classes, which all their objects share."""
    for owner in flow.program.live:
        if owner.kind != "class" or getattr(owner.node, "decorator_list", None):
            continue
        if getattr(owner.node, "bases", None) and not flow.program.bases(owner):
            continue  # a model of a library makes a copy for each object
        named = owner.name.rpartition(".")[2]
        for name, assigns in owner.assigns.items():
            if len(assigns) == 1 and _is_empty_dict(assigns[0]):
                users = _using(owner, {"self", "cls", named}, name)
                users += tuple(
                    one
                    for one in flow.program.live
                    if (named, name) in one.dotted
                    and one not in users
                    and flow.program.resolve(one, named) is owner
                )
                if users:
                    yield Kept(Variable(owner, name), assigns[0].line, users, assigns[0].value)


def _of_instances(flow: Flow) -> Iterator[Kept]:
    """Find the dicts of objects that are made once, before requests are served."""
    for begin in flow.program.live:
        owner = begin.owner
        if owner is None or not begin.name.endswith("__init__"):
            continue
        for assign in begin.attributes:
            name = own(assign.target)
            if not name or not _is_empty_dict(assign):
                continue
            users = tuple(one for one in _using(owner, {"self"}, name) if one is not begin)
            is_served = is_made_once(flow, owner)
            if users and is_served is not False:
                variable = Variable(begin, name)
                chosen = chosen_of(flow, owner)
                yield Kept(variable, assign.line, users, assign.value, owner, is_served, chosen)


def _of_states(flow: Flow) -> Iterator[Kept]:
    """Find the dicts in the state of an application: `app.state.sessions = {}`."""
    for scope in flow.program.live:
        for assign in scope.attributes:
            target = assign.target
            is_of_state = isinstance(target, ast.Attribute) and _is_state(target.value)
            if not isinstance(target, ast.Attribute) or not is_of_state:
                continue
            if not _is_empty_dict(assign):
                continue
            users = tuple(
                one
                for one in flow.program.live
                if one.kind == "function"
                and one is not scope
                and {"state", target.attr} <= one.attribute_names
            )
            if users:
                yield Kept(Variable(scope, target.attr), assign.line, users, assign.value)


def _is_state(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "state"


def _using(owner: Scope, bases: set[str], name: str) -> tuple[Scope, ...]:
    return tuple(
        one
        for one in owner.all_inner()
        if one.kind == "function" and any((base, name) in one.dotted for base in bases)
    )


def own(node: ast.expr) -> str:
    """Return the name of an object's own attribute; empty for anything else."""
    if isinstance(node, ast.Attribute) and _is_name(node.value, "self"):
        return node.attr
    return ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def is_dict(node: ast.expr, name: str) -> bool:
    """Whether an expression is the dict of this name, of a module, a class or an object."""
    is_of = isinstance(node, ast.Attribute) and (
        isinstance(node.value, ast.Name) or _is_state(node.value)
    )
    return _is_name(node, name) or (is_of and last_name(node) == name)


def is_item(node: ast.expr, name: str, methods: tuple[str, ...]) -> bool:
    """Whether an expression is an item of a dict: by brackets, or by one of these methods."""
    if isinstance(node, ast.Subscript):
        return is_dict(node.value, name)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and is_dict(node.func.value, name)
    )


def _is_empty_dict(assign: Assign) -> bool:
    value = assign.value
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and last_name(value.func) in _DICTS


def site_of(flow: Flow, kept: Kept, role: Role, *steps: tuple[Scope, int, str]) -> Site:
    """Describe a dict as the place of what it holds, with how that is known."""
    scope, name = kept.variable.scope, kept.variable.name
    made = makers_of(flow, kept.owner)[:1] if kept.owner is not None else []
    owner = kept.owner.name.rpartition(".")[2] if kept.owner is not None else ""
    return Site(
        role=role,
        medium=Medium.MEMORY,
        evidence=(
            *flow.program.way_to(scope.path),
            evidence(scope, kept.line, f"makes {name}, a dict of the process"),
            *(evidence(where, call.node.lineno, f"{owner} is made") for where, call in made),
            *(evidence(*step) for step in steps),
        ),
        class_name=f"the dict {name}",
        is_served=kept.is_served,
        chosen=kept.chosen,
        survives_process=False,
    )


# ------------------------------------------------------------------------------------- made once


def is_made_once(flow: Flow, owner: Scope, depth: int = 0) -> bool | None:
    """Return whether one object of a class serves all requests.

    Returns:
        `False` where each request makes its own, or nothing is seen to make one.
    """
    if any(_is_of_class(one) for new in owner.inner.get("__new__", ()) for one in new.attributes):
        return True
    makers = makers_of(flow, owner)
    before = startup_of(flow)
    if any(id(where) in before for where, _call in makers):
        return True
    if any(_keeps(flow, where, call.node, depth) for where, call in makers):
        return True
    return None if any(not is_route(where) for where, _call in makers) else False


def chosen_of(flow: Flow, owner: Scope | None) -> Known[bool]:
    """Return whether settings let an object of a class be made: by the tests before each maker."""
    found = []
    for where, call in makers_of(flow, owner) if owner is not None else ():
        tests = [
            one
            for one in call.guards
            if one.kind is not GuardKind.HANDLER and not _asks_for_it(one.node)
        ]
        found.append(flow.under(where, tuple(tests)))
    if not found:
        return Known(value=True)
    best = min(found, key=lambda one: (True, None, False).index(one.is_met))
    asked = best.question or "Which of several objects keeps it where it is deployed?"
    return known_of(best if best.is_met is not None else replace(best, question=asked))


def _asks_for_it(test: ast.expr | None) -> bool:
    """Whether a test only asks whether something is there already: `if store is None`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Attribute()):
            return True
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Compare(ops=[ast.NotIn() | ast.In()]):
            return True
    return False


def _is_of_class(assign: Assign) -> bool:
    return isinstance(assign.target, ast.Attribute) and _is_name(assign.target.value, "cls")


def makers_of(flow: Flow, owner: Scope) -> list[tuple[Scope, Call]]:
    """Return the calls that make objects of a class."""
    begin = flow.program.method(owner, "__init__")
    if begin is not None and begin.owner is owner:
        found = list(flow.callers(begin))
    else:
        name = owner.name.rpartition(".")[2]
        found = [
            (where, call)
            for where, call in flow.program.calls_of(name)
            if flow.program.meaning(where, call.node.func) is owner
        ]
    for method in owner.all_inner():
        if method.kind == "function" and flow.program.is_live(method):
            found += [(method, one) for one in method.calls if _is_name(one.node.func, "cls")]
    return found


def _keeps(flow: Flow, where: Scope, made: ast.Call, depth: int) -> bool:
    """Whether a function keeps the object that it makes, and gives the same one each time."""
    if any(last_name(one) in _CACHED for one in getattr(where.node, "decorator_list", ())):
        return not [one for one in where.parameters if one.arg not in {"self", "cls"}]
    for name in where.shared:
        if any(_has(assign.value, made) for assign in where.assigns.get(name, ())):
            return True
    for assign in where.attributes:
        if not isinstance(assign.target, ast.Attribute) or not _has(assign.value, made):
            continue
        base = last_name(assign.target.value)
        around = flow.program.class_around(where)
        named = around.name.rpartition(".")[2] if around is not None else ""
        if base in {"cls", "state"} or (named and base == named):
            return True
        if base == "self" and around is not None and depth < limits.DYNAMIC_DEPTH_MAX:
            return is_made_once(flow, around, depth + 1) is True
    if depth < limits.DYNAMIC_DEPTH_MAX and any(_has(one.value, made) for one in where.results):
        # Whoever asks for it may keep it.
        askers = flow.callers(where)[: limits.CALLERS_MAX] if not is_route(where) else []
        return bool(askers) and all(_keeps(flow, by, c.node, depth + 1) for by, c in askers)
    return False


def _has(value: ast.expr | None, made: ast.Call) -> bool:
    """Whether a value is a call, or one of its ways is."""
    pending = [value]
    while pending:
        here = pending.pop()
        if here is made:
            return True
        match here:
            case ast.IfExp():
                pending += [here.body, here.orelse]
            case ast.BoolOp():
                pending += here.values
            case ast.Await() | ast.NamedExpr():
                pending.append(here.value)
    return False
