"""What names mean: of the project or of a library, in classes and their bases."""

import ast
import posixpath

from msgspec import Struct, field

from perdure.contracts.code import limits
from perdure.contracts.code._layout import Layout
from perdure.contracts.code._modules import Modules
from perdure.contracts.code._scopes import MAIN, Call, Import, Scope, last_name


class External(Struct, frozen=True):
    """Something of a library, by its dotted name."""

    name: str


class Module(Struct, frozen=True):
    """A module or package of the project; a package without `__init__` has a path ending in `/`."""

    path: str


class Variable(Struct, frozen=True):
    """A name that a scope assigns."""

    scope: Scope
    name: str


class Parameter(Struct, frozen=True):
    """A parameter of a function."""

    scope: Scope
    name: str


Meaning = Scope | External | Module | Variable | Parameter | None


class Meanings(Struct):
    """Answers for the modules of a project what a name means where it is used."""

    modules: Modules
    layout: Layout
    _bases: dict[int, list[Scope]] = field(default_factory=dict)
    _derived: dict[int, list[Scope]] = field(default_factory=dict)
    _families: dict[int, list[Scope]] = field(default_factory=dict)
    _libraries: dict[int, str] = field(default_factory=dict)
    _libraries_in: dict[int, frozenset[str]] = field(default_factory=dict)
    _meanings: dict[tuple[int, str], Meaning] = field(default_factory=dict)
    _imports_meant: dict[tuple[int, str], Meaning] = field(default_factory=dict)
    """By module or function and name: what an import of it is, which every use asks for."""
    _is_done: bool = False
    """Everything is reached, so that what a name means does not change any more."""
    _resolving: set[tuple[int, str]] = field(default_factory=set)

    def resolve(self, scope: Scope, name: str) -> Meaning:
        """Return what a name means where it is used."""
        key = (id(scope), name)
        if key in self._meanings:
            return self._meanings[key]
        found = self._resolved(scope, name)
        if self._is_done and not self._resolving:
            self._meanings[key] = found
        return found

    def _resolved(self, scope: Scope, name: str) -> Meaning:
        here: Scope | None = scope
        is_first = True
        while here is not None:
            if here.kind != "class" or is_first:
                found = self._local(here, name)
                if found is not None:
                    return found
            is_first = False
            here = here.parent
        return None

    def _local(self, scope: Scope, name: str) -> Meaning:
        if name in scope.shared:
            return None
        if name in scope.parameter_names:
            return Parameter(scope, name)
        if name in scope.inner:
            return scope.inner[name][-1]
        imported = self._imported(scope, name)
        if imported is not None and not (
            isinstance(imported, External) and name in scope.assigns and scope.kind != "module"
        ):
            return imported
        if name in scope.assigns:
            return Variable(scope, name)
        if scope.kind == "module":
            for main in scope.inner.get(MAIN, ()):
                if name in main.assigns:
                    return Variable(main, name)
            return self._starred(scope, name)
        return None

    def _imported(self, scope: Scope, name: str) -> Meaning:
        several = scope.imports.get(name)
        if several is None:
            return None
        key = (id(scope), name)
        if key not in self._imports_meant:
            found = self._of_imports(scope, several)
            if self._resolving:
                return found  # in a circle of imports: it may be without what is asked around it
            self._imports_meant[key] = found
        return self._imports_meant[key]

    def _of_imports(self, scope: Scope, several: list[Import]) -> Meaning:
        external: Meaning = None
        for found in several:
            meaning = self._import_meaning(scope, found)
            if meaning is not None and not isinstance(meaning, External):
                return meaning
            external = external or meaning
        return external

    def _import_meaning(self, scope: Scope, found: Import) -> Meaning:
        base = self._module_of(scope.path, found)
        if base is None:
            if found.level:
                return None
            return External(f"{found.module}.{found.name}" if found.name else found.module)
        if found.name is None:
            return Module(base)
        return self.member(Module(base), found.name)

    def _starred(self, scope: Scope, name: str) -> Meaning:
        for star in scope.stars:
            base = self._module_of(scope.path, star)
            if base is not None:
                found = self.member(Module(base), name)
                if found is not None:
                    return found
        return None

    def member(self, module: Module, name: str) -> Meaning:
        """Return what `module.name` means."""
        key = (hash(module.path), name)
        if key in self._resolving:
            return None
        self._resolving.add(key)
        try:
            scope = self.modules.scope(module.path) if module.path.endswith(".py") else None
            if scope is not None:
                found = self._local(scope, name)
                if found is not None:
                    return found
            inside = self._submodule(module.path, name)
            return Module(inside) if inside is not None else None
        finally:
            self._resolving.discard(key)

    def _submodule(self, path: str, name: str) -> str | None:
        if path.endswith("/__init__.py") or path == "__init__.py":
            folder = posixpath.dirname(path)
        elif path.endswith("/"):
            folder = path.rstrip("/")
        else:
            return None
        return self.layout.at(f"{folder}/{name}" if folder else name)

    def _module_of(self, path: str, found: Import) -> str | None:
        if not found.level:
            return self.layout.module(found.module)
        folder = posixpath.dirname(path)
        for _ in range(found.level - 1):
            folder = posixpath.dirname(folder)
        tail = found.module.replace(".", "/")
        return self.layout.at(posixpath.join(folder, tail) if tail else folder)

    def meaning(self, scope: Scope, node: ast.expr) -> Meaning:
        """Return what a dotted name means; `None` for anything else."""
        if isinstance(node, ast.Name):
            return self.resolve(scope, node.id)
        if isinstance(node, ast.Subscript):
            return self.meaning(scope, node.value)
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            return self.method(self.class_around(scope), node.attr)
        base = self.meaning(scope, node.value)
        match base:
            case Module():
                return self.member(base, node.attr)
            case External():
                return External(f"{base.name}.{node.attr}")
            case Scope() if base.kind == "class":
                return self.method(base, node.attr)
        return None

    @staticmethod
    def class_around(scope: Scope) -> Scope | None:
        """Return the class body around a method or a function within one."""
        here: Scope | None = scope
        while here is not None and here.owner is None:
            here = here.parent
        return here.owner if here is not None else None

    def method(self, owner: Scope | None, name: str, depth: int = 0) -> Scope | None:
        """Return a method of a class or of its bases."""
        if owner is None or depth > limits.FLOW_DEPTH_MAX:
            return None
        if name in owner.inner:
            several = owner.inner[name]
            return several[-1] if len(several) == 1 else _read(several)
        for base in self.bases(owner):
            found = self.method(base, name, depth + 1)
            if found is not None:
                return found
        return None

    def bases(self, owner: Scope) -> list[Scope]:
        """Return the bases of a class that the project defines."""
        known = self._bases.get(id(owner))
        if known is not None:
            return known
        found = []
        for base in getattr(owner.node, "bases", ()):
            meaning = self.meaning(owner.parent or owner, base)
            if isinstance(meaning, Scope) and meaning.kind == "class" and meaning is not owner:
                found.append(meaning)
        self._bases[id(owner)] = found
        return found

    def family(self, owner: Scope) -> list[Scope]:
        """Return a class with its bases, and the reachable classes that derive from it."""
        if id(owner) in self._families:
            return self._families[id(owner)]
        found = [owner]
        for base in found:
            if len(found) > limits.CANDIDATES_MAX * 4:
                break
            found.extend(more for more in self.bases(base) if more not in found)
        found += [one for one in self._derived.get(id(owner), ()) if one not in found]
        self._families[id(owner)] = found
        return found

    def derived(self, owner: Scope) -> list[Scope]:
        """Return the reachable classes that derive from a class directly."""
        return self._derived.get(id(owner), [])

    def libraries_in(self, scope: Scope) -> frozenset[str]:
        """Return the dotted library names that the calls of a scope mean."""
        known = self._libraries_in.get(id(scope))
        if known is None:
            found = frozenset(self.library_of(scope, call) for call in scope.calls)
            known = self._libraries_in[id(scope)] = found
        return known

    def library_of(self, scope: Scope, call: Call) -> str:
        """Return the dotted library name that a call means; empty for anything else."""
        known = self._libraries.get(id(call))
        if known is None:
            meaning = self.meaning(scope, call.node.func)
            known = self._libraries[id(call)] = (
                meaning.name if isinstance(meaning, External) else ""
            )
        return known


def _read(several: list[Scope]) -> Scope:
    """Return the last definition of a name that is not what a property is set or deleted by."""
    for one in reversed(several):
        if not _SET_BY & {last_name(each) for each in getattr(one.node, "decorator_list", ())}:
            return one
    return several[-1]


_SET_BY = {"setter", "deleter"}
