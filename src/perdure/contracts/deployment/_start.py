"""What process 1 of a container is, what it starts, and whether SIGTERM gets to the server.

Follows wrappers, shells and scripts from the first word to the server. Shells are played way by way
(`_ways`). The rows are those of docs/contracts.md.
"""

import ast
import posixpath
import re
from collections.abc import Sequence

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._loops import early_lines, endless_in
from perdure.contracts._patterns import regex
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._room import (
    Outcome,
    Room,
    Text,
    console_script,
    files_in,
    find_file,
    find_script,
    is_customized,
    unknown,
)
from perdure.contracts.deployment._values import split
from perdure.contracts.deployment._ways import play
from perdure.contracts.deployment.facts import Process, Signal
from perdure.contracts.evidence import Confidence, Evidence, Known


def follow(
    argv: Sequence[str], here: Evidence, room: Room, *, depth: int = 0, is_first: bool = True
) -> Outcome:
    """Follow a command to the server that it starts.

    Args:
        argv: The words, without expansion.
        here: Where they are written.
        room: What the container holds; what is noticed is added to it.
        depth: How many programs led here.
        is_first: Whether it is process 1 itself.
    """
    if not argv or depth > limits.START_DEPTH_MAX:
        return unknown("What does the container execute?", "unknown", here)
    name = programs.name_of(argv[0])
    rest = tuple(argv[1:])
    if name in programs.INITS:
        room.has_init = True
        inner = programs.after_options(rest, frozenset({"-p", "-e", "-r", "--rewrite"}))
        note = f"{name} is process 1 and passes signals to its one child"
        return _go_on(inner, here, room, depth, note=note, is_first=False)
    if name in programs.TRANSPARENT or name == "newrelic-admin":
        wrapped = programs.after_wrapper(name, rest)
        return _go_on(wrapped or (), here, room, depth, is_first=is_first)
    if name in programs.SHELLS:
        return _shell(name, rest, here, room, depth)
    if name in programs.WAITERS and "--" in rest:
        room.waits.append(here)
        inner = rest[rest.index("--") + 1 :]
        note = f"{name} waits, and then executes the command in its own place"
        return _go_on(inner, here, room, depth, note=note, is_first=is_first)
    forwarded = _forwarded(name, rest)
    if forwarded is not None:
        inner, note, confidence, is_same = forwarded
        room.migrations += [here] if programs.migrates(inner[:2]) else []
        outcome = _go_on(inner, here, room, depth, note=note, is_first=is_first and is_same)
        if confidence is Confidence.INFERRED and outcome.signal is Signal.REACHES:
            return replace(outcome, confidence=confidence)
        return outcome
    if name == "supervisord":
        return _supervised(rest, here, room, depth)
    script = None if name == "python" else find_script(argv[0], room)
    if script is not None:
        return _script(script, rest, here, room, depth)
    return _program(name, tuple(argv), here, room, depth, is_first=is_first)


def _go_on(
    inner: Sequence[str],
    here: Evidence,
    room: Room,
    depth: int,
    *,
    note: str | None = None,
    is_first: bool,
) -> Outcome:
    outcome = follow(inner, here, room, depth=depth + 1, is_first=is_first)
    return outcome if note is None else outcome.after(replace(here, note=note))


_OF_UVX = frozenset(
    {
        "--from", "--with", "--with-editable", "--with-requirements", "--python", "-p", "--index",
        "--default-index", "--index-url", "--extra-index-url", "--cache-dir", "--directory",
    }
)  # fmt: skip
"""Options of uvx that a value follows."""


def _forwarded(
    name: str, rest: tuple[str, ...]
) -> tuple[tuple[str, ...], str, Confidence, bool] | None:
    """Return what a wrapper that passes signals on starts, and whether in its own place."""
    if name == "uv" and "run" in rest[:4]:
        inner = programs.after_uv_run(rest[rest.index("run") + 1 :])
        return inner, "uv run forwards signals to its child", Confidence.PROVED, False
    if name == "uvx":
        inner = programs.after_options(rest, _OF_UVX)
        return inner, "uvx forwards signals to its child", Confidence.INFERRED, False
    if name == "timeout":
        inner = programs.after_options(rest, frozenset({"-k", "-s", "--signal", "--kill-after"}))
        return inner[1:], "timeout forwards signals to its child", Confidence.PROVED, False
    if name in {"poetry", "pipenv", "rye"} and rest[:1] == ("run",):
        note = f"{name} run executes the command in its own place"
        return rest[1:], note, Confidence.INFERRED, True
    return None


