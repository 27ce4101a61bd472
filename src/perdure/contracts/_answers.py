"""How a question is answered: by a setting, by a word about the platform, or by an experiment."""

import re

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.findings import Contract, Finding, RootKind, Verdict

_SETTING = regex(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_NAMED = regex(r"value of ([A-Z][A-Z0-9_]+)\b|what is ([A-Z][A-Z0-9_]+)\b")
_ASKS = regex(r"(which|what|where|how|does|do|is|are|may|who|when)\b", re.IGNORECASE)
_HOLDS = regex(r"whether (.+) holds at (\S+)", re.DOTALL)
_BY_EXECUTION = frozenset({Contract.R6, Contract.R7, Contract.R8, Contract.C2})


def answerable(finding: Finding, service: Service, root: Root) -> Finding:
    """Return a finding whose question is one, with how it is answered; others as they are."""
    if finding.verdict is not Verdict.UNDECIDED or finding.question is None:
        return finding
    question = _question(finding.question)
    return replace(finding, question=question, answer=_answer(finding, question, service, root))


def _question(text: str) -> str:
    """Return what is asked as a question: some facts are named only."""
    text = text.strip().rstrip(".")
    if "?" in text:
        return text if text.endswith("?") else f"{text}."
    if (holds := _HOLDS.fullmatch(text)) is not None:
        text = f"is {holds[1]} true at {holds[2]}"
    if not _ASKS.match(text):
        text = f"what is {text}"
    return f"{text[:1].upper()}{text[1:]}?"


def _answer(finding: Finding, question: str, service: Service, root: Root) -> str:
    named = _NAMED.search(question)
    if "run perdure with" in question:
        return "perdure in that Python"
    setting = next((each for each in named.groups() if each), None) if named is not None else None
    if setting is None and (found := _SETTING.search(question)) is not None:
        setting = found.group()
    if setting is not None:
        return f"--assume {setting}=VALUE, or declare it in {_environment(root)}"
    if finding.contract in _BY_EXECUTION:
        return f"perdure inject --contract {finding.contract}"
    of_platform = _OF_PLATFORM.get(finding.contract, _of_state)(finding, service, root)
    if of_platform is not None:
        return of_platform
    contract = finding.contract
    return f"--assume {contract}=held if it is kept, {contract}=violated if not"


def _environment(root: Root) -> str:
    if root.kind is RootKind.KUBERNETES:
        return "env: of the container"
    return "ENV of the Dockerfile" if root.kind is RootKind.DOCKERFILE else f"{root.root}"


def _of_drain(finding: Finding, service: Service, root: Root) -> str | None:
    if "masked" in finding.summary:
        return "mend R2: perdure check --fix"
    if service.grace_s.value is None and "takes up to" in finding.summary:
        return "--assume stop_grace_period=30s, or say how it is run in a Compose file"
    if service.pre_stop_s.value is None:
        return "--assume pre_stop=5s"
    del root
    return "--assume drain=20s, or bound it as the question says"


def _of_signal(finding: Finding, service: Service, root: Root) -> str | None:
    del root
    if service.start is None:
        return "say it in command: of the service"
    if finding.summary.startswith("it is stopped with"):
        return None
    return "--assume sigterm=reaches, or sigterm=lost"


def _of_restart(finding: Finding, service: Service, root: Root) -> str | None:
    if finding.summary.startswith("it is started on demand"):
        return "# perdure: ignore[R4] WHY, above the line that is named, or a restart: of its own"
    del service, root
    return "--assume restart=always, or say how it is run in a Compose file"


def _of_update(finding: Finding, service: Service, root: Root) -> str | None:
    del root
    if service.update is not None and service.update.mechanism == "compose":
        return "# perdure: ignore[R5] WHY, above the line that is named; --strict counts it"
    replicas = service.update.replicas if service.update is not None else None
    if (replicas or service.replicas).value is None:
        return "--assume replicas=NUMBER"
    del finding
    return None


def _of_state(finding: Finding, service: Service, root: Root) -> str | None:
    """Return how a question of S0 to S4, R3 or C1 is answered by a word about the platform."""
    question = finding.question or ""
    del root
    if finding.contract is Contract.S3 and service.replicas.value is None:
        return "--assume replicas=NUMBER"
    if finding.contract is Contract.S3 and service.workers.value is None:
        return "--assume workers=NUMBER"
    if question.startswith("Is a volume mounted"):
        path = re.search(r"folder of (\S+)", question)
        folder = path.group(1).rpartition("/")[0] if path is not None else ""
        return f"--assume volumes={folder or '/FOLDER'}, or say how it is run in a Compose file"
    return None


_OF_PLATFORM = {
    Contract.R1: _of_drain,
    Contract.R2: _of_signal,
    Contract.R4: _of_restart,
    Contract.R5: _of_update,
}
