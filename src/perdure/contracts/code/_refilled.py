"""Sessions in memory that a project fills again from what it keeps elsewhere.

ADK's runner appends events by itself. A project that appends them with its own hands brings a
conversation back: whether all of it, and whether from a place that stays, nobody can say here.
"""

import ast

from msgspec.structs import replace

from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import evidence
from perdure.contracts.code._scopes import Scope
from perdure.contracts.code.facts import Medium, Role, Site

_IN_MEMORY = frozenset({"InMemorySessionService", "InMemoryRunner"})


def with_refilled(flow: Flow, sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Return the sites; of sessions in memory that are filled again it is open what they hold."""
    if not any(_is_in_memory(one) for one in sites):
        return sites
    filled = next((one for one in flow.program.live if _appends(one)), None)
    if filled is None:
        return sites
    step = evidence(filled, filled.line, "puts events into a session by hand")
    return tuple(
        replace(one, is_served=None, evidence=(*one.evidence, step)) if _is_in_memory(one) else one
        for one in sites
    )


def _is_in_memory(site: Site) -> bool:
    is_session = site.role is Role.HISTORY and site.medium is Medium.MEMORY
    return is_session and site.class_name in _IN_MEMORY


def _appends(scope: Scope) -> bool:
    """Whether a function appends, to a session or its events, events that it makes itself."""
    makes = any(
        isinstance(one.node.func, ast.Name) and one.node.func.id == "Event" for one in scope.calls
    )
    return makes and any(_is_of_events(one.node.func) for one in scope.calls)


def _is_of_events(func: ast.expr) -> bool:
    if not isinstance(func, ast.Attribute):
        return False
    is_list = isinstance(func.value, ast.Attribute) and func.value.attr == "events"
    return func.attr == "append_event" or (is_list and func.attr in {"append", "extend"})
