"""What only execution can judge, as far as it can be seen: effects, streams, concurrency."""

import ast
import re
from collections.abc import Iterator

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import dotted, evidence, keyword
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._values import Kind
from perdure.contracts.code.facts import Hint

_EFFECTS = {"post", "put", "patch", "delete", "send_message", "send_email", "chat_postMessage",
            "sendmail", "publish", "create_charge", "charge"}  # fmt: skip
_CLIENTS = regex(r"requests|httpx|client|session|http|smtp|stripe|twilio|slack", re.IGNORECASE)
_LAST_ID = {"last-event-id", "Last-Event-ID", "last_event_id", "Last-Event-Id"}
_OF_FILES = regex(
    r"(?i)content-disposition|^attachment\b|^(image|audio|video)/|^text/csv|"
    r"^application/(octet-stream|pdf|zip|gzip|vnd\.|msword|x-tar)"
)
"""A response in pieces that is a file, which a client gets again from its begin."""
_LIMITS = {"N_JOBS_PER_WORKER", "limit_concurrency", "max_concurrency", "max_jobs"}


def hints_of(flow: Flow) -> tuple[Hint, ...]:
    """Collect the hints of the reachable code."""
    found: list[Hint] = []
    for scope in flow.program.live:
        found.extend(_effects(flow, scope))
        found.extend(_streams(scope))
        found.extend(_concurrency(flow, scope))
    return tuple(found[: limits.UNREACHABLE_MAX])


def _effects(flow: Flow, scope: Scope) -> Iterator[Hint]:
    """Find an act on the outside before a pause: the step is executed again from its start."""
    pauses = [
        call.node.lineno
        for call in scope.called_as(("interrupt",))
        if dotted(flow, scope, call).startswith("langgraph")
    ]
    is_tool = any(last_name(one) == "tool" for one in getattr(scope.node, "decorator_list", ()))
    for call in scope.called_as(_EFFECTS):
        if not _is_effect(call):
            continue
        line = call.node.lineno
        if pauses and line < max(pauses):
            text = "an effect before a pause happens again when the run goes on"
            yield Hint(contract="R6", text=text, evidence=(evidence(scope, line, "acts outside"),))
        elif is_tool and not _has_key(scope):
            text = "an effect without an idempotency key happens again when its step is repeated"
            yield Hint(contract="R6", text=text, evidence=(evidence(scope, line, "acts outside"),))


def _is_effect(call: Call) -> bool:
    func = call.node.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr in _EFFECTS
        and bool(_CLIENTS.search(ast.unparse(func.value)))
    )


def _has_key(scope: Scope) -> bool:
    return "idempotency" in ast.unparse(scope.node).lower()


def _streams(scope: Scope) -> Iterator[Hint]:
    for call in scope.called_as(("EventSourceResponse", "StreamingResponse")):
        name = call.name
        if name == "EventSourceResponse" or (name == "StreamingResponse" and not _is_file(call)):
            if any(_LAST_ID & one.words.keys() for one in scope.module.all_inner()):
                continue
            if "last_event_id" in {parameter.arg for parameter in scope.parameters}:
                continue
            step = evidence(scope, call.node.lineno, "streams events without ids to go on from")
            text = "a client that reconnects after a redeploy cannot go on where it was"
            yield Hint(contract="C2", text=text, evidence=(step,))


def _is_file(call: Call) -> bool:
    return any(
        isinstance(each, ast.Constant)
        and isinstance(each.value, str)
        and _OF_FILES.search(each.value) is not None
        for each in walk(call.node)
    )


def _concurrency(flow: Flow, scope: Scope) -> Iterator[Hint]:
    for call in scope.passing(*_LIMITS):
        for name in _LIMITS:
            given = keyword(call.node, name)
            if given is None:
                continue
            leaf = flow.only(given, flow.frame(scope))
            if leaf is not None and leaf.kind is Kind.CONST and isinstance(leaf.value, int):
                step = evidence(scope, call.node.lineno, f"{name} is {leaf.value}")
                yield Hint(contract="R8", text=str(leaf.value), evidence=(step,))
