"""A start command whose server takes the place of its shell: in exec form, or by `exec`."""

import json
import re
import shlex

from perdure.contracts._patterns import regex
from perdure.contracts.limits import FIX_LINE_MAX

_META = regex(r"[|&;<>()`$*?~#\n\\\[\]{}!]")
_NAMED = regex(r"\$\{\w+(?::?-[\w./:-]*)?\}")
"""`${NAME}` and `${NAME:-word}`: nothing that a shell would do more with."""

_ASSIGNED = regex(r"^\w+=")
_JOINT = regex(r"&&|;|(?<![&>])&(?![&>\d])")
"""What ends a command in a list; `2>&1` does not."""

_SHELL = regex(r"(.*/)?(ba|da|a)?sh$")


_PLAIN_SHELL = regex(r"(.*/)?(da|a)?sh$")
"""Shells whose commands another shell understands as well."""


def _unwrapped(script: str) -> str:
    """Return what the inner shell of `sh -c "..."` reads: the outer one can read it itself."""
    for _ in range(_SHELLS_DEEP):
        try:
            words = shlex.split(script)
        except ValueError:
            return script
        words = words[1:] if words[:1] == ["exec"] else words
        if len(words) != _WORDS_MIN or words[1] != "-c" or not _PLAIN_SHELL.match(words[0]):
            return script
        script = words[2].strip()
    return script


def exec_form(keyword: str, command: str) -> str | None:
    """Return a simple command in exec form; one that needs a shell gets `exec` there."""
    command = _unwrapped(command)
    if not _META.search(command):
        try:
            words = shlex.split(command)
        except ValueError:
            return None
        if (
            words
            and not _ASSIGNED.match(words[0])
            and words[0] not in {"exec", "cd", "export", "."}
        ):
            return keyword + json.dumps(words, ensure_ascii=False)
    last = with_exec(command)
    return None if last is None else keyword + last


def with_exec(script: str) -> str | None:
    """Return commands of which the last one is executed in the shell's place; `None`: not so."""
    script = _unwrapped(script)
    head, joint, last = "", "", script
    for found in _JOINT.finditer(script):
        head, joint, last = script[: found.start()], found.group(), script[found.end() :]
    plain = _NAMED.sub("", last)
    if re.search(r"[|&`\n(){}<]", plain) or not last.strip():
        return None
    if (
        script.count('"') % 2
        or script.count("'") % 2
        or re.search(r"[\"'][^\"']*(&|;)[^\"']*[\"']", script)
    ):
        return None
    room = last[: len(last) - len(last.lstrip())]
    command = _unwrapped(last.strip())
    assigned = ""
    while found_one := re.match(r"(\w+=(?:\"[^\"]*\"|'[^']*'|\S*)\s+)", command):
        assigned += found_one.group(1)
        command = command[found_one.end() :]
    if re.match(
        r"(exec|if|for|while|until|case|cd|export|set|trap|wait|exit|fi|done|esac)\b", command
    ):
        return None
    # `VAR=value exec cmd` gives the variable to cmd in every POSIX shell.
    return f"{head}{joint}{room}{assigned}exec {command}"


def advice(argv: tuple[str, ...]) -> str | None:
    """Return what to write instead of a shell's command line; `None`: that can't be told."""
    if len(argv) < _WORDS_MIN or not _SHELL.match(argv[0]) or argv[-2] not in {"-c", "-lc", "-ec"}:
        return None
    script = argv[-1].strip()
    if len(script) > FIX_LINE_MAX or "\n" in script:
        return None
    simple = exec_form("", script)
    if simple is not None and simple.startswith("["):
        return f"Write {simple}: no shell is needed, and the server is process 1."
    last = with_exec(script)
    if last is None:
        return None
    said = f"Put `exec` before the server: {json.dumps([*argv[:-1], last], ensure_ascii=False)}."
    if re.search(r"(?<![&>])&(?![&>\d])", script):
        said += " What runs in the background beside it belongs into a container of its own."
    return said


_WORDS_MIN = 3
_SHELLS_DEEP = 4
