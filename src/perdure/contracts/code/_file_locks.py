"""Whether a lock of a file is all that is taken by files: the kernel gives it back, and no more.

What is written under a lock outlives it (a claim, a file that another one waits for), and a child
that has the descriptor keeps it. Only what is seen to be neither counts; in doubt it is no lease.
"""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import keyword
from perdure.contracts.code._scopes import Call, Scope, last_name, walk

_HARMLESS = frozenset(
    {
        "Path", "close", "closed", "debug", "error", "exception", "exists", "expanduser", "fchmod",
        "fileno", "flock", "format", "fstat", "getLogger", "getenv", "getpid", "hasattr", "info",
        "int", "isinstance", "join", "mkdir", "makedirs", "monotonic", "open", "print", "resolve",
        "S_IMODE", "S_ISREG", "set_inheritable", "sleep", "str", "time", "warning", "FastAPI",
    }
)  # fmt: skip
"""What a function may call once it has a lock, so that nothing but the lock is left of it."""

_CHILDREN = frozenset({"Pool", "Process", "ProcessPoolExecutor", "fork", "forkpty", "dup2"})
"""What has a child begin with the descriptors of its parent."""

_INHERITED = ("pass_fds", "close_fds", "preexec_fn")
_WRITES = frozenset({"write", "writelines", "write_text", "write_bytes", "dump", "rename", "touch"})
_ANEW = regex(r"^[btr+]*x[bt+]*$")


def is_all_of_it(flow: Flow, scope: Scope, call: Call) -> bool:
    """Whether nothing that a lock guards, and no child, outlives the process that took it."""
    if scope.yields or not _is_opened_here(scope, call):
        return False
    under = [one for one in scope.calls if one.node.lineno >= call.node.lineno]
    if not all(one.name in _HARMLESS or _raised(one) for one in under):
        return False
    users = [one for one, _ in flow.program.calls_of(scope.name)]
    if any(_writes(one) for one in (*scope.module.all_inner(), *users)):
        return False
    return not any(_lends(one) or _claims(one) for one in flow.program.live)


def _is_opened_here(scope: Scope, call: Call) -> bool:
    """Whether the descriptor is one that the same function opened."""
    given = call.node.args[0] if call.node.args else None
    if isinstance(given, ast.Call) and last_name(given.func) == "fileno":
        given = given.func.value if isinstance(given.func, ast.Attribute) else None
    if isinstance(given, ast.Name):
        bound = scope.assigns.get(given.id, [])
    elif isinstance(given, ast.Attribute):
        wanted = ast.unparse(given)
        bound = [one for one in scope.attributes if ast.unparse(one.target) == wanted]
    else:
        return False
    return bool(bound) and all(
        isinstance(one.value, ast.Call) and last_name(one.value.func) == "open" for one in bound
    )


def _raised(call: Call) -> bool:
    """Whether a call makes an error, or what the lock is kept in: names in capitals."""
    name = call.name.lstrip("_")
    return name[:1].isupper() and name not in _CHILDREN and isinstance(call.node.func, ast.Name)


def _writes(scope: Scope) -> bool:
    return not scope.called.isdisjoint(_WRITES)


def _lends(scope: Scope) -> bool:
    """Whether a child may have the descriptors of its parent."""
    if not scope.called.isdisjoint(_CHILDREN) or scope.passing(*_INHERITED):
        return True
    return any(
        not (isinstance(given, ast.Constant) and given.value is False)
        for one in scope.called_as({"set_inheritable"})
        for given in one.node.args[1:2]
    )


def _claims(scope: Scope) -> bool:
    """Whether a file is made that must not be there: a lock that a crash leaves behind."""
    return "O_EXCL" in scope.attribute_names or any(
        isinstance(one, ast.Constant) and isinstance(one.value, str) and _ANEW.match(one.value)
        for call in scope.called_as({"open"})
        for given in (*call.node.args[:2], keyword(call.node, "mode"))
        if given is not None
        for one in walk(given)
    )
