"""S1, S2, S3: threads, paused runs and memories outlive restarts and replacements; all see them.

Each place of state is judged by itself; the worst one decides, and the summary names what it holds.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Medium, Role, Site
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence, weakest
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.rules._places import (
    NETWORKED,
    Judge,
    Outcome,
    after_replacement,
    after_restart,
    is_volatile,
)
from perdure.contracts.rules._platform import platform_site, serves_graphs
from perdure.contracts.rules._sharing import ONE_WRITER, among_replicas, copies_of

WHAT = {
    Role.SAVER: "threads and paused runs",
    Role.STORE: "memories",
    Role.HISTORY: "conversation histories",
    Role.PAUSED: "runs that wait for a person",
}

_DURABLE = {Medium.FILE, *NETWORKED, Medium.PLATFORM}
_OWN = {Role.HISTORY, Role.PAUSED}
_WORST = (Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.HELD, Verdict.NOT_APPLICABLE)


class _Judged(Struct, frozen=True):
    role: Role
    outcome: Outcome


def judge_restart(
    service: Service, code: CodeFacts, root: Root, *, strict: bool = False
) -> Finding:
    """Judge S1: a restart keeps threads, paused runs and memories."""
    del strict
    return _judged(
        Contract.S1,
        service,
        code,
        root,
        judge=after_restart,
        when="when the container restarts",
    )


def judge_replacement(
    service: Service, code: CodeFacts, root: Root, *, strict: bool = False
) -> Finding:
    """Judge S2: a replacement keeps the same."""
    del strict
    when = "when the container is replaced"
    return _judged(Contract.S2, service, code, root, judge=after_replacement, when=when)


def judge_replicas(
    service: Service, code: CodeFacts, root: Root, *, strict: bool = False
) -> Finding:
    """Judge S3: every replica and every worker sees the same."""
    del strict
    copies = copies_of(service, code, root)
    unsaid = Finding(
        contract=Contract.S3,
        service=service.name,
        verdict=Verdict.UNDECIDED,
        summary="nobody can say how many copies of this service run",
        evidence=copies.evidence,
        question=copies.question,
    )
    if copies.question is None and not copies.is_several:
        return _not_applicable(Contract.S3, service, "one container with one worker serves it")
    when = f"by which of the {copies.what} a request meets"
    found = _judged(Contract.S3, service, code, root, judge=among_replicas(copies), when=when)
    if copies.question is not None and ONE_WRITER in found.warnings:
        return unsaid  # other containers would have other files
    if copies.question is not None and not copies.is_several:
        # However many there are, they share all of it, or there is nothing to share.
        is_same = found.verdict in {Verdict.HELD, Verdict.NOT_APPLICABLE}
        return found if is_same else unsaid
    if found.verdict in {Verdict.VIOLATED, Verdict.HELD}:
        return replace(
            found,
            evidence=tuple(dict.fromkeys((*found.evidence, *copies.evidence))),
            confidence=weakest([found.confidence, copies.confidence]),
        )
    return found


def _not_applicable(contract: Contract, service: Service, why: str) -> Finding:
    return Finding(
        contract=contract, service=service.name, verdict=Verdict.NOT_APPLICABLE, summary=why
    )


def _judged(
    contract: Contract, service: Service, code: CodeFacts, root: Root, *, judge: Judge, when: str
) -> Finding:
    platform = platform_site(service, code)
    # What LangGraph's server keeps, it keeps by itself: a saver that code passes is not used.
    sites = [platform] if platform is not None else relevant(code)
    if not sites:
        return _nothing_found(contract, service, code)
    judged = [
        _Judged(role, outcome)
        for role in Role
        if (outcome := _of_role([s for s in sites if s.role is role], service, root, judge))
    ]
    worst = min(judged, key=lambda each: _WORST.index(each.outcome.verdict))
    same = [each for each in judged if each.outcome.verdict is worst.outcome.verdict]
    others = [each for each in judged if each.outcome.verdict is not worst.outcome.verdict]
    return Finding(
        contract=contract,
        service=service.name,
        verdict=worst.outcome.verdict,
        confidence=weakest([each.outcome.confidence for each in same]),
        summary=_summary(same, others, when),
        evidence=_evidence(same, code, worst.outcome.verdict),
        question=worst.outcome.question if worst.outcome.verdict is Verdict.UNDECIDED else None,
        repair=worst.outcome.repair if worst.outcome.verdict is Verdict.VIOLATED else None,
        warnings=tuple(dict.fromkeys(w for each in judged for w in each.outcome.warnings)),
        assumptions=tuple(dict.fromkeys(a for each in judged for a in each.outcome.assumptions)),
    )


def _nothing_found(contract: Contract, service: Service, code: CodeFacts) -> Finding:
    if code.question is not None:
        return Finding(
            contract=contract,
            service=service.name,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="the code that this service starts was not found",
            evidence=(service.place,),
            question=code.question,
        )
    if code.uses_threads:
        return Finding(
            contract=contract,
            service=service.name,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="threads are used, and no place was found where they are kept",
            evidence=code.uses_threads,
            question="Where are the checkpoints of these threads kept?",
        )
    return _not_applicable(contract, service, "no graph with threads or memories is served here")


def relevant(code: CodeFacts) -> list[Site]:
    """Return the places that count: served, on a branch that may be taken, no mere fallback."""
    taken = [site for site in _without_beginnings(code) if site.chosen.value is not False]
    durable = {s.role for s in taken if not is_volatile(s) and s.medium is not Medium.NONE}
    fallbacks = {_line(each) for degrade in code.degrades for each in degrade.evidence}
    kept = [
        site
        for site in taken
        if not (is_volatile(site) or site.medium is Medium.NONE)
        or site.role not in durable
        or site.is_too_early
        or not any(_line(each) in fallbacks for each in site.evidence[-1:])
    ]
    if any(site.role not in _OWN and site.medium is not Medium.NONE for site in kept):
        # A saver decides about threads; what a project caches of them beside it is its own affair.
        # Conversations in a dict that the model is given again are none of its threads.
        # Nor is a run that waits for what only this process can set.
        # Sessions of another framework in memory may be: nobody sees whether they are the same.
        kept = [
            replace(site, is_served=None) if _is_of_framework(site) else site
            for site in kept
            if site.role not in _OWN
            or site.role is Role.PAUSED
            or _is_dict(site)
            or _is_of_framework(site)
        ]
    elif any(_is_durable_history(site) for site in kept) and not _pauses(code):
        # The conversation is in tables of the project's own; the graph needs no memory of it.
        kept = [site for site in kept if site.medium is not Medium.NONE]
    if code.uses_threads:
        return kept
    return [site for site in kept if site.medium is not Medium.NONE]


def _is_durable_history(site: Site) -> bool:
    return site.role is Role.HISTORY and site.medium in _DURABLE and not is_volatile(site)


def _pauses(code: CodeFacts) -> bool:
    return any("pause" in step.note for step in code.uses_threads)


def _is_dict(site: Site) -> bool:
    return site.role is Role.HISTORY and (site.class_name or "").startswith("the dict ")


def _is_of_framework(site: Site) -> bool:
    """Whether a framework surely serves sessions that are in the memory of the process."""
    is_sure = site.is_served is True and site.chosen.value is True
    return site.role is Role.HISTORY and is_volatile(site) and is_sure and not _is_dict(site)


def _without_beginnings(code: CodeFacts) -> list[Site]:
    """Return the served places without graphs that have no saver only until one is made.

    `saver = None` at the head of a module, and what a failing set-up leaves, say nothing of a
    service that works: S0 is about those. They count where nothing else is ever bound.
    """
    served = [site for site in code.sites if site.is_served is not False]
    others = [s for s in served if s.role is Role.SAVER and s.medium is not Medium.NONE]
    bare = [s for s in served if s.medium is Medium.NONE and s.chosen.value is not False]
    if not others or not bare:
        return served
    kept = [site for site in served if site.medium is not Medium.NONE or site.is_too_early]
    if any(site.chosen.value is not False for site in others):
        return kept
    if any(_is_set_so(site) for site in bare):
        return served
    if len({is_volatile(site) for site in others}) > 1:
        # Of several savers, none of which seems to be taken, nothing says which one is.
        which = "Which of these is used where it is deployed?"
        return [
            replace(site, chosen=replace(site.chosen, value=None, question=which))
            if site in others
            else site
            for site in kept
        ]
    return [
        replace(
            site,
            chosen=replace(site.chosen, value=True, confidence=Confidence.INFERRED, question=None),
        )
        if site in others and not is_volatile(site)
        else site
        for site in kept
    ]


def _is_set_so(site: Site) -> bool:
    """Whether a setting says that this graph has no saver."""
    return site.chosen.value is True and site.chosen.confidence is Confidence.DECLARED_DEFAULT


def _line(evidence: Evidence) -> tuple[str, int]:
    return evidence.file, evidence.line


def _of_role(sites: Sequence[Site], service: Service, root: Root, judge: Judge) -> Outcome | None:
    """Return the outcome of the places of one kind: the worst of those that are taken."""
    if not sites:
        return None
    taken = [s for s in sites if s.chosen.value is True]
    outcomes = [_sure(judge(service, root, site), site, root) for site in taken or sites]
    if sites[0].role not in _OWN and _is_mixed(taken, sites):
        judged = zip(taken, outcomes, strict=True)
        paused = [one for site, one in judged if site.pauses and is_volatile(site)]
        lost = [one for one in paused if one.verdict is Verdict.VIOLATED]
        return lost[0] if lost else _mixed(taken, outcomes)
    if taken or len({each.verdict for each in outcomes}) == 1:
        return min(outcomes, key=lambda each: _WORST.index(each.verdict))
    open_one = next(site for site in sites)
    return replace(
        min(outcomes, key=lambda each: _WORST.index(each.verdict)),
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        why="which of several places is used depends on a setting that is not declared",
        question=open_one.chosen.question or "Which of these is used where it is deployed?",
        evidence=tuple(dict.fromkeys(e for each in outcomes for e in each.evidence)),
        repair=None,
    )


def _is_mixed(taken: Sequence[Site], sites: Sequence[Site]) -> bool:
    """Whether of two graphs one surely forgets, and the other one keeps, or may keep."""
    weak = [site for site in taken if is_volatile(site) or site.medium is Medium.NONE]
    if not weak or any(site.stays for site in weak):
        return False
    graphs = {_line(site.evidence[-1]) for site in weak}
    return len(weak) < len(taken) or any(
        site.is_served
        and site.medium in _DURABLE
        and not is_volatile(site)
        and _line(site.evidence[-1]) not in graphs
        for site in sites
    )


def _mixed(taken: Sequence[Site], outcomes: Sequence[Outcome]) -> Outcome:
    """Return the question about a graph that forgets, beside another one that keeps its threads."""
    weak = next(site for site in taken if is_volatile(site) or site.medium is Medium.NONE)
    last = weak.evidence[-1]
    return replace(
        min(outcomes, key=lambda each: _WORST.index(each.verdict)),
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        why="one graph is given a saver that keeps them, and another one is not",
        question=(
            f"Must threads of the graph at {last.file}:{last.line} outlive the process, as those "
            "of the others do?"
        ),
        evidence=tuple(dict.fromkeys(e for each in outcomes for e in each.evidence)),
        repair=None,
    )


def _sure(outcome: Outcome, site: Site, root: Root) -> Outcome:
    """Turn a violation by a place that may not be served into a question."""
    if site.medium is Medium.NONE and any(serves_graphs(each) for each in root.services):
        # Graphs for LangGraph's server are compiled bare: it brings the saver.
        return replace(
            outcome,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            question="Are these threads those of LangGraph's server in this deployment?",
            repair=None,
        )
    if site.is_served is None and outcome.verdict is Verdict.VIOLATED:
        name = site.class_name or site.medium.value
        return replace(
            outcome,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            question=_asked(site, name),
            repair=None,
        )
    return outcome


def _asked(site: Site, name: str) -> str:
    if site.medium is Medium.NONE:
        return "Does the service serve this graph, which is compiled without a saver?"
    if site.role not in _OWN:
        return f"Is the graph with this {name} one that the service serves?"
    made = next((e for e in site.evidence if e.note.startswith("makes ")), site.evidence[-1])
    return (
        f"Must what {name} at {made.file}:{made.line} holds outlive the process, or is it kept "
        "elsewhere too?"
    )


def _summary(same: list[_Judged], others: list[_Judged], when: str) -> str:
    what = " and ".join(WHAT[each.role] for each in same)
    verdict = same[0].outcome.verdict
    why = same[0].outcome.why
    if verdict is Verdict.VIOLATED:
        is_paused = any(each.role is Role.PAUSED for each in same)
        lost = "differ" if when.startswith("by which") else "are lost"
        said = f"{what} {lost} {when}: {why}"
        held = [
            "threads" if each.role is Role.SAVER and is_paused else WHAT[each.role]
            for each in others
            if each.outcome.verdict is Verdict.HELD
        ]
        return f"{said}; {' and '.join(held)} are kept" if held else said
    if verdict is Verdict.HELD:
        return f"{what} are kept: {why}"
    return f"whether {what} are kept is open: {why}"


def _evidence(same: list[_Judged], code: CodeFacts, verdict: Verdict) -> tuple[Evidence, ...]:
    told = [e for each in same for e in each.outcome.evidence]
    used = code.uses_threads[:2] if verdict is Verdict.VIOLATED else ()
    return tuple(dict.fromkeys((*told, *used)))
