"""Where savers and stores are made, which graph gets which, and under which conditions.

Size: a graph, what it is given and the tests on the way are told in one story.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code import _catalog, limits
from perdure.contracts.code._brief import brief_of, without
from perdure.contracts.code._chosen import (
    Bound,
    Sink,
    either_way,
    handed_on,
    if_told,
    matters,
    of_request,
    outcomes_of,
    sole,
    without_own_tests,
)
from perdure.contracts.code._early import Early
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._marks import names_steps
from perdure.contracts.code._meanings import External, Variable
from perdure.contracts.code._program import Program
from perdure.contracts.code._scopes import Call, Scope, last_name, walk
from perdure.contracts.code._sessions import BY_URL, PLACES, medium_of, session_sinks
from perdure.contracts.code._values import Condition, Decision, Frame, Kind, Leaf, Made, settled
from perdure.contracts.code.facts import Medium, Role, Site
from perdure.contracts.evidence import Confidence, Evidence, Known

_ROLES = {"checkpointer": Role.SAVER, "store": Role.STORE, "checkpoint_saver": Role.SAVER}
_OF_GRAPHS = regex(r"graph|workflow|builder|flow|state")
_NOT_GRAPHS = ("re.", "regex.", "builtins.", "torch.", "jinja2.", "sqlalchemy.", "ast.", "json")


def sinks_of(program: Program) -> Iterator[Sink]:
    """Find the graphs that the reachable code makes."""
    for scope in program.live:
        for call in scope.called_as(_catalog.GRAPH_MAKERS):
            if _makes_graph(program, scope, call):
                yield from _of_call(scope, call)
        for assign in scope.attributes:
            target = assign.target
            if (
                isinstance(target, ast.Attribute)
                and target.attr in _ROLES
                and last_name(target.value) not in {"self", "cls", "state", "app"}
            ):
                yield Sink(
                    scope=scope,
                    line=assign.line,
                    role=_ROLES[target.attr],
                    value=assign.value,
                    guards=assign.guards,
                    maker=f"{last_name(target.value)}.{target.attr}",
                    graph=target.value,
                )


def _makes_graph(program: Program, scope: Scope, call: Call) -> bool:
    func = call.node.func
    names = {keyword.arg for keyword in call.node.keywords}
    if names & set(_ROLES):
        return True
    meaning = program.meaning(scope, func)
    if isinstance(meaning, External):
        is_other = last_name(func) == "compile" and not _OF_GRAPHS.search(meaning.name.lower())
        return not is_other and not meaning.name.startswith(_NOT_GRAPHS)
    if last_name(func) != "compile":
        return last_name(func).startswith("create_") and not isinstance(meaning, Scope)
    if not isinstance(func, ast.Attribute):
        return False
    shown = ast.unparse(func.value).lower()
    if uses_langgraph(scope.module):
        return bool(_OF_GRAPHS.search(shown))
    return bool(re.search(r"graph|workflow|builder", shown)) and any(
        uses_langgraph(one) for one in program.live if one.kind == "module"
    )


def uses_langgraph(module: Scope) -> bool:
    """Whether a module imports LangGraph anywhere."""
    return any(
        found.module.startswith(("langgraph", "langchain", "deepagents"))
        for scope in module.all_inner()
        for several in scope.imports.values()
        for found in several
    )


def _of_call(scope: Scope, call: Call) -> Iterator[Sink]:
    maker = call.name
    given: dict[Role, ast.expr | None] = {}
    lines: dict[Role, int] = {}
    for keyword in call.node.keywords:
        if keyword.arg in _ROLES:
            given[_ROLES[keyword.arg]] = keyword.value
            lines[_ROLES[keyword.arg]] = keyword.lineno
        elif keyword.arg is None:
            lines.setdefault(Role.SAVER, keyword.lineno)
            given.setdefault(
                Role.SAVER,
                ast.copy_location(
                    ast.Subscript(
                        value=keyword.value,
                        slice=ast.copy_location(ast.Constant(value="checkpointer"), call.node),
                    ),
                    call.node,
                ),
            )
    if maker == "compile" and call.node.args:
        given.setdefault(Role.SAVER, call.node.args[0])
        lines.setdefault(Role.SAVER, call.node.args[0].lineno)
    if Role.SAVER not in given:
        given[Role.SAVER] = None
    for role, value in given.items():
        yield Sink(
            scope=scope,
            line=lines.get(role, call.node.lineno),
            begins=call.node.lineno,
            role=role,
            value=value,
            guards=call.guards,
            maker=maker,
            pauses=any(one.arg in _PAUSES and names_steps(one.value) for one in call.node.keywords),
        )


_PAUSES = {"interrupt_before", "interrupt_after", "interrupt_on"}


class Sites(Struct):
    """All places of state of one program."""

    flow: Flow
    bound: list[Bound]
    brief: frozenset[tuple[str, int, int]] = frozenset()
    """Those that go with the request that made them."""
    late: set[tuple[str, int, int]] = field(default_factory=set)
    """Savers that are made when the graphs that ask for them are made already."""

    @property
    def program(self) -> Program:
        """The program that is looked at."""
        return self.flow.program

    def all(self) -> tuple[Site, ...]:
        """Return the sites, one for each place and graph role, served ones first."""
        found: dict[tuple[object, ...], Site] = {}
        for one in self.bound:
            site = self._site(one)
            if site is None:
                continue
            key = (site.role, site.medium, *_place(site))
            found[key] = _better(found[key], site) if key in found else site
        known = {(one.leaf.value.key) for one in self.bound if one.leaf.kind is Kind.SITE}
        for site in self._loose(known | self.brief):
            found.setdefault((site.role, site.medium, *_place(site)), site)
        return tuple(self._without_idle_none(list(found.values())))

    @staticmethod
    def _without_idle_none(sites: list[Site]) -> list[Site]:
        """Graphs within graphs have no saver of their own: no news where another one has."""
        savers = [
            site
            for site in sites
            if site.role is Role.SAVER
            and site.medium is not Medium.NONE
            and site.chosen.value is not False
        ]
        explicit = [site for site in sites if site.class_name != "omitted"]
        return explicit if savers else sites

    def _site(self, one: Bound) -> Site | None:
        leaf, sink = one.leaf, one.sink
        at = Evidence(file=sink.scope.path, line=sink.line, note=f"{sink.maker} gets it")
        if leaf.kind is Kind.SITE:
            is_served = None if one.is_brief else True
            is_long = 0 < sink.begins < sink.line - limits.LINES_NEAR
            begins = replace(at, line=sink.begins, note=f"{sink.maker} makes a graph")
            after = (*one.stays, *((begins,) if is_long else ()), at)
            found = self.made(
                leaf.value, leaf, one.chosen, after, is_served=is_served, role=sink.role
            )
            return replace(found, stays=bool(one.stays), pauses=sink.pauses)
        if leaf.kind is Kind.CONST and leaf.value in {None, False} and sink.role is Role.SAVER:
            when = ", as it is made while modules are imported" if one.is_early else ""
            at = replace(at, note=f"{sink.maker} makes a graph without a saver{when}")
            return Site(
                role=sink.role,
                medium=Medium.NONE,
                evidence=(*self.program.way_to(sink.scope.path), *_new(leaf.evidence), at),
                class_name=None if sink.value is not None else "omitted",
                is_served=True if sink.value is not None else self._names_threads(sink.scope),
                chosen=known_of(one.chosen),
                survives_process=False,
                is_too_early=one.is_early,
            )
        if leaf.kind in {Kind.UNKNOWN, Kind.INSTANCE} and sink.value is not None:
            at = replace(at, note=f"{sink.maker} gets {_shown(sink.value)}")
            question = leaf.question or (
                f"which {sink.role.value} {_shown(sink.value)!r} is at {at.file}:{at.line}"
            )
            return Site(
                role=sink.role,
                medium=Medium.UNKNOWN,
                evidence=(*self.program.way_to(sink.scope.path), at),
                chosen=Known(value=None, question=question),
            )
        return None

    def _names_threads(self, scope: Scope) -> bool | None:
        """Whether a graph without a saver is given threads or pauses; else it may need none."""
        live = [one for one in scope.module.all_inner() if self.program.is_live(one)]
        if any("thread_id" in one.words for one in live):
            return True
        return True if any(self._pauses(one) for one in self.steps(live)) else None

    def steps(self, scopes: Iterable[Scope]) -> Iterator[Scope]:
        """Find the functions that are steps of the graphs that these scopes make."""
        for scope in scopes:
            for call in scope.called_as(("add_node",)):
                for given in call.node.args:
                    meaning = self.program.meaning(scope, given)
                    if isinstance(meaning, Scope) and meaning.kind == "function":
                        yield meaning

    def _pauses(self, step: Scope) -> bool:
        """Whether a step waits for a person, unless a setting keeps it from that."""
        for call in step.calls:
            meaning = self.program.meaning(step, call.node.func)
            if meaning == External("langgraph.types.interrupt"):
                return self.flow.under(step, call.guards).is_met is not False
        return False

    def made(
        self,
        made: Made,
        leaf: Leaf,
        chosen: Decision,
        after: tuple[Evidence, ...],
        *,
        is_served: bool | None,
        role: Role,
    ) -> Site:
        """Describe the site that a constructor makes."""
        path = made.frame.scope.path
        location = self.location(made)
        medium = made.medium
        if location is not None and location.value is not None and ":memory:" in location.value:
            medium = Medium.MEMORY
        name = made.class_name
        if name in BY_URL and location is not None and location.value is not None:
            medium = medium_of(location.value)
        here = Evidence(file=path, line=made.node.lineno, note=f"makes {_article(name)}")
        steps = (
            *self.program.way_to(path),
            *_new(chosen.evidence),
            *_new(leaf.evidence),
            here,
            *after,
        )
        return Site(
            role=made.role if made.role is not Role.SAVER else role,
            medium=medium,
            evidence=tuple(dict.fromkeys(steps)),
            class_name=name,
            location=location,
            is_served=is_served,
            chosen=known_of(chosen),
            survives_process=None if medium is Medium.UNKNOWN else medium is not Medium.MEMORY,
            is_entered=made.is_entered,
            needs_modules=_needs_modules(self.program, made),
        )

    def location(self, made: Made) -> Known[str] | None:
        """Return where a saver keeps things: a path, or a URL without its password."""
        if made.medium is Medium.MEMORY:
            return None
        if made.place is not None:
            return self.located(made.place, made.place_frame or made.frame)
        if made.class_name in PLACES and not made.is_own:
            return self._told(made, *PLACES[made.class_name])
        given = next(
            (k.value for k in made.node.keywords if k.arg in _catalog.LOCATION_WORDS),
            made.node.args[0] if made.node.args else None,
        )
        if given is None:
            return None
        found = self.located(given, made.frame)
        if made.is_own and found.value is None and made.medium is not Medium.FILE:
            return None
        return found

    def _told(
        self, made: Made, names: tuple[str, ...], at: int | None, otherwise: str | None
    ) -> Known[str] | None:
        """Return where sessions of another framework are: by its parameters, or its default."""
        told = [one.value for one in made.node.keywords if one.arg in names]
        if at is not None and len(made.node.args) > at:
            told.append(made.node.args[at])
        if told:
            return self.located(told[0], made.frame)
        return None if otherwise is None else Known(value=otherwise)

    def located(self, node: ast.expr, frame: Frame, depth: int = 0) -> Known[str]:
        """Return the path or URL that an expression names."""
        leaf = self.flow.only(node, frame) or self._opened(node, frame)
        if (
            leaf is not None
            and leaf.kind is Kind.RESOURCE
            and leaf.value.location is not None
            and depth < limits.CONNECTIONS_DEEP
        ):
            return self.located(leaf.value.location, leaf.value.frame, depth + 1)
        if leaf is None or leaf.kind is not Kind.CONST or not isinstance(leaf.value, str):
            shown = _shown(node)
            question = (leaf.question if leaf else None) or f"the value of {shown}"
            return Known(value=None, question=question, evidence=leaf.evidence if leaf else ())
        here = self._written(node, frame, leaf)
        return Known(
            value=without_password(leaf.value),
            evidence=_new((*leaf.evidence, *here)),
            confidence=leaf.confidence,
            assumed=leaf.assumed,
        )

    def _written(self, node: ast.expr, frame: Frame, leaf: Leaf) -> tuple[Evidence, ...]:
        """Tell where a path is written, if nothing else says where it comes from."""
        if leaf.evidence:
            return ()
        for _ in range(limits.FLOW_DEPTH_MAX):
            match node:
                case ast.Constant() | ast.BinOp() | ast.JoinedStr():
                    # Without the text: it may have a password.
                    note = "says where it is"
                    return (Evidence(file=frame.scope.path, line=node.lineno, note=note),)
            inner = self._behind(node, frame)
            if inner is None:
                return ()
            node, frame = inner
        return ()

    def _behind(self, node: ast.expr, frame: Frame) -> tuple[ast.expr, Frame] | None:
        """Return the one expression that a name or a call stands for."""
        meaning = self.program.meaning(
            frame.scope, node.func if isinstance(node, ast.Call) else node
        )
        found: list[ast.expr | None] = []
        if isinstance(meaning, Scope) and meaning.kind == "function":
            found, frame = [one.value for one in meaning.results], self.flow.frame(meaning)
        elif isinstance(meaning, Variable):
            assigns = meaning.scope.assigns.get(meaning.name, [])
            found, frame = [one.value for one in assigns], self.flow.frame(meaning.scope)
        elif isinstance(node, ast.Call):
            found = list(node.args[:1])
        value = found[0] if len(found) == 1 else None
        return None if value is None else (value, frame)

    def _opened(self, node: ast.expr, frame: Frame) -> Leaf | None:
        """Return the one connection that a variable holds, which is `None` until it is opened."""
        found = self.flow.likely(node, frame)
        opened = [leaf for leaf in found if leaf.kind is Kind.RESOURCE]
        others = [leaf for leaf in found if leaf.kind is not Kind.RESOURCE]
        is_one = len({id(leaf.value.node) for leaf in opened}) == 1
        return opened[0] if is_one and all(_is_none(leaf) for leaf in others) else None

    # --------------------------------------------------------------------------- not bound

    def _loose(self, known: set[tuple[str, int, int]]) -> Iterator[Site]:
        """Savers that reachable code makes and that no graph was seen to get."""
        for scope in self.program.live:
            frame = self.flow.frame(scope)
            set_up: frozenset[int] | None = None
            for call in self.flow.calls.making(scope):
                key = (scope.path, call.node.lineno, call.node.col_offset)
                if key in known:
                    continue
                leaf = self.flow.calls.constructs(call.node, frame)
                if leaf is not None:
                    set_up = _only_set_up(scope) if set_up is None else set_up
                    yield self.made(
                        leaf.value,
                        leaf,
                        self.flow.under(scope, call.guards),
                        (),
                        is_served=False if id(call.node) in set_up or key in self.late else None,
                        role=leaf.value.role,
                    )


def _needs_modules(program: Program, made: Made) -> bool:
    """Whether it is one of LangGraph's own for Redis, and no class of that name of others."""
    if made.is_own or made.medium is not Medium.REDIS:
        return False
    meaning = program.meaning(made.frame.scope, made.node.func)
    return isinstance(meaning, External) and meaning.name.startswith(
        ("langgraph.checkpoint.redis", "langgraph.store.redis")
    )


