"""Which Compose files are laid over others, by the commands that the project tells people to use.

    # docker compose -f docker-compose.yml -f docker-compose.gpu.yml up

in the head of the second file, a README or a Makefile, in one command that names both with their
folders. What any file of the project may start alone is a deployment of its own, whatever else is
said of it; so is what a command only looks at, lays over a file for tests, or warns of.
"""

import posixpath
from collections.abc import Iterable, Iterator, Mapping

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._started import is_started_alone
from perdure.contracts.files import Project

_TOLD_IN = ("README.md", "Makefile", "makefile", "justfile")
_COMMANDS = regex(r"&&|[;|`]|\s#|(?=(?:docker|podman)[ -]compose\s)")
_COMPOSE = regex(r"(?:^|\s)(?:(?:docker|podman)[ -])?compose\s")
_WITH_VALUE = frozenset(
    {"-p", "--project-name", "--env-file", "--profile", "--project-directory", "--ansi",
     "--progress", "--parallel", "--context", "-H", "--host"}
)  # fmt: skip
_RUNS = frozenset(
    {"", "create", "down", "exec", "logs", "ps", "restart", "run", "start", "stop", "up", "watch"}
)
"""What is told to what runs; the others look at files, or build."""
_WARNS = regex(r"(?i)\b(not|never|don.?t|avoid|instead of|rather than|no longer|deprecated)\b")
_FOR_TESTS = regex(r"[-_.](tests?|ci|e2e)\b")
_MOVES = regex(r"(?:^|\s)cd\s+[\"']?([\w./\-]{1,200})")


def laid_over(project: Project, path: str, names: Mapping[str, str]) -> list[str]:
    """Return the files that one is laid over, in their order; empty: it stands for itself.

    Where commands differ, what all of them lay it over counts.

    Args:
        project: what is read.
        path: the file that is asked about.
        names: the Compose files of the same folder, by name in small letters.
    """
    beside = frozenset(names.values())
    found: list[str] | None = None
    for given in _commands(project, path):
        if path not in given[1:] or not beside.issuperset(given):
            continue
        before = [one for one in given[: given.index(path)] if not _FOR_TESTS.search(one)]
        found = before if found is None else [one for one in found if one in before]
    return found if found and not is_started_alone(project, path) else []


def _commands(project: Project, path: str) -> Iterator[list[str]]:
    """Yield the paths of the files that each command may be given."""
    folder = path.rpartition("/")[0]
    near = [
        f"{each}/{name}".lstrip("/") for each in dict.fromkeys((folder, "")) for name in _TOLD_IN
    ]
    texts = [(path, _head(project.read(path) or ""))]
    texts += [(each, project.read(each) or "") for each in near if each in project.names]
    texts += _told_elsewhere(project, path, near)
    for teller, text in texts:
        joined = text[: limits.OVERLAY_CHARACTERS_MAX].replace("\\\n", " ")
        yield from _told(project, joined.splitlines(), teller.rpartition("/")[0])


_TELLS = regex(r"(^|/)docs?/(.{1,200}/)?[^/]{1,200}\.(md|mdx|rst|txt)$|\.(sh|bash)$")


def _told_elsewhere(project: Project, path: str, near: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the documents and scripts that name a file, with their texts."""
    name = path.rpartition("/")[2]
    tellers = [each for each in project.paths if _TELLS.search(each) and each not in near]
    for each in sorted(tellers)[: limits.OVERLAY_FILES_MAX]:
        text = project.glance(each)
        if name in text:
            yield each, text


def may_be_laid_over(path: str, main: str, own: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a file may be meant to lie over another one, as its name and its services say.

    Args:
        path: the file that is asked about, which no file tells to start alone.
        main: the file that `docker compose` takes by itself, in the same folder.
        own: its services.
        others: the services of the other one.
    """
    name, base = path.rpartition("/")[2].lower(), main.rpartition("/")[2].lower()
    services = set(own)
    is_named = name.startswith(base.partition(".")[0] + ".") and name.count(".") > 1
    return is_named and len(services.intersection(others)) * 3 >= len(services) * 2


def _told(project: Project, lines: list[str], folder: str) -> Iterator[list[str]]:
    """Yield what the commands of a text are given, from its folder and from the top."""
    bases = here = tuple(dict.fromkeys((folder, "")))
    before = ""
    for line in lines:
        if not line.strip() or line.lstrip().startswith("```"):
            bases = here
            continue
        is_warned = _WARNS.search(line) or (before.endswith(":") and _WARNS.search(before))
        before = line.rstrip()
        for command in _COMMANDS.split(line):
            moved = _MOVES.search(command)
            if moved is not None:
                below = tuple(_path(base, moved[1]) for base in bases)
                bases = below if project.folders.intersection(below) else bases
            files, told = _given(command)
            if len(files) > 1 and told in _RUNS and not is_warned:
                yield from ([_path(base, file) for file in files] for base in bases)


def _given(command: str) -> tuple[list[str], str]:
    """Return the files that `docker compose` is given before its subcommand, and that."""
    begin = _COMPOSE.search(command)
    if begin is None:
        return [], ""
    words = iter(command[begin.end() :].split())
    files: list[str] = []
    for word in words:
        if word in {"-f", "--file"}:
            files.append(next(words, "").strip("\"'"))
        elif word.startswith(("-f", "--file=")):
            files.append(word.removeprefix("--file=").removeprefix("-f").strip("=\"'"))
        elif word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return files, word.strip("\"'.,:)")
    return files, ""


def _path(folder: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(folder, name))


def _head(text: str) -> str:
    """Return the comment that a file begins with."""
    lines = text.splitlines()[: limits.HEAD_LINES_MAX]
    end = next((at for at, one in enumerate(lines) if one.strip() and one[0] != "#"), len(lines))
    return "\n".join(line.lstrip("# ") for line in lines[:end])
