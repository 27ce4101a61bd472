"""R3: what a run of several steps has done is saved while it runs."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Medium, Role, Site
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence, weakest
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.rules._places import Outcome, not_entered, without_modules_of
from perdure.contracts.rules._platform import is_langgraph_api, platform_evidence
from perdure.contracts.rules._state import relevant

_DURABLE = {Medium.FILE, Medium.POSTGRES, Medium.REDIS, Medium.MONGO, Medium.NETWORK}


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge R3 for one service."""
    del strict
    begun = Finding(contract=Contract.R3, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    if is_langgraph_api(service):
        return replace(
            begun,
            verdict=Verdict.HELD,
            confidence=Confidence.INFERRED,
            summary="langgraph-api saves every step",
            evidence=platform_evidence(service),
        )
    if code.crew_run and not (code.crew_question and code.has_steps):
        return _crew(begun, code)
    if not code.has_steps:
        return replace(begun, summary="no graph of several steps is served here")
    savers = [
        site
        for site in code.sites
        if site.role is Role.SAVER
        and site.is_served is not False
        and site.chosen.value is not False
    ]
    taken = [
        site
        for site in savers
        if site.chosen.value is True and (site.is_served or site.class_name == "omitted")
    ]
    durable = [site for site in taken if site.medium in _DURABLE]
    if code.durability is not None and code.durability.value == "exit" and durable:
        return _at_the_end(begun, code)
    if code.bare_run or (durable and code.unsaved):
        return _unwaited(begun, code) if code.bare_run else _beside(begun, code, durable[0])
    stays = [site for site in taken if site.stays and site.medium is Medium.MEMORY]
    if durable and stays:
        return _within(begun, code, stays[0])
    if durable:
        return _with_durable(begun, code, root, durable)
    lost = [site for site in savers if site.medium in {Medium.NONE, Medium.MEMORY}]
    sure = [site for site in lost if site in taken]
    is_all = len(lost) == len(savers) and any(site.is_served for site in lost)
    if is_all or (sure and not any(site.medium in _DURABLE for site in savers)):
        # Whichever of them is used, it keeps nothing; what nobody can name beside them may not be.
        return _lost(begun, code, sure or lost, is_all=is_all)
    if not savers:
        return replace(begun, summary="no graph of several steps is served here")
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary="whether steps are saved depends on something that is not declared",
        evidence=savers[0].evidence,
        question=savers[0].chosen.question or "Which saver does the served graph get?",
    )


def _crew(begun: Finding, code: CodeFacts) -> Finding:
    """Judge a crew, whose tasks hand on what they did in memory."""
    if code.own_steps:
        return _by_itself(begun, replace(code, bare_run=code.crew_run))
    if code.crew_question is not None:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="a crew keeps what its tasks did in memory until all of it is done",
            evidence=code.crew_run,
            question=code.crew_question,
        )
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=Confidence.INFERRED,
        summary="a crew does work that no request waits for, and keeps nothing until it is done",
        evidence=code.crew_run,
        repair="Write down what each task gives (task_callback=), and go on from it; or make the "
        "tasks steps of a flow with @persist.",
    )


def _lost(begun: Finding, code: CodeFacts, lost: list[Site], *, is_all: bool) -> Finding:
    """Judge graphs of which none keeps its steps outside the process."""
    bare = [site for site in lost if site.medium is Medium.NONE]
    early = [site for site in bare if site.is_too_early]
    if early:  # it was meant to have one
        return replace(
            _violated(begun, code, early[0]),
            confidence=Confidence.INFERRED,
            repair="Make the graph when the service starts, after its saver.",
        )
    if bare and code.outlives and code.own_steps:
        return _by_itself(begun, code, bare[0])
    if bare and code.outlives and code.outlives_open:
        return _named_alone(begun, code, bare[0])
    if bare and code.outlives:
        return _violated(begun, code, bare[0])
    some = lost[0] if is_all and not code.outlives_open else None
    run = next((site for site in lost if _is_run(site, code)), some)
    if code.outlives_surely and run is not None and not code.own_steps:
        return _violated(begun, replace(code, outlives=code.outlives_surely), run)
    pauses = [step for step in code.uses_threads if "pause" in step.note]
    kept = next((site for site in lost if site.medium is Medium.MEMORY and site.is_served), None)
    if pauses and code.resumed and kept is not None and is_all and not code.own_steps:
        return _paused(begun, code, kept, (pauses[0], *code.resumed[:1]))
    return _within(begun, code, lost[0])


def _paused(begun: Finding, code: CodeFacts, site: Site, pauses: tuple[Evidence, ...]) -> Finding:
    """Judge runs that wait for a person: they go on in other requests than they began in."""
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=Confidence.INFERRED,
        summary=(
            "a run waits for a person, and what it has done is kept in the memory of the process: "
            "a crash loses all of it"
        ),
        evidence=tuple(dict.fromkeys((*site.evidence, *code.has_steps[:1], *pauses))),
        repair='Compile the graph with a durable saver, and run it with durability="sync".',
        assumptions=site.chosen.assumed,
    )


def _named_alone(begun: Finding, code: CodeFacts, site: Site) -> Finding:
    """Ask about a run of which only the name of a method says that it is one of a graph."""
    run, made = code.outlives[-1], site.evidence[-1]
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary="work that no request waits for runs what may be a graph without a saver",
        evidence=tuple(dict.fromkeys((*code.outlives, made))),
        question=f"Does {run.file}:{run.line} run the graph of {made.file}:{made.line}?",
    )


