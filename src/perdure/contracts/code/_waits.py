"""Runs that wait in the memory of the process until another request lets them go on.

    pending = {}                                        # by the id of what was asked

    async def ask(question):                            # a tool, or a step
        answer = pending[question.id] = loop.create_future()
        return await asyncio.wait_for(answer, 600)

    @app.post("/approvals/{id}")
    async def approve(id): pending.pop(id).set_result(True)

Three shapes: an event, future or queue by an id that a run waits for and a request sets; an entry
that a run looks at again and again until a request changes it; and an action that is kept until a
request for its approval takes it. What carries tokens to a client, or says that a run has begun,
is done or is to stop, is none of them: names must tell of a person's say. Only the first is sure,
and only where an agent or model is used at all; the others are a question.

Size: three shapes that share which functions are near a dict, and who calls them.
"""

import ast
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._entries import (
    Item,
    Names,
    awaited,
    by_method,
    is_got,
    made_of,
    own_nodes,
    stored,
)
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._kept import Kept, is_dict, site_of
from perdure.contracts.code._said import (
    Way,
    is_stop_loop,
    loops,
    save_around,
    saves,
    uses_agents,
    verb_of,
)
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._startup import is_route
from perdure.contracts.code._values import Kind, argument
from perdure.contracts.code._walks import led_to
from perdure.contracts.code.facts import Role, Site

_OF_PERSONS = regex(
    r"(?i)approv|confirm|human|permission|decision|decide|feedback|review|clarif|consent|hitl|"
    r"elicit|verdict|reject|question|answer|user_?(input|repl|respon)"
)
_OPEN = regex(r"(?i)pause|resum|pending|interrupt")
"""Names that may tell of a person's say, and of other things."""
_OTHERS = regex(
    r"(?i)cancel|stop|abort|shutdown|kill|terminat|disconnect|done|finish|complete|ready|start|lock|"
    r"cache|limit|stream|token|sse|progress|subscri|listener|client|inflight|batch"
)
_ENDS = regex(
    r"(?i)cancel|stop|abort|shutdown|kill|terminat|disconnect|quit|halt|remov|"
    r"(^|[ _.])(end|exit)([ _.]|$)"
)
_LIBRARIES = ("asyncio", "threading", "anyio", "trio", "queue", "multiprocessing", "concurrent")
_WAITED_ON = {"Event", "Future", "create_future", "Condition", "Queue", "SimpleQueue"}
_SETS = {"set", "set_result", "put", "put_nowait", "notify_all", "send_nowait"}
_WAITS = {"wait", "get"}
_BEGINS = {
    "create_task", "ensure_future", "add_task", "start_soon", "run_coroutine_threadsafe", "submit",
}  # fmt: skip
"""What is handed to these goes on by itself: who hands it on does not execute it."""
_KEPT_FOR = regex(
    r"(?i)(approval|confirmation|permission)s?$|(pending|awaiting|unconfirmed|waiting)_\w*"
    r"(approval|confirm\w*|action|tool|call|plan|order|decision|review|step|command|operation|email|"
    r"interrupt|change)\w*$"
)
_SAYS = regex(r"(?i)approv|confirm|reject|decide|decision|permission|resum")
_APPROVES = regex(r"(?i)approv|reject")
_PLAIN = {"create_task", "ensure_future", "Lock", "Semaphore", "time", "now", "utcnow", "monotonic"}


