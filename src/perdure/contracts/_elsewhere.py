"""Verdicts on what runs no Python of the project: one-time commands, servers in other languages.

A question that nobody can answer by looking into the project's Python is none. What ends by itself
serves nobody, and what another language keeps is open, and said so.
"""

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts._subjects import is_other_language
from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment.facts import Service
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Finding, Verdict

OF_SERVERS = frozenset({Contract.R1, Contract.R2})
"""What does not apply to a service that ends by itself, whatever its code is."""

_PROGRAM = regex(r"^[\w.+-]{1,40}$")


def is_other_code(finding: Finding) -> bool:
    """Whether a finding is open because what runs is not Python."""
    return finding.is_beyond_files and finding.summary.endswith(_NOT_READ)


_NOT_READ = "is not Python, and only Python is read"


def about_elsewhere(finding: Finding, service: Service, code: CodeFacts) -> Finding:
    """Return a finding that does not ask about code which is none of the project's Python."""
    asked = finding.verdict is Verdict.UNDECIDED and finding.question is not None
    if not asked or finding.question != code.question:
        return finding
    if service.is_one_shot:
        return replace(
            finding,
            verdict=Verdict.NOT_APPLICABLE,
            summary="it ends by itself, and serves nobody meanwhile",
            evidence=service.ends or finding.evidence,
            question=None,
        )
    if finding.contract in OF_SERVERS:
        return finding
    if not is_other_language(service):
        return _asking_what_runs(finding, service)
    server = service.start.server if service.start is not None else None
    name = server.program if server is not None and _PROGRAM.match(server.program) else "it"
    return replace(
        finding,
        confidence=Confidence.INFERRED,
        summary=f"what {name} runs {_NOT_READ}",
        question=f"What does the code that {name} runs say of it?",
        is_beyond_files=True,
    )


def _asking_what_runs(finding: Finding, service: Service) -> Finding:
    """Return a finding that asks what is started, where the start asks about its signals only."""
    start = service.start
    if start is None or finding.question != start.question or not start.argv:
        return finding
    shown = " ".join(" ".join(start.argv).split())
    shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
    return replace(finding, question=f"Which code of this project does {shown!r} run?")


_SHOWN_MAX = 60
"""Characters of a command in a question."""
