"""One pass over a module: what each function does, and under which conditions.

A `Scope` is a module, a class body or a function. Its records carry guards: the tests that must
come out so, and the handlers that must be entered, for a line to be executed. After `if x: return`
the rest of the block is guarded by `not x`; after a `try` that always returns, by its handlers.

Size: one walk over one language, and the records that it fills.
"""

import ast
from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from msgspec import Struct, field, structs

from perdure.contracts.code import limits


class GuardKind(StrEnum):
    """What decides whether a line is executed."""

    TEST = "test"
    HANDLER = "handler"
    """Only after an exception."""
    CASE = "case"
    """A `case` of a `match`: `node` is the subject, `case` the pattern."""


class Guard(Struct, frozen=True, kw_only=True):
    """One condition on the way to a line."""

    kind: GuardKind
    node: ast.expr | None
    is_true: bool
    line: int
    catches: str = ""
    """Of a handler: the exceptions, as written."""
    case: ast.pattern | None = None
    unless: tuple["Guard", ...] = ()
    """Where the test comes out the other way, these must be met instead."""
    raises: bool = False
    """The other way ends in an error: what is not set up yet, which will be."""


Guards = tuple[Guard, ...]


class Call(Struct, frozen=True, kw_only=True):
    """A call, where it stands."""

    node: ast.Call
    name: str
    """The last part of what is called: asked of every call by most readers."""
    guards: Guards
    is_entered: bool = False
    """It is the subject of a `with`."""


class Assign(Struct, frozen=True, kw_only=True):
    """A value bound to a name, an attribute or an item."""

    target: ast.expr
    value: ast.expr | None
    guards: Guards
    line: int
    is_entered: bool = False
    """`with value as target`."""
    item: int | None = None
    """Which item of the value, if it is taken apart."""


class Result(Struct, frozen=True, kw_only=True):
    """A value that a function returns or yields."""

    value: ast.expr | None
    guards: Guards
    line: int


class Import(Struct, frozen=True, kw_only=True):
    """One name that an import binds."""

    module: str
    name: str | None
    level: int
    line: int
    guards: Guards = ()


class Try(Struct, frozen=True, kw_only=True):
    """A `try` with its guards."""

    node: ast.Try
    guards: Guards


class Scope(Struct, kw_only=True, eq=False):
    """What one module, class body or function does."""

    path: str
    name: str
    node: ast.AST
    parent: "Scope | None" = None
    kind: str = "module"
    """`module`, `class` or `function`."""
    calls: list[Call] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    """The names of all calls: most readers look for a few, which most functions don't have."""
    passed: set[str | None] = field(default_factory=set)
    """The names by which calls pass arguments; `None`: a whole mapping."""
    assigns: dict[str, list[Assign]] = field(default_factory=dict)
    attributes: list[Assign] = field(default_factory=list)
    items: list[Assign] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    imports: dict[str, list[Import]] = field(default_factory=dict)
    stars: list[Import] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    dotted: set[tuple[str, str]] = field(default_factory=set)
    attribute_names: set[str] = field(default_factory=set)
    mentions: dict[str, list[Guards]] = field(default_factory=dict)
    """By name or attribute: under which guards it is used; one without any stands for all."""
    shared: set[str] = field(default_factory=set)
    """Names declared `global` or `nonlocal`."""
    inner: dict[str, list["Scope"]] = field(default_factory=dict)
    parameters: list[ast.arg] = field(default_factory=list)
    """The parameters of a function, in order; keyword-only ones last."""
    parameter_names: frozenset[str] = frozenset()
    yields: bool = False
    words: dict[str, int] = field(default_factory=dict)
    """Strings that say what is done, with the line of each one's first use."""
    found: dict[object, Any] = field(default_factory=dict)
    """What readers found in it, see `of_scope`."""
    end: Guards | None = None
    """The guards of the end of the body; `None`: it is never come to."""

    @property
    def line(self) -> int:
        """The line it begins in."""
        return int(getattr(self.node, "lineno", 1))

    @property
    def owner(self) -> "Scope | None":
        """The class body, of a method."""
        up = self.parent
        return up if self.kind == "function" and up is not None and up.kind == "class" else None

    @property
    def module(self) -> "Scope":
        """The scope of the whole file."""
        here = self
        while here.parent is not None:
            here = here.parent
        return here

    def default_of(self, name: str) -> ast.expr | None:
        """The default of a parameter."""
        if not isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        arguments = self.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        for parameter, default in zip(
            reversed(positional), reversed(arguments.defaults), strict=False
        ):
            if parameter.arg == name:
                return default
        for parameter, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if parameter.arg == name:
                return given
        return None

    def called_as(self, names: Collection[str]) -> list[Call]:
        """The calls of anything with one of these names."""
        if self.called.isdisjoint(names):
            return []
        return [one for one in self.calls if one.name in names]

    def passing(self, *names: str) -> list[Call]:
        """The calls that pass an argument by one of these names."""
        if self.passed.isdisjoint(names):
            return []
        return [one for one in self.calls if any(given.arg in names for given in one.node.keywords)]

    def all_inner(self) -> Iterator["Scope"]:
        """Every scope within, this one first."""
        pending = [self]
        while pending:
            here = pending.pop()
            yield here
            pending.extend(scope for scopes in here.inner.values() for scope in scopes)


