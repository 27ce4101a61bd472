"""From a start command to the files of the project that it executes first."""

import ast
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._toml_text import parsed
from perdure.contracts.code._layout import Layout
from perdure.contracts.code._supervised import SUPERVISORS, supervised, watched
from perdure.contracts.deployment.facts import Process, Service, Start
from perdure.contracts.evidence import Evidence

SERVERS = frozenset(
    {"uvicorn", "gunicorn", "hypercorn", "daphne", "granian", "waitress-serve", "uwsgi"}
)
"""Programs whose first argument is `module:application`."""

PLATFORMS = frozenset({"langgraph", "aegra", "langgraph-api"})
"""Programs and images that serve the graphs of a configuration file, with a saver of their own."""

_WRAPPERS = {
    "uv", "run", "poetry", "pipenv", "pdm", "hatch", "rye", "exec", "tini", "dumb-init", "env",
    "timeout", "opentelemetry-instrument", "ddtrace-run", "newrelic-admin", "run-program",
    "--", "nice",
    "catatonit", "gosu", "su-exec", "sudo", "doppler", "infisical",
    "debugpy",
}  # fmt: skip

_WITH_VALUE = {
    "--host", "--port", "-h", "-p", "-b", "--bind", "-w", "--workers", "-k", "--worker-class", "-t",
    "--timeout", "--log-level", "--loglevel", "-c", "--config", "--app-dir", "--chdir",
    "--pythonpath",
    "--env-file", "--timeout-graceful-shutdown", "--timeout-keep-alive", "--graceful-timeout",
    "--limit-concurrency", "--backlog", "--root-path", "--forwarded-allow-ips", "--log-config",
    "--loop", "--http", "--ws", "--access-logfile", "--error-logfile", "--threads",
    "--max-requests",
    "--max-requests-jitter", "--keep-alive", "--interface", "--server.port", "--server.address",
    "--project", "--directory", "--package", "--python", "--extra", "--group", "--with", "-n",
    "--name",
    "--concurrency", "-Q", "--queues", "-P", "--pool", "-l", "--reload-dir", "-W", "-X",
}  # fmt: skip


_FASTAPI_FILES = ["main.py", "app.py", "api.py", "app/main.py", "app/app.py", "app/api.py"]
"""Where `fastapi run` looks when it is told nothing."""


class Entry(Struct, frozen=True, kw_only=True):
    """A file that the start command executes first."""

    path: str
    attribute: str | None = None
    """The application or graph in it that is served."""
    is_main: bool = False
    is_command: bool = False
    """A command that the project installs."""
    evidence: tuple[Evidence, ...] = ()


class Entries(Struct, frozen=True, kw_only=True):
    """All that a start command executes, or why it is not known."""

    found: tuple[Entry, ...] = ()
    question: str | None = None
    platform: str | None = None
    """`langgraph dev`, `langgraph-api`, `aegra`: a server that gives graphs its own saver."""
    place: tuple[Evidence, ...] = ()
    words: frozenset[str] = frozenset()
    is_tool: bool = False
    """It is a command of the project's own, whose first words choose what it does."""


def entries_of(layout: Layout, service: Service) -> Entries:
    """Find what a service executes first; adds the folders that its Python imports from."""
    path = service.environment.get("PYTHONPATH")
    for folder in (path.known.value or "").split(":") if path is not None else ():
        if folder and "$" not in folder:
            layout.add_root(folder)
    image = service.image
    if image.catalog == "langgraph-api" or "LANGSERVE_GRAPHS" in service.environment:
        return _platform(layout, service, "langgraph-api", image.evidence or (service.place,), None)
    start = service.start
    if start is None:
        return Entries(question="which command starts the container")
    found: list[Entry] = []
    words: set[str] = set()
    for process in _processes(layout, start):
        argv = _unwrapped(process.argv or ((process.program,) if process.program else ()))
        name = posixpath.basename(argv[0]) if argv else ""
        own = list(_console_script(layout, name, process.evidence)) if name in PLATFORMS else []
        if name in PLATFORMS and not own:
            shown = f"{name} {argv[1]}" if name == "langgraph" and len(argv) > 1 else name
            return _platform(
                layout, service, shown, process.evidence, _option(argv, "--config", "-c")
            )
        other = _other_platform(layout, process, argv)
        if other is not None:
            return _platform(layout, service, other, process.evidence, None)
        words.update(argv[1:])
        found.extend(_of_process(layout, service, process, argv))
    if not found:
        return Entries(question=start.question or _unfound(start.server))
    server = start.server.program if start.server is not None else ""
    is_tool = server not in SERVERS and any(one.is_main or one.is_command for one in found)
    return Entries(found=tuple(found), words=frozenset(words), is_tool=is_tool)


