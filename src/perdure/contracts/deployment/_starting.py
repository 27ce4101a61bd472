"""From an image, a command and an environment to a `Start`; the same for every platform."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._images import DATABASES, Base, base_of, catalog
from perdure.contracts.deployment._room import Outcome, Room, find_file, unknown
from perdure.contracts.deployment._stages import Built, Command, Written
from perdure.contracts.deployment._start import follow, known_signal
from perdure.contracts.deployment._variables import Variables
from perdure.contracts.deployment.facts import Process, Signal, Source, Start, Variable
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.numbers import whole


class Order(Struct, frozen=True, kw_only=True):
    """What is to be started where."""

    project: Project
    built: Built | None
    reference: str | None
    """The image, if it is not built here."""
    entrypoint: Command | None
    """Of the deployment; `None`: the image's."""
    command: Command | None
    clears_command: bool
    """The deployment's entry point replaces the image's command too."""
    environment: Mapping[str, Variable]
    workdir: str
    sources: Sequence[Source]
    has_init: bool
    place: Evidence
    written: Mapping[str, Written]


def start_of(order: Order) -> tuple[Start | None, Room]:
    """Return how a container starts; `None`: an image of others, as it is."""
    base = _base(order)
    room = Room(
        project=order.project,
        base=base,
        sources=order.sources,
        written=order.written,
        environment=order.environment,
        workdir=order.workdir,
        has_init=order.has_init,
    )
    entrypoint, command = order.entrypoint, order.command
    built = order.built
    if built is not None:
        if entrypoint is None:
            entrypoint = built.entrypoint
            command = command if command is not None else built.cmd
        elif command is None and not order.clears_command:
            command = built.cmd
    if entrypoint is None and command is None and built is None:
        return None, room
    outcome = _outcome(entrypoint, command, base, order, room)
    return _start(outcome, room, _words(entrypoint, command)), room


def _words(entrypoint: Command | None, command: Command | None) -> tuple[str, ...]:
    """Return all words of process 1, as the platform puts them together."""
    if entrypoint is None:
        return command.words if command is not None else ()
    own = () if command is None or entrypoint.is_shell else command.words
    return (*entrypoint.words, *own)


def _base(order: Order) -> Base | None:
    reference = order.built.base if order.built is not None else order.reference
    return base_of(reference) if reference else None


def _outcome(
    entrypoint: Command | None,
    command: Command | None,
    base: Base | None,
    order: Order,
    room: Room,
) -> Outcome:
    name = base.reference if base is not None else "the base image"
    if entrypoint is None:
        if command is None:
            return unknown(
                f"What are ENTRYPOINT and CMD of {name}?", "base_entrypoint", order.place
            )
        if base is None or base.runs_arguments is None:
            outcome = follow(command.words, command.evidence, room)
            if outcome.signal is Signal.LOST:
                # Whatever an entry point does before, this command would have to hand it on.
                return replace(outcome, confidence=Confidence.INFERRED)
            question = (
                f"What is the ENTRYPOINT of {name}, and does it execute its arguments by exec?"
            )
            server = outcome.server if _is_program(outcome.server) else None
            return unknown(question, "base_entrypoint", command.evidence, server=server)
        return follow(command.words, command.evidence, room)
    words = entrypoint.words
    first = entrypoint.evidence
    if command is not None and not entrypoint.is_shell:
        outcome = follow((*words, *command.words), first, room)
        return outcome if command.evidence == first else _with(outcome, command.evidence)
    return follow(words, first, room)


def _is_program(process: Process | None) -> bool:
    """Whether a word is a program that we know, not an argument of an unknown one."""
    return process is not None and (
        process.program == "python" or process.program in programs.SERVING
    )


def _with(outcome: Outcome, evidence: Evidence) -> Outcome:
    if any((e.file, e.line) == (evidence.file, evidence.line) for e in outcome.evidence):
        return outcome
    return replace(outcome, evidence=(*outcome.evidence[:1], evidence, *outcome.evidence[1:]))


def _start(outcome: Outcome, room: Room, argv: tuple[str, ...]) -> Start:
    server = outcome.server
    seen = {(p.argv, p.is_background) for p in room.processes}
    processes = [*room.processes]
    if server is not None and (server.argv, server.is_background) not in seen:
        processes.append(server)
    return Start(
        processes=tuple(_distinct(processes)),
        server=server,
        signal=known_signal(outcome),
        shape=outcome.shape,
        has_init=room.has_init,
        migrations=tuple(dict.fromkeys(room.migrations)),
        waits=tuple(dict.fromkeys(room.waits)),
        question=outcome.question,
        options=_options(server, room),
        unwatched=outcome.unwatched,
        beside=tuple(dict.fromkeys(room.beside)) if not outcome.unwatched else (),
        argv=argv,
    )


def _distinct(processes: Sequence[Process]) -> list[Process]:
    kept: dict[tuple[tuple[str, ...], bool], Process] = {}
    for process in processes:
        kept.setdefault((process.argv, process.is_background), process)
    return [
        process
        for key, process in kept.items()
        if key[1] or (key[0], True) not in kept  # the same command, met again as a child
    ]


