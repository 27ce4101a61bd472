"""What a start command reaches: modules by import, functions by name, methods by attribute.

Theory: a worklist of scopes. A scope that is executed makes the modules it imports executed, and
the functions and classes it names reachable; a class that is reachable makes those of its methods
reachable whose names are used as attributes anywhere. That takes too much for reachable rather than
too little, by name only: what it leaves out is never executed.

Size: the worklist, and the ways that code has of importing by names that it computes.
"""

import ast
import posixpath
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from perdure.contracts.code import limits
from perdure.contracts.code._layout import targets_in
from perdure.contracts.code._meanings import External, Meaning, Meanings, Module
from perdure.contracts.code._naming import command_names, named_in_texts, package_of, shown
from perdure.contracts.code._scopes import MAIN, Call, Import, Scope, last_name, walk
from perdure.contracts.evidence import Evidence

_NEUTRAL = {
    "staticmethod", "classmethod", "property", "contextmanager", "asynccontextmanager", "lru_cache",
    "cache", "cached_property", "abstractmethod", "wraps", "override", "overload", "dataclass",
    "fixture", "deprecated", "setter", "computed_field", "retry",
    "final", "runtime_checkable", "option", "argument", "pass_context", "traceable", "observe",
}  # fmt: skip
"""Decorators that don't hand a function to a framework that serves."""

_COMMANDS = {"command", "group", "callback"}
"""Decorators that make a function a command of a tool; one of them is executed, not all."""

_PLAIN_BASES = {
    "object", "ABC", "Protocol", "Generic", "BaseModel", "BaseSettings", "Enum", "StrEnum",
    "IntEnum",
    "str", "int", "dict", "list", "Exception", "BaseException", "ValueError", "RuntimeError",
    "TypedDict", "NamedTuple", "SQLModel", "Base", "DeclarativeBase",
}  # fmt: skip
"""Bases whose methods no framework calls by names that the project doesn't use."""


class Reached(Struct, kw_only=True):
    """How a module came to be executed."""

    path: str
    by: str | None
    line: int


