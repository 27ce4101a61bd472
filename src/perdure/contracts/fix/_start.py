"""Edits of start commands, so that SIGTERM reaches the server: exec form, or `exec` in a shell."""

import json
import re

from perdure.contracts._exec_form import exec_form, with_exec
from perdure.contracts._patterns import regex
from perdure.contracts.check import Judged
from perdure.contracts.files import Project
from perdure.contracts.fix._applying import lines_of
from perdure.contracts.limits import FIX_LINE_MAX
from perdure.contracts.report import Edit

_SHELL_FORM = regex(r"^(\s*(?:CMD|ENTRYPOINT)\s+)(?![\[\s])(.+?)\s*$", re.IGNORECASE)
_EXEC_SHELL = regex(
    r'^(?P<before>.*\[\s*"(?:/bin/)?(?:sh|bash)"\s*,\s*"-(?:l?c|ec)"\s*,\s*)'
    r'(?P<script>"(?:[^"\\]|\\.)*")(?P<after>\s*\].*)$'
)
_SHELL_WORDS = regex(
    r"^(?P<before>.*\b(?:sh|bash)\s+-(?:l?c|ec)\s+)(?P<quote>[\"'])(?P<script>[^\"'\\]+)(?P=quote)"
    r"(?P<after>\s*[\"']?\s*)$"
)
_BLOCK = regex(r":\s*[>|][+-]?\s*$")
_LIST_ITEM = regex(r"^(?P<before>\s*- )(?P<script>[^\s\"'\[{|>&*!#%@-].*?)\s*$")


def reaching(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Put the server into the place of the shell that starts it, where one line says how."""
    start = judged.service.start
    places = list(judged.finding.evidence)
    if start is not None and start.server is not None:
        places += start.server.evidence
    for place in reversed(places):
        lines = lines_of(project.read(place.file) or "")
        if not 0 < place.line <= len(lines):
            continue
        line = place.line
        if any(len(each) > FIX_LINE_MAX for each in lines[line - 1 : line + 1]):
            continue
        if _BLOCK.search(lines[line - 1]) and line < len(lines):
            line += 1  # the text of a block begins below its key
        old = lines[line - 1].rstrip("\r\n")
        new = _mended(old, is_script=_is_script(place.file, lines))
        if new is not None and new != old:
            return (Edit(file=place.file, line=line, removed=1, lines=(new,)),)
    return ()


def _is_script(file: str, lines: list[str]) -> bool:
    return file.endswith((".sh", ".bash")) or bool(
        lines and re.match(r"#!.*\b(ba|da)?sh\b", lines[0])
    )


def _mended(line: str, *, is_script: bool) -> str | None:
    """Return a line whose last command takes the place of its shell; `None`: not this line."""
    if line.endswith("\\"):
        return None
    form = _SHELL_FORM.match(line)
    if form is not None:
        return exec_form(form.group(1), form.group(2))
    shell = _EXEC_SHELL.match(line)
    if shell is not None:
        try:
            script = json.loads(shell["script"])
        except ValueError:
            return None
        last = with_exec(script)
        return None if last is None else f"{shell['before']}{json.dumps(last)}{shell['after']}"
    for shape in (_SHELL_WORDS, _LIST_ITEM):
        found = shape.match(line)
        if found is not None:
            last = with_exec(found["script"])
            quote = found.groupdict().get("quote", "")
            after = found.groupdict().get("after", "")
            return None if last is None else f"{found['before']}{quote}{last}{quote}{after}"
    return with_exec(line) if is_script else None