def _processes(layout: Layout, start: Start) -> Iterator[Process]:
    """Yield what a container starts, and what its supervisors start then."""
    own = list(start.processes)
    if start.server is not None and start.server not in own:
        own.append(start.server)
    for process in own:
        argv = _unwrapped(process.argv)
        name = posixpath.basename(argv[0]) if argv else ""
        inner = list(supervised(layout, name, argv)) if name in SUPERVISORS else []
        if not inner:
            yield process
        for words, folder, step in inner:
            if folder is not None:
                layout.add_root(folder)
            program = posixpath.basename(words[0]) if words else ""
            evidence = (*process.evidence, step)
            yield Process(argv=tuple(words), evidence=evidence, program=program)


def _unfound(server: Process | None) -> str:
    if server is None:
        return "which program the container starts"
    shown = server.target or " ".join(server.argv[:3]) or server.program
    return f"which file of the project {shown!r} executes"


def _unwrapped(argv: Sequence[str]) -> list[str]:
    """Drop programs that only start another one, with their options."""
    rest = list(argv)
    while rest:
        name = posixpath.basename(rest[0])
        if name in {"sh", "bash", "dash", "ash"} and rest[2:] and rest[1] in {"-c", "-lc", "-ec"}:
            rest = _last_command(rest[2])
        elif name in {"watchfiles", "watchmedo"}:
            rest = watched(rest)
        elif (
            name in _WRAPPERS
            or ("=" in name and not name.startswith("-"))
            or (name.isdigit() or (name.startswith("-") and name not in _WITH_VALUE))
        ):
            rest = rest[1:]
        elif name in _WITH_VALUE:
            rest = rest[2:]
        else:
            return rest
    return []


def _last_command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    for at in range(len(words) - 1, -1, -1):
        if words[at] in {"&&", ";", "||", "&", "|"}:
            return words[at + 1 :]
    return words


def _option(argv: Sequence[str], *names: str) -> str | None:
    for at, word in enumerate(argv):
        for name in names:
            if word == name and at + 1 < len(argv):
                return argv[at + 1]
            if name.startswith("--") and word.startswith(f"{name}="):
                return word.partition("=")[2]
    return None


def _plain(argv: Sequence[str]) -> list[str]:
    found, is_value = [], False
    for word in argv:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = word in _WITH_VALUE
        else:
            found.append(word)
    return found


def _other_platform(layout: Layout, process: Process, argv: Sequence[str]) -> str | None:
    """Return the server that a process is, of those that are no program of their own name."""
    if _is_aegra(layout, process, argv):
        return "aegra"
    is_adk = bool(argv) and posixpath.basename(argv[0]) == "adk"
    return "adk" if is_adk and {"api_server", "web"} & set(argv[1:3]) else None


def _is_aegra(layout: Layout, process: Process, argv: Sequence[str]) -> bool:
    """Whether a server is told to serve Aegra's own application, which is not in the project."""
    targets = (*argv[1:], process.target or "")
    return layout.module("aegra_api") is None and any(
        one.startswith("aegra_api.") and ":" in one for one in targets
    )


def _of_process(
    layout: Layout, service: Service, process: Process, argv: list[str]
) -> Iterator[Entry]:
    found = list(_of_argv(layout, service, argv, process.evidence))
    if not found and process.target:
        found = list(
            _of_target(
                layout, process.target, process.evidence, is_main=process.program == "python"
            )
        )
        if not found and process.target.endswith(".py"):
            found = list(_script(layout, process.target, process.evidence))
    yield from found


def _of_argv(
    layout: Layout, service: Service, argv: list[str], evidence: tuple[Evidence, ...]
) -> Iterator[Entry]:
    if not argv:
        return
    name, rest = posixpath.basename(argv[0]), argv[1:]
    _add_roots(layout, rest)
    if name.startswith("python"):
        yield from _python(layout, service, rest, evidence)
    elif name == "fastapi":
        files = _plain(rest)[1:2] or _FASTAPI_FILES
        yield from _first(_script(layout, file, evidence, is_main=False) for file in files)
    elif name in {"streamlit", "chainlit", "mesop"}:
        for word in _plain(rest)[1:2]:
            yield from _script(layout, word, evidence)
    elif argv[0].endswith(".py"):
        yield from _script(layout, argv[0], evidence)
    else:
        targets = _targets_of(service, name, argv)
        for target in targets or ():
            yield from _of_target(layout, target, evidence)
        if targets is None:
            yield from _console_script(layout, name, evidence)


