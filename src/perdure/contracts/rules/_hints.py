"""R6, R7, R8, C2: only execution can judge them; what can be seen before is a warning."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Hint
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.numbers import whole
from perdure.contracts.rules._platform import is_langgraph_api, platform_evidence

JOBS_OF_A_WORKER = 10
"""Runs at once in one worker of langgraph-api (N_JOBS_PER_WORKER)."""

_BYTES_OF_MIB = 1024 * 1024


def judge_effects(
    service: Service, code: CodeFacts, root: Root, *, strict: bool = False
) -> Finding:
    """Say what R6 depends on: effects that a repeated step would have twice."""
    del root, strict
    question = "Are effects harmless when a step is executed again? perdure inject finds out."
    found = _of_hints(Contract.R6, service, code, question)
    if found is not None:
        return found
    steps = code.has_steps or code.uses_threads
    if steps:
        return Finding(
            contract=Contract.R6,
            service=service.name,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="runs have steps here, and what those steps do outside was not seen",
            evidence=steps[:2],
            question=question,
            is_beyond_files=True,
        )
    return _absent(Contract.R6, service, code, "no run with steps was seen in the code")


def judge_streams(
    service: Service, code: CodeFacts, root: Root, *, strict: bool = False
) -> Finding:
    """Say what C2 depends on: streams that can't be gone on with."""
    del root, strict
    question = "Can a client go on with a stream after a redeploy? perdure inject finds out."
    return _of_hints(Contract.C2, service, code, question) or _absent(
        Contract.C2,
        service,
        code,
        "no response that streams events to clients was seen in the code",
    )


def judge_resume(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Say what R7 depends on: something that takes interrupted runs up again."""
    del root, strict
    begun = Finding(contract=Contract.R7, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    if is_langgraph_api(service):
        return replace(
            begun,
            verdict=Verdict.HELD,
            confidence=Confidence.INFERRED,
            summary="langgraph-api gives a run whose worker died to another one",
            evidence=platform_evidence(service),
        )
    if not code.uses_threads and not code.has_steps:
        return replace(begun, summary="no runs that could be interrupted are served here")
    question = "Does an interrupted run end without a client's help? perdure inject finds out."
    if code.resumes:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="something here takes interrupted runs up again; a trial shows whether it does",
            evidence=code.resumes,
            question=question,
            is_beyond_files=True,
        )
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary="nothing was seen that takes interrupted runs up again",
        evidence=(code.uses_threads or code.has_steps)[:2],
        question=question,
        is_beyond_files=True,
        warnings=("nothing at the start looks for runs that a crash interrupted",),
    )


def judge_memory(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Say what R8 depends on: the memory that each concurrent run may take."""
    del root, strict
    begun = Finding(contract=Contract.R8, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    limit = service.memory_bytes
    if limit is None or limit.value is None:
        return replace(begun, summary="no memory limit is declared")
    runs, steps = _runs_at_once(service, code)
    if runs is None:
        return replace(begun, summary="how many runs there are at once is not declared")
    each = limit.value / runs / _BYTES_OF_MIB
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=f"{runs} runs at once share the limit: {each:.0f} MiB for each",
        evidence=(*limit.evidence, *steps),
        question="Does every run fit into its share? perdure inject finds out.",
        is_beyond_files=True,
    )


def _runs_at_once(service: Service, code: CodeFacts) -> tuple[int | None, tuple[Evidence, ...]]:
    """Return how many runs the service takes at once, if it says so."""
    workers = service.workers.value or 1
    for one in code.hints:
        runs = whole(one.text) if one.contract == Contract.R8.value else None
        if runs:
            return runs * workers, one.evidence
    if not is_langgraph_api(service):
        return None, ()
    given = service.environment.get("N_JOBS_PER_WORKER")
    text = given.known.value if given is not None else None
    jobs = whole(text) if given is not None else JOBS_OF_A_WORKER
    if not jobs:
        return None, ()
    steps = given.known.evidence if given is not None else platform_evidence(service)
    return jobs * workers, steps


def _of_hints(
    contract: Contract, service: Service, code: CodeFacts, question: str
) -> Finding | None:
    """Return the question about what was seen; `None`: nothing was."""
    found: list[Hint] = [one for one in code.hints if one.contract == contract.value]
    if not found:
        return None
    return Finding(
        contract=contract,
        service=service.name,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=found[0].text,
        evidence=tuple(step for one in found for step in one.evidence)[:4],
        question=question,
        is_beyond_files=True,
        warnings=tuple(dict.fromkeys(one.text for one in found)),
    )


def _absent(contract: Contract, service: Service, code: CodeFacts, summary: str) -> Finding:
    """Say that nothing was seen, where the code was: what was not read is a question."""
    begun = Finding(
        contract=contract,
        service=service.name,
        verdict=Verdict.NOT_APPLICABLE,
        confidence=Confidence.INFERRED,
        summary=f"{summary} that this service starts",
        evidence=code.entry,
    )
    if code.question is None:
        return begun
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        summary="the code that this service starts was not found",
        evidence=code.entry or (service.place,),
        question=code.question,
    )