def _is_run(site: Site, code: CodeFacts) -> bool:
    """Whether the graph of a saver is the one that is run, as far as that is told."""
    places = {(one.file, one.line) for one in code.outlives_surely[:-2]}
    return any((one.file, one.line) in places for one in site.evidence[-2:])


def _held(begun: Finding, code: CodeFacts, site: Site) -> Finding:
    said = code.durability
    return replace(
        begun,
        verdict=Verdict.HELD,
        confidence=site.chosen.confidence,
        summary="a step that is done is saved before or while the next one runs",
        evidence=(*site.evidence, *(said.evidence if said is not None else ())),
        assumptions=site.chosen.assumed,
    )


def _with_durable(begun: Finding, code: CodeFacts, root: Root, durable: list[Site]) -> Finding:
    """Judge graphs of which one surely has a durable saver."""
    weak = _beside_it(code)
    if weak is not None:
        return _other(begun, durable[0], weak)
    doubts = (_doubt(site, root) for site in durable)
    doubt = next((one for one in doubts if one is not None), None)
    return _held(begun, code, durable[0]) if doubt is None else _doubted(begun, doubt)


def _beside_it(code: CodeFacts) -> Site | None:
    """Return a saver in memory that a served graph gets as well, and not only after a failure.

    Where something unknown may stand in the durable one's place, one that nothing was seen to
    serve may be it.
    """
    is_open = any(s.medium is Medium.UNKNOWN and s.role is Role.SAVER for s in code.sites)
    return next(
        (
            site
            for site in relevant(code)
            if site.role is Role.SAVER
            and site.medium is Medium.MEMORY
            and site.chosen.value is True
            and (site.is_served or is_open)
        ),
        None,
    )


def _other(begun: Finding, durable: Site, weak: Site) -> Finding:
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=f"{durable.class_name} is made, and a served graph may get {weak.class_name}",
        evidence=tuple(dict.fromkeys((*durable.evidence, *weak.evidence))),
        question="Does each graph that is served get the durable saver?",
    )


def _doubt(site: Site, root: Root) -> Outcome | None:
    """Return why it is open whether a durable saver works here; `None`: it is not."""
    return without_modules_of(root, site) if site.is_entered else not_entered(site)


def _doubted(begun: Finding, doubt: Outcome) -> Finding:
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=f"whether steps are saved is open: {doubt.why}",
        evidence=doubt.evidence,
        question=doubt.question,
    )


def _at_the_end(begun: Finding, code: CodeFacts) -> Finding:
    said = code.durability
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        summary="steps are saved only when the run ends, so a crash loses all of them",
        evidence=(*(said.evidence if said is not None else ()), *code.has_steps[:1]),
        repair='Run the graph with durability="sync", or "async" where no step acts outside.',
    )


def _unwaited(begun: Finding, code: CodeFacts) -> Finding:
    """Judge a run that nobody waits for, of a graph that surely has no saver."""
    if code.own_steps:
        return _by_itself(begun, code)
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=Confidence.INFERRED,
        summary="a graph without a saver does work that no request waits for: a crash loses it",
        evidence=(*code.bare_run, *code.has_steps[:1]),
        repair='Compile this graph with a durable saver, and run it with durability="sync".',
    )


def _beside(begun: Finding, code: CodeFacts, durable: Site) -> Finding:
    """Judge a graph without a saver that is run beside one that has one."""
    run = code.unsaved[-1]
    if any((each.file, each.line) == (run.file, run.line) for each in code.outlives):
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            confidence=Confidence.INFERRED,
            summary="a graph without a saver does work that no request waits for: a crash loses it",
            evidence=tuple(dict.fromkeys((*code.unsaved, *code.outlives))),
            repair='Give this graph a durable saver too, and run it with durability="sync".',
        )
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary="one graph has a durable saver, and another one is run without any",
        evidence=(*code.unsaved, *durable.evidence[-1:]),
        question="May a crash lose what a run of the graph without a saver has done?",
    )


def _by_itself(begun: Finding, code: CodeFacts, *sites: Site) -> Finding:
    """Ask about a graph without a saver whose code keeps its steps in some other way."""
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary="the graph has no saver, and the code around it keeps steps of its own",
        evidence=tuple(
            dict.fromkeys((*code.own_steps, *code.bare_run, *(s.evidence[-1] for s in sites)))
        ),
        question="Does a run that a crash broke off go on from its last step, out of a database?",
    )


def _within(begun: Finding, code: CodeFacts, site: Site) -> Finding:
    """Ask about runs that may end with their request: then nothing but that request is lost."""
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=f"the steps of a run are kept {_where(site)} while it goes on",
        evidence=tuple(dict.fromkeys((*site.evidence, *code.has_steps[:1]))),
        question="May a crash lose what a run has done, as the request that waits for it is lost?",
    )


def _where(site: Site) -> str:
    return "in the memory of the process" if site.medium is Medium.MEMORY else "nowhere"


def _violated(begun: Finding, code: CodeFacts, site: Site) -> Finding:
    known = [site.chosen.confidence]
    if site.class_name == "omitted":
        known.append(Confidence.INFERRED)
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=weakest(known),
        summary=f"the steps of a run are kept {_where(site)}, so a crash loses all of them",
        evidence=tuple(dict.fromkeys((*site.evidence, *code.has_steps[:1], *code.outlives))),
        repair='Compile the graph with a durable saver, and run it with durability="sync".',
        assumptions=site.chosen.assumed,
    )
