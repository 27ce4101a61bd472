"""Names of modules and commands."""

import ast
from collections.abc import Iterable, Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._layout import Layout
from perdure.contracts.code._modules import Modules
from perdure.contracts.code._scopes import Scope

_TARGET = regex(r"^[^#\n]*?[\"'](\w+(?:\.\w+)+):([A-Za-z_]\w*)[\"']")
_SPLITS = frozenset({"split", "rsplit", "partition", "rpartition"})


def shown(path: str) -> str:
    """Return a module as a story names it."""
    return path.removesuffix("/__init__.py").removesuffix(".py").rsplit("/", maxsplit=1)[-1]


def package_of(node: ast.Call) -> ast.expr | None:
    """Return what a call of `import_module` takes relative names to be of."""
    given = next((one.value for one in node.keywords if one.arg == "package"), None)
    return node.args[1] if given is None and len(node.args) > 1 else given


def command_names(scope: Scope, decorator: ast.expr) -> set[str]:
    """Return what a decorated function is called on a command line."""
    own = scope.name.rpartition(".")[2]
    found = {own, own.replace("_", "-")}
    if isinstance(decorator, ast.Call):
        for given in [*decorator.args, *(keyword.value for keyword in decorator.keywords)]:
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                found.add(given.value)
    return found


def named_in_texts(
    modules: Modules, layout: Layout, scope: Scope, reached: Iterable[str]
) -> Iterator[tuple[str, str | None]]:
    """Yield what texts like `package.module:name` name, where a function takes such texts apart."""
    splits = [
        call
        for call in scope.calls
        if isinstance(call.node.func, ast.Attribute) and call.node.func.attr in _SPLITS
    ]
    if not any(_is_colon(given) for call in splits for given in call.node.args[:1]):
        return
    count = 0
    for path in sorted(reached):
        text = modules.project.read(path) or "" if path.endswith(".py") else ""
        for line in text.splitlines() if ":" in text else ():
            match = _TARGET.search(line) if ":" in line and "." in line else None
            module = layout.module(match[1]) if match is not None else None
            if match is not None and module is not None and module.endswith(".py"):
                count += 1
                if count > limits.ENTRIES_MAX:
                    return
                yield module, match[2]


def _is_colon(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ":"
