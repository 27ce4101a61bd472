"""Dicts in which conversations go when a client of Redis or another store is not there.

The shape is a function that writes to a client and, where there is none or it fails, to a dict of
the process. Which of them is used is what the client is: its settings say whether one is made. A
failure that is swallowed on the way is a silent change to the memory of the process.
"""

import ast

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import Call, GuardKind, Scope, Try, last_name
from perdure.contracts.code._sites import Sites
from perdure.contracts.code._swallowed import exits, raises
from perdure.contracts.code._values import Decision, Kind, Leaf
from perdure.contracts.code.facts import Degrade, Medium, Role, Site
from perdure.contracts.deployment.facts import Root
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.findings import RootKind

_WRITES = {"set", "setex", "hset", "hmset", "rpush", "lpush", "psetex", "zadd", "xadd", "setnx"}


_HERE = {"localhost", "127.0.0.1", "redis://localhost:6379", "redis://localhost:6379/0"}


class Beside(Struct):
    """What a dict stands in for."""

    sites: tuple[Site, ...]
    degrades: tuple[Degrade, ...] = ()


def beside(flow: Flow, sites: Sites, site: Site, written: tuple[Scope, int]) -> Beside | None:
    """Return what a dict stands in for, and whether it does here; `None` if for nothing.

    Args:
        flow: the evaluation.
        sites: where clients are.
        site: the dict, as if it were all that there is.
        written: the function that puts conversations into it, and the line.
    """
    scope, line = written
    for call in scope.calls:
        func = call.node.func
        if not isinstance(func, ast.Attribute) or func.attr not in _WRITES:
            continue
        made = [
            leaf
            for leaf in flow.leaves(func.value, flow.frame(scope))
            if leaf.kind is Kind.RESOURCE and _is_redis(flow, leaf)
        ]
        if made:
            return _judged(flow, sites, site, (scope, line, call), made[0])
    return None


def _is_redis(flow: Flow, leaf: Leaf) -> bool:
    """Whether a connection was made by a library of Redis."""
    call = leaf.value.node
    if call is None:
        return False
    meaning = flow.program.meaning(leaf.value.frame.scope, call.func)
    return "redis" in getattr(meaning, "name", "").lower()


def _judged(
    flow: Flow, sites: Sites, site: Site, used: tuple[Scope, int, Call], leaf: Leaf
) -> Beside:
    scope, line, call = used
    tests = [one for one in leaf.conditions if one[1].kind is not GuardKind.HANDLER]
    decision = flow.decide(tests)
    if decision.is_met is None and not decision.settings:
        decision = Decision(is_met=True, confidence=decision.confidence)
    away = _not_reached(flow, leaf)
    if away is not None and decision.is_met is not False:
        decision = Decision(is_met=False, evidence=(away,))
    where = leaf.value.frame.scope
    location = sites.located(leaf.value.location, leaf.value.frame) if leaf.value.location else None
    client = Site(
        role=Role.HISTORY,
        medium=Medium.REDIS,
        evidence=(
            *flow.program.way_to(scope.path)[-2:],
            evidence(where, leaf.value.node.lineno, "makes a client of Redis"),
            evidence(scope, call.node.lineno, "keeps a conversation in keys of Redis"),
        ),
        class_name="its own keys of Redis",
        location=location,
        chosen=_known(decision),
        survives_process=True,
    )
    instead = replace(site, chosen=_known(_opposite(decision)))
    degrades: tuple[Degrade, ...] = ()
    swallowed = _swallowed(scope, call.node.lineno) or _swallowed(where, leaf.value.node.lineno)
    if swallowed is not None and (away is not None or decision.is_met is not False):
        told = Degrade(
            evidence=(
                *client.evidence,
                swallowed,
                evidence(scope, line, "goes on with a dict of the process"),
            ),
            becomes=Medium.MEMORY,
            when=_known(decision if away is None else Decision(is_met=True, evidence=(away,))),
            cause="failed",
        )
        degrades = (told,)
    return Beside((client, instead), degrades)


def _not_reached(flow: Flow, leaf: Leaf) -> Evidence | None:
    """Return where a client asks this container by a fixed name, and Redis is in another one."""
    node, frame = leaf.value.node, leaf.value.frame
    given = next((one.value for one in node.keywords if one.arg == "host"), None)
    given = given or (node.args[0] if node.args else None)
    host = flow.only(given, frame) if given is not None else None
    if host is None or host.settings or host.value not in _HERE:
        return None
    said = flow.program.modules.project.read(flow.environment.service.place.file) or ""
    if flow.environment.root.kind is RootKind.KUBERNETES or "network_mode" in said:
        return None  # it may share the network of another container
    if not has_redis(flow.environment.root):
        return None
    note = f"asks {host.value}, which is this container; Redis is in another one"
    return evidence(frame.scope, node.lineno, note)


def has_redis(root: Root) -> bool:
    """Whether a deployment starts a Redis of its own."""
    return any("redis" in (one.image.catalog or "").lower() for one in root.services)


def _known(decision: Decision) -> Known[bool]:
    return Known(
        value=decision.is_met,
        evidence=tuple(one for one in decision.evidence if one.note),
        confidence=decision.confidence,
        question=decision.question if decision.is_met is None else None,
        assumed=decision.assumed,
    )


def _opposite(decision: Decision) -> Decision:
    is_met = None if decision.is_met is None else not decision.is_met
    return replace(decision, is_met=is_met)


def _swallowed(scope: Scope, line: int) -> Evidence | None:
    """Return the handler around a line that neither raises nor leaves with an error."""
    for attempt in reversed(scope.tries):
        if _is_within(attempt, line):
            for handler in attempt.node.handlers:
                caught = "everything" if handler.type is None else ast.unparse(handler.type)
                is_import = last_name(handler.type or ast.Name(id="")) in {
                    "ImportError",
                    "ModuleNotFoundError",
                }
                if not raises(handler) and not exits(handler) and not is_import:
                    return evidence(scope, handler.lineno, f"swallows {caught[:60]}")
    return None


def _is_within(attempt: Try, line: int) -> bool:
    body = attempt.node.body
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)
