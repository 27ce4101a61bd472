"""R4: the server comes back after a crash, without a person."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Finding, RootKind, Verdict
from perdure.contracts.numbers import whole

FEW_RETRIES = 5
"""`on-failure:N` with fewer tries than this gives up during a short outage of what it needs."""

_JOBS = frozenset({"Job", "CronJob"})


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge R4 for one service."""
    begun = Finding(contract=Contract.R4, service=service.name, verdict=Verdict.UNDECIDED)
    reason = _not_applicable(service)
    if reason is not None:
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            summary=reason,
            evidence=service.ends or (service.place,),
        )
    start = service.start
    if start is not None and start.unwatched:
        name = start.server.program if start.server is not None else "the server"
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=f"when {name} dies, the container lives on without it and nothing restarts it",
            evidence=start.unwatched,
            repair="Give each server a container of its own, or end the shell when a child ends.",
        )
    found = _by_policy(begun, service, root)
    return (
        _half_dead(found, service, code, strict=strict) if found.verdict is Verdict.HELD else found
    )


def _half_dead(held: Finding, service: Service, code: CodeFacts, *, strict: bool) -> Finding:
    """Judge a container that is restarted when it ends, and does not end when a server dies."""
    start = service.start
    if start is not None and start.beside:
        return replace(
            held,
            verdict=Verdict.VIOLATED,
            summary="when what runs in the background dies, nobody notices: the container lives on",
            evidence=(*start.beside, *held.evidence),
            repair="Give each server a container of its own, or end the shell when a child ends.",
            warnings=(),
        )
    reload = start.options.get("reload") if start is not None else None
    if reload is None and not code.reloads:
        return held
    if not strict:
        warning = "a reloader is process 1 and lives on when the server it watches crashes"
        return replace(held, warnings=(*held.warnings, warning))
    reloads = reload.evidence if reload is not None else code.reloads
    return replace(
        held,
        verdict=Verdict.VIOLATED,
        confidence=Confidence.INFERRED,
        summary=(
            "a reloader is process 1 and lives on when the server that it watches crashes: nothing "
            "starts it again until a file changes"
        ),
        evidence=(*reloads, *held.evidence),
        repair="Start the server without reload where it is deployed.",
        warnings=(),
    )


def _not_applicable(service: Service) -> str | None:
    if service.is_one_shot or service.controller in _JOBS:
        return "it ends by itself, so there is nothing to restart"
    if service.is_interactive:
        return "a person sits at its terminal and starts it"
    server = service.start.server if service.start is not None else None
    if server is not None and server.program in _NOTEBOOKS:
        return "it is a notebook: a tool of a person, who starts it"
    return None


_NOTEBOOKS = frozenset({"jupyter", "jupyter-lab", "jupyter-notebook", "marimo"})
"""Programs in which people try things out; no agent is served."""


def _by_policy(begun: Finding, service: Service, root: Root) -> Finding:
    known = service.restart
    begun = replace(
        begun,
        confidence=known.confidence,
        evidence=known.evidence or (service.place,),
        assumptions=known.assumed,
    )
    value = known.value
    if value is None:
        summary = "what restarts it is not in the project"
        if root.kind is RootKind.DOCKERFILE:
            summary = (
                "nothing in the project says how the image is run, so what restarts it is open"
            )
        elif known.question is not None and " -f " in known.question:
            summary = "it is restarted if its file is laid over the main one, which nothing says"
        question = known.question or "What restarts the container after a crash?"
        return replace(begun, summary=summary, question=question)
    chosen = {(e.file, e.line) for e in service.may_end} & {
        (e.file, e.line) for e in known.evidence
    }
    is_chosen = bool(chosen) and not known.is_default
    if value in {"no", "never"} and service.may_end and (service.profiles or is_chosen):
        how = "started on demand" if service.profiles else "alone written not to be restarted"
        return replace(
            begun,
            confidence=Confidence.INFERRED,
            summary=f"it is {how}, and may be a job that ends",
            evidence=(*service.may_end, *known.evidence),
            question=f"Does {service.name} end by itself when its work is done?",
        )
    if value in {"no", "never"}:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary="after a crash it stays down until somebody starts it",
            repair=_repair(service),
        )
    return replace(
        begun,
        verdict=Verdict.HELD,
        summary=f"the platform starts it again after a crash ({value})",
        warnings=_warnings(value),
    )


def _repair(service: Service) -> str:
    if service.controller is not None:
        return "Let a Deployment run it, or set restartPolicy: Always."
    if service.platform == "railway":
        return "Set restartPolicyType to ALWAYS."
    if service.platform == "fly":
        return 'Set policy = "always" in [[restart]].'
    return f"Set restart: unless-stopped on {service.name}."


def _warnings(value: str) -> tuple[str, ...]:
    found: list[str] = []
    name, _, tries = value.partition(":")
    if name == "on-failure":
        found.append("on-failure: a crash that ends with exit code 0 is not restarted")
    count = whole(tries)
    if count is not None and count < FEW_RETRIES:
        found.append(f"after {count} tries it stays down")
    return tuple(found)
