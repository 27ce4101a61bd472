"""S0: a saver that can't be made is an error, and never a silent change to a weaker one."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Degrade, Medium, Role
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.rules._platform import is_langgraph_api

_REPAIR = (
    "Let the failure end the start (raise it again), or answer not ready until the durable saver "
    "is there."
)
_BECOMES = {
    Medium.NONE: "no saver at all",
    Medium.MEMORY: "the memory of the process",
    Medium.FILE: "a local file",
}


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge S0 for one service."""
    del root, strict
    begun = Finding(contract=Contract.S0, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    if is_langgraph_api(service):
        return replace(begun, summary="the server of the graphs brings its own saver")
    failed = [one for one in code.degrades if one.cause in {"failed", "misuse"}]
    unset = [one for one in code.degrades if one.cause == "unset"]
    real = sorted((one for one in failed if one.when.value is True), key=_is_import)
    if real:
        return _violated(begun, real[0], unset)
    open_ones = [one for one in failed if one.when.value is None]
    if open_ones:
        return _open(begun, open_ones[0])
    running = [one for one in unset if _is_running(one, code)]
    if running:
        found = _violated(begun, running[0], [])
        return replace(found, confidence=Confidence.DECLARED_DEFAULT)
    return _held(begun, code, unset, failed)


def _is_import(degrade: Degrade) -> bool:
    """Whether it is a library that may be missing: what is installed is known when it is built."""
    return any("ImportError" in step.note for step in degrade.evidence)


def _open(begun: Finding, degrade: Degrade) -> Finding:
    becomes = _BECOMES.get(degrade.becomes, degrade.becomes.value)
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=(
            f"whether the service goes on with {becomes} when the durable saver fails depends on "
            "something that is not known here"
        ),
        evidence=tuple(dict.fromkeys((*degrade.when.evidence, *degrade.evidence))),
        question=degrade.when.question,
    )


def _violated(begun: Finding, degrade: Degrade, unset: list[Degrade]) -> Finding:
    becomes = _BECOMES.get(degrade.becomes, degrade.becomes.value)
    if degrade.cause == "misuse":
        summary = "the durable saver is used in a way that can't work, so that nothing is kept"
        repair = "Enter the saver's context manager (with ...), and import a name that exists."
    elif degrade.cause == "failed":
        summary = f"when the durable saver fails, the service goes on with {becomes}, and serves"
        repair = _REPAIR
    else:
        summary = f"no durable saver is configured here, so the service goes on with {becomes}"
        repair = "Set what configures the durable saver, and refuse to start without it."
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=degrade.when.confidence,
        summary=summary,
        evidence=tuple(dict.fromkeys((*degrade.when.evidence, *degrade.evidence))),
        repair=repair,
        assumptions=degrade.when.assumed,
        warnings=tuple(_warning(one) for one in unset[:1]),
    )


def _warning(degrade: Degrade) -> str:
    last = degrade.evidence[-1]
    becomes = _BECOMES.get(degrade.becomes, degrade.becomes.value)
    return f"where no durable saver is configured, it is {becomes}: {last.file}:{last.line}"


def _is_running(degrade: Degrade, code: CodeFacts) -> bool:
    """Whether the weaker one is what runs, as far as the declared settings say."""
    last = degrade.evidence[-1]
    return any(
        any((step.file, step.line) == (last.file, last.line) for step in site.evidence)
        and site.role is Role.SAVER
        and site.medium is degrade.becomes
        and site.is_served
        and site.chosen.value is True
        for site in code.sites
    )


def _held(
    begun: Finding, code: CodeFacts, unset: list[Degrade], elsewhere: list[Degrade]
) -> Finding:
    weak = {Medium.MEMORY, Medium.NONE, Medium.UNKNOWN}
    durable = [
        site
        for site in code.sites
        if site.is_served
        and site.chosen.value is True
        and site.medium not in weak
        and site.role in {Role.SAVER, Role.STORE}
    ]
    if not durable and elsewhere:
        return replace(
            begun,
            confidence=elsewhere[0].when.confidence,
            summary="a durable saver is not what is configured here",
            evidence=elsewhere[0].when.evidence,
            warnings=(_elsewhere(elsewhere[0]),),
            assumptions=elsewhere[0].when.assumed,
        )
    if not durable:
        return replace(begun, summary="no durable saver is made here")
    decided = [step for one in elsewhere[:1] for step in one.when.evidence]
    return replace(
        begun,
        verdict=Verdict.HELD,
        confidence=Confidence.INFERRED,
        summary="a durable saver that fails ends the start or the request",
        evidence=tuple(dict.fromkeys((*durable[0].evidence, *decided))),
        warnings=(
            *(_warning(one) for one in unset[:1]),
            *(_elsewhere(one) for one in elsewhere[:1]),
        ),
        assumptions=tuple(dict.fromkeys(a for one in elsewhere[:1] for a in one.when.assumed)),
    )


def _elsewhere(degrade: Degrade) -> str:
    last = degrade.evidence[-1]
    becomes = _BECOMES.get(degrade.becomes, degrade.becomes.value)
    return (
        "with other settings than those of this deployment, it goes on with "
        f"{becomes}: {last.file}:{last.line}"
    )