class Program(Meanings):
    """Everything that one start reaches."""

    reached: dict[str, Reached] = field(default_factory=dict)
    live: list[Scope] = field(default_factory=list)
    words: frozenset[str] = frozenset()
    """The words of the command line, which choose among the commands of a tool."""
    is_tool: bool = False
    """Its commands are what is started; with no word for one of them, any may be."""
    is_cut: bool = False
    """A limit was met, so that something may be missing."""
    importers: dict[str, list[Scope | None]] = field(default_factory=dict)
    """By module: the scopes that import it; `None` for the start itself."""
    callers: dict[int, list[tuple[Scope, Call]]] = field(default_factory=dict)
    """By function: the calls of it, once they were looked for when everything was reached."""
    startup: dict[int, Scope | None] | None = None
    """What `_startup` found, which is the same for all who start it."""
    factories: list[Scope] = field(default_factory=list)
    """What the start names to make an application."""
    _seen: set[int] = field(default_factory=set)
    _pending: list[Scope] = field(default_factory=list)
    _used: set[str] = field(default_factory=set)
    _classes: list[Scope] = field(default_factory=list)
    _classes_seen: set[int] = field(default_factory=set)
    making: dict[int, list[Call]] = field(default_factory=dict)
    """By scope: the calls that may make a saver, see `_calls.making`."""
    _methods: dict[str, list[Scope]] = field(default_factory=dict)
    _calls: dict[str, list[tuple[Scope, Call]]] = field(default_factory=dict)
    _attributes: dict[str, list[Scope]] = field(default_factory=dict)
    offered: set[int] = field(default_factory=set)
    """Functions (by `id`) of modules that are imported by computed names."""
    _wanted: set[str] = field(default_factory=set)
    """Names of classes whose subclasses something searches for."""
    _wanted_all: bool = False
    """Something searches for the subclasses of a class that is not known."""
    _hooks: bool = False
    """A class is told of its subclasses."""

    # ------------------------------------------------------------------------------- entering

    def enter(self, path: str, *, is_main: bool, line: int = 1) -> None:
        """Execute a module; `is_main`: with what stands under `__name__ == "__main__"`."""
        self._reach(path, None, line)
        scope = self.modules.scope(path) if path.endswith(".py") else None
        if scope is not None and is_main:
            for main in scope.inner.get(MAIN, ()):
                self._add(main)
        self.run()

    def serve(self, module: Module, attribute: str) -> None:
        """Take what an entry names for reachable: an application, a graph, a worker's settings."""
        meaning: Meaning = module
        for part in attribute.split("."):
            if isinstance(meaning, Module):
                meaning = self.member(meaning, part)
            elif isinstance(meaning, Scope):
                meaning = self.method(meaning, part)
        if isinstance(meaning, Scope):
            self.factories.append(meaning)
        self._touch(meaning)
        self.run()

    def run(self) -> None:
        """Follow everything that is pending."""
        self._is_done = False
        self._families.clear()
        self._libraries.clear()
        self._libraries_in.clear()
        self.making.clear()
        self.callers.clear()
        self.startup = None
        while self._pending:
            if len(self.live) > limits.SCOPES_MAX:
                self.is_cut = True
                self._pending.clear()
                return
            self._execute(self._pending.pop())
            if not self._pending:
                self._touch_wanted()
        self._is_done = True
        self._derived.clear()
        for one in self._classes:
            for base in self.bases(one):
                self._derived.setdefault(id(base), []).append(one)

    def _reach(self, path: str, importer: Scope | None, line: int) -> None:
        self.importers.setdefault(path, []).append(importer)
        by = importer.path if importer is not None else None
        if path in self.reached:
            return
        if len(self.reached) >= limits.MODULES_MAX:
            self.is_cut = True
            return
        self.reached[path] = Reached(path=path, by=by, line=line)
        self._packages_of(path, importer, line)
        scope = self.modules.scope(path) if path.endswith(".py") else None
        if scope is not None:
            self._add(scope)

    def _packages_of(self, path: str, importer: Scope | None, line: int) -> None:
        folder = posixpath.dirname(path.rstrip("/"))
        if posixpath.basename(path) == "__init__.py":
            folder = posixpath.dirname(folder)
        while folder:
            init = f"{folder}/__init__.py"
            if init not in self.modules.files.python:
                return
            self._reach(init, importer, line)
            folder = posixpath.dirname(folder)

    def _add(self, scope: Scope) -> None:
        if id(scope) not in self._seen:
            self._seen.add(id(scope))
            self._pending.append(scope)

    def is_live(self, scope: Scope) -> bool:
        """Whether the start may execute it."""
        return id(scope) in self._seen

    # ------------------------------------------------------------------------------ following

    def _execute(self, scope: Scope) -> None:
        self.live.append(scope)
        for found in self._imports(scope):
            self._import(scope, found)
        for name in sorted(scope.names):  # in one order: what is reached first is what is cited
            self._touch(self.resolve(scope, name))
        for base, attribute in sorted(scope.dotted):
            origin = self.resolve(scope, base)
            if isinstance(origin, Module):
                self._touch(self.member(origin, attribute))
        for call in scope.calls:
            self._calls.setdefault(call.name, []).append((scope, call))
            self._dynamic(scope, call.node)
        for assign in scope.attributes:
            if isinstance(assign.target, ast.Attribute):
                self._attributes.setdefault(assign.target.attr, []).append(scope)
        self._use(sorted(scope.attribute_names))
        for inner in (one for found in scope.inner.values() for one in found):
            if inner.kind == "function" and inner.name != MAIN and self._is_called(inner, scope):
                self._add(inner)

    def _is_called(self, inner: Scope, scope: Scope) -> bool:
        """Whether somebody else calls a function of a scope that is executed.

        `__getattr__` of a module imports what the module is asked for.
        """
        is_asked = scope.kind == "module" and inner.name == "__getattr__"
        return is_asked or self._is_registered(inner)

    @staticmethod
    def _imports(scope: Scope) -> Iterator[Import]:
        yield from scope.stars
        for found in scope.imports.values():
            yield from found

    def _import(self, scope: Scope, found: Import) -> None:
        base = self._module_of(scope.path, found)
        if base is None:
            return
        self._reach(base, scope, found.line)
        if found.name is not None and found.name != "*":
            inside = self._submodule(base, found.name)
            if inside is not None and not self._hides(base, found.name):
                self._reach(inside, scope, found.line)
        if found.name is None and "." in found.module:
            parts = found.module.split(".")
            for count in range(1, len(parts)):
                part = self.layout.module(".".join(parts[:count]))
                if part is not None:
                    self._reach(part, scope, found.line)

    def _hides(self, package: str, name: str) -> bool:
        """Whether a package has something else by the name of a module of its own."""
        scope = self.modules.scope(package) if package.endswith(".py") else None
        if scope is None or not _binds(scope, name):
            return False
        # `from . import name` in it is that module itself.
        return (
            name in scope.inner
            or name in scope.assigns
            or not any(
                each.name == name and self._module_of(package, each) == package
                for each in scope.imports[name]
            )
        )

    def _touch(self, meaning: Meaning) -> None:
        if isinstance(meaning, Module):
            return
        if isinstance(meaning, Scope):
            self._add(meaning)
            if meaning.kind == "class":
                self._class(meaning)

    def _class(self, scope: Scope) -> None:
        if id(scope) in self._classes_seen:
            return
        self._classes_seen.add(id(scope))
        self._classes.append(scope)
        self._hooks = self._hooks or "__init_subclass__" in scope.inner
        is_framework = self._has_foreign_base(scope)
        for name, methods in scope.inner.items():
            self._methods.setdefault(name, []).extend(methods)
            for method in methods:
                if method.kind == "class":
                    self._add(method)
                    self._class(method)
                elif (
                    name in self._used
                    or is_framework
                    or (name.startswith("__") and name.endswith("__"))
                    or name == "model_post_init"
                    or self._is_registered(method)
                ):
                    self._add(method)

    def _is_registered(self, scope: Scope) -> bool:
        """Whether a decorator hands the function to something that calls it."""
        for decorator in getattr(scope.node, "decorator_list", ()):
            name = last_name(decorator)
            if name in _COMMANDS:
                if self.is_tool and (
                    not self.words or self.words & command_names(scope, decorator)
                ):
                    return True
            elif name not in _NEUTRAL:
                return True
        return False

    def _has_foreign_base(self, scope: Scope) -> bool:
        for base in getattr(scope.node, "bases", ()):
            name = last_name(base)
            if name in _PLAIN_BASES:
                continue
            meaning = self.meaning(scope.parent or scope, base)
            if not isinstance(meaning, Scope):
                return True
            if meaning is not scope and self._has_foreign_base(meaning):
                return True
        return False

    def _use(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._used:
                self._used.add(name)
                for method in self._methods.get(name, ()):
                    self._add(method)

    def _dynamic(self, scope: Scope, node: ast.Call) -> None:
        """Follow imports and attributes that are given as strings."""
        name = last_name(node.func)
        if name in {"getattr", "hasattr"} and len(node.args) > 1:
            if isinstance(node.args[1], ast.Constant) and isinstance(node.args[1].value, str):
                self._use([node.args[1].value])
        elif name in {"import_module", "__import__"} and node.args:
            self._import_by_name(scope, node)
        elif name == "__subclasses__" and isinstance(node.func, ast.Attribute):
            self._want(scope, node.func.value)
        elif name == "issubclass" and len(node.args) > 1:
            self._want(scope, node.args[1])
        elif name in {"run", "Config", "serve", "Granian", "Server", "run_worker"}:
            self._serve_by_name(scope, node)

    def _serve_by_name(self, scope: Scope, node: ast.Call) -> None:
        """Follow `uvicorn.run("package.module:app")`, and a list that starts such a server."""
        given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "app")]
        words: list[ast.expr] = []
        for each in given:
            words += [each] if isinstance(each, ast.Constant) else getattr(each, "elts", [])
        for name, attribute in [*targets_in(words), *self._served_around(scope, node, given)]:
            path = self.layout.module(name)
            if path is not None:
                self._reach(path, scope, node.lineno)
                self._touch(self.member(Module(path), attribute))

    def _served_around(
        self, scope: Scope, node: ast.Call, given: list[ast.expr]
    ) -> list[tuple[str, str]]:
        """Return what a server is told in a variable or options: by the texts that are around."""
        is_open = any(one.arg is None for one in node.keywords) or (
            given and isinstance(given[0], ast.Name)
        )
        if not is_open or not isinstance(self.meaning(scope, node.func), External):
            return []
        called = [self.meaning(scope, call.node.func) for call in scope.calls]
        around = [scope, *(one for one in called if isinstance(one, Scope))]
        return [one for each in around[: limits.CALLERS_MAX] for one in targets_in(walk(each.node))]

    def _import_by_name(self, scope: Scope, node: ast.Call) -> None:
        """Import what a call names: a module, every module of a package, or the entries around."""
        found = list(self._named(scope, node.args[0], package_of(node), 0))
        if not found:
            found = [*self._entries(scope), *self._packages_walked(scope)]
            found += named_in_texts(self.modules, self.layout, scope, self.reached)
        if not found:
            found = [(posixpath.dirname(scope.path) + "/", None)]
        for path, attribute in found:
            if path.endswith("/"):
                self._import_all(path.rstrip("/"), scope, node.lineno)
            else:
                self._reach(path, scope, node.lineno)
                self._offer(path)
                if attribute is not None:
                    self._touch(self.member(Module(path), attribute))

    def _named(
        self, scope: Scope, given: ast.expr, package: ast.expr | None, depth: int
    ) -> Iterator[tuple[str, str | None]]:
        """Return the module that an expression names, or (ending in `/`) the folder it is in."""
        match given:
            case ast.Constant(value=str(name)):
                path = self.layout.module(self._absolute(scope, name, package))
                yield from [(path, None)] if path is not None else []
            case ast.JoinedStr(values=[ast.Constant(value=str(prefix)), *_]) if "." in prefix:
                whole = self._absolute(scope, prefix.rpartition(".")[0], package, prefix)
                yield from self._folder_of(self.layout.module(whole))
            case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Attribute() as of), *_]):
                meaning = self.meaning(scope, of.value) if of.attr == "__name__" else None
                yield from self._folder_of(meaning.path if isinstance(meaning, Module) else None)
            case ast.BinOp(op=ast.Add(), left=ast.Constant() as left):
                yield from self._named(scope, ast.JoinedStr(values=[left]), package, depth + 1)
            case ast.Name() if depth < limits.DYNAMIC_DEPTH_MAX:
                for assign in scope.assigns.get(given.id, ()):
                    if assign.value is not None and not isinstance(assign.value, ast.Name):
                        yield from self._named(scope, assign.value, package, depth + 1)

    def _absolute(
        self, scope: Scope, name: str, package: ast.expr | None, whole: str | None = None
    ) -> str:
        if not (whole or name).startswith("."):
            return name
        return f"{self._package_name(scope, package)}{name}".strip(".")

    def _package_name(self, scope: Scope, package: ast.expr | None) -> str:
        if isinstance(package, ast.Constant) and isinstance(package.value, str):
            return package.value
        folder = posixpath.dirname(scope.path)
        return next(
            (
                name
                for count in range(folder.count("/") + 1)
                if self.layout.module(name := ".".join(folder.split("/")[count:])) is not None
            ),
            "",
        )

    @staticmethod
    def _folder_of(path: str | None) -> Iterator[tuple[str, str | None]]:
        folder = posixpath.dirname(path or "")
        if folder:
            yield f"{folder}/", None

    def _entries(self, scope: Scope) -> Iterator[tuple[str, str | None]]:
        """Return the modules that tables of the same file name: `{"a": "package.module:name"}`."""
        count = 0
        for around in scope.module.all_inner():
            if around.kind == "function" and around is not scope:
                continue
            for assign in (one for several in around.assigns.values() for one in several):
                tables = isinstance(assign.value, ast.Dict | ast.List | ast.Tuple | ast.Set)
                for node in walk(assign.value) if tables and assign.value else ():
                    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                        continue
                    count += 1
                    if count > limits.ENTRIES_MAX:
                        return
                    yield from self._entry(node.value)

    def _entry(self, text: str) -> Iterator[tuple[str, str | None]]:
        name, _, attribute = text.partition(":")
        path = self.layout.module(name) if "." in name else None
        if path is None and not attribute and "." in name:
            name, _, attribute = name.rpartition(".")
            path = self.layout.module(name) if "." in name else None
        if path is not None and path.endswith(".py"):
            yield path, attribute if attribute.isidentifier() else None

    def _packages_walked(self, scope: Scope) -> Iterator[tuple[str, str | None]]:
        """Return the folders of packages that are searched: `pkgutil.iter_modules(p.__path__)`."""
        for call in scope.calls:
            if call.name in {"iter_modules", "walk_packages"} and call.node.args:
                for node in walk(call.node.args[0]):
                    if isinstance(node, ast.Attribute) and node.attr in {"__path__", "__file__"}:
                        meaning = self.meaning(scope, node.value)
                        if isinstance(meaning, Module):
                            yield from self._folder_of(meaning.path)

    def _import_all(self, folder: str, by: Scope, line: int) -> None:
        """Import every module of a package: it is searched for what it holds."""
        start = f"{folder}/"
        for path in self.modules.files.beneath(start):
            rest = path[len(start) :]
            is_near = rest.count("/") == 0 or (
                rest.count("/") == 1 and rest.endswith("/__init__.py")
            )
            if is_near:
                self._reach(path, by, line)
                self._offer(path)

    def _offer(self, path: str) -> None:
        """Take the classes of a module that is searched for reachable, those it imports, too."""
        scope = self.modules.scope(path) if path.endswith(".py") else None
        if scope is None:
            return
        for name, inner in scope.inner.items():
            for one in inner:
                if one.kind == "class":
                    self._touch(one)
                elif name != MAIN and id(one) not in self.offered:
                    # `module.build()` on a module that is found by name.
                    self.offered.add(id(one))
                    self._methods.setdefault(name, []).append(one)
                    if name in self._used:
                        self._add(one)
        if posixpath.basename(path) == "__init__.py":
            for name in scope.imports:
                meaning = self.resolve(scope, name)
                if isinstance(meaning, Scope) and meaning.kind == "class":
                    self._touch(meaning)

    def _want(self, scope: Scope, base: ast.expr) -> None:
        """Remember that all classes that derive from one are looked for."""
        meaning = self.meaning(scope, base)
        if isinstance(meaning, Scope) and meaning.kind == "class":
            self._wanted.add(meaning.name)
        elif not isinstance(meaning, External) and last_name(base):
            self._wanted_all = True  # an object that nobody knows: any base of the project's own

    def _touch_wanted(self) -> None:
        """Take the classes for reachable that a search for subclasses finds, or that register."""
        for path in sorted(self.reached):
            scope = self.modules.scope(path) if path.endswith(".py") else None
            for one in (
                (each for several in scope.inner.values() for each in several) if scope else ()
            ):
                if one.kind == "class" and id(one) not in self._seen and self._is_wanted(one):
                    self._touch(one)

    def _is_wanted(self, one: Scope) -> bool:
        around = one.parent or one
        for decorator in getattr(one.node, "decorator_list", ()):
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            if last_name(named) not in _NEUTRAL and isinstance(self.meaning(around, named), Scope):
                return True
        if not (self._wanted or self._wanted_all or self._hooks):
            return False
        return any(
            base.name in self._wanted
            or "__init_subclass__" in base.inner
            or (self._wanted_all and not self._has_foreign_base(base))
            for base in self._line(one)
        )

    def _line(self, one: Scope) -> list[Scope]:
        found = list(self.bases(one))
        for base in found:
            if len(found) > limits.FLOW_DEPTH_MAX:
                break
            found.extend(more for more in self.bases(base) if more not in found)
        return found

    # ---------------------------------------------------------------------------------- index

    def calls_of(self, name: str) -> list[tuple[Scope, Call]]:
        """Return the reachable calls of anything with this name."""
        return self._calls.get(name, [])

    def assigning(self, attribute: str) -> list[Scope]:
        """Return the reachable scopes that assign to an attribute of this name."""
        return self._attributes.get(attribute, [])

    def methods_named(self, name: str) -> list[Scope]:
        """Return the reachable methods of this name, of any class."""
        return [scope for scope in self._methods.get(name, []) if self.is_live(scope)]

    def way_to(self, path: str) -> tuple[Evidence, ...]:
        """Tell how the start comes to a module, shortened to its ends."""
        steps: list[Evidence] = []
        here = self.reached.get(path)
        while here is not None and here.by is not None:
            steps.append(Evidence(file=here.by, line=here.line, note=f"imports {shown(here.path)}"))
            here = self.reached.get(here.by)
            if len(steps) > limits.MODULES_MAX:
                break
        steps.reverse()
        half = limits.STORY_MAX // 2
        return tuple(steps if len(steps) <= half else [*steps[:1], *steps[-(half - 1) :]])


def _binds(scope: Scope, name: str) -> bool:
    return name in scope.inner or name in scope.assigns or name in scope.imports
