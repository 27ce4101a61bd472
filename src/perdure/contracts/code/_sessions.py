"""Sessions that other frameworks keep: what a runner or an agent is given to keep them in."""

import ast
from collections.abc import Iterator

from perdure.contracts.code._chosen import Sink
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Call, Scope
from perdure.contracts.code.facts import Medium, Role

FRAMEWORKS = ("google.adk", "agno", "phi", "strands", "llama_index", "agents")
_GIVEN = {"session_service", "session_manager", "db", "storage", "session", "chat_store"}
_WITH_HISTORY = "RunnableWithMessageHistory"

PLACES: dict[str, tuple[tuple[str, ...], int | None, str | None]] = {
    "DatabaseSessionService": (("db_url",), 0, None),
    "SQLiteSession": (("db_path",), 1, ":memory:"),
    "AdvancedSQLiteSession": (("db_path",), 1, ":memory:"),
    "SQLChatMessageHistory": (("connection", "connection_string"), 1, None),
    "FileChatMessageHistory": (("file_path",), 0, None),
    "FileSessionManager": (("storage_dir",), None, None),
    "SqliteDb": (("db_file", "db_url"), None, None),
    "SqliteStorage": (("db_file", "db_url"), None, None),
    "SqliteAgentStorage": (("db_file", "db_url"), None, None),
    "PostgresDb": (("db_url",), 0, None),
    "PostgresStorage": (("db_url",), None, None),
    "PostgresAgentStorage": (("db_url",), None, None),
}
"""By class: the parameters that say where it is, which one by position, and what it is else."""

BY_URL = {"DatabaseSessionService", "SQLChatMessageHistory"}
"""Classes whose URL says what kind of database it is."""


def medium_of(location: str) -> Medium:
    """Return what kind of database a URL names."""
    if location.startswith("sqlite"):
        return Medium.FILE
    return Medium.POSTGRES if location.startswith("postgres") else Medium.NETWORK


def session_sinks(program: Program) -> Iterator[Sink]:
    """Find the runners and agents of other frameworks that are given where sessions are."""
    for scope, call in program.calls_of(_WITH_HISTORY):
        given = next(
            (one.value for one in call.node.keywords if one.arg == "get_session_history"),
            call.node.args[1] if len(call.node.args) > 1 else None,
        )
        if given is not None:
            made = ast.copy_location(ast.Call(func=given, args=[], keywords=[]), call.node)
            yield _sink(scope, call, made)
    if not _uses_frameworks(program):
        return
    for scope in program.live:
        for call in scope.passing(*_GIVEN):
            for keyword in call.node.keywords:
                if keyword.arg in _GIVEN:
                    yield _sink(scope, call, keyword.value)


def _sink(scope: Scope, call: Call, value: ast.expr) -> Sink:
    return Sink(
        scope=scope,
        line=call.node.lineno,
        role=Role.HISTORY,
        value=value,
        guards=call.guards,
        maker=call.name,
    )


def _uses_frameworks(program: Program) -> bool:
    named = {
        found.module
        for scope in program.live
        for several in scope.imports.values()
        for found in several
        if not found.level
    }
    used = [one for one in FRAMEWORKS if any(f"{name}.".startswith(f"{one}.") for name in named)]
    return any(program.layout.module(one) is None for one in used)