def _add_roots(layout: Layout, rest: list[str]) -> None:
    for option in ("--app-dir", "--chdir", "--pythonpath"):
        folder = _option(rest, option)
        if folder:
            layout.add_root(folder)


def _targets_of(service: Service, name: str, argv: list[str]) -> list[str] | None:
    """Return what a server or a queue's worker is told to import; `None` for other programs."""
    words = _plain(argv[1:])
    if name in SERVERS:
        return words[:1]
    if name == "celery":
        return [_option(argv, "-A", "--app") or (words[0] if words else "")]
    if name in {"arq", "rq", "dramatiq", "taskiq", "faststream", "huey_consumer", "prefect"}:
        return words
    if name == "flask":
        app = service.environment.get("FLASK_APP")
        target = _option(argv, "--app", "-A") or (app.known.value if app else None) or "app"
        return [target.removesuffix(".py")]
    return None


def _first(found: Iterator[Iterator[Entry]]) -> Iterator[Entry]:
    for entries in found:
        some = list(entries)
        if some:
            yield from some
            return


def _python(
    layout: Layout, service: Service, rest: list[str], evidence: tuple[Evidence, ...]
) -> Iterator[Entry]:
    at = 0
    while at < len(rest) and rest[at].startswith("-") and rest[at] not in {"-m", "-c"}:
        at += 2 if rest[at] in {"-W", "-X"} else 1
    if at >= len(rest):
        return
    if rest[at] == "-m" and at + 1 < len(rest):
        module = rest[at + 1]
        inside = list(_module_main(layout, module, evidence))
        if inside:
            yield from inside
        else:
            yield from _of_argv(layout, service, _unwrapped([module, *rest[at + 2 :]]), evidence)
    elif rest[at] == "-c" and at + 1 < len(rest):
        yield from _of_text(layout, rest[at + 1], evidence)
    elif rest[at] != "-c":
        yield from _script(layout, rest[at], evidence)