def _program(
    name: str, argv: tuple[str, ...], here: Evidence, room: Room, depth: int, *, is_first: bool
) -> Outcome:
    if name == "python":
        return _python(argv, here, room, depth, is_first=is_first)
    console = None if name in programs.SERVING else console_script(name, room)
    if console is not None:
        return _console(console, argv, here, room, is_first=is_first)
    process = programs.process_of(name, argv, (here,))
    room.processes.append(process)
    if name in programs.HANDLING:
        note = f"{name} handles SIGTERM itself"
        return Outcome(
            signal=Signal.REACHES,
            shape="exec_server" if is_first else "forwarded_server",
            server=process,
            evidence=(replace(here, note=note),),
        )
    if name == "http.server":
        return _without_handler(process, here, is_first=is_first)
    inner = _inside(argv, here, room, depth)
    question = f"What does {name!r} do with SIGTERM, and what does it start?"
    if name in programs.RUNNERS:
        question = f"Does what {name!r} runs handle SIGTERM, and finish what is under way?"
    if inner is not None:
        question = f"Does {name!r} hand SIGTERM on to what it starts?"
        room.processes.remove(process)
        return unknown(question, "other_program", here, server=inner.server)
    return unknown(question, "other_program", here, server=process)


def _inside(argv: tuple[str, ...], here: Evidence, room: Room, depth: int) -> Outcome | None:
    """Return where a server leads that an unknown program is given as its arguments."""
    for at, word in enumerate(argv[1:], 1):
        name = programs.name_of(word)
        if name in programs.HANDLING or name == "python":
            return follow(argv[at:], here, room, depth=depth + 1, is_first=False)
    return None


def _console(
    console: tuple[str, Evidence],
    argv: tuple[str, ...],
    here: Evidence,
    room: Room,
    *,
    is_first: bool,
) -> Outcome:
    target, place = console
    process = Process(
        argv=argv, evidence=(here, place), program="python", target=target, is_module=True
    )
    room.processes.append(process)
    shape = "python_program" if is_first else "python_program_child"
    return unknown(f"Does {target} handle SIGTERM?", shape, here, place, server=process)


def _supervised(rest: tuple[str, ...], here: Evidence, room: Room, depth: int) -> Outcome:
    """Return the likeliest server of a supervisor; what it does with SIGTERM is open.

    One that another one starts reads the same files again: it is not followed.
    """
    question = "Does supervisord stop its programs by SIGTERM, and wait for them long enough?"
    if room.is_supervised:
        return unknown(question, "supervisord", here)
    named = programs.option(rest, ("-c", "--configuration"))
    paths = [named] if named else ["supervisord.conf", *_SUPERVISOR]
    text = next((t for t in (find_script(path, room) for path in paths) if t is not None), None)
    texts = [text] if text is not None else []
    if not texts and (named is None or named in _SUPERVISOR):
        texts = files_in(f"{posixpath.dirname(_SUPERVISOR[0])}/conf.d", ".conf", room)
    found: list[Outcome] = []
    room.is_supervised = True
    for text in texts:
        for number, line in enumerate(text.text.splitlines()):
            key, _, value = line.partition("=")
            if key.strip() != "command" or room.supervised >= limits.START_DEPTH_MAX:
                continue
            room.supervised += 1
            at = text.at(text.first_line + number, f"supervisord starts {value.strip()[:80]}")
            found.append(follow(split(value), at, room, depth=depth + 1, is_first=False))
    room.is_supervised = False
    best = min(found, key=lambda outcome: programs.rank(outcome.server), default=None)
    server = best.server if best is not None else None
    evidence = server.evidence[:1] if server is not None else ()
    return unknown(question, "supervisord", here, *evidence, server=server)


