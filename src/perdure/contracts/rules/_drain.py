"""R1: the time between SIGTERM and SIGKILL covers what the service needs to finish."""

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Drain
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.deployment.facts import Signal as Arrival
from perdure.contracts.evidence import Confidence, Evidence, Known, weakest
from perdure.contracts.findings import Contract, Finding, RootKind, Verdict
from perdure.contracts.numbers import decimal
from perdure.contracts.rules._platform import (
    is_langgraph_api,
    platform_confidence,
    platform_evidence,
)
from perdure.contracts.rules._signal import cuts_at_once

MARGIN_S = 5.0
"""A grace that is larger by less than this is worth a warning: stopping itself takes time, too."""

LANGGRAPH_API_S = 180.0
"""langgraph-api waits so long for runs under way (BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS)."""

LANGGRAPH_DEV_S = 5.0
GUNICORN_S = 30.0
HYPERCORN_S = 3.0


class _Window(Struct, frozen=True, kw_only=True):
    """The time that a stop takes: at least `seconds`, and at most as much if it is bounded."""

    seconds: float
    is_bounded: bool
    evidence: tuple[Evidence, ...]
    what: str
    confidence: Confidence
    assumed: tuple[str, ...] = ()


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge R1 for one service."""
    del strict
    begun = Finding(contract=Contract.R1, service=service.name, verdict=Verdict.UNDECIDED)
    if service.is_one_shot:
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            summary="it ends by itself, so nothing stops it while it serves",
            evidence=service.ends or (service.place,),
        )
    window = window_of(service, code)
    signal = service.start.signal if service.start is not None else None
    if signal is not None and signal.value is Arrival.LOST:
        return replace(
            begun,
            summary="masked by R2: SIGTERM never arrives, so that nothing drains at all",
            evidence=signal.evidence,
            question="Mend R2 first; then: how long may a run under way take when it is stopped?",
            is_beyond_files=True,
        )
    if window is None:
        return _without_window(begun, service, code)
    quick = cuts_at_once(service)
    if quick is not None:
        return replace(
            begun,
            summary=f"it is stopped with {quick.value}, on which its server waits for nothing",
            evidence=tuple(dict.fromkeys((*quick.evidence, *window.evidence))),
            question=f"Does the server finish what is under way on {quick.value}?",
        )
    if root.kind is RootKind.DOCKERFILE and service.grace_s.is_default:
        return replace(
            begun,
            summary=(
                f"{window.what} takes up to {_s(window.seconds)}, and nothing here says how long "
                "the platform waits"
            ),
            evidence=window.evidence,
            question=(f"Does the platform wait more than {_s(window.seconds)} after SIGTERM?"),
        )
    if service.grace_s.value is None:
        return replace(
            begun,
            summary=f"{window.what} takes up to {_s(window.seconds)}, the grace is not known",
            evidence=(*window.evidence, *service.grace_s.evidence),
            question=service.grace_s.question or "How long does the platform wait?",
        )
    return _compared(begun, service, window)


def _compared(begun: Finding, service: Service, window: _Window) -> Finding:
    grace, pause = service.grace_s, service.pre_stop_s
    left = (grace.value or 0.0) - (pause.value or 0.0)
    told = (*window.evidence, *(grace.evidence or (service.place,)))
    told += pause.evidence if pause.value else ()
    paused = f", of which preStop takes {_s(pause.value)}" if pause.value else ""
    begun = replace(
        begun,
        confidence=weakest([window.confidence, grace.confidence]),
        evidence=tuple(dict.fromkeys(told)),
        assumptions=(*window.assumed, *grace.assumed),
    )
    if window.seconds > left:
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            summary=(
                f"{window.what} takes up to {_s(window.seconds)}, and after "
                f"{_s(grace.value or 0.0)}{_by_default(grace)}{paused} the platform kills it: what "
                "runs then is cut off"
            ),
            repair=_repair(service, window),
        )
    if not window.is_bounded:
        return _unbounded(begun, service)
    if pause.value is None:
        return replace(
            begun,
            summary=f"a preStop hook takes of the {_s(grace.value or 0.0)} that there are",
            evidence=tuple(dict.fromkeys((*told, *pause.evidence))),
            question=pause.question or "How long does the preStop hook take?",
        )
    return replace(
        begun,
        verdict=Verdict.HELD,
        summary=f"{window.what} takes at most {_s(window.seconds)}, and {_s(left)} are left for it",
        warnings=_margin(left - window.seconds),
    )


def _by_default(grace: Known[float]) -> str:
    return " (the default, as nothing is set)" if grace.is_default else ""


def _margin(spare_s: float) -> tuple[str, ...]:
    if spare_s >= MARGIN_S:
        return ()
    return (f"only {_s(spare_s)} more than the drain: stopping itself takes time, too",)


def _repair(service: Service, window: _Window) -> str:
    needed = int(window.seconds + (service.pre_stop_s.value or 0.0) + 2 * MARGIN_S)
    if service.controller is not None:
        return f"Set terminationGracePeriodSeconds: {needed}, or let {window.what} take less."
    setting = _GRACE_SETTINGS.get(service.platform or "", "stop_grace_period: {}s").format(needed)
    return f"Set {setting} on {service.name}, or let {window.what} take less."


_GRACE_SETTINGS = {
    "render": "maxShutdownDelaySeconds: {}",
    "fly": "kill_timeout = {}",
    "railway": "drainingSeconds = {}",
}
"""How each platform is told to wait longer."""


def _s(seconds: float) -> str:
    return f"{seconds:g} s"


def _without_window(begun: Finding, service: Service, code: CodeFacts) -> Finding:
    asked = next((d for d in code.drains if d.seconds.question is not None), None)
    if asked is not None:
        return replace(
            begun,
            summary=f"how long {asked.what} takes depends on a setting",
            evidence=asked.seconds.evidence,
            question=asked.seconds.question,
        )
    return _unbounded(begun, service)


def _unbounded(begun: Finding, service: Service) -> Finding:
    server = service.start.server if service.start is not None else None
    name = server.program if server is not None else "this service"
    hint = _HINTS.get(name, "bound it in the code that stops it")
    grace = service.grace_s.value
    told = service.stop_signal
    sent = (told.value if told is not None else None) or "SIGTERM"
    until = f"{_s(grace)} after {sent}" if grace is not None else "the end of the grace"
    return replace(
        begun,
        verdict=Verdict.UNDECIDED,
        confidence=Confidence.INFERRED,
        summary=f"nothing bounds how long {name} waits for what is under way; it is killed {until}",
        evidence=begun.evidence or (server.evidence if server is not None else (service.place,)),
        question=(f"How long may what is under way take when the service is stopped? Then {hint}."),
        is_beyond_files=True,
    )


_HINTS = {
    "uvicorn": "start uvicorn with --timeout-graceful-shutdown SECONDS",
    "fastapi": "start uvicorn itself, with --timeout-graceful-shutdown SECONDS",
    "python": "pass timeout_graceful_shutdown= where the server is started",
}


def window_of(service: Service, code: CodeFacts) -> _Window | None:
    """Return the time that a stop takes at least, as far as command, environment and code say."""
    found = [each for each in (_of_drain(drain) for drain in code.drains) if each is not None]
    unbounded = any(d.seconds.value is None and d.seconds.question is None for d in code.drains)
    known = _of_platform(service) or _of_server(service)
    if known is not None:
        found.append(known)
    elif _is_uvicorn(service) and not any("uvicorn" in each.what or each.assumed for each in found):
        unbounded = True
    if not found:
        return None
    longest = max(found, key=lambda each: each.seconds)
    return replace(longest, is_bounded=not unbounded)


def _is_uvicorn(service: Service) -> bool:
    server = service.start.server if service.start is not None else None
    return server is not None and server.program in {"uvicorn", "fastapi"}


def _of_drain(drain: Drain) -> _Window | None:
    if drain.seconds.value is None:
        return None
    return _Window(
        seconds=drain.seconds.value,
        is_bounded=True,
        evidence=drain.seconds.evidence,
        what=drain.what,
        confidence=drain.seconds.confidence,
        assumed=drain.seconds.assumed,
    )


def _of_platform(service: Service) -> _Window | None:
    """Return the drain of a server that we know by its image or its program."""
    server = service.start.server if service.start is not None else None
    if server is not None and server.program == "langgraph" and "dev" in server.argv:
        return _fixed(LANGGRAPH_DEV_S, "langgraph dev", server.evidence, Confidence.PROVED)
    if not is_langgraph_api(service):
        return None
    evidence = platform_evidence(service)
    given = _variable(service, "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS")
    if given is not None:
        return replace(
            given, what="the drain of langgraph-api", evidence=(*evidence, *given.evidence)
        )
    sure = platform_confidence(service)
    return _fixed(LANGGRAPH_API_S, "the drain of langgraph-api", evidence, sure)


def _fixed(
    seconds: float, what: str, evidence: tuple[Evidence, ...], confidence: Confidence
) -> _Window:
    return _Window(
        seconds=seconds, is_bounded=True, evidence=evidence, what=what, confidence=confidence
    )


def _of_server(service: Service) -> _Window | None:
    server = service.start.server if service.start is not None else None
    if server is None:
        return None
    options = _OPTIONS.get(server.program)
    if options is None:
        return None
    names, variable, default, what = options
    given = _option(server.argv, names)
    if given is not None:
        return _fixed(given, what, server.evidence, Confidence.PROVED)
    if variable is not None and (from_variable := _variable(service, variable)) is not None:
        return replace(from_variable, what=what)
    if default is None:
        return None
    return _fixed(default, what, server.evidence, Confidence.PROVED)


_OPTIONS: dict[str, tuple[tuple[str, ...], str | None, float | None, str]] = {
    "uvicorn": (
        ("--timeout-graceful-shutdown",),
        "UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN",
        None,
        "the graceful shutdown of uvicorn",
    ),
    "gunicorn": (("--graceful-timeout",), None, GUNICORN_S, "the graceful timeout of gunicorn"),
    "hypercorn": (("--graceful-timeout",), None, HYPERCORN_S, "the graceful timeout of hypercorn"),
}
"""Options of servers: names, variable, default, what it is called."""


def _option(argv: tuple[str, ...], names: tuple[str, ...]) -> float | None:
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            value = value if equals else (argv[place + 1] if place + 1 < len(argv) else "")
            return _number(value)
    return None


def _number(text: str) -> float | None:
    return decimal(text)


def _variable(service: Service, name: str) -> _Window | None:
    variable = service.environment.get(name)
    value = _number(variable.known.value or "") if variable is not None else None
    if variable is None or value is None:
        return None
    return _Window(
        seconds=value,
        is_bounded=True,
        evidence=variable.known.evidence,
        what=name,
        confidence=variable.known.confidence,
        assumed=variable.known.assumed,
    )
