"""What a program only hands to the workers of a queue: it is executed in another service.

    @celery_app.task
    def answer(question): return graph().invoke(question)

    @app.post("/")
    def ask(question): answer.delay(question)

The API of this program makes no graph. A worker is told by its command, or by what it calls.
"""

import ast

from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._meanings import External, Variable
from perdure.contracts.code._order import Order, begins
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import MAIN, Scope, children, last_name, of_scope
from perdure.contracts.code._startup import is_route
from perdure.contracts.deployment.facts import Service

_QUEUES = ("celery", "dramatiq", "huey", "taskiq", "procrastinate")
_WORKERS = frozenset({"celery", "rq", "rqworker", "dramatiq", "huey_consumer", "huey_consumer.py",
                      "taskiq", "procrastinate", "arq"})  # fmt: skip
_WORKS = frozenset({"worker_main", "run_worker", "run_worker_async", "work"})
_TASKS = frozenset({"task", "shared_task", "actor", "periodic_task", "db_task"})
_LISTS = frozenset({"include", "imports"})
_AT_ONCE = frozenset({
    "task_always_eager", "CELERY_TASK_ALWAYS_EAGER", "CELERY_ALWAYS_EAGER", "always_eager",
    "immediate", "InMemoryBroker", "StubBroker", "MemoryHuey", "InMemoryConnector",
})  # fmt: skip
_QUEUES_IT = frozenset({
    "delay", "apply_async", "send", "send_with_options", "kiq", "s", "si", "signature", "subtask",
    "delay_on_commit", "apply_async_on_commit", "defer", "defer_async", "configure", "schedule",
    "kicker", "message", "message_with_options", "map", "starmap", "chunks", "name",
})  # fmt: skip
"""What a task is asked for that leaves it to the workers; all else may execute it where it is."""
_STARTS = frozenset({"start"})
_COMMANDS = frozenset({"Popen", "run", "call", "check_call", "execvp", "system"})


class _Queued(Order):
    """Says of functions whether only tasks of a queue use them."""

    def _of(self, scope: Scope) -> bool | None:
        if scope.kind == "function" and is_task(self.flow, scope):
            return True if self._is_only_queued(scope) else None
        if scope.kind == "module":
            importers = self.flow.program.importers.get(scope.path, ())
            if importers and all(one is not None and self.is_later(one) for one in importers):
                return True
        if scope.kind != "function" or scope.name == MAIN or is_route(scope) or begins(scope):
            return False
        return super()._of(scope)

    def _is_only_queued(self, scope: Scope) -> bool:
        """Whether nothing but workers may execute a task: it is called nowhere, nor handed on."""
        name = scope.name.rpartition(".")[2]
        mentioning = self._mentioning(name)
        if len(mentioning) > limits.MENTIONS_MAX:
            return False
        for where in mentioning:
            if where is scope or not self._may_mean(where, name, scope):
                continue
            if any(self._executes(where, one, scope) for one in _uses(where, name)):
                return False
        return True

    def _executes(self, where: Scope, use: tuple[ast.expr, ast.AST | None], scope: Scope) -> bool:
        """Whether a use of a task is more than to leave it to the workers."""
        node, around = use
        meaning = self.flow.program.meaning(where, node)
        if meaning is not None and meaning is not scope:
            return False
        if isinstance(around, ast.Attribute):
            return around.attr not in _QUEUES_IT
        is_called = isinstance(around, ast.Call) and around.func is node
        if is_called and _is_of_huey(self.flow, scope):
            return False
        return self.is_later(where) is not True

    def _means(self, where: Scope, func: ast.expr, target: Scope | None) -> bool | None:
        """Go by names alone: whatever else may call it keeps it in this program."""
        meaning = self.flow.program.meaning(where, func)
        return meaning is target if meaning is not None else None

    def _handed(self, where: Scope, name: str) -> bool | None:
        del name  # whoever gets it calls it in the same process
        return self.is_later(where)


def _uses(where: Scope, name: str) -> list[tuple[ast.expr, ast.AST | None]]:
    """Return where a scope names something, each with what it is the value or function of."""
    found: list[tuple[ast.expr, ast.AST | None]] = []
    body = getattr(where.node, "body", ())
    pending: list[tuple[ast.AST, ast.AST | None]] = [(one, None) for one in body]
    while pending:
        node, around = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending += [(one, None) for one in node.decorator_list]
            continue  # what is in it is another scope's
        match node:
            case ast.Name(id=said, ctx=ast.Load()) | ast.Attribute(attr=said, ctx=ast.Load()):
                found += [(node, around)] if said == name else []
        pending += [(child, node) for child in children(node)]
    return found


def _is_of_huey(flow: Flow, scope: Scope) -> bool:
    """Whether a call of a task only queues it, as it does of Huey's."""
    for decorator in getattr(scope.node, "decorator_list", ()):
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if last_name(named) in _TASKS and _is_of_queue(flow, scope.parent or scope, named, "huey"):
            return True
    return False


def leave_to_workers(flow: Flow) -> None:
    """Leave out of a program what only the workers of its queue execute."""
    program = flow.program
    tasks = [one for one in program.live if one.kind == "function" and is_task(flow, one)]
    is_of_queue = starts_worker(flow.environment.service) or is_worker(program)
    if not tasks or is_of_queue or _is_at_once(flow):
        return
    queued = _Queued(flow)
    program.live = [one for one in program.live if queued.is_later(one) is not True]