_SUPERVISOR = ("/etc/supervisor/supervisord.conf", "/etc/supervisor/conf.d/supervisord.conf")
"""Where Debian's package has its file, which includes all of `conf.d`; and what is put there."""


def _without_handler(process: Process, here: Evidence, *, is_first: bool) -> Outcome:
    if not is_first:
        question = "Does the program need to be told that it is stopped? SIGTERM ends it at once"
        return unknown(question, "python_no_handler_child", here, server=process)
    note = "it has no handler for SIGTERM, and the kernel ignores the signal for such a process 1"
    return Outcome(
        signal=Signal.LOST,
        shape="python_no_handler",
        server=process,
        evidence=(replace(here, note=note),),
    )


def _python(
    argv: tuple[str, ...], here: Evidence, room: Room, depth: int, *, is_first: bool
) -> Outcome:
    kind, target, rest = programs.python_target(argv[1:])
    if kind == "module" and target in programs.MODULES:
        name = programs.MODULES[target]
        inner = (name, *rest)
        return _program(name, inner, here, room, depth, is_first=is_first)
    process = programs.process_of("python", argv, (here,))
    room.processes.append(process)
    if kind == "inline":
        if re.search(r"uvicorn\.run\(|hypercorn|gunicorn", target or ""):
            note = "the program runs a server that handles SIGTERM"
            return Outcome(
                signal=Signal.REACHES,
                shape="exec_python_server",
                server=process,
                evidence=(replace(here, note=note),),
                confidence=Confidence.INFERRED,
            )
        return unknown(
            "What does the program do with SIGTERM?", "python_inline", here, server=process
        )
    looped = _looped(target or "", room, process, here, is_module=kind == "module")
    if looped is not None and is_first and not room.has_init:
        return looped
    wrapped = _wrapped(target or "", room, process, here, is_module=kind == "module")
    if wrapped is not None:
        return wrapped
    shape = "python_program" if is_first else "python_program_child"
    question = f"Does {target or 'the program'} handle SIGTERM?"
    return unknown(question, shape, here, server=process)


_LOOP = regex(r"(?m)^[ \t]*while (True|1):")
_FOR_EVER = regex(r"(?m)^[ \t]*await .*(\.start_async\(\)|asyncio\.Event\(\)\.wait\(\))")
_ASYNC = regex(r"\basyncio\b|\bslack_bolt\.(async_app|adapter\.socket_mode\.async_handler)\b")
"""What hands no signal on: asyncio.run handles Ctrl-C alone."""

_SERVES = regex(
    r"signal|uvicorn|hypercorn|gunicorn|aiohttp|sanic|tornado|flask|bolt|asyncio|grpc|celery|arq|rq\b"
    r"|dramatiq|twisted|telegram|aiogram|discord|fastmcp|gradio|streamlit|temporal|prefect|serve|daemon"
)


def _python_file(target: str, room: Room, *, is_module: bool) -> tuple[str | None, str | None]:
    """Return where the Python file is that a command names, and its text."""
    found = find_file(target.replace(".", "/") + ".py" if is_module else target, room)
    return found, room.project.read(found) if found is not None else None


def _looped(
    target: str, room: Room, process: Process, here: Evidence, *, is_module: bool
) -> Outcome | None:
    """Return the outcome for a Python file that is a plain loop and no more; `None`: it isn't."""
    found, text = _python_file(target, room, is_module=is_module)
    plain = _LOOP.search(text or "")
    loop = plain or _FOR_EVER.search(text or "")
    if found is None or text is None or loop is None:
        return None
    if _SERVES.search(_ASYNC.sub("", text)) or (_ASYNC.search(text) and "asyncio.run(" not in text):
        return None
    line = _endless(text, text.count("\n", 0, loop.end()) + 1, is_loop=plain is not None)
    if line is None or is_customized(room.project, room.written.values()):
        return None
    at = Evidence(file=found, line=line, note="it loops for ever and never mentions signals")
    outcome = _without_handler(process, here, is_first=True)
    return replace(outcome, evidence=(*outcome.evidence, at), confidence=Confidence.INFERRED)