Found = TypeVar("Found")


def of_scope(reader: Callable[[Scope], Found]) -> Callable[[Scope], Found]:
    """Let a reader that asks only one scope read each scope once, for all who start it."""

    @wraps(reader)
    def read(scope: Scope) -> Found:
        if reader not in scope.found:
            scope.found[reader] = reader(scope)
        found: Found = scope.found[reader]
        return found

    return read


def scope_of(path: str, tree: ast.Module) -> Scope:
    """Read a parsed module once. Raises `RecursionError` for nesting that Python itself refuses."""
    module = Scope(path=path, name="", node=tree)
    _Walker(module).body(tree.body, (), 0)
    return module


_WORDS = {
    "thread_id", "configurable", "last-event-id", "Last-Event-ID", "text/event-stream",
    "last_event_id", "Last-Event-Id",
}  # fmt: skip
_EXITS = {"exit", "_exit", "quit", "abort"}


def always_leaves(body: list[ast.stmt]) -> bool:
    """Whether a block never falls through to what follows it."""
    return any(_leaves(statement) for statement in body)


def _leaves(statement: ast.stmt) -> bool:
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in _EXITS
        case ast.If():
            whole = bool(statement.orelse) and always_leaves(statement.orelse)
            return whole and always_leaves(statement.body)
        case ast.With() | ast.AsyncWith():
            return always_leaves(statement.body)
        case ast.Match():
            last = statement.cases[-1]
            is_whole = last.guard is None and (
                isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
            )
            return is_whole and all(always_leaves(case.body) for case in statement.cases)
        case ast.Try():
            return always_leaves(statement.finalbody) or (
                always_leaves([*statement.body, *statement.orelse])
                and all(always_leaves(handler.body) for handler in statement.handlers)
            )
    return False


def _is_main_test(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
    )