def modules_of_tasks(program: Program) -> list[str]:
    """Return the modules that the workers of a queue are told to import: `include=[...]`."""
    found: list[str] = []
    for scope in program.live:
        for call in scope.calls:
            for one in call.node.keywords:
                found += _texts(one.value) if one.arg in _LISTS else []
            if call.name == "autodiscover_tasks":
                related = [one.value for one in call.node.keywords if one.arg == "related_name"]
                names = [text for one in related for text in _texts(one)] or ["tasks"]
                listed = [text for one in call.node.args[:1] for text in _texts(one)]
                found += [f"{package}.{name}" for package in listed for name in names]
        for assign in scope.attributes:
            found += _texts(assign.value) if last_name(assign.target) in _LISTS else []
    paths = [program.layout.module(name) for name in dict.fromkeys(found)]
    return [path for path in paths if path is not None and path.endswith(".py")]


def _texts(node: ast.expr | None) -> list[str]:
    parts = node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]
    return [
        one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def is_worker(program: Program) -> bool:
    """Whether a program is started as a worker, by its command or by what it calls."""
    return "worker" in program.words or any(_has_worker(scope) for scope in program.live)


@of_scope
def _has_worker(scope: Scope) -> bool:
    return any(_works(call.node) for call in scope.calls)


def _works(node: ast.Call) -> bool:
    """Whether a call starts a worker: as a method, or with the words of its command."""
    name = last_name(node.func)
    if not isinstance(node.func, ast.Attribute):
        return name in {"Popen", "execvp"} and _says_worker(node)
    return name in _WORKS or name in {"Worker", "WorkController"} or _says_worker(node)


def _says_worker(node: ast.Call) -> bool:
    """Whether an argument has the words of the command of a worker."""
    for given in (*node.args, *(one.value for one in node.keywords)):
        words = [word for text in _texts(given) for word in text.split()]
        is_of_queue = not _WORKERS.isdisjoint(words) or last_name(node.func) in _STARTS
        if "worker" in words and is_of_queue:
            return True
        if not _WORKERS.isdisjoint(words) and last_name(node.func) in _COMMANDS:
            return True
    return False


def is_task(flow: Flow, scope: Scope) -> bool:
    """Whether a decorator makes a function a task of a queue with workers of its own."""
    for decorator in getattr(scope.node, "decorator_list", ()):
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if last_name(named) in _TASKS and _is_of_queue(flow, scope.parent or scope, named):
            return True
    return False


def _is_of_queue(
    flow: Flow, scope: Scope, named: ast.expr, of: str | tuple[str, ...] = _QUEUES
) -> bool:
    meaning = flow.program.meaning(scope, named)
    if isinstance(meaning, External):
        return meaning.name.startswith(of)
    if not isinstance(named, ast.Attribute):
        return False
    owner = flow.program.meaning(scope, named.value)
    if not isinstance(owner, Variable):
        return False
    for assign in owner.scope.assigns.get(owner.name, ()):
        if isinstance(assign.value, ast.Call):
            made = flow.program.meaning(owner.scope, assign.value.func)
            inner = (
                [(made, call.node.func) for call in made.calls] if isinstance(made, Scope) else []
            )
            meanings = [made, *(flow.program.meaning(where, func) for where, func in inner)]
            if any(isinstance(one, External) and one.name.startswith(of) for one in meanings):
                return True
    return False


def starts_worker(service: Service) -> bool:
    """Whether a command of a service names the worker of a queue."""
    start = service.start
    processes = start.processes if start is not None else ()
    if any(one.program in _WORKERS for one in processes):
        return True
    server = start.server if start is not None else None
    return server is not None and bool(_WORKERS.intersection(server.argv))


def _is_at_once(flow: Flow) -> bool:
    """Whether a setting may let tasks run where they are called."""
    for scope in flow.program.live:
        names = scope.names | scope.attribute_names | set(scope.assigns)
        names |= {last_name(one.target) for one in scope.attributes}
        given = {one.arg for call in scope.calls for one in call.node.keywords}
        if not _AT_ONCE.isdisjoint(names | given):
            return True
    program = flow.program
    modules = (one for one in program.live if one.kind == "module")
    return any(_says_at_once(one.node) for one in modules) or any(
        any(name in (program.modules.project.read(path) or "") for name in _AT_ONCE)
        for path in _settings_of(program)
    )


def _says_at_once(module: ast.AST) -> bool:
    """Whether a text of a module is the name of such a setting: `conf["task_always_eager"]`."""
    pending = [module]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in _AT_ONCE:
                return True
        else:
            pending += children(node)
    return False


def _settings_of(program: Program) -> list[str]:
    """Return the modules that a queue is told to take its settings from."""
    texts = [
        text.partition(":")[0]
        for _scope, call in program.calls_of("config_from_object")
        for given in call.node.args[:1]
        for text in _texts(given)
    ]
    paths = [program.layout.module(text) for text in texts]
    return [path for path in paths if path is not None and path.endswith(".py")]