def _endless(text: str, line: int, *, is_loop: bool) -> int | None:
    """Return the line where a file waits for ever, if nothing is seen to end that."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if is_loop:
        return next(iter(endless_in(tree)), None)
    return None if line in early_lines(tree) else line


def _wrapped(
    target: str, room: Room, process: Process, here: Evidence, *, is_module: bool
) -> Outcome | None:
    """Return the outcome for a Python file whose main part only starts a server as a child."""
    found, text = _python_file(target, room, is_module=is_module)
    if found is None or text is None:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if re.search(r"signal\.signal|add_signal_handler|os\.exec|uvicorn\.run|os\.kill", text):
        return None
    for node in ast.walk(tree):
        started = _started_child(node) if isinstance(node, ast.Call) else None
        if started is not None and isinstance(node, ast.Call):
            note = f"it starts {started} as a child, waits, and hands no signal on"
            at = Evidence(file=found, line=node.lineno, note=note)
            return Outcome(
                signal=Signal.LOST,
                shape="python_wrapper",
                server=process,
                evidence=(here, at),
                confidence=Confidence.INFERRED,
            )
    return None


def _started_child(node: ast.Call) -> str | None:
    if not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in {"run", "call", "check_call", "Popen"}:
        return None
    if not isinstance(node.func.value, ast.Name) or node.func.value.id != "subprocess":
        return None
    words = [
        item.value
        for argument in node.args[:1]
        if isinstance(argument, ast.List)
        for item in argument.elts
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return next((word for word in words if word in programs.SERVING), None)


def _shell(name: str, rest: tuple[str, ...], here: Evidence, room: Room, depth: int) -> Outcome:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        if "c" in rest[at].lstrip("-") and not rest[at].startswith("--") and at + 1 < len(rest):
            text = Text(text=rest[at + 1], file=here.file, first_line=here.line)
            kind = shell_kind(name, room)
            return play(
                text,
                rest[at + 3 :],
                here,
                room,
                depth=depth,
                kind=kind,
                is_script=False,
                follow=follow,
            )
        at += 2 if rest[at] in {"-o", "-O"} else 1
    if at >= len(rest):
        return unknown("What does the shell execute?", "unknown", here)
    script = find_script(rest[at], room)
    if script is None:
        question = f"What does the script {rest[at]!r} of the image do?"
        return unknown(question, "unknown_script", here)
    note = f"{name} executes {script.file}"
    outcome = play(
        script,
        rest[at + 1 :],
        replace(here, note=note),
        room,
        depth=depth,
        kind=shell_kind(name, room),
        is_script=True,
        follow=follow,
    )
    return replace(outcome, confidence=Confidence.INFERRED) if script.is_guessed else outcome


def shell_kind(name: str, room: Room) -> str | None:
    """Return which shell a name is in this image; `None`: not known."""
    if name == "sh":
        return room.base.shell if room.base is not None else None
    return name


def _script(script: Text, rest: tuple[str, ...], here: Evidence, room: Room, depth: int) -> Outcome:
    first = script.text.split("\n", 1)[0].strip()
    words = first[2:].split() if first.startswith("#!") else []
    if words and programs.name_of(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    name = programs.name_of(words[0]) if words else "sh"
    if name == "python":
        return follow(("python", script.file, *rest), here, room, depth=depth + 1)
    if name not in programs.SHELLS:
        return unknown(f"What does {script.file} do with SIGTERM?", "unknown_script", here)
    note = f"process 1 is the script {script.file}"
    return play(
        script,
        rest,
        replace(here, note=note),
        room,
        depth=depth,
        kind=shell_kind(name, room),
        is_script=True,
        follow=follow,
    )


def known_signal(outcome: Outcome) -> Known[Signal]:
    """Return what became of the signal, as rules read it."""
    return Known(
        value=outcome.signal,
        evidence=outcome.evidence,
        confidence=outcome.confidence,
        question=outcome.question,
    )
