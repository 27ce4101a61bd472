"""Where the scopes of one module do things to names of others."""

import ast

from msgspec import Struct, field

from perdure.contracts.code._scopes import Assign, Scope, last_name, of_scope


class Index(Struct, kw_only=True, eq=False):
    """Where the scopes of one module do things to names, in the order of `all_inner`."""

    sharing: dict[str, list[Scope]] = field(default_factory=dict)
    """Scopes that declare a name `global` or `nonlocal`."""
    stored: dict[str, list[tuple[Scope, Assign]]] = field(default_factory=dict)
    """What is put into a container of this name."""
    keyed: dict[tuple[str, object], list[tuple[Scope, Assign]]] = field(default_factory=dict)
    """The same, by a constant key."""


@of_scope
def index_of(module: Scope) -> Index:
    """Return what the scopes of a module share and store, by name."""
    found = Index()
    for scope in module.all_inner():
        for name in scope.shared:
            found.sharing.setdefault(name, []).append(scope)
        for assign in scope.items:
            if isinstance(assign.target, ast.Subscript):
                name = last_name(assign.target.value)
                found.stored.setdefault(name, []).append((scope, assign))
                if isinstance(assign.target.slice, ast.Constant):
                    at = (name, assign.target.slice.value)
                    found.keyed.setdefault(at, []).append((scope, assign))
    return found
