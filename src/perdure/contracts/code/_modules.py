"""Parsed modules of a project, each read at most once."""

import ast
import sys
import warnings

from perdure.contracts._patterns import regex
from perdure.contracts.code import limits
from perdure.contracts.code._layout import Files
from perdure.contracts.code._newer import lowered, without_block
from perdure.contracts.code._scopes import Scope, scope_of
from perdure.contracts.evidence import Evidence
from perdure.contracts.files import Project

_NEWER = (
    (regex(r"^\s*type\s+[^\W\d]\w*\s*(\[[^=]*\]\s*)?="), (3, 12), "the type statement"),
    (regex(r"^\s*(async\s+def|def|class)\s+\w+\s*\["), (3, 12), "type parameters"),
    (regex(r"(?i)\b(f|rf|fr)['\"].*\{"), (3, 12), "quotes or escapes inside an f-string"),
    (regex(r"(?i)\b(t|rt|tr)['\"]"), (3, 14), "a template string"),
    (regex(r"[\[({]\s{0,99}\*{1,2}[^\s*][^\])}]{0,300} for "), (3, 15),
     "unpacking in a comprehension"),
    (regex(r"^\s*except\s+[\w.]+\s*,\s*[\w.]+[\w., ]*:\s*(#.*)?$"), (3, 14),
     "except without parentheses"),
)  # fmt: skip
"""Syntax by the line at which an older parser gives up, and the first Python that has it."""


def needed_python(text: str, line: int | None) -> tuple[tuple[int, int], str] | None:
    """Return the Python that a line is written for, if it is newer than this one, and why."""
    lines = text.splitlines()
    if line is None or not 1 <= line <= len(lines):
        return None
    for pattern, version, what in _NEWER:
        if version > sys.version_info[:2] and pattern.search(lines[line - 1][:1000]):
            return version, what
    return None


class Modules:
    """The parsed modules of one project, shared by its services."""

    def __init__(self, project: Project) -> None:
        """Nothing is read yet."""
        self.project = project
        self.files = Files(project)
        self._scopes: dict[str, Scope | None] = {}
        self.newer: dict[str, Evidence] = {}
        """What is written for a newer Python than the one that reads it, by path."""
        self.left_out: dict[str, list[str]] = {}
        """The text of it that was left out: all of it, or some functions and classes."""

    def scope(self, path: str) -> Scope | None:
        """Return what a module does; `None` for no Python or too much, which is remembered."""
        if path not in self._scopes:
            self._scopes[path] = self._parse(path)
        return self._scopes[path]

    def _parse(self, path: str) -> Scope | None:
        text = self.project.read(path)
        if text is None:
            return None
        if len(text) > limits.TEXT_OF_MODULE_MAX:
            self.project.not_read(
                path, f"it has more than {limits.TEXT_OF_MODULE_MAX:,} characters"
            )
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of invalid escapes in strings, which are theirs
                return scope_of(path, self._tree(path, text))
        except SyntaxError as error:
            self._not_parsed(path, text, error)
        except (RecursionError, MemoryError, ValueError):
            self.project.not_read(path, "it is nested too deeply, or no source text")
        return None

    def _tree(self, path: str, text: str) -> ast.Module:
        """Parse a module, which may be written for a newer Python than the one that reads it.

        What can't be rewritten costs the function or class it stands in, not the module.
        """
        try:
            return ast.parse(text)
        except SyntaxError as error:
            first = error
        rewritten = lowered(text)
        for _ in range(limits.BLOCKS_MAX):
            if rewritten is None:
                break
            try:
                return ast.parse(rewritten)
            except SyntaxError as error:
                line = error.lineno or 1
                needed = needed_python(text, line)
                rest = without_block(rewritten, line) if needed else None
                if needed is None or rest is None:
                    break
                rewritten, left_out = rest
                self._newer(path, line, needed, "what is around this line")
                self.left_out.setdefault(path, []).append(left_out)
        self.left_out.pop(path, None)
        raise first

    def _newer(
        self, path: str, line: int, needed: tuple[tuple[int, int], str], left_out: str
    ) -> None:
        (major, minor), what = needed
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        reason = (
            f"{left_out} is written for Python {major}.{minor} or newer ({what}), and this check "
            f"runs on {own}: run perdure with Python {major}.{minor} or newer"
        )
        self.project.not_read(path, reason, line)
        self.newer[path] = Evidence(file=path, line=line, note=reason)

    def _not_parsed(self, path: str, text: str, error: SyntaxError) -> None:
        needed = needed_python(text, error.lineno)
        if needed is None:
            self.project.not_read(path, f"it is not Python: {error.msg}", error.lineno)
            return
        self._newer(path, error.lineno or 1, needed, "it")
        self.left_out[path] = [text]