def _only_set_up(scope: Scope) -> frozenset[int]:
    """Return the values (by `id`) of names of which nothing is used but `setup`: one walk."""
    if scope.kind != "function":
        return frozenset()
    mentions: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for node in walk(scope.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            mentions[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            calls[node.value.id] += 1
    others = {base for base, attribute in scope.dotted if attribute not in _SET_UP}
    return frozenset(
        id(assign.value)
        for name, assigns in scope.assigns.items()
        if mentions[name] == calls[name] and name not in others
        for assign in assigns
    )


_SET_UP = frozenset({"setup", "asetup", "conn"})


def sites_of(flow: Flow) -> Sites:
    """Trace what every reachable graph gets."""
    groups: list[tuple[list[Condition], list[Bound]]] = []
    sinks = [*sinks_of(flow.program), *session_sinks(flow.program)]
    is_set_later = any(sink.graph is not None for sink in sinks)
    early = Early(flow)
    for sink in sinks:
        frame = flow.frame(sink.scope)
        here = [(frame, guard) for guard in sink.guards if matters(flow, sink, guard, sinks)]
        group = []
        for leaf in settled(flow.leaves(sink.value, frame)):
            others = without_own_tests(sink, leaf, here)
            if others is None or (sink.role is Role.HISTORY and not _is_history(leaf)):
                continue
            chosen = flow.decide([*others, *leaf.conditions])
            group.append(Bound(sink=sink, leaf=leaf.under(others), chosen=chosen))
        groups.append((here, group))
    outcomes = outcomes_of(one for _here, group in groups for one in group)
    bound: list[Bound] = []
    for here, group in groups:
        told = either_way(flow, [of_request(flow, one, outcomes) for one in group])
        told = sole(told) if flow.decide(here).is_met else told
        bound.extend(told if is_set_later else early.judged(told, flow.decide(here)))
    bound = if_told(flow, handed_on(bound))
    brief = brief_of(flow, bound)
    passing = frozenset(one.leaf.value.key for one in brief)
    return Sites(flow, without(flow, brief, bound), passing, early.late)


def _is_history(leaf: Leaf) -> bool:
    return leaf.kind is Kind.SITE and leaf.value.role is Role.HISTORY


def known_of(decision: Decision) -> Known[bool]:
    """Return a decision as a fact."""
    return Known(
        value=decision.is_met,
        evidence=_new(decision.evidence),
        confidence=decision.confidence,
        question=decision.question if decision.is_met is None else None,
        assumed=decision.assumed,
    )


_IN_TEXT = regex(
    r"^[^#\n]*?\b((?:In)?MemorySaver|(?:Async)?(?:Sqlite|Postgres|Redis)Saver|MongoDBSaver|InMemoryStore)"
    r"(?:\.from_conn_string)?\(",
    re.MULTILINE,
)


def unreachable_sites(program: Program) -> tuple[Site, ...]:
    """Find savers in files that the start command never reaches, by their text alone."""
    found: list[Site] = []
    files = sorted(program.modules.files.python - program.reached.keys())
    for path in files[: limits.UNREACHABLE_READ_MAX]:
        text = program.modules.project.read(path) or ""
        if "Saver" not in text and "InMemoryStore" not in text:
            continue
        for match in _IN_TEXT.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            kind = _catalog.kind_of(f"langgraph.{match[1]}")
            if kind is None:
                continue
            note = f"makes {_article(match[1])}, but the start command never reaches this file"
            found.append(
                Site(
                    role=kind[0],
                    medium=kind[1],
                    evidence=(Evidence(file=path, line=line, note=note),),
                    class_name=match[1],
                    is_served=False,
                    chosen=Known(value=False),
                )
            )
            if len(found) >= limits.UNREACHABLE_MAX:
                return tuple(found)
    return tuple(found)


def without_password(text: str) -> str:
    """Return a URL without the password in it."""
    return re.sub(r"(://[^/@\s:]*):[^@/\s]*@", r"\1:***@", text)


def _is_none(leaf: Leaf) -> bool:
    return leaf.kind is Kind.CONST and leaf.value is None


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limits.SHOWN_MAX else f"{text[: limits.SHOWN_MAX - 3]}..."


def _new(steps: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Leave out steps that say nothing."""
    return tuple(dict.fromkeys(step for step in steps if step.note))


def _place(site: Site) -> tuple[object, ...]:
    makes = [step for step in site.evidence if step.note.startswith("makes ")]
    at = (makes or site.evidence)[-1]
    return at.file, at.line


def _better(one: Site, other: Site) -> Site:
    """Of two ways to the same place, the one that is surely taken."""
    order = {True: 0, None: 1, False: 2}
    first, second = (
        (order[site.chosen.value], list(Confidence).index(site.chosen.confidence))
        for site in (one, other)
    )
    return one if first <= second else other