def _of_text(layout: Layout, text: str, evidence: tuple[Evidence, ...]) -> Iterator[Entry]:
    """Read what `python -c` imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            yield from _of_target(layout, name, evidence)


def _module_main(layout: Layout, name: str, evidence: tuple[Evidence, ...]) -> Iterator[Entry]:
    path = layout.module(f"{name}.__main__") or layout.module(name)
    if path is not None and path.endswith(".py"):
        yield Entry(path=path, is_main=True, evidence=evidence)


def _script(
    layout: Layout, file: str, evidence: tuple[Evidence, ...], *, is_main: bool = True
) -> Iterator[Entry]:
    path = layout.file(file) or layout.file(f"{file}/__main__.py")
    if path is None:
        path = _by_ending(layout, file)
    if path is None:
        return
    folder = posixpath.dirname(layout.absolute(file))
    if folder in layout.roots:
        layout.roots.remove(folder)
    layout.roots.insert(0, folder)
    yield Entry(path=path, attribute="app", is_main=is_main, evidence=evidence)


def _by_ending(layout: Layout, file: str) -> str | None:
    """Find a script whose folder in the container is not known: the only one of that name."""
    wanted = file.removeprefix("./").lstrip("/")
    inside = posixpath.join(layout.context, wanted)
    if inside in layout.files.python:
        return inside
    ends = [path for path in layout.files.python if path == wanted or path.endswith(f"/{wanted}")]
    return ends[0] if len(ends) == 1 else None


def _of_target(
    layout: Layout, target: str, evidence: tuple[Evidence, ...], *, is_main: bool = False
) -> Iterator[Entry]:
    name, _, attribute = target.partition(":")
    name = name.removesuffix(".py").replace("/", ".").strip(".")
    attribute = attribute.split("(")[0]
    path = layout.module(name)
    if path is None and not attribute and "." in name:
        # A dotted path to an object in a module: `arq pkg.worker.WorkerSettings`.
        name, _, attribute = name.rpartition(".")
        path = layout.module(name)
    if path is not None and path.endswith(".py"):
        yield Entry(path=path, attribute=attribute or None, is_main=is_main, evidence=evidence)


def _console_script(layout: Layout, name: str, evidence: tuple[Evidence, ...]) -> Iterator[Entry]:
    """Find a command that a `pyproject.toml` of the project declares."""
    files = sorted(
        (path for path in layout.files.all if posixpath.basename(path) == "pyproject.toml"),
        key=lambda path: (not path.startswith(layout.context), len(path), path),
    )
    for file in files[:40]:
        text = layout.files.project.read(file) or ""
        if name not in text:
            continue
        content = parsed(text)
        if content is None:
            continue
        for scripts in (
            _table(content, "project", "scripts"),
            _table(content, "tool", "poetry", "scripts"),
        ):
            target = scripts.get(name)
            if isinstance(target, str):
                line = next((n for n, one in enumerate(text.splitlines(), 1) if target in one), 1)
                step = Evidence(file=file, line=line, note=f"{name} is {target}")
                for one in _of_target(layout, target, (*evidence, step)):
                    yield replace(one, is_command=True)
                return
    yield from _old_script(layout, name, evidence)


_OLD_SCRIPTS = frozenset({"setup.py", "setup.cfg"})


def _old_script(layout: Layout, name: str, evidence: tuple[Evidence, ...]) -> Iterator[Entry]:
    """Find a command that a `setup.py` or `setup.cfg` declares: `name = module:function`."""
    wanted = re.compile(rf"""(?m)(?:^|["'\s]){re.escape(name)}\s*=\s*([\w.]+:[\w.]+)""")
    files = sorted(path for path in layout.files.all if posixpath.basename(path) in _OLD_SCRIPTS)
    for file in files[:40]:
        text = layout.files.project.read(file) or ""
        told = wanted.search(text) if "console_scripts" in text else None
        if told is not None:
            line = text.count("\n", 0, told.start(1)) + 1
            step = Evidence(file=file, line=line, note=f"{name} is {told[1]}")
            for one in _of_target(layout, told[1], (*evidence, step)):
                yield replace(one, is_command=True)
            return


def _table(content: object, *names: str) -> Mapping[str, object]:
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def _platform(
    layout: Layout,
    service: Service,
    platform: str,
    place: tuple[Evidence, ...],
    config: str | None,
) -> Entries:
    graphs: list[tuple[str, str, tuple[Evidence, ...]]] = []
    variable = service.environment.get("LANGSERVE_GRAPHS")
    for name in ("LANGSERVE_GRAPHS", "LANGGRAPH_HTTP"):
        given = service.environment.get(name)
        if given is not None and given.known.value:
            graphs.extend(_targets(_json(given.known.value), "", given.known.evidence))
    if platform != "adk" and (variable is None or not graphs):
        graphs.extend(_of_config(layout, config, platform))
    found = []
    for file, attribute, evidence in graphs:
        path = layout.file(file) or (_by_ending(layout, file) if file.endswith(".py") else None)
        path = path or layout.module(file.replace("/", ".").removesuffix(".py").strip("."))
        if path is None:
            path = _by_tail(layout, file)
        if path is not None and path.endswith(".py"):
            found.append(
                Entry(path=path, attribute=attribute or None, evidence=(*place[:1], *evidence))
            )
    question = None if found or platform == "adk" else f"which graphs {platform} serves"
    return Entries(found=tuple(found), question=question, platform=platform, place=place)


def _by_tail(layout: Layout, file: str) -> str | None:
    """Find a file by ever fewer of its folders, for images with places of their own."""
    parts = file.strip("/").split("/")
    for at in range(len(parts) - 1):
        path = posixpath.normpath(posixpath.join(layout.context, *parts[at:]))
        if path in layout.files.python:
            return path
    return None


def _of_config(
    layout: Layout, config: str | None, platform: str
) -> Iterator[tuple[str, str, tuple[Evidence, ...]]]:
    names = ["aegra.json", "langgraph.json"] if platform == "aegra" else ["langgraph.json"]
    wanted = [config] if config else names
    for name in wanted:
        path = layout.file(name)
        if path is None:
            ends = [
                one for one in layout.files.all
                if posixpath.basename(one) == posixpath.basename(name)
            ]  # fmt: skip
            near = [one for one in ends if one.startswith(layout.context)]
            path = min(near or ends, key=lambda one: (one.count("/"), one), default=None)
        if path is None:
            continue
        text = layout.files.project.read(path) or ""
        content = _json(text)
        folder = posixpath.dirname(path)
        place = (Evidence(file=path, line=_line(text, '"graphs"'), note="names the graphs"),)
        yield from _targets(_table(content, "graphs"), folder, place)
        yield from _targets(_table(content, "http"), folder, place)
        return


def _targets(
    content: object, folder: str, place: tuple[Evidence, ...]
) -> Iterator[tuple[str, str, tuple[Evidence, ...]]]:
    for given in content.values() if isinstance(content, dict) else ():
        text = given.get("path") if isinstance(given, dict) else given
        if isinstance(text, str) and ":" in text:
            file, _, attribute = text.rpartition(":")
            local = file.removeprefix("./")
            yield (posixpath.join(folder, local) if folder else local), attribute, place


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _line(text: str, word: str) -> int:
    return text.count("\n", 0, max(text.find(word), 0)) + 1
