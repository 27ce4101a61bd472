"""What a start can see of its container, and where it may lead."""

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._images import Base
from perdure.contracts.deployment._stages import Written
from perdure.contracts.deployment.facts import Process, Signal, Source, Variable
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.files import Project


class Room(Struct, kw_only=True):
    """What a start can see: the image's files and environment; and what is noticed on the way."""

    project: Project
    base: Base | None
    sources: Sequence[Source]
    written: Mapping[str, Written]
    environment: Mapping[str, Variable]
    workdir: str
    has_init: bool = False
    migrations: list[Evidence] = field(default_factory=list)
    waits: list[Evidence] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    beside: list[Evidence] = field(default_factory=list)
    """Servers in the background of the one that the container lives and dies with."""
    supervised: int = 0
    """Programs that supervisors were seen to start."""
    is_supervised: bool = False
    """Whether a supervisor starts what is followed now."""

    def value(self, name: str) -> str | None:
        """Return the value of a variable of the container, if it is known."""
        variable = self.environment.get(name)
        return variable.known.value if variable is not None else None


class Outcome(Struct, frozen=True, kw_only=True):
    """Where a start leads."""

    signal: Signal
    shape: str
    server: Process | None
    evidence: tuple[Evidence, ...]
    confidence: Confidence = Confidence.PROVED
    question: str | None = None
    unwatched: tuple[Evidence, ...] = ()
    """The server may die while the container lives on."""

    def after(self, *evidence: Evidence) -> "Outcome":
        """Return the same with what came before it."""
        return replace(self, evidence=(*evidence, *self.evidence))


def unknown(
    question: str, shape: str, *evidence: Evidence, server: Process | None = None
) -> Outcome:
    """Return the outcome of a start that can't be followed further."""
    return Outcome(
        signal=Signal.UNKNOWN, shape=shape, server=server, evidence=evidence, question=question
    )


class Text(Struct, frozen=True, kw_only=True):
    """A script's text and where it lies."""

    text: str
    file: str
    first_line: int
    is_guessed: bool = False

    def at(self, line: int, note: str) -> Evidence:
        """Return a line of it with a note."""
        return Evidence(file=self.file, line=line, note=note)


def find_file(path: str, room: Room) -> str | None:
    """Return the file of the project at a path of the container."""
    absolute = posixpath.normpath(posixpath.join(room.workdir, path))
    for source in reversed(room.sources):
        folder = source.container.rstrip("/")
        if source.container == absolute and room.project.has(source.project):
            return source.project
        if absolute.startswith(folder + "/"):
            found = posixpath.normpath(posixpath.join(source.project, absolute[len(folder) + 1 :]))
            if room.project.has(found):
                return found
    return None


def find_script(path: str, room: Room) -> Text | None:
    """Return the script at a path of the container, from the project or the Dockerfile itself."""
    absolute = posixpath.normpath(posixpath.join(room.workdir, path))
    candidates = [absolute]
    if "/" not in path:
        candidates += [f"/usr/local/bin/{path}", f"/usr/bin/{path}", f"/bin/{path}"]
    for candidate in candidates:
        written = room.written.get(candidate)
        if written is not None:
            return Text(text=written.text, file=written.place.file, first_line=written.place.line)
        found = find_file(candidate, room)
        if found is not None:
            return _text_of(found, room)
    name = posixpath.basename(path)
    if not name.endswith(".sh"):
        return None
    alike = [p for p in room.project.paths if posixpath.basename(p) == name]
    text = _text_of(alike[0], room) if len(alike) == 1 else None
    return replace(text, is_guessed=True) if text is not None else None


def files_in(folder: str, ending: str, room: Room) -> list[Text]:
    """Return the files of the project that are put into a folder of the container, by name."""
    found: dict[str, str] = {}
    for source in room.sources:
        place = posixpath.normpath(source.container)
        if posixpath.dirname(place) == folder and source.project in room.project.names:
            found[posixpath.basename(place)] = source.project
        elif place == folder:
            own = [source.project] if source.project in room.project.names else []
            inside = [p for p in room.project.paths if posixpath.dirname(p) == source.project]
            found |= {posixpath.basename(p): p for p in (*own, *inside)}
    named = sorted(name for name in found if name.endswith(ending))[: limits.INCLUDES_MAX]
    return [text for name in named if (text := _text_of(found[name], room)) is not None]


_CUSTOMIZES = regex(r"\b(site|user)customize\b|\.pth\b")


def is_customized(project: Project, written: Iterable[Written] = (), dockerfile: str = "") -> bool:
    """Whether Python may execute something of the project before all programs: handlers, too."""
    names = ("sitecustomize.py", "usercustomize.py")
    if any(path.rpartition("/")[2] in names or path.endswith(".pth") for path in project.paths):
        return True
    texts = [*(one.text for one in written), project.read(dockerfile) or "" if dockerfile else ""]
    return any(_CUSTOMIZES.search(text) for text in texts)


def _text_of(path: str, room: Room) -> Text | None:
    text = room.project.read(path)
    return Text(text=text, file=path, first_line=1) if text is not None else None


def runs_own_command(words: Sequence[str], room: Room) -> bool:
    """Whether a wrapper starts a command of the project's own packages: `uv run my-agent`."""
    if words[0] not in {"uv", "poetry", "pdm", "pipenv", "rye"} or "run" not in words[:4]:
        return False
    inner = programs.after_uv_run(words[list(words).index("run") + 1 :])
    return bool(inner) and console_script(programs.name_of(inner[0]), room) is not None


def console_script(name: str, room: Room) -> tuple[str, Evidence] | None:
    """Return what a command of the project's own packages executes: `package.module:function`."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        return None
    paths = [path for path in room.project.paths if path.rpartition("/")[2] == "pyproject.toml"]
    for path in paths[: limits.SOURCES_MAX]:
        text = room.project.read(path) or ""
        found = re.search(
            rf"""(?m)^["']?{re.escape(name)}["']?\s*=\s*["']([\w.]+:[\w.]+)["']""", text
        )
        if found is None:
            continue
        line = text.count("\n", 0, found.start()) + 1
        note = f"the command {name} is {found.group(1)}"
        return found.group(1), Evidence(file=path, line=line, note=note)
    return None
