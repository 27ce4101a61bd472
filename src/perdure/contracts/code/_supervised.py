"""What programs that start others are told to start: supervisord, Procfiles, watchers of files."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._layout import Layout
from perdure.contracts.evidence import Evidence

SUPERVISORS = frozenset({"supervisord", "honcho", "foreman"})
"""Programs that start what a file of the project says."""

_CONFIGS = ("supervisord.conf", "supervisor.conf", "etc/supervisord.conf")
_PROCFILE = regex(r"(?m)^([\w-]{1,60}):[ \t]*(\S.*)$")
_WATCH_VALUES = frozenset(
    {"--filter", "--args", "--ignore-paths", "--grace-period", "--target-type",
     "--sigint-timeout", "--sigkill-timeout"}
)  # fmt: skip


def supervised(
    layout: Layout, name: str, argv: Sequence[str]
) -> Iterator[tuple[list[str], str | None, Evidence]]:
    """Yield the commands that a supervisor starts, each with its folder and where it is said."""
    if name == "supervisord":
        given = [
            argv[at + 1] for at, one in enumerate(argv[:-1]) if one in {"-c", "--configuration"}
        ]
        path = _config(layout, given)
        if path is not None:
            yield from _programs(path, layout.files.project.read(path) or "")
        return
    given = [argv[at + 1] for at, one in enumerate(argv[:-1]) if one in {"-f", "--procfile"}]
    path = layout.file((given or ["Procfile"])[0])
    text = layout.files.project.read(path) or "" if path is not None else ""
    wanted = {one for one in argv[1:] if not one.startswith("-")} - {"start", "run", *given}
    for found in list(_PROCFILE.finditer(text))[: limits.SUPERVISED_MAX]:
        if path is not None and (not wanted or found[1] in wanted):
            yield _words(found[2]), None, _step(path, text, found.start(), found[1])


def _config(layout: Layout, given: list[str]) -> str | None:
    """Find the configuration: where it is copied to, or the only one of its name."""
    for name in given or _CONFIGS:
        path = layout.file(name)
        if path is not None:
            return path
    names = {posixpath.basename(one) for one in given or _CONFIGS}
    near = [one for one in layout.files.all if posixpath.basename(one) in names]
    inside = [one for one in near if one.startswith(layout.context)]
    return next(iter(inside or near)) if len(inside or near) == 1 else None


def _programs(path: str, text: str) -> Iterator[tuple[list[str], str | None, Evidence]]:
    import configparser  # noqa: PLC0415  # few images start a supervisor

    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=(";",))
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError):
        return
    for section in parser.sections()[: limits.SUPERVISED_MAX]:
        kind, _, program = section.partition(":")
        command = parser.get(section, "command", fallback="")
        if kind in {"program", "fcgi-program"} and command:
            folder = parser.get(section, "directory", fallback=None)
            step = _step(path, text, max(text.find(f"[{section}]"), 0), program)
            yield _words(command), folder, step


def _step(path: str, text: str, at: int, name: str) -> Evidence:
    line = text.count("\n", 0, at) + 1
    return Evidence(file=path, line=line, note=f"{name} is started by what this file says")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def watched(argv: Sequence[str]) -> list[str]:
    """Return the command that a watcher of files starts again when one changes."""
    if argv[0].endswith("watchmedo"):
        return list(argv[argv.index("--") + 1 :]) if "--" in argv else []
    rest = list(argv[1:])
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in _WATCH_VALUES else 1 :]
    command = _words(rest[0]) if rest else []
    if len(command) == 1 and re.fullmatch(r"[\w.]+", command[0]) and "." in command[0]:
        return ["python", "-m", command[0].rpartition(".")[0]]  # a function in a module
    return command
