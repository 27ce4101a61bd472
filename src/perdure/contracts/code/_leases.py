"""What is taken outside of the process and must be given back: locks, sandboxes, jobs."""

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._entries import own_nodes
from perdure.contracts.code._executed import Executed, asked
from perdure.contracts.code._file_locks import is_all_of_it
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import dotted, evidence, keyword
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._startup import functions_called, startup_of
from perdure.contracts.code._walks import led_to
from perdure.contracts.code.facts import Lease
from perdure.contracts.evidence import Evidence

_SANDBOXES = {
    "e2b_code_interpreter.Sandbox": ("timeout",),
    "e2b.Sandbox": ("timeout",),
    "e2b_code_interpreter.AsyncSandbox": ("timeout",),
    "e2b.AsyncSandbox": ("timeout",),
    "modal.Sandbox": ("timeout",),
}
"""Sandboxes that a service makes elsewhere; all of these end by themselves by default."""

_GIVES_BACK = regex(r"^(a?release|kill|delete|stop|remove|close|terminate|shutdown|unlock)\w*$")
_ENDS_CLIENT = regex(r"^(a?close|shutdown|stop|terminate)$")
_CONNECTION = regex(r"client|http|session|pool|conn|docker|redis|api|executor|server")
_SANDBOX_PATH = regex(r"/sandbox(es)?/?$")
_FLOCK = "fcntl.flock"
_POSTS = frozenset({"post", "request", "_request", "_post", "fetch"})
_QUERIES = frozenset({"execute", "fetchval", "text", "fetchrow"})
_ENDS = regex(r"ttl|timeout|expires|lifetime", re.IGNORECASE)
_CLIENT = regex(r"redis|valkey|cache|client|conn|\br\b", re.IGNORECASE)


def leases_of(flow: Flow, executed: Executed) -> tuple[Lease, ...]:
    """Find what the reachable code takes."""
    found: list[Lease] = []
    starts = _Starts(flow)
    for scope in flow.program.live:
        if scope.called.isdisjoint(_NAMES) and not _in_sandboxes(flow, scope):
            continue
        for call in scope.calls:
            found.extend(
                replace(
                    lease,
                    when=asked(executed.line(scope, call.guards)),
                    cleaned=starts.cleaning(scope) if lease.expires is False else (),
                )
                for lease in _of_call(flow, scope, call)
            )
            if len(found) >= limits.UNREACHABLE_MAX:
                return tuple(found)
    return tuple(found)


_ON_CLIENTS = frozenset({"lock", "set", "setnx", "create", "run"})
"""Methods that take something, of objects whose names say what they are."""
_NAMES = _ON_CLIENTS | _QUERIES | _POSTS | {"create_namespaced_job"}


def _in_sandboxes(flow: Flow, scope: Scope) -> bool:
    return any(
        name == _FLOCK or name in _SANDBOXES or name.rpartition(".")[0] in _SANDBOXES
        for name in flow.program.libraries_in(scope)
    )


def _of_call(flow: Flow, scope: Scope, call: Call) -> Iterator[Lease]:
    node = call.node
    name = last_name(node.func)
    base = ""
    if name in _ON_CLIENTS and isinstance(node.func, ast.Attribute):
        base = ast.unparse(node.func.value)
    library = dotted(flow, scope, call)
    if name == "lock" and _CLIENT.search(base) and "redis" in _imports(scope):
        yield _lease(scope, call, "a Redis lock", expires=_has(node, "timeout", at=1))
    elif name in {"set", "setnx"} and _CLIENT.search(base) and _is_exclusive(node, name):
        expires = any(_has(node, one) for one in ("ex", "px", "exat", "pxat"))
        later = any(other.name in {"expire", "pexpire"} for other in scope.calls)
        yield _lease(scope, call, "a key in Redis that one may have", expires=expires or later)
    elif name in _QUERIES and "advisory_lock" in _text(node):
        yield _lease(scope, call, "an advisory lock of PostgreSQL", expires=True)
    elif name == "create_namespaced_job":
        expires = any(
            word in _text_of_module(scope)
            for word in ("ttl_seconds_after_finished", "ttlSecondsAfterFinished",
                         "active_deadline_seconds", "activeDeadlineSeconds")
        )  # fmt: skip
        yield _lease(scope, call, "a Kubernetes Job", expires=expires)
    elif library == _FLOCK and _is_exclusive_lock(node) and is_all_of_it(flow, scope, call):
        yield _lease(scope, call, "a lock of a file", expires=True)
    elif library in _SANDBOXES or library.rpartition(".")[0] in _SANDBOXES:
        yield _lease(scope, call, "a sandbox", expires=True)
    elif base.endswith("containers") and (
        name == "create" or (name == "run" and _is_true(keyword(node, "detach")))
    ):
        reaped = bool(_reaper(flow))
        yield _lease(scope, call, "a container", expires=False, is_reaped=reaped)
    elif name in _POSTS and _asks_for_sandbox(node):
        # What the other service does with a sandbox whose owner died is its affair.
        yield _lease(scope, call, "a sandbox", expires=_names_an_end(node), is_reaped=False)


def _lease(
    scope: Scope, call: Call, what: str, *, expires: bool | None, is_reaped: bool = False
) -> Lease:
    step = evidence(scope, call.node.lineno, f"takes {what}")
    return Lease(
        what=what,
        evidence=(step,),
        expires=expires,
        release=_releases(scope),
        is_reaped=is_reaped,
    )


