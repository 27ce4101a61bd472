"""A store of conversations in memory that is made where the durable one could not be.

    try:
        store = RedisStore(url)
    except Exception as error:
        log(error)
        store = MemoryStore()

Each is a class of the project's own: the handler is a silent change to the memory of the process.
"""

import ast
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._kept import Kept, makers_of
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import Call, GuardKind, Scope, Try, last_name
from perdure.contracts.code._swallowed import exits
from perdure.contracts.code.facts import Degrade, Medium, Site
from perdure.contracts.evidence import Confidence, Known

_IMPORTS = {"ImportError", "ModuleNotFoundError"}


class Instead(Struct, frozen=True):
    """What stands in for a durable store, and how that is come to."""

    degrade: Degrade
    chosen: Known[bool]


def instead_of(flow: Flow, kept: Kept, durable: Iterable[Site]) -> Instead | None:
    """Return what a dict stands in for, if it is only made where making that one has failed."""
    if kept.owner is None:
        return None
    for where, call in makers_of(flow, kept.owner):
        found = _handler(where, call)
        if found is None:
            continue
        attempt, handler = found
        for made in _made_in(flow, where, attempt):
            site = next((one for one in durable if _is_kept_in(one, made)), None)
            if site is None:
                continue
            caught = "everything" if handler.type is None else ast.unparse(handler.type)[:60]
            swallowed = evidence(where, handler.lineno, f"swallows {caught}")
            ends = evidence(where, call.node.lineno, f"goes on with {last_name(call.node.func)}")
            when = flow.under(where, attempt.guards)
            told = Known(
                value=when.is_met,
                confidence=when.confidence,
                question=when.question,
                assumed=when.assumed,
            )
            is_open = when.is_met is None and not when.settings
            degrade = Degrade(
                evidence=(*site.evidence, swallowed, ends),
                becomes=Medium.MEMORY,
                when=Known(value=True, confidence=Confidence.INFERRED) if is_open else told,
                cause="failed",
            )
            return Instead(degrade, Known(value=False, evidence=(swallowed,)))
    return None


def _handler(where: Scope, call: Call) -> tuple[Try, ast.ExceptHandler] | None:
    """Return the handler that a call stands in, with its `try`, unless it ends the start."""
    line = next((one.line for one in call.guards if one.kind is GuardKind.HANDLER), None)
    for attempt in where.tries if line is not None else ():
        for handler in attempt.node.handlers:
            is_import = last_name(handler.type or ast.Name(id="")) in _IMPORTS
            if handler.lineno == line and not is_import and not exits(handler):
                return attempt, handler
    return None


def _made_in(flow: Flow, where: Scope, attempt: Try) -> list[Scope]:
    """Return the classes whose objects a `try` makes."""
    body = attempt.node.body
    first, last = body[0].lineno, body[-1].end_lineno or 0
    meanings = [
        flow.program.meaning(where, call.node.func)
        for call in where.calls
        if first <= call.node.lineno <= last
    ]
    return [one for one in meanings if isinstance(one, Scope) and one.kind == "class"]


def _is_kept_in(site: Site, owner: Scope) -> bool:
    """Whether a class is what keeps conversations in a place of state."""
    last = getattr(owner.node, "end_lineno", 0) or 0
    return any(
        step.file == owner.path
        and owner.line <= step.line <= last
        and step.note.startswith("keeps a conversation")
        for step in site.evidence
    )


def with_instead(flow: Flow, kept: Kept, durable: Iterable[Site]) -> tuple[Kept, list[Degrade]]:
    """Return a dict as what it is beside the store that it stands in for."""
    found = instead_of(flow, kept, durable)
    if found is None:
        return kept, []
    return replace(kept, chosen=found.chosen), [found.degrade]
