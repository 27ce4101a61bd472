"""R5: while a service is replaced by a newer one, a worker is listening."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment.facts import Root, Service, Update
from perdure.contracts.evidence import Confidence, Evidence, weakest
from perdure.contracts.findings import Contract, Finding, Verdict


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge R5 for one service; `strict` calls the way in which Compose replaces a violation."""
    del root
    begun = Finding(contract=Contract.R5, service=service.name, verdict=Verdict.UNDECIDED)
    update = service.update
    if update is None or service.is_one_shot or service.is_interactive:
        why = "nothing in the project says how it is updated"
        if service.is_one_shot or service.is_interactive:
            why = "it serves nobody while it is updated"
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            summary=why,
            evidence=service.ends or (service.place,),
        )
    if service.controller == "DaemonSet":
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            summary="each node has a pod of its own: the others go on while one is replaced",
            evidence=(service.place,),
        )
    if _takes_no_requests(service):
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            confidence=Confidence.INFERRED,
            summary="it declares no port and is no server: nobody sends it requests",
            evidence=(service.place,),
        )
    if _is_of_others(service) or _only_works(service, code):
        return replace(
            begun,
            confidence=Confidence.INFERRED,
            summary="nothing here sends it requests",
            evidence=(service.place,),
            question=f"Does anybody wait for what {service.name} answers while it is updated?",
        )
    begun = replace(begun, evidence=update.evidence or (service.place,))
    match update.mechanism:
        case "compose":
            return _compose(begun, service, strict=strict)
        case "swarm":
            return _swarm(begun, service, update)
        case "kubernetes_recreate":
            return replace(
                begun,
                verdict=Verdict.VIOLATED,
                summary="all old pods are stopped before a new one starts: nobody is listening",
                repair="Set strategy.type: RollingUpdate, with maxUnavailable: 0.",
            )
        case _:
            return _rolling(begun, service, update)


_WORKERS = frozenset(
    {"celery", "arq", "rq", "dramatiq", "taskiq", "huey", "procrastinate", "temporal"}
)
"""Programs that take their work from a queue."""


def _takes_no_requests(service: Service) -> bool:
    """Whether a pod or task is a worker: an update of it keeps nobody waiting."""
    server = service.start.server if service.start is not None else None
    return (
        server is not None
        and server.program in _WORKERS
        and service.is_without_ports
        and not service.has_readiness
        and service.update is not None
        and service.update.mechanism != "compose"
    )


def _is_of_others(service: Service) -> bool:
    """Whether it is a pod of an image from elsewhere that nothing here sends a request to."""
    server = service.start.server if service.start is not None else None
    return (
        service.controller is not None
        and service.image.dockerfile is None
        and service.is_without_ports
        and not service.has_readiness
        and not service.aliases
        and (server is None or server.program != "python")
    )


def _only_works(service: Service, code: CodeFacts) -> bool:
    """Whether it is a pod of a Python program that loops for ever, and that nothing leads to."""
    server = service.start.server if service.start is not None else None
    return (
        service.controller is not None
        and service.is_without_ports
        and not service.has_readiness
        and not service.aliases
        and server is not None
        and server.program == "python"
        and bool(code.unhandled)
    )


def _compose(begun: Finding, service: Service, *, strict: bool) -> Finding:
    summary = "Compose stops the old container before it starts the new one"
    if strict:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=f"{summary}: nobody is listening in between",
            repair="Run two services behind a proxy and replace one after the other.",
        )
    return replace(
        begun,
        summary=summary,
        evidence=(service.place,),
        question="Is the service updated otherwise than by Compose, or may it be away meanwhile?",
        is_beyond_files=True,
    )


