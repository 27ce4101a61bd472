"""C1: what is taken outside ends by itself, also when no code of ours can give it back."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Lease
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Finding, Verdict


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge C1 for one service."""
    del root, strict
    begun = Finding(contract=Contract.C1, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    if not code.leases:
        return replace(begun, summary="nothing was seen to be taken outside of the process")
    taken = [one for one in code.leases if one.when.value is not False]
    if not taken:
        return _switched_off(begun, code.leases[0])
    loose = [one for one in taken if one.expires is False and not one.is_reaped]
    stuck = [one for one in loose if one.when.value and not one.cleaned]
    cleaned = [one for one in loose if one.when.value and one.cleaned]
    if stuck:
        lease = stuck[0]
        only = "code that a crash skips gives it back" if lease.release else "nothing gives it back"
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=f"{lease.what} is taken without an end of its own: after a crash, {only}",
            confidence=lease.when.confidence,
            evidence=(*lease.when.evidence, *lease.evidence, *lease.release),
            assumptions=lease.when.assumed,
            repair=f"Take {lease.what} with a time limit and renew it, or clean up at every start.",
        )
    if cleaned:
        lease = cleaned[0]
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=f"{lease.what} is taken without an end, and a start may give it back",
            evidence=(*lease.when.evidence, *lease.evidence, *lease.cleaned),
            question=f"Does a start give back {lease.what} that a crash left?",
        )
    if loose:
        lease = loose[0]
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=f"whether {lease.what} is taken here depends on a setting that is not declared",
            evidence=(*lease.when.evidence, *lease.evidence),
            question=lease.when.question,
        )
    open_ones = [one for one in taken if one.expires is None]
    if open_ones:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=f"a library decides when {open_ones[0].what} ends",
            evidence=open_ones[0].evidence,
            question=f"Does {open_ones[0].what} end by itself when its holder dies?",
        )
    return replace(
        begun,
        verdict=Verdict.HELD,
        confidence=Confidence.INFERRED,
        summary="all that is taken outside ends by itself, or is cleaned up at a start",
        evidence=tuple(step for one in taken for step in one.evidence)[:4],
    )


def _switched_off(begun: Finding, lease: Lease) -> Finding:
    return replace(
        begun,
        confidence=lease.when.confidence,
        summary=f"{lease.what} is taken only with a setting that is off here",
        evidence=(*lease.when.evidence, *lease.evidence),
        assumptions=lease.when.assumed,
    )
