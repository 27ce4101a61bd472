"""Programs that wait for ever and in which nothing handles SIGTERM, as far as all they import goes.

Python ignores what process 1 gets without a handler. Libraries install handlers where they serve:
`run_polling` of python-telegram-bot, `aiohttp.web.run_app`, uvicorn, hypercorn, celery, arq, rq,
aiogram, discord.py's older releases, FastMCP. So only what uses libraries that are known not to is
said to have none; one that is not known leaves it open.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cached_property

from perdure.contracts._loops import Loops
from perdure.contracts.code import limits
from perdure.contracts.code._entries import own_nodes
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._meanings import External
from perdure.contracts.code._scopes import MAIN, Scope, last_name, walk
from perdure.contracts.code._walks import led_to
from perdure.contracts.deployment._room import is_customized
from perdure.contracts.evidence import Evidence

_QUIET = frozenset({
    "aio_pika", "aiofiles", "aiohttp", "aiokafka", "aiosqlite", "alembic", "annotated_types",
    "anthropic", "asyncpg", "attr", "attrs", "bcrypt", "boto3", "botocore", "bs4", "cachetools",
    "certifi", "chardet", "cohere", "colorama", "cryptography", "dateparser", "dateutil",
    "decouple", "dotenv", "emoji", "environs", "google", "groq", "httpx", "humanize", "jinja2",
    "jsonschema", "jwt", "langchain", "langchain_anthropic", "langchain_aws", "langchain_classic",
    "langchain_community", "langchain_core", "langchain_deepseek", "langchain_google_genai",
    "langchain_groq", "langchain_mistralai", "langchain_mongodb", "langchain_ollama",
    "langchain_openai", "langchain_postgres", "langchain_redis", "langchain_tavily",
    "langchain_text_splitters", "langfuse", "langgraph", "langmem", "langsmith", "loguru", "lxml",
    "markdown", "markdownify", "matplotlib", "mistralai", "motor", "msgspec", "nats", "numpy",
    "ollama", "openai", "opentelemetry", "orjson", "paho", "pandas", "pgvector", "pika", "PIL",
    "pinecone", "prometheus_client", "psutil", "psycopg", "psycopg2", "psycopg_pool", "pydantic",
    "pydantic_ai", "pydantic_graph", "pydantic_settings", "pymongo", "pymysql", "pypdf", "pytz",
    "qdrant_client", "redis", "regex", "requests", "rich",
    "slugify", "sqlalchemy", "sqlmodel", "structlog", "supabase", "tabulate", "tavily",
    "telegram", "telegramify_markdown", "tenacity", "tiktoken", "tqdm",
    "typing_extensions", "tzlocal", "ujson", "urllib3", "websockets", "yaml", "zoneinfo",
})  # fmt: skip
"""Packages that install no handler unless one of `_INSTALLS` is called."""

_SERVES = ("google.adk",)
"""Parts of quiet packages that serve."""

_INSTALLS = frozenset({
    "run_polling", "run_webhook", "run_app", "run_until_disconnected", "idle", "serve",
    "add_signal_handler", "open_signal_receiver", "signal", "sigwait", "set_wakeup_fd",
})  # fmt: skip
"""Calls that install handlers, or that ask for them."""

_IMPORTS = frozenset({
    "import_module", "run_path", "run_module", "exec_module", "load_module", "iter_modules",
    "walk_packages",
})  # fmt: skip
"""Calls that execute modules by name."""

_WAITS = frozenset({
    "run_forever", "start_consuming", "serve_forever", "loop_forever",
    "listen_forever",
})  # fmt: skip


def unhandled(flow: Flow) -> tuple[Evidence, ...]:
    """Return how a program starts and where it waits for ever, if it surely handles no SIGTERM."""
    program = flow.program
    if program.is_cut or any(path in program.modules.newer for path in program.reached):
        return ()
    for scope in program.live:
        if any(not _is_quiet(flow, name) for name in _imported(scope)):
            return ()
        if any(call.name in _INSTALLS for call in scope.calls):
            return ()
        if any(_may_run_others(one.node) for one in scope.calls):
            return ()
    if flow.environment.service.environment.get("PYTHONPATH") is not None:
        return ()  # sitecustomize, usercustomize, other modules of the same name
    if any("fork" in scope.called for scope in program.live) or _is_customized(flow):
        return ()
    modules = _Modules(flow)
    waits = next((step for scope in program.live for step in _waiting(flow, scope, modules)), None)
    waits = waits or next(_looping(flow, modules), None)
    if waits is None:
        return ()
    begun = [
        evidence(scope, call.node.lineno, "starts it, with no handler for SIGTERM")
        for scope in program.live
        if scope.name == MAIN or scope.kind == "module"
        for call in scope.calls
        if _runs(flow, scope, call.node)
    ]
    return (*begun[:1], waits)


def _imported(scope: Scope) -> Iterator[str]:
    for found in (*scope.stars, *(one for several in scope.imports.values() for one in several)):
        if not found.level:
            yield found.module


def _is_quiet(flow: Flow, module: str) -> bool:
    top = module.partition(".")[0]
    if top == "signal" or module.startswith(_SERVES):
        return False
    is_known = top in _QUIET or top in sys.stdlib_module_names
    return is_known or flow.program.layout.module(module) is not None


def _may_run_others(node: ast.Call) -> bool:
    """Whether a call may execute code that is not followed, or asks for handlers."""
    name = last_name(node.func)
    if isinstance(node.func, ast.Name) and name in {"exec", "eval", "__import__"}:
        return True
    asks = any(one.arg == "handle_signals" for one in node.keywords)
    return asks or name in _IMPORTS


def _is_customized(flow: Flow) -> bool:
    """Whether Python executes something else before the program, as the project says."""
    dockerfile = flow.environment.service.image.dockerfile or ""
    return is_customized(flow.program.layout.files.project, dockerfile=dockerfile)


class _Modules:
    """The loops of the modules that a program executes."""

    def __init__(self, flow: Flow) -> None:
        self._read: dict[int, Loops] = {}
        self._flow = flow

    def of(self, scope: Scope) -> Loops:
        node = scope.module.node
        if id(node) not in self._read:
            self._read[id(node)] = Loops(node)
        return self._read[id(node)]

    @cached_property
    def _all(self) -> list[Loops]:
        return [self.of(one) for one in self._flow.program.live if one.kind == "module"]

    @cached_property
    def handed(self) -> set[str]:
        """Functions that others execute, or that are left early."""
        return {name for one in self._all for name in one.handed}

    @cached_property
    def exiting(self) -> set[str]:
        """Functions that may end the program."""
        found: set[str] = set()
        for _ in range(limits.DYNAMIC_DEPTH_MAX):
            before = len(found)
            for one in self._all:
                found = one.exiting(found)
            if len(found) == before:
                break
        return found


_ENDED_BY = {
    "run_forever": "stop", "serve_forever": "shutdown", "start_consuming": "stop_consuming",
    "loop_forever": "disconnect",
}  # fmt: skip


def _waiting(flow: Flow, scope: Scope, modules: _Modules) -> Iterator[Evidence]:
    body = getattr(scope.node, "body", ())
    left = next((one.lineno for one in body if isinstance(one, ast.Return | ast.Raise)), None)
    for call in scope.calls:
        if left is not None and call.node.lineno > left:
            continue  # behind a plain return
        func = call.node.func
        name = last_name(func)
        is_event = (
            name == "wait" and isinstance(func, ast.Attribute) and last_name(func.value) == "Event"
        )
        is_bounded = bool(call.node.args or call.node.keywords) and is_event
        if (name not in _WAITS and not is_event) or is_bounded:
            continue
        read = modules.of(scope)
        if id(call.node) in read.early or not read.is_plain(scope.node):
            continue
        if scope.name in modules.handed or _ENDED_BY.get(name) in modules.handed:
            continue
        if flow.under(scope, call.guards).is_met is True:
            yield evidence(scope, call.node.lineno, f"{name} waits for ever")


def _looping(flow: Flow, modules: _Modules) -> Iterator[Evidence]:
    """Find loops without an end in what the program itself executes, and hands to nobody."""
    program = flow.program
    begin = [
        one
        for one in program.live
        if one.name == MAIN
        or (one.kind == "module" and None in program.importers.get(one.path, ()))
    ]

    def executed(scope: Scope) -> Iterator[Scope]:
        read = modules.of(scope)
        for call in scope.calls:
            meaning = program.meaning(scope, call.node.func)
            if isinstance(meaning, Scope) and read.executes(call.node, meaning.node):
                yield meaning

    depth, most = limits.DYNAMIC_DEPTH_MAX, limits.SCOPES_MAX
    for scope in led_to(begin, executed, steps=depth, most=most):
        if not any(isinstance(node, ast.While) for node in own_nodes(scope)):
            continue
        endless = {id(loop) for loop in modules.of(scope).endless(modules.exiting, set())}
        inside: set[int] = set()
        loops = [one for one in own_nodes(scope) if isinstance(one, ast.While)]
        for loop in loops[: limits.MENTIONS_MAX]:
            if id(loop) not in endless or id(loop) in inside:
                continue
            inside = {id(node) for node in walk(loop)}
            calls = [one for one in scope.calls if id(one.node) in inside]
            if any(flow.under(scope, one.guards).is_met is True for one in calls):
                yield evidence(scope, loop.lineno, "it loops for ever")


def _runs(flow: Flow, scope: Scope, node: ast.Call) -> bool:
    meaning = flow.program.meaning(scope, node.func)
    return isinstance(meaning, External) and meaning.name in {"asyncio.run", "anyio.run"}