def _is_typing_test(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


MAIN = "<main>"
"""The inner scope that holds what stands under `if __name__ == "__main__"`."""


class _Walker:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.is_quiet = False

    def body(self, statements: list[ast.stmt], guards: Guards, depth: int) -> None:
        if depth > limits.NESTING_MAX:
            return
        for statement in statements:
            self.statement(statement, guards, depth)
            guards = (*guards, *_after(statement))

    def whole(self, statements: list[ast.stmt], depth: int) -> None:
        self.body(statements, (), depth)
        if not always_leaves(statements):
            self.scope.end = tuple(guard for one in statements for guard in _after(one))

    def statement(self, node: ast.stmt, guards: Guards, depth: int) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.definition(node, guards, depth)
            case ast.Import() | ast.ImportFrom():
                self.imported(node, guards)
            case ast.Global() | ast.Nonlocal():
                self.scope.shared.update(node.names)
            case ast.If():
                self.test(node, guards, depth)
            case ast.Try() | ast.TryStar():
                self.attempt(node, guards, depth)
            case ast.With() | ast.AsyncWith():
                self.entered(node, guards, depth)
            case ast.For() | ast.AsyncFor():
                self.value(node.iter, guards)
                self.bind(node.target, None, guards, node.lineno)
                self.body([*node.body, *node.orelse], guards, depth + 1)
            case ast.While():
                self.value(node.test, guards)
                self.body([*node.body, *node.orelse], guards, depth + 1)
            case ast.Match():
                self.cases(node, guards, depth)
            case _:
                self.simple(node, guards)

    def simple(self, node: ast.stmt, guards: Guards) -> None:
        for child in children(node):
            is_target = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and (
                child is not node.value
            )
            if isinstance(child, ast.expr) and not is_target:
                self.value(child, guards)
        match node:
            case ast.Assign():
                for target in node.targets:
                    self.bind(target, node.value, guards, node.lineno)
            case ast.AnnAssign() if node.value is not None or self.scope.kind == "class":
                self.bind(node.target, node.value, guards, node.lineno)
            case ast.Return():
                self.result(node.value, guards, node.lineno)

    def result(self, value: ast.expr | None, guards: Guards, line: int) -> None:
        self.scope.results.append(Result(value=value, guards=guards, line=line))

    def definition(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        guards: Guards,
        depth: int,
    ) -> None:
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        name = f"{self.scope.name}.{node.name}" if self.scope.name else node.name
        inner = Scope(path=self.scope.path, name=name, node=node, parent=self.scope, kind=kind)
        self.scope.inner.setdefault(node.name, []).append(inner)
        for decorator in node.decorator_list:
            self.value(decorator, guards)
        if isinstance(node, ast.ClassDef):
            self.is_quiet = True  # a class that others derive from is not used by that
            for base in node.bases:
                self.value(base, guards)
            self.is_quiet = False
        else:
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    self.value(default, guards)
            for parameter in [*node.args.args, *node.args.kwonlyargs]:
                if parameter.annotation is not None:
                    self.mentions(parameter.annotation)
        if not isinstance(node, ast.ClassDef):
            given = node.args
            inner.parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            inner.parameter_names = frozenset(one.arg for one in inner.parameters)
        _Walker(inner).whole(node.body, depth + 1)

    def mentions(self, annotation: ast.expr) -> None:
        """Names in an annotation count as used only when a framework calls them: `Depends(f)`."""
        for child in walk(annotation):
            if isinstance(child, ast.Call):
                self.value(child, ())

    def imported(self, node: ast.Import | ast.ImportFrom, guards: Guards) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.split(".")[0]
                found = Import(
                    module=alias.name if alias.asname else bound,
                    name=None,
                    level=0,
                    line=node.lineno,
                    guards=guards,
                )
                self.scope.imports.setdefault(bound, []).append(found)
                if not alias.asname and "." in alias.name:
                    whole = Import(module=alias.name, name=None, level=0, line=node.lineno)
                    self.scope.imports.setdefault(alias.name, []).append(whole)
                continue
            found = Import(
                module=node.module or "",
                name=alias.name,
                level=node.level,
                line=node.lineno,
                guards=guards,
            )
            if alias.name == "*":
                self.scope.stars.append(found)
            else:
                self.scope.imports.setdefault(alias.asname or alias.name, []).append(found)

    def test(self, node: ast.If, guards: Guards, depth: int) -> None:
        if _is_typing_test(node.test):
            self.body(node.orelse, guards, depth + 1)
            return
        if _is_main_test(node.test) and self.scope.kind == "module":
            main = Scope(
                path=self.scope.path, name=MAIN, node=node, parent=self.scope, kind="function"
            )
            self.scope.inner.setdefault(MAIN, []).append(main)
            _Walker(main).body(node.body, (), depth + 1)
            return
        self.value(node.test, guards)
        yes = Guard(kind=GuardKind.TEST, node=node.test, is_true=True, line=node.lineno)
        no = Guard(kind=GuardKind.TEST, node=node.test, is_true=False, line=node.lineno)
        self.body(node.body, (*guards, yes), depth + 1)
        self.body(node.orelse, (*guards, no), depth if len(node.orelse) == 1 else depth + 1)

    def attempt(self, node: ast.Try | ast.TryStar, guards: Guards, depth: int) -> None:
        if isinstance(node, ast.Try):
            self.scope.tries.append(Try(node=node, guards=guards))
        self.body([*node.body, *node.orelse], guards, depth + 1)
        for handler in node.handlers:
            inside = _handler_guard(handler)
            self.body(handler.body, (*guards, inside), depth + 1)
        self.body(node.finalbody, guards, depth + 1)

    def entered(self, node: ast.With | ast.AsyncWith, guards: Guards, depth: int) -> None:
        for item in node.items:
            self.value(item.context_expr, guards, is_entered=True)
            if item.optional_vars is not None:
                self.bind(
                    item.optional_vars, item.context_expr, guards, node.lineno, is_entered=True
                )
        self.body(node.body, guards, depth + 1)

    def cases(self, node: ast.Match, guards: Guards, depth: int) -> None:
        self.value(node.subject, guards)
        before: Guards = ()
        for case in node.cases:
            this = Guard(
                kind=GuardKind.CASE,
                node=node.subject,
                is_true=True,
                line=case.pattern.lineno,
                case=case.pattern,
            )
            self.body(case.body, (*guards, *before, this), depth + 1)
            before = (
                *before,
                Guard(
                    kind=GuardKind.CASE,
                    node=node.subject,
                    is_true=False,
                    line=case.pattern.lineno,
                    case=case.pattern,
                ),
            )

    def bind(
        self,
        target: ast.expr,
        value: ast.expr | None,
        guards: Guards,
        line: int,
        *,
        is_entered: bool = False,
        item: int | None = None,
    ) -> None:
        found = Assign(
            target=target, value=value, guards=guards, line=line, is_entered=is_entered, item=item
        )
        match target:
            case ast.Name():
                self.scope.assigns.setdefault(target.id, []).append(found)
            case ast.Attribute():
                self.scope.attributes.append(found)
                self.value(target.value, guards)
            case ast.Subscript():
                self.scope.items.append(found)
                self.value(target.value, guards)
            case ast.Tuple() | ast.List():
                parts = value.elts if isinstance(value, ast.Tuple | ast.List) else None
                for at, part in enumerate(target.elts):
                    if parts is not None and len(parts) == len(target.elts):
                        self.bind(part, parts[at], guards, line, is_entered=is_entered)
                    else:
                        self.bind(part, value, guards, line, is_entered=is_entered, item=at)

    def mention(self, name: str, guards: Guards) -> None:
        if self.is_quiet:
            return
        known = self.scope.mentions.setdefault(name, [])
        if not guards:
            known[:] = [()]
        elif not known or (known[0] and known[-1] is not guards):
            known.append(guards)

    def value(self, node: ast.expr, guards: Guards, *, is_entered: bool = False) -> None:
        """Record what an expression calls and names, without recursion of our own."""
        pending: list[tuple[ast.AST, Guards]] = [(node, guards)]
        scope = self.scope
        while pending:
            here, guards_here = pending.pop()
            # The frequent kinds first: this is asked of every expression of a project.
            if isinstance(here, ast.Name):
                scope.names.add(here.id)
                self.mention(here.id, guards_here)
                continue
            if isinstance(here, ast.Constant):
                if isinstance(here.value, str) and here.value in _WORDS:
                    scope.words.setdefault(here.value, here.lineno)
                continue
            if isinstance(here, ast.Attribute):
                scope.attribute_names.add(here.attr)
                self.mention(here.attr, guards_here)
                if isinstance(here.value, ast.Name):
                    scope.dotted.add((here.value.id, here.attr))
                pending.append((here.value, guards_here))
                continue
            if isinstance(here, ast.Call):
                made = Call(
                    node=here,
                    name=last_name(here.func),
                    guards=guards_here,
                    is_entered=is_entered and here is node,
                )
                scope.calls.append(made)
                scope.called.add(made.name)
                scope.passed.update([one.arg for one in here.keywords])
            elif isinstance(here, _RARE):
                pending += self.rare(here, guards_here)
                continue
            pending += [(child, guards_here) for child in children(here)]

    def rare(self, node: ast.AST, guards: Guards) -> list[tuple[ast.AST, Guards]]:
        """Record what an expression does beside its value; return what is in it."""
        if isinstance(node, ast.IfExp | ast.BoolOp):
            return list(_in_turn(node, guards))
        if isinstance(node, ast.NamedExpr):
            self.bind(node.target, node.value, guards, node.lineno)
        elif isinstance(node, ast.Yield | ast.YieldFrom):
            self.result(node.value, guards, node.lineno)
            self.scope.yields = True
        return [(child, guards) for child in children(node)]


_RARE = (ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Yield, ast.YieldFrom)


def _in_turn(node: ast.IfExp | ast.BoolOp, guards: Guards) -> Iterator[tuple[ast.AST, Guards]]:
    """Yield the parts of a choice or chain; each is executed where those before it let it be."""
    if isinstance(node, ast.IfExp):
        yes, no = _both(node.test, node.lineno)
        yield node.test, guards
        yield node.body, (*guards, yes)
        yield node.orelse, (*guards, no)
        return
    is_and = isinstance(node.op, ast.And)
    for at, part in enumerate(node.values):
        yield part, guards
        if at < limits.CONDITIONS_MAX:  # they are copied for each part
            guards = (*guards, _both(part, part.lineno)[not is_and])


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name or call; empty for anything else."""
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
        case ast.Call():
            return last_name(node.func)
        case ast.Subscript():
            return last_name(node.value)
    return ""


def children(node: ast.AST) -> list[ast.AST]:
    """Return what `ast.iter_child_nodes` yields but for contexts, in a fifth of its time."""
    kind = type(node)
    names = _INNER.get(kind)
    if names is None:
        names = _INNER[kind] = tuple(name for name in node._fields if name not in _PLAIN)
    found: list[ast.AST] = []
    for name in names:
        child = getattr(node, name, None)
        if isinstance(child, list):
            found += [one for one in child if isinstance(one, ast.AST)]
        elif isinstance(child, ast.AST):
            found.append(child)
    return found


_PLAIN = frozenset({"ctx", "id", "attr", "arg", "kind", "level", "type_comment", "conversion"})
"""Fields that never hold a node, or (`ctx`) one that says nothing of its own."""
_INNER: dict[type[ast.AST], tuple[str, ...]] = {}
"""The other fields of each kind of node."""


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what `ast.walk` yields but for contexts, in its order and a third of its time."""
    pending = deque([node])
    while pending:
        here = pending.popleft()
        pending += children(here)
        yield here


def _both(test: ast.expr, line: int) -> tuple[Guard, Guard]:
    return (
        Guard(kind=GuardKind.TEST, node=test, is_true=True, line=line),
        Guard(kind=GuardKind.TEST, node=test, is_true=False, line=line),
    )


def _handler_guard(handler: ast.ExceptHandler) -> Guard:
    caught = "everything" if handler.type is None else ast.unparse(handler.type)[:80]
    return Guard(
        kind=GuardKind.HANDLER, node=None, is_true=True, line=handler.lineno, catches=caught
    )


def _after(statement: ast.stmt) -> Guards:
    """What the lines behind a statement may take for granted."""
    match statement:
        case ast.If() if not _is_main_test(statement.test):
            return _after_test(statement)
        case ast.Try():
            return _after_attempt(statement)
        case ast.For() | ast.AsyncFor() | ast.While() if not statement.orelse:
            return _after_tries(statement.body)
        case ast.With() | ast.AsyncWith() if _gives(statement):
            return tuple(guard for one in statement.body for guard in _after(one))
    return ()


def _after_test(statement: ast.If) -> Guards:
    yes, no = _both(statement.test, statement.lineno)
    if always_leaves(statement.body):
        no = structs.replace(no, raises=isinstance(statement.body[-1], ast.Raise))
        return (no, *(guard for one in statement.orelse for guard in _after(one)))
    if statement.orelse and always_leaves(statement.orelse):
        return (yes, *(guard for one in statement.body for guard in _after(one)))
    found: list[Guard] = []
    for other, branch in ((no, statement.body), (yes, statement.orelse)):
        if any(_gives(one) for one in branch):
            within = tuple(guard for one in branch for guard in _after(one))
            found += [structs.replace(other, unless=within)] if within else []
    return tuple(found)


def _after_attempt(statement: ast.Try) -> Guards:
    if always_leaves([*statement.body, *statement.orelse]):
        through = [handler for handler in statement.handlers if not always_leaves(handler.body)]
        return (_handler_guard(through[0]),) if through else ()
    if not _gives(statement):
        return ()
    return tuple(guard for one in [*statement.body, *statement.orelse] for guard in _after(one))


def _after_tries(body: list[ast.stmt]) -> Guards:
    """What is so behind a loop whose every round tries something that ends the function."""
    for statement in body:
        if isinstance(statement, ast.Try) and _ends([*statement.body, *statement.orelse]):
            through = [one for one in statement.handlers if not _ends(one.body)]
            return (_handler_guard(through[0]),) if through else ()
    return ()


def _ends(body: list[ast.stmt]) -> bool:
    """Whether a block always ends its function, and not only a round of a loop."""
    return always_leaves(body) and not any(
        isinstance(one, ast.Break | ast.Continue) for part in body for one in walk(part)
    )


def _gives(statement: ast.stmt) -> bool:
    """Whether a statement may end its function with a value, somewhere within."""
    pending: list[ast.AST] = [statement]
    while pending:
        here = pending.pop()
        if isinstance(here, ast.Return):
            if here.value is not None and not isinstance(here.value, ast.Constant):
                return True
        elif not isinstance(here, ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(children(here))
    return False