def _swarm(begun: Finding, service: Service, update: Update) -> Finding:
    replicas = service.replicas
    is_checked = bool(service.health)
    if update.order == "start-first":
        if not is_checked:
            return replace(
                begun,
                verdict=Verdict.VIOLATED,
                summary=(
                    "the new task counts as ready when its process starts, and the old one is"
                    " stopped before it listens"
                ),
                evidence=(*begun.evidence, service.place),
                repair="Add a healthcheck that fails until the server answers.",
            )
        return replace(
            begun,
            verdict=Verdict.HELD,
            summary="the new task is healthy before the old one is stopped",
            evidence=(*begun.evidence, *service.health),
        )
    if replicas.value is None:
        return replace(begun, summary="tasks are stopped first", question=replicas.question)
    if replicas.value <= 1:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            confidence=replicas.confidence,
            summary="the only task is stopped before the new one starts: nobody is listening",
            evidence=(*begun.evidence, *replicas.evidence),
            repair="Set deploy.update_config.order: start-first, and a healthcheck.",
        )
    if is_checked:
        return replace(
            begun,
            verdict=Verdict.HELD,
            confidence=replicas.confidence,
            summary="one task after the other is replaced, each healthy before the next",
            evidence=(*begun.evidence, *replicas.evidence, *service.health),
        )
    return replace(
        begun,
        summary="one task after the other is replaced, without a health check",
        question="Does a task answer as soon as its process runs?",
    )


def _rolling(begun: Finding, service: Service, update: Update) -> Finding:
    if not service.has_readiness:
        summary = (
            "without a readiness probe a new pod gets requests as soon as its process starts, and"
            " the old one is stopped before the new one listens"
        )
        if service.is_without_ports and not service.aliases:
            summary = (
                "without a readiness probe a new pod counts as ready as soon as its process starts,"
                " and the old one is stopped before the new one takes up its work"
            )
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=summary,
            evidence=(service.place, *_others(begun.evidence, service.place)),
            repair="Add a readinessProbe that fails until the server answers.",
        )
    replicas = update.replicas or service.replicas
    unavailable = update.max_unavailable
    confidence = weakest(
        [replicas.confidence] + ([unavailable.confidence] if unavailable is not None else [])
    )
    begun = replace(begun, confidence=confidence)
    if replicas.value is None or unavailable is None or unavailable.value is None:
        question = replicas.question or (unavailable.question if unavailable is not None else None)
        return replace(
            begun,
            summary="how many pods are there, or may be missing, is not known",
            question=question or "How many pods are there, and how many may be missing?",
        )
    if service.controller == "StatefulSet":
        unavailable = replace(unavailable, value=max(1, unavailable.value))
    count = max(1, replicas.value)  # what is scaled from nothing is updated while it is there, too
    if (unavailable.value or 0) >= count:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=(
                f"{unavailable.value} of {count} pods may be missing during an update:"
                " nobody is listening"
            ),
            evidence=(*begun.evidence, *_others(unavailable.evidence, *begun.evidence)),
            repair="Set maxUnavailable: 0 and maxSurge: 1, or run more replicas.",
        )
    if service.fixed_ports and unavailable.value == 0:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary="a new pod can't start beside the old one: both want the same port of the host",
            evidence=(*begun.evidence, *service.fixed_ports),
            repair="Remove hostPort, or allow one pod to be missing and run more replicas.",
        )
    return replace(
        begun,
        verdict=Verdict.HELD,
        summary=(
            f"new pods are ready before old ones are stopped (at most {unavailable.value} of"
            f" {count} missing)"
        ),
        evidence=(*begun.evidence, *_others(service.health, *begun.evidence)),
        warnings=_warnings(service),
    )


def _others(evidence: tuple[Evidence, ...], *told: Evidence) -> tuple[Evidence, ...]:
    places = {(each.file, each.line) for each in told}
    return tuple(each for each in evidence if (each.file, each.line) not in places)


def _warnings(service: Service) -> tuple[str, ...]:
    found: list[str] = []
    if service.pre_stop_s.value is not None and not service.pre_stop_s.value:
        found.append(
            "no preStop sleep: requests still come in for a moment after SIGTERM, while the pod is"
            " taken out of the service"
        )
    if any(mount.access_mode == "ReadWriteOnce" for mount in service.mounts) and (
        service.controller == "Deployment"
    ):
        found.append(
            "its volume is ReadWriteOnce: a new pod on another node waits until the old one is gone"
        )
    return tuple(found)