class Waits:
    """Finds what runs wait for, in one dict after the other."""

    def __init__(self, flow: Flow) -> None:
        """Nothing is asked yet."""
        self.flow = flow
        self._interrupts: bool | None = None
        self._agents: bool | None = None
        self._later: dict[int, set[int]] = {}
        self._ways: dict[int, Way] = {}
        self._known: dict[int, list[tuple[Scope, Call]]] = {}
        self._left = limits.WAITED_LINES_MAX

    def of(self, kept: Kept) -> Site | None:
        """Return the place of runs that wait by what a dict holds; `None` if none do."""
        if not self._uses_agents() or self._is_spent(kept.users):
            return None
        found = self._by_event(kept)
        if found is not None and any(saves(one) for one in kept.users):
            found = replace(found, is_served=None)
        if found is None:
            found = self._by_looking(kept) or self._until_said(kept)
            found = replace(found, is_served=None) if found is not None else None
        return found

    def _uses_agents(self) -> bool:
        if self._agents is None:
            self._agents = uses_agents(self.flow)
        return self._agents

    def _begun(self, scope: Scope) -> set[int]:
        """Return the ids of the calls that a function only hands to what executes them later."""
        if id(scope) not in self._later:
            self._later[id(scope)] = {
                id(given)
                for call in scope.calls
                if call.name in _BEGINS
                for given in call.node.args
            }
        return self._later[id(scope)]

    def _way(self, scope: Scope) -> Way:
        if id(scope) not in self._ways:
            self._ways[id(scope)] = Way(scope, self._callers, self._begun)
        return self._ways[id(scope)]

    def _is_spent(self, scopes: Sequence[Scope]) -> bool:
        """Whether more lines were looked at, dict by dict, than a project is asked about."""
        for one in scopes:
            first = getattr(one.node, "lineno", 0)
            self._left -= 1 + (getattr(one.node, "end_lineno", None) or first) - first
        return self._left <= 0

    # ------------------------------------------------------------------------------- an event

    def _by_event(self, kept: Kept) -> Site | None:
        item = self._item(kept)
        if not item.parts:
            return None
        near = self._near(kept, item)
        names = {id(one): Names(one, kept.name, item, self._given_by(one, kept)) for one in near}
        for one, bound in self._handed(near, names):
            names[id(one)] = Names(one, kept.name, item, bound)
            near.append(one)
        if self._is_spent(near):
            return None
        waits, sets = (
            [(one, *at) for one in near for at in _at(one, names[id(one)], item, verbs)]
            for verbs in (_WAITS, _SETS)
        )
        for scope, line, part in waits:
            for setter, at, other in sets:
                route = self._request(setter) if other == part and setter is not scope else None
                if route is None or self._is_other(kept, item, (scope, setter, route), part):
                    continue
                told = f"{_told(kept, part)} {setter.name} {route.name} {scope.name}"
                is_sure = bool(_OF_PERSONS.search(told)) and not self._is_woken(scope, setter)
                if not _OF_PERSONS.search(told) and (_is_socket(route) or not _OPEN.search(told)):
                    continue  # a call that a client answers, most likely
                site = site_of(
                    self.flow,
                    kept,
                    Role.PAUSED,
                    (scope, line, f"a run waits on what {kept.name} holds"),
                    (setter, at, "another request lets it go on"),
                )
                return site if is_sure else replace(site, is_served=None)
        return None

    def _item(self, kept: Kept) -> Item:
        """Return what entries of a dict are made of."""
        item = Item()
        for scope in kept.users:
            for value in stored(scope, kept.name):
                made_of(self.flow, scope, value, item)
        if kept.makes_items and isinstance(kept.value, ast.Call):
            for given in kept.value.args[:1]:
                called = ast.copy_location(ast.Call(func=given, args=[], keywords=[]), given)
                made_of(self.flow, kept.variable.scope, called, item)
        return item

    def _is_woken(self, waiting: Scope, setter: Scope) -> bool:
        """Whether it may be that only a client waits: a graph that is interrupted keeps its run."""
        waits, sets = self._way(waiting), self._way(setter)
        return (
            self._uses_interrupts()
            or bool(waits.routes)
            or any(_is_socket(one) or verb_of(one) == "get" for one in sets.routes)
            or save_around(self.flow, (waiting, *sets.scopes))
        )

    def _is_other(
        self, kept: Kept, item: Item, scopes: tuple[Scope, Scope, Scope], part: str
    ) -> bool:
        """Whether it is no wait of a run: what is set there ends it, or hands on what it says."""
        waiting, setter, route = scopes
        told = f"{_told(kept, part)} {setter.name.rpartition('.')[2]}"
        if (
            _OTHERS.search(told)
            or _ENDS.search(f"{told} {route.name}")
            or _around(waiting) is _around(route)
        ):
            return True
        waits, sets = self._way(waiting), self._way(setter)
        if waits.meets(sets) or waits.is_polled() or verb_of(route) == "delete":
            return True
        methods = [one for owner in item.owners for one in owner.all_inner()]
        if is_stop_loop(waiting, "") or any(is_stop_loop(one, part) for one in methods if part):
            return True
        is_queue = "Queue" in item.parts[part]
        is_wide = not _OF_PERSONS.search(f"{_told(kept, part)} {route.name}")
        is_taken = waits.is_streamed or waits.is_in_loop or bool(waits.routes)
        return is_queue and (is_wide or is_taken or _takes(waiting))

    def _near(self, kept: Kept, item: Item) -> list[Scope]:
        """Return the functions that may wait or set: users, their callers, methods of entries."""
        found = list(kept.users)
        for user in kept.users:
            found += [one for one, _call in self._callers(user) if one not in found]
            if len(found) > limits.CALLERS_MAX:
                break
        for owner in item.owners:
            found += [
                one
                for one in owner.all_inner()
                if one.kind == "function" and self.flow.program.is_live(one) and one not in found
            ]
        return found

    def _handed(self, near: list[Scope], names: dict[int, Names]) -> list[tuple[Scope, set[str]]]:
        """Return the functions that are handed an entry, with the names that these have for it."""
        found: dict[int, tuple[Scope, set[str]]] = {}
        for scope in near:
            entries = names[id(scope)].entries
            for call in scope.calls if entries else ():
                given = [one.id for one in call.node.args if isinstance(one, ast.Name)]
                if entries.isdisjoint(given):
                    continue
                meaning = self.flow.program.meaning(scope, call.node.func)
                if not isinstance(meaning, Scope) or meaning.kind != "function":
                    continue
                bound = {
                    one.arg
                    for one in meaning.parameters
                    if isinstance(node := argument(call.node, meaning, one.arg), ast.Name)
                    and node.id in entries
                }
                if id(meaning) not in names and bound:
                    found.setdefault(id(meaning), (meaning, set()))[1].update(bound)
        return list(found.values())[: limits.CALLERS_MAX]

    def _given_by(self, scope: Scope, kept: Kept) -> set[str]:
        """Return the names to which a function binds what users of a dict give it."""
        calls = {
            id(call.node)
            for user in kept.users
            if user is not scope and user.results
            for where, call in self._callers(user)
            if where is scope
        }
        if not calls:
            return set()
        return {
            name
            for name, assigns in scope.assigns.items()
            if any(id(awaited(one.value)) in calls for one in assigns)
        }

    def _callers(self, scope: Scope) -> list[tuple[Scope, Call]]:
        """Return the calls of a function; by name alone only of what is named like its class."""
        if id(scope) not in self._known:
            self._known[id(scope)] = self._calls_of(scope)
        return self._known[id(scope)]

    def _calls_of(self, scope: Scope) -> list[tuple[Scope, Call]]:
        owner = scope.owner
        name = owner.name.rpartition(".")[2].lower() if owner is not None else ""
        found = []
        calls = self.flow.callers(scope)
        is_common = len(calls) > limits.MENTIONS_MAX
        for where, call in calls:
            func = call.node.func
            if self.flow.program.meaning(where, func) is None and isinstance(func, ast.Attribute):
                base = last_name(func.value).lower().strip("_")
                if is_common and (not base or base.replace("_", "") != name):
                    continue
                words = {one.rstrip("s") for one in base.split("_")} - {"get", "the", "self", ""}
                if not any(word in name for word in words) and not self._is_of(where, func, owner):
                    continue
            found.append((where, call))
        return found

    def _is_of(self, where: Scope, func: ast.Attribute, owner: Scope | None) -> bool:
        """Whether a method is called of an object that is surely of a class."""
        with self.flow.briefly():
            found = self.flow.leaves(func.value, self.flow.frame(where))
        return any(one.kind is Kind.INSTANCE and one.value.scope is owner for one in found)

    def _request(self, scope: Scope) -> Scope | None:
        """Return the route that executes a function, and does not only begin it."""

        def executing(here: Scope) -> list[Scope]:
            if here.parent is not None and here.parent.kind == "function":
                return []  # a stream, or what is handed on
            callers = self._callers(here)
            return [where for where, call in callers if id(call.node) not in self._begun(where)]

        depth, most = limits.DYNAMIC_DEPTH_MAX, limits.CALLERS_MAX
        found = led_to([scope], executing, steps=depth, most=most)
        return next((one for one in found if is_route(one)), None)

    def _uses_interrupts(self) -> bool:
        """Whether graphs pause by themselves, so that a saver has what they wait for."""
        if self._interrupts is None:
            self._interrupts = any(
                getattr(self.flow.program.meaning(scope, call.node.func), "name", "")
                == f"langgraph.types.{name}"
                for name in ("interrupt", "Command")
                for scope, call in self.flow.program.calls_of(name)
            )
        return self._interrupts

    # ------------------------------------------------------------------------------- by looking

    def _by_looking(self, kept: Kept) -> Site | None:
        """Find a run that looks at an entry until a request changes it."""
        looks = next(
            ((one, line) for one in kept.users if (line := _looks_at(one, kept.name))), None
        )
        if looks is None or is_route(looks[0]):
            return None
        for scope in kept.users:
            line = _changed_at(scope, kept.name)
            route = self._request(scope) if line and scope is not looks[0] else None
            if line is None or route is None or self._way(looks[0]).meets(self._way(scope)):
                continue
            told = f"{kept.name} {scope.name.rpartition('.')[2]} {route.name}"
            if _OF_PERSONS.search(told) and not _OTHERS.search(told):
                return site_of(
                    self.flow,
                    kept,
                    Role.PAUSED,
                    (*looks, f"a run looks at {kept.name} until it may go on"),
                    (scope, line, "another request changes it"),
                )
        return None

    # ----------------------------------------------------------------------------- until said

    def _until_said(self, kept: Kept) -> Site | None:
        """Find actions that are kept until a request approves them."""
        if not _KEPT_FOR.search(kept.name):
            return self._approved(kept)
        puts = [(one, line) for one in kept.users if (line := _put_at(one, kept.name))]
        if not puts or save_around(self.flow, kept.users):
            return None
        for scope in kept.users:
            line = _taken_at(scope, kept.name)
            route = self._request(scope) if line else None
            if line is None or route is None or scope is puts[0][0] or route is puts[0][0]:
                continue
            if verb_of(route) == "get" or save_around(self.flow, (route,)):
                continue
            if _SAYS.search(f"{route.name} {scope.name.rpartition('.')[2]} {_paths(route)}"):
                return site_of(
                    self.flow,
                    kept,
                    Role.PAUSED,
                    (*puts[0], f"what waits for a person is kept in {kept.name}"),
                    (scope, line, "another request takes it from there"),
                )
        return None

    def _approved(self, kept: Kept) -> Site | None:
        """Find what a request takes out of a dict to approve it: it says so in the entry itself."""
        puts = [(one, line) for one in kept.users if (line := _put_at(one, kept.name))]
        if not puts or save_around(self.flow, kept.users):
            return None
        for user in kept.users:
            for route, _call in self._callers(user) if user.results else ():
                path = f"{route.name} {_paths(route)}"
                if not is_route(route) or not _APPROVES.search(path) or verb_of(route) == "get":
                    continue
                if save_around(self.flow, (route,)):
                    continue
                entries = self._given_by(route, kept)
                for assign in route.attributes:
                    said = last_name(assign.target)
                    if _root(assign.target) in entries and _APPROVES.search(said):
                        return site_of(
                            self.flow,
                            kept,
                            Role.PAUSED,
                            (*puts[0], f"what waits for a person is kept in {kept.name}"),
                            (route, assign.line, "a request approves it there"),
                        )
        return None