def _options(server: Process | None, room: Room) -> dict[str, Known[str]]:
    """Return what the server is told: `workers`, `graceful_timeout_s`, `reload`, `config`."""
    if server is None:
        return {}
    words = [*server.argv[1:]]
    found: dict[str, Known[str]] = {}
    if server.program == "gunicorn":
        variable = room.environment.get("GUNICORN_CMD_ARGS")
        words += (variable.known.value or "").split() if variable is not None else []
    here = server.evidence[0]
    for key, names in (
        ("workers", programs.WORKERS.get(server.program, ())),
        ("graceful_timeout_s", programs.GRACEFUL.get(server.program, ())),
        ("worker_class", ("-k", "--worker-class") if server.program == "gunicorn" else ()),
        ("config", ("-c", "--config") if server.program in {"gunicorn", "hypercorn"} else ()),
    ):
        text = programs.option(words, names) if names else None
        if text is not None:
            found[key] = _expanded(
                text, room, here, f"{server.program} is given {names[-1]} {text}"
            )
    for name in programs.WORKER_VARIABLES.get(server.program, ()):
        variable = room.environment.get(name)
        if variable is not None and "workers" not in found:
            found["workers"] = variable.known
    if "--reload" in words or (server.program == "fastapi" and words[:1] == ["dev"]):
        note = "it reloads its code: a server for development"
        found["reload"] = Known(value="true", evidence=(replace(here, note=note),))
    if server.program == "celery" and "worker" in words:
        _of_pool(found, words, here)
    _of_config_file(found, server, room)
    return found


_ONE_PROCESS = {"solo", "threads", "gevent", "eventlet"}
"""Pools of Celery's worker that keep all tasks in its own process."""
_SHORT_POOL = "-P"


def _of_pool(found: dict[str, Known[str]], words: Sequence[str], here: Evidence) -> None:
    """Say how many processes a worker of Celery has: as many as CPUs, where nothing tells it."""
    pool = programs.option(words, (_SHORT_POOL, "--pool")) or next(
        (word[len(_SHORT_POOL) :] for word in words if word.startswith(_SHORT_POOL)), ""
    )
    if pool in _ONE_PROCESS:
        note = f"celery's pool {pool} is one process"
        found["workers"] = Known(value="1", evidence=(replace(here, note=note),))
    elif any(word.startswith("--autoscale") for word in words) or "workers" not in found:
        note = "celery starts as many processes as there are CPUs, unless -c tells it"
        question = "How many processes does this worker of Celery start? Without -c, one a CPU."
        found["workers"] = Known(
            value=None, evidence=(replace(here, note=note),), question=question
        )


def _expanded(text: str, room: Room, here: Evidence, note: str) -> Known[str]:
    given = {name: variable.known for name, variable in room.environment.items()}
    known = Variables(assume={}, given=given).replace(text, here, is_compose=False)
    return replace(known, evidence=(replace(here, note=note), *known.evidence[1:]))


def _of_config_file(found: dict[str, Known[str]], server: Process, room: Room) -> None:
    """Add what gunicorn's configuration file says in plain assignments."""
    if server.program != "gunicorn":
        return
    named = found.get("config")
    path = (named.value if named is not None else None) or "gunicorn.conf.py"
    file = find_file(path.removeprefix("file:").removeprefix("python:"), room)
    text = room.project.read(file) if file is not None else None
    for number, line in enumerate((text or "").splitlines(), 1):
        assigned = re.match(r"^(workers|graceful_timeout)\s*=\s*(\d{1,15})\s*(#.*)?$", line)
        if assigned is None or file is None:
            continue
        key = "workers" if assigned.group(1) == "workers" else "graceful_timeout_s"
        note = f"gunicorn's configuration says {assigned.group(1)} = {assigned.group(2)}"
        at = Evidence(file=file, line=number, note=note)
        found.setdefault(key, Known(value=assigned.group(2), evidence=(at,)))


def workers_of(start: Start | None, place: Evidence) -> Known[int]:
    """Return how many server processes one container has."""
    option = start.options.get("workers") if start is not None else None
    if option is None:
        return Known(value=1, evidence=(place,), is_default=True)
    count = whole(option.value)
    if count is not None:
        return Known(
            value=max(1, count),
            evidence=option.evidence,
            confidence=option.confidence,
            assumed=option.assumed,
        )
    question = option.question or "How many server processes does the container start?"
    return Known(value=None, evidence=option.evidence, question=question)


_OWN = regex(
    r"\b(python|uvicorn|gunicorn|hypercorn|fastapi|langgraph|celery|streamlit|chainlit|uv|poetry|arq)"
    r"|\.(sh|py)$"
)
"""What an image that is more than its base starts."""


def catalog_of(built: Built | None, reference: str | None) -> str | None:
    """Return what the image is known as: its own name, or that of the base that it only fills.

    An image with a command of its own is what it starts, unless the base is a database or a
    server for graphs.
    """
    if built is None:
        return catalog(reference)
    found = catalog(built.base)
    words = [w for c in (built.entrypoint, built.cmd) if c is not None for w in c.words]
    has_own = any(_OWN.search(word) for word in words)
    is_kept = found in DATABASES or found == "langgraph-api"
    return found if is_kept or not has_own else None
