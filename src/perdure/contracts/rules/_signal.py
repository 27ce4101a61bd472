"""R2: SIGTERM reaches the program that must finish its work, not only process 1.

The rows are measured with real engines (docs/contracts.md). An init in front of a shell ends the
container fast and still does not let the server drain, so it never makes a violation held.
"""

from msgspec.structs import replace

from perdure.contracts._exec_form import advice
from perdure.contracts.code.facts import ARQ_WAITS, CodeFacts
from perdure.contracts.deployment.facts import Root, Service, Signal, Start
from perdure.contracts.evidence import Confidence, Evidence, Known, weakest
from perdure.contracts.findings import Contract, Finding, Verdict

_PYTHON = frozenset(
    {"python_program", "python_program_child", "python_no_handler", "python_inline"}
)
"""Starts whose end depends on what the Python program does with signals."""

_HANDLED: dict[str, frozenset[str]] = {
    "uvicorn": frozenset({"TERM", "INT"}),
    "fastapi": frozenset({"TERM", "INT"}),
    "hypercorn": frozenset({"TERM", "INT"}),
    "streamlit": frozenset({"TERM", "INT"}),
    "gunicorn": frozenset({"TERM"}),
    "celery": frozenset({"TERM", "INT"}),
    "nginx": frozenset({"TERM", "INT", "QUIT"}),
    "langgraph": frozenset({"TERM", "INT"}),
    "arq": frozenset({"TERM", "INT"}),
}
"""Signals on which servers stop in order."""

_CUTS: dict[str, frozenset[str]] = {
    "gunicorn": frozenset({"INT", "QUIT"}),
    "celery": frozenset({"QUIT"}),
}
"""Signals on which they stop at once, whatever is under way."""

_REPAIRS = {
    "script_no_exec": (
        "Put `exec` before the last command of the script, so that it becomes process 1."
    ),
    "script_background": (
        "Start the server last, with `exec`; or trap TERM, kill the children and wait for them."
    ),
    "script_trap_no_wait": (
        "Let the trap's handler wait for the children after it has killed them."
    ),
    "background_server": (
        "Give the server a container of its own, or make it process 1 with `exec`."
    ),
    "python_no_handler": "Install a handler for SIGTERM that finishes what is under way.",
    "python_wrapper": "Replace the wrapper by the server's own command, or end it with os.execvp.",
}
_SHELL_REPAIR = (
    'Use the exec form, `CMD ["program", "argument"]`, or put `exec` before the last command of the'
    " shell's line."
)


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge R2 for one service."""
    del strict, root
    begun = Finding(contract=Contract.R2, service=service.name, verdict=Verdict.UNDECIDED)
    if service.is_one_shot:
        return replace(
            begun,
            verdict=Verdict.NOT_APPLICABLE,
            summary="it ends by itself, so nothing has to stop it in order",
            evidence=service.ends or (service.place,),
        )
    start = service.start
    if start is None:
        image = service.image.reference or "the image"
        return replace(
            begun,
            summary="what the image starts is not in the project",
            evidence=service.image.evidence or (service.place,),
            question=f"What are ENTRYPOINT and CMD of {image}, and do they hand SIGTERM on?",
        )
    stopped = _other_signal(begun, service, start)
    if stopped is not None:
        return stopped
    if start.shape in _PYTHON:
        return _python(begun, code, start)
    if start.signal.value is Signal.LOST:
        given = service.stop_signal
        lost = _lost(begun, start)
        if given is None or given.value is None:
            return lost
        return replace(lost, summary=lost.summary.replace("SIGTERM", given.value, 1))
    if start.signal.value is Signal.REACHES:
        return _told_of_queue(_reaches(begun, start), start, code)
    return replace(
        begun,
        confidence=start.signal.confidence,
        summary="whether SIGTERM gets to the server can't be told from the project",
        evidence=start.signal.evidence or (service.place,),
        question=start.signal.question or "What does process 1 do with SIGTERM?",
    )


def _reaches(
    begun: Finding, start: Start, more: tuple[Evidence, ...] = (), sent: str = "SIGTERM"
) -> Finding:
    name = start.server.program if start.server is not None else "the server"
    return replace(
        begun,
        verdict=Verdict.HELD,
        confidence=start.signal.confidence,
        summary=f"{sent} gets to {name}, which can finish what is under way",
        evidence=tuple(dict.fromkeys((*start.signal.evidence, *more))),
        assumptions=start.signal.assumed,
    )


def _told_of_queue(held: Finding, start: Start, code: CodeFacts) -> Finding:
    """Return a verdict on a worker of arq that tells what becomes of its jobs.

    It cancels them at once, and gives them back to the queue, unless it is told to wait for them.
    """
    is_arq = start.server is not None and start.server.program == "arq"
    waits = any(each.what == ARQ_WAITS and each.seconds.value != 0 for each in code.drains)
    if not is_arq or waits:
        return held
    return replace(
        held,
        summary="SIGTERM gets to arq, which cancels its jobs and puts them back into the queue",
        warnings=(*held.warnings, "its jobs are cut off and begin anew: job_completion_wait waits"),
    )


def _lost(begun: Finding, start: Start, more: tuple[Evidence, ...] = ()) -> Finding:
    name = start.server.program if start.server is not None else "the server"
    summary = (
        f"SIGTERM never gets to {name}: what runs is not finished, and after the grace period"
        " everything is killed"
    )
    warnings: tuple[str, ...] = ()
    if start.shape == "script_trap_no_wait":
        summary = f"{name} sees SIGTERM, and the script ends at once: what runs is cut off"
    elif start.has_init:
        summary = f"SIGTERM never gets to {name}: the container ends fast, and what runs is cut off"
        warnings = ("an init makes it stop fast; it does not make it drain",)
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=start.signal.confidence,
        summary=summary,
        evidence=(*start.signal.evidence, *more),
        repair=_REPAIRS.get(start.shape) or advice(start.argv) or _SHELL_REPAIR,
        warnings=warnings,
        assumptions=start.signal.assumed,
    )


def _python(begun: Finding, code: CodeFacts, start: Start) -> Finding:
    """Judge a start that ends in a Python program of the project."""
    if code.handlers:
        held = _reaches(begun, start, code.handlers)
        return replace(held, confidence=weakest([start.signal.confidence]))
    if start.shape == "python_no_handler" and not start.has_init:
        return _lost(begun, start)
    if start.shape == "python_program" and not start.has_init and code.unhandled:
        return replace(
            _lost(begun, start, code.unhandled),
            confidence=Confidence.INFERRED,
            summary=(
                "nothing in the program handles SIGTERM, which process 1 then never notices: after "
                "the grace period everything is killed"
            ),
            repair=_REPAIRS["python_no_handler"],
        )
    target = start.server.target if start.server is not None else None
    question = f"Does {target or 'the program'} handle SIGTERM?"
    summary = "no handler for SIGTERM was found in what the program imports"
    if start.shape == "python_program" and not start.has_init:
        summary += "; without one, process 1 never notices the signal"
    return replace(
        begun,
        confidence=Confidence.INFERRED,
        summary=summary,
        evidence=tuple(dict.fromkeys((*start.signal.evidence, *code.entry[:3]))),
        question=start.signal.question or question,
    )


def is_handled(start: Start, code: CodeFacts) -> bool:
    """Whether the files say what becomes of SIGTERM: the program has a handler for it."""
    return start.shape in _PYTHON and bool(code.handlers)


def cuts_at_once(service: Service) -> Known[str] | None:
    """Return the stop signal of a service if its server ends at once on it: no drain is waited."""
    given = service.stop_signal
    server = service.start.server if service.start is not None else None
    if given is None or given.value is None or server is None:
        return None
    name = given.value.upper().removeprefix("SIG")
    return given if name in _CUTS.get(server.program, ()) else None


def _other_signal(begun: Finding, service: Service, start: Start) -> Finding | None:
    """Judge a container that is stopped with another signal than SIGTERM; `None`: it isn't."""
    given = service.stop_signal
    is_lost = start.signal.value is Signal.LOST and start.shape != "python_no_handler"
    if given is None or given.value is None or is_lost:
        return None  # Python itself handles SIGINT
    name = given.value.upper().removeprefix("SIG")
    if name in {"TERM", "15"}:
        return None
    server = start.server.program if start.server is not None else None
    handled = _HANDLED.get(server or "")
    evidence = (*given.evidence, *start.signal.evidence)
    is_quick = name in _CUTS.get(server or "", ())
    if name in {"KILL", "9"} or (handled is not None and name not in handled and not is_quick):
        return replace(
            begun,
            verdict=Verdict.VIOLATED,
            confidence=weakest([given.confidence, start.signal.confidence]),
            summary=f"it is stopped with {given.value}, which {server or 'nothing'} doesn't handle",
            evidence=evidence,
            repair="Remove the stop signal, so that SIGTERM is sent.",
        )
    if handled is not None and name in handled and "trap" not in start.shape:
        if start.signal.value is not Signal.REACHES:
            return None
        return _reaches(begun, start, given.evidence, given.value)
    return replace(
        begun,
        summary=f"it is stopped with {given.value}",
        evidence=evidence,
        question=f"Does {server or 'the server'} finish what is under way on {given.value}?",
    )