def _root(node: ast.expr) -> str:
    """Return the name that an attribute of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _at(scope: Scope, here: Names, item: Item, verbs: set[str]) -> Iterator[tuple[int, str]]:
    """Return where a function waits for a part of an entry, or lets who waits go on."""
    for node in own_nodes(scope):
        part = None
        if isinstance(node, ast.Attribute) and node.attr in verbs:
            part = here.part(node.value)
        elif isinstance(node, ast.Await) and verbs is _WAITS:
            given = node.value.args[:1] if isinstance(node.value, ast.Call) else []
            parts = [here.part(one) for one in (node.value, *given)]
            part = next((one for one in parts if one is not None), None)
        if part is None and isinstance(node, ast.Attribute) and here.is_entry(node.value):
            part = next(by_method(item, node.attr, verbs), None)
        if part is not None and isinstance(node, ast.expr):
            yield node.lineno, part


def _takes(scope: Scope) -> bool:
    """Whether a function takes one thing after the other out of a queue."""
    return any(isinstance(one, ast.Attribute) and one.attr == "get" for one in loops(scope))


def _told(kept: Kept, part: str) -> str:
    return f"{kept.name} {part}"


def _around(scope: Scope) -> Scope:
    """Return the function around all that a function stands in."""
    here = scope
    while here.parent is not None and here.parent.kind == "function":
        here = here.parent
    return here


def _is_socket(route: Scope) -> bool:
    return any(last_name(one) == "websocket" for one in getattr(route.node, "decorator_list", ()))


def _looks_at(scope: Scope, name: str) -> int | None:
    """Return where a function sleeps in a loop that reads a dict."""
    if not any(call.name == "sleep" for call in scope.calls):
        return None
    entries = _bound(scope, name)
    for loop in own_nodes(scope):
        if not isinstance(loop, ast.While | ast.For | ast.AsyncFor):
            continue
        inside = list(walk(loop))
        sleeps = any(isinstance(one, ast.Call) and last_name(one) == "sleep" for one in inside)
        reads = any(
            isinstance(one, ast.expr)
            and (is_got(one, name) or (isinstance(one, ast.Name) and one.id in entries))
            for one in inside
        )
        if sleeps and reads:
            return loop.lineno
    return None


def _changed_at(scope: Scope, name: str) -> int | None:
    """Return where a function changes an entry of a dict that is there already, or puts one."""
    entries = _bound(scope, name)
    for assign in (*scope.items, *scope.attributes):
        target = assign.target
        if not isinstance(target, ast.Subscript | ast.Attribute):
            continue
        base = target.value
        is_put = isinstance(target, ast.Subscript) and is_dict(base, name)
        is_entry = is_got(base, name) or (isinstance(base, ast.Name) and base.id in entries)
        if is_put or is_entry:
            return assign.line
    return None


def _bound(scope: Scope, name: str) -> set[str]:
    """Return the names of a function that are entries of a dict."""
    return {
        bound
        for bound, assigns in scope.assigns.items()
        if any(one.value is not None and is_got(one.value, name) for one in assigns)
    }


def _put_at(scope: Scope, name: str) -> int | None:
    """Return where a function puts more than a plain mark into a dict."""
    for assign in scope.items:
        target = assign.target
        if not isinstance(target, ast.Subscript) or not is_dict(target.value, name):
            continue
        value = assign.value
        if isinstance(value, ast.Constant):
            continue
        if not (isinstance(value, ast.Call) and last_name(value.func) in _PLAIN):
            return assign.line
    return None


def _taken_at(scope: Scope, name: str) -> int | None:
    for node in own_nodes(scope):
        is_read = not isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.expr) and is_read and is_got(node, name):
            return node.lineno
    return None


def _paths(route: Scope) -> str:
    """Return the paths that a route is for."""
    return " ".join(
        one.value
        for decorator in getattr(route.node, "decorator_list", ())
        if isinstance(decorator, ast.Call)
        for one in decorator.args[:1]
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )
