"""Reads what the code of a service does; the door of this folder."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._defended import defended
from perdure.contracts.code import _marks
from perdure.contracts.code._bare_runs import bare_run
from perdure.contracts.code._beside import has_redis
from perdure.contracts.code._crews import crew_run
from perdure.contracts.code._degrades import degrades_of
from perdure.contracts.code._drains import drains_of, drains_of_server
from perdure.contracts.code._entry import Entries, entries_of
from perdure.contracts.code._environment import Environment
from perdure.contracts.code._executed import Executed
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._hints import hints_of
from perdure.contracts.code._histories import histories_of
from perdure.contracts.code._layout import Layout
from perdure.contracts.code._leases import leases_of
from perdure.contracts.code._meanings import Module
from perdure.contracts.code._migrations import migrations_of
from perdure.contracts.code._modules import Modules
from perdure.contracts.code._outliving import outliving
from perdure.contracts.code._own_steps import own_steps, unsaved_runs
from perdure.contracts.code._program import Program
from perdure.contracts.code._queued import (
    is_worker,
    leave_to_workers,
    modules_of_tasks,
    starts_worker,
)
from perdure.contracts.code._refilled import with_refilled
from perdure.contracts.code._sites import Sites, sites_of, unreachable_sites, without_password
from perdure.contracts.code._surely import surely_outliving
from perdure.contracts.code._unhandled import unhandled
from perdure.contracts.code._unread import mattering
from perdure.contracts.code.facts import CodeFacts, Medium, Role, Site
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind

_Said = dict[str, tuple[Known[str] | None, Known[str] | None]]
"""What was said of each variable that some code asked for."""


class _Read(Struct, frozen=True):
    """The facts of a service, with all that they were asked of it."""

    said: _Said
    modules: Mapping[str, str | None]
    answers: Mapping[tuple[str, ...], object]
    facts: CodeFacts


class CodeReader:
    """Reads services of one project; a module is parsed once for all of them."""

    def __init__(self, project: Project) -> None:
        """Nothing is read yet."""
        self.modules = Modules(project)
        self._facts: dict[tuple[object, ...], list[_Read]] = {}
        self._programs: dict[tuple[object, ...], list[Program]] = {}

    def read(self, service: Service, root: Root, *, assume: Mapping[str, str]) -> CodeFacts:
        """Return what is known of the code that a service starts.

        Args:
            service: the service, with its start command, sources and environment.
            root: the deployment it belongs to, for the defaults that the project declares.
            assume: values of variables that nobody sets, by name.

        Returns:
            the facts; with `question` and nothing else when the code that starts is not found.
        """
        layout = Layout(self.modules.files, service)
        entries = entries_of(layout, service)
        if not entries.found and entries.platform is None:
            return CodeFacts(entry=(), question=entries.question)
        environment = Environment(service, root, assume)
        program = self._program(layout, entries)
        facts = self._read(program, environment, on_platform=entries.platform is not None)
        entry = tuple(dict.fromkeys(step for one in entries.found for step in one.evidence))
        return replace(
            facts,
            entry=entry or entries.place,
            question=entries.question,
            sites=_with_platform(facts.sites, entries, service, root),
            drains=(*facts.drains, *drains_of_server(Flow(program, environment), service)),
        )

    def _read(self, program: Program, environment: Environment, *, on_platform: bool) -> CodeFacts:
        """Return the facts of a service, or those of one with the same in all that is read.

        Services of one deployment, and its overlays, often differ in nothing that the code asks.
        """
        service, layout = environment.service, program.layout
        key = (
            *(id(program.reached), on_platform, service.platform is not None),
            *(starts_worker(service), "PYTHONPATH" in service.environment, layout.key),
            *(environment.root.kind, has_redis(environment.root)),
            frozenset(environment.assume.items()),
        )
        for known in self._facts.get(key, ()):
            if all(environment.said(name) == said for name, said in known.said.items()) and (
                layout.answers_so(known.answers) and layout.has(known.modules)
            ):
                return known.facts
        flow = Flow(program, environment)
        leave_to_workers(flow)
        flow.begin()
        facts = facts_of(flow, sites_of(flow), on_platform=on_platform)
        said = {name: environment.said(name) for name in environment.asked}
        read = _Read(said, dict(layout.modules), dict(layout.answers), facts)
        self._facts.setdefault(key, []).append(read)
        return facts

    def _program(self, layout: Layout, entries: Entries) -> Program:
        """Return what a start reaches, as the layout sees it.

        Deployments of one project start the same with other mounts: what is reached, and what
        names mean in it, is the same where all module names that were asked for mean the same.
        """
        key = (
            *((one.path, one.attribute, one.is_main) for one in entries.found),
            entries.words if entries.is_tool else "worker" in entries.words,
        )
        known = self._programs.setdefault(key, [])
        found = next((one for one in known if layout.takes(one.layout.modules)), None)
        if found is None:
            found = self._reached(layout, entries)
            known.append(found)
        return replace(found, layout=layout, live=list(found.live))

    def _reached(self, layout: Layout, entries: Entries) -> Program:
        program = Program(self.modules, layout)
        program.words = entries.words
        program.is_tool = entries.is_tool
        for entry in entries.found:
            program.enter(entry.path, is_main=entry.is_main)
            if entry.attribute is not None:
                program.serve(Module(entry.path), entry.attribute)
        for path in modules_of_tasks(program) if is_worker(program) else ():
            program.enter(path, is_main=False)
        return program


def facts_of(flow: Flow, sites: Sites, *, on_platform: bool) -> CodeFacts:
    """Put together what the readers of single kinds of facts find, for whoever starts it so."""
    known = sites.all()
    flow.begin()
    histories = histories_of(flow, sites, has_saver=any(_is_saver(one) for one in known))
    flow.begin()
    executed = Executed(flow)
    degrades = degrades_of(flow, sites, executed)
    flow.begin()
    migrations = migrations_of(flow, sites)
    flow.begin()
    lasting = outliving(flow)
    bare = bare_run(flow, sites)
    return CodeFacts(
        entry=(),
        sites=with_refilled(flow, (*known, *histories.sites)),
        uses_threads=_marks.uses_threads(
            flow, has_graphs=bool(sites.bound) or on_platform, on_platform=on_platform
        ),
        resumed=_marks.resumed(flow),
        has_steps=_marks.has_steps(flow),
        outlives=lasting.steps,
        outlives_open=bool(lasting.steps) and not lasting.is_told,
        outlives_surely=surely_outliving(flow, sites) if lasting.steps else (),
        bare_run=bare,
        crew_run=(crew := crew_run(flow)).steps,
        crew_question=crew.question,
        own_steps=own_steps(flow) if lasting.steps or bare or crew.steps else (),
        unsaved=unsaved_runs(flow, sites),
        durability=_marks.durability(flow),
        degrades=(*degrades, *histories.degrades),
        drains=drains_of(flow),
        handlers=(handlers := _marks.handlers(flow)),
        unhandled=() if handlers else unhandled(flow),
        reloads=_marks.reloads(flow),
        workers=_marks.workers(flow),
        migrations=migrations,
        leases=leases_of(flow, executed),
        hints=hints_of(flow),
        resumes=_marks.resumes(flow),
        unread=_unread(flow.program),
        unread_matters=_unread_matters(flow.program),
        unreachable=unreachable_sites(flow.program),
    )


def _is_saver(site: Site) -> bool:
    is_made = site.medium is not Medium.NONE and site.is_served is not False
    return site.role is Role.SAVER and is_made and site.chosen.value is not False


def _unread(program: Program) -> tuple[Evidence, ...]:
    newer = program.modules.newer
    return tuple(newer[path] for path in sorted(program.reached) if path in newer)


def _unread_matters(program: Program) -> frozenset[str] | None:
    left_out = program.modules.left_out
    texts = [text for path in program.reached for text in left_out.get(path, ())]
    return mattering(texts, program.modules.files.tops)


def _with_platform(
    found: tuple[Site, ...], entries: Entries, service: Service, root: Root
) -> tuple[Site, ...]:
    """Replace savers that a server of graphs doesn't use by the one that it brings."""
    if entries.platform is None:
        return found
    own = tuple(replace(site, is_served=False) for site in found)
    if entries.platform == "aegra":
        return (_of_aegra(entries, service), *own)
    if entries.platform == "adk":
        return (_of_adk(entries, service, root), *own)
    if entries.platform != "langgraph dev":
        return own
    files = Site(
        role=Role.SAVER,
        medium=Medium.FILE,
        evidence=entries.place,
        class_name=entries.platform,
        location=Known(
            value=".langgraph_api", evidence=entries.place, confidence=Confidence.INFERRED
        ),
        chosen=Known(value=True),
    )
    return (files, *own)


def _of_adk(entries: Entries, service: Service, root: Root) -> Site:
    """Return where the server of ADK keeps sessions: where it is told, else in its memory.

    Newer releases write a file where they don't run in Kubernetes; which one is installed is open.
    """
    server = service.start.server if service.start is not None else None
    words = server.argv if server is not None else ()
    told = [
        word.partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
        for at, word in enumerate(words)
        if word.startswith(("--session_service_uri", "--session_db_url"))
    ]
    is_sure = bool(told) or root.kind is RootKind.KUBERNETES
    medium = Medium.MEMORY
    if told:
        by_scheme = {"sqlite": Medium.FILE, "postgr": Medium.POSTGRES, "memory": Medium.MEMORY}
        medium = by_scheme.get(told[0][:6], Medium.NETWORK)
    note = f"makes sessions in {medium.value}: it is told {'so' if told else 'nothing else'}"
    return Site(
        role=Role.SAVER,
        medium=medium if is_sure else Medium.UNKNOWN,
        evidence=tuple(replace(one, note=note) for one in entries.place[-1:]),
        class_name="the session service of ADK",
        location=Known(value=without_password(told[0]))
        if told and medium is not Medium.MEMORY
        else None,
        chosen=Known(value=True)
        if is_sure
        else Known(
            value=None, question="Which release of ADK is this, and where does it keep sessions?"
        ),
    )


def _of_aegra(entries: Entries, service: Service) -> Site:
    """Return where Aegra keeps threads: in the PostgreSQL that it is told."""
    told = service.environment.get("DATABASE_URL")
    return Site(
        role=Role.SAVER,
        medium=Medium.PLATFORM,
        evidence=entries.place,
        class_name=entries.platform,
        location=None if told is None else told.known,
        chosen=Known(value=True, confidence=Confidence.INFERRED),
    )


_READERS: "WeakKeyDictionary[Project, CodeReader]" = WeakKeyDictionary()


def share_code(project: Project, copy: Project) -> None:
    """Let a copy of a project, whose Python is the same, use what was read of it already."""
    _READERS[copy] = _READERS.setdefault(project, CodeReader(project))


def read_code(
    project: Project, service: Service, root: Root, *, assume: Mapping[str, str]
) -> CodeFacts:
    """Read one service; see `CodeReader.read`. Modules of a project are parsed once.

    Whatever reading it raises costs this service its facts: they are a question then.
    """
    if project not in _READERS:
        _READERS[project] = CodeReader(project)
    place = service.place
    with defended(project, place.file, f"the code of service {service.name!r}"):
        return _READERS[project].read(service, root, assume=assume)
    note = "the code that this service starts could not be read to its end"
    return CodeFacts(
        entry=(replace(place, note=note),),
        question=f"What does the code of service {service.name!r} do? Reading it failed.",
    )