def _asks_for_sandbox(node: ast.Call) -> bool:
    """Whether a request makes a sandbox: `POST .../sandboxes`, with nothing behind it."""
    ends = [one.values[-1] if isinstance(one, ast.JoinedStr) and one.values else one
            for one in (*node.args, *(each.value for each in node.keywords))]  # fmt: skip
    words = [
        one.value for one in ends if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    is_post = last_name(node.func) == "post" or "POST" in words
    return is_post and any(_SANDBOX_PATH.search(word) for word in words)


def _names_an_end(node: ast.Call) -> bool | None:
    """Whether what is sent says how long it may live; else the other service decides."""
    given = keyword(node, "json")
    keys = given.keys if isinstance(given, ast.Dict) else []
    told = any(
        isinstance(key, ast.Constant) and isinstance(key.value, str) and _ENDS.search(key.value)
        for key in keys
    )
    return True if told else None


def _releases(scope: Scope) -> tuple[Evidence, ...]:
    """Find where its file gives something back; a client that is closed gives nothing back."""
    found: list[Evidence] = []
    for inner in scope.module.all_inner():
        for call in inner.calls:
            func = call.node.func
            if not isinstance(func, ast.Attribute):
                continue
            if _GIVES_BACK.match(func.attr) and not _is_own_end(func):
                found.append(evidence(inner, call.node.lineno, f"{func.attr} gives back"))
    return tuple(found[:2])


_CLEANS = regex(r"^(a?release|kill|delete|stop|remove|terminate|unlink|prune)\w*$")
_CLEANING = regex(
    r"terminate|clean|recover|reap|release|kill|stop|remove|sweep|purge|prune|reconcile|orphan|stale"
    r"|startup|on_start|bootstrap|setup|initial"
)
"""Methods of objects that are not known are followed by such names alone."""
_BEGINS = frozenset({
    "create_task", "ensure_future", "gather", "wait_for", "to_thread", "run", "run_sync",
    "run_in_executor", "run_in_threadpool", "start_soon",
})  # fmt: skip
"""Calls that execute what they are given, or begin to."""

_STEPS_MAX = 6
"""Functions one after the other from a start to what gives back."""


class _Starts:
    """What a start of the service comes to, before it serves."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @cached_property
    def _reached(self) -> dict[int, list[Scope]]:
        """The functions by their modules, the nearest first."""
        program = self._flow.program
        found = startup_of(self._flow)
        starts = [
            one
            for one in program.live
            if id(one) in found and ((by := found[id(one)]) is None or by.kind != "function")
        ]
        reached: dict[int, list[Scope]] = {}
        for one in led_to(starts, self._begun, steps=_STEPS_MAX, most=limits.SCOPES_MAX):
            reached.setdefault(id(one.module), []).append(one)
        return reached

    def _begun(self, scope: Scope) -> Iterator[Scope]:
        for call in _before(scope):
            given = call.node.args if call.name in _BEGINS else ()
            for node in (call.node, *given):
                yield from functions_called(self._flow, scope, node, self._named)

    def _named(self, name: str) -> list[Scope]:
        return self._flow.program.methods_named(name) if _CLEANING.search(name) else []

    def cleaning(self, taken: Scope) -> tuple[Evidence, ...]:
        """Return where a start comes to what gives back things of a function's file."""
        for scope in self._reached.get(id(taken.module), ()):
            for call in _before(scope) if scope is not taken else ():
                func = call.node.func
                is_method = isinstance(func, ast.Attribute) and not _is_own_end(func)
                if is_method and _CLEANS.match(call.name):
                    return (evidence(scope, call.node.lineno, "a start comes here"),)
        return ()


def _before(scope: Scope) -> Iterator[Call]:
    """Yield the calls before a lifespan's `yield`, or before a worker's loop begins."""
    served = _served_at(scope)
    yield from (one for one in scope.calls if served is None or one.node.lineno <= served)


def _served_at(scope: Scope) -> int | None:
    """Return the line from which on a lifespan serves, or a worker's loop goes on for ever."""
    if scope.kind != "function":
        return None
    lines = [
        node.lineno
        for node in own_nodes(scope)
        if isinstance(node, ast.Yield)
        or (isinstance(node, ast.While) and isinstance(node.test, ast.Constant))
    ]
    return min(lines, default=None)


def _is_own_end(func: ast.Attribute) -> bool:
    """Whether it only ends the connection to who was asked: `self.client.close()`."""
    base = last_name(func.value).lower()
    return bool(_ENDS_CLIENT.match(func.attr)) and bool(_CONNECTION.search(base))


def _reaper(flow: Flow) -> list[Scope]:
    return [
        scope
        for scope in flow.program.live
        if scope.kind == "function" and re.search(r"orphan|stale|reap|leftover", scope.name.lower())
    ]


def _has(node: ast.Call, name: str, at: int | None = None) -> bool:
    given = keyword(node, name)
    if given is None and at is not None and len(node.args) > at:
        given = node.args[at]
    return given is not None and not (isinstance(given, ast.Constant) and given.value is None)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_exclusive(node: ast.Call, name: str) -> bool:
    return name == "setnx" or _is_true(keyword(node, "nx"))


def _is_exclusive_lock(node: ast.Call) -> bool:
    """Whether `flock(file, LOCK_EX | LOCK_NB)` takes: the kernel gives it back with the process."""
    return any(isinstance(one, ast.Attribute) and one.attr == "LOCK_EX" for one in walk(node))


def _text(node: ast.Call) -> str:
    return " ".join(
        one.value
        for one in walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


def _text_of_module(scope: Scope) -> str:
    return ast.unparse(scope.module.node) if isinstance(scope.module.node, ast.Module) else ""


def _imports(scope: Scope) -> str:
    return " ".join(
        found.module
        for inner in scope.module.all_inner()
        for several in inner.imports.values()
        for found in several
    )
