"""Whether the project's own lists say that what a `try` imports is installed.

`except ImportError` around an import of a package that the project requires without a condition is
a branch for other installations than this one, if its Dockerfile is seen to install that list.
Only lists beside the module, or above it, that are no list of tools for tests count.
"""

import ast
import posixpath
import re
from collections.abc import Iterator

from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts._toml_text import is_deep, parsed
from perdure.contracts.code import limits
from perdure.contracts.code._flow import Flow
from perdure.contracts.code._scopes import last_name, walk
from perdure.contracts.code.facts import Degrade
from perdure.contracts.evidence import Evidence, Known

_MISSING = regex(r"^swallows \(?(ImportError|ModuleNotFoundError)(, ?ModuleNotFoundError)?\)?$")
_LISTS = (
    "requirements.txt", "requirements/base.txt", "requirements/prod.txt",
    "requirements/production.txt", "pyproject.toml",
)  # fmt: skip
_NAME = regex(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_PACKAGES = {
    "psycopg_pool": ("psycopg-pool", "psycopg[pool]"),
    "psycopg": ("psycopg", "psycopg-binary"),
    "psycopg2": ("psycopg2", "psycopg2-binary"),
    "aiosqlite": ("aiosqlite", "langgraph-checkpoint-sqlite"),
    "yaml": ("pyyaml",),
    "dotenv": ("python-dotenv",),
}
"""Packages that bring modules which are called otherwise."""

_ON_LIBPQ = frozenset({"langgraph-checkpoint-postgres", "psycopg"})
_BINARY = regex(r"(?i)psycopg(?:\[[^\]]{0,80}\b(?:binary|c)\b|-binary\b|-c\b)")
_LIBPQ = regex(r"libpq|postgresql-client|postgresql-dev|postgresql-libs")
_STAGE = regex(r"(?im)^FROM[ \t]")
_INSTALLS = regex(r"\b(?:pip3?|uv|poetry|pdm)\b.*\b(?:install|sync)\b")
_OF_PROJECT = regex(
    r"\buv sync\b|\b(?:poetry|pdm) (?:install|sync)\b"
    r"|\binstall\b.*\s(?:-e\s+)?[\"']?\.(?:[\s\"'\[/]|$)"
)


def without_missing(flow: Flow, degrades: list[Degrade]) -> list[Degrade]:
    """Say of what follows a missing package that it does not happen, where it is installed."""
    lists = _Lists(flow)
    return [_judged(flow, lists, one) for one in degrades]


def _judged(flow: Flow, lists: "_Lists", degrade: Degrade) -> Degrade:
    step = next((one for one in degrade.evidence if _MISSING.match(_plain(one.note))), None)
    if step is None or degrade.cause != "failed" or degrade.when.value is False:
        return degrade
    names = _names_at(flow, step)
    if not names:
        return degrade
    if len(names) > limits.IMPORTS_MAX:
        return _asked(
            degrade, f"Is all that is tried at {step.file}:{step.line} installed in the image?", ()
        )
    lines = [lists.line_of(step.file, name) for name in names]
    found = tuple(one for one in lines if one is not None)
    if len(found) < len(lines):
        return (
            degrade
            if lists.is_whole
            else _asked(degrade, "Do the long lists of packages require what is imported?", ())
        )
    image = _image_text(flow)
    unseen = next((one for one in found if not _installs(image, one.file)), None)
    if unseen is not None:
        return _asked(degrade, f"Does the image install what {unseen.file} requires?", found)
    if any(_packages_of(name)[0] in _ON_LIBPQ for name in names) and not (
        _BINARY.search(lists.text(found[0].file)) or _has_libpq(image)
    ):
        return _asked(degrade, "Does the image have libpq, which psycopg loads?", found)
    return replace(degrade, when=Known(value=False, evidence=found[:1]))


def _asked(degrade: Degrade, question: str, found: tuple[Evidence, ...]) -> Degrade:
    return replace(degrade, when=Known(value=None, question=question, evidence=found[:1]))


def _plain(note: str) -> str:
    return note.partition(", and serving")[0]


def _names_at(flow: Flow, step: Evidence) -> list[str]:
    """Return what is imported in the `try` of a handler."""
    module = flow.program.modules.scope(step.file)
    for scope in module.all_inner() if module is not None else ():
        for attempt in scope.tries:
            if any(one.lineno == step.line for one in attempt.node.handlers):
                return list(dict.fromkeys(_imported(attempt.node)))
    return []


def _image_text(flow: Flow) -> str:
    """Return the Dockerfile that the image is built by, its comments left out."""
    path = flow.environment.service.image.dockerfile
    text = flow.program.modules.project.read(path) or "" if path is not None else ""
    if len(text) > limits.LIST_CHARACTERS_MAX:
        return ""
    lines = [one for one in text.splitlines() if not one.lstrip().startswith("#")]
    return "\n".join(lines).replace("\\\n", " ")


def _installs(image: str, listed: str) -> bool:
    """Whether a line of a Dockerfile installs a list, and its last stage has what it installs."""
    name = posixpath.basename(listed)
    stages = _STAGE.split(image)
    last = stages[-1]
    is_copied = "--from=" in last and len(stages) > len(("base", "one"))
    for part in stages[1:] if is_copied else [last]:
        for whole in part.splitlines():
            line = whole[: limits.TEXT_MAX]
            words = line.split()
            if not words or words[0].upper() != "RUN" or not _INSTALLS.search(line):
                continue
            if any(posixpath.basename(one.strip("\"'")) == name for one in words):
                return True
            if name == "pyproject.toml" and _OF_PROJECT.search(line):
                return True
    return False


def _has_libpq(image: str) -> bool:
    bases = [line.split() for line in image.splitlines() if line.upper().startswith("FROM ")]
    base = bases[-1][1] if bases and len(bases[-1]) > 1 else ""
    is_full = base.startswith("python:") and "slim" not in base and "alpine" not in base
    return is_full or bool(_LIBPQ.search(image))


def _imported(node: ast.Try) -> Iterator[str]:
    for statement in node.body:
        for one in walk(statement):
            if isinstance(one, ast.Import):
                yield from (alias.name for alias in one.names)
            elif isinstance(one, ast.ImportFrom) and not one.level and one.module:
                yield one.module
            elif isinstance(one, ast.Call) and last_name(one.func) == "import_module":
                yield from (
                    str(given.value) for given in one.args[:1] if isinstance(given, ast.Constant)
                )


def _packages_of(name: str) -> tuple[str, ...]:
    parts = name.split(".")
    if name.startswith(("langgraph.checkpoint.", "langgraph.store.")):
        return (f"langgraph-checkpoint-{parts[2]}",)
    return _PACKAGES.get(parts[0], (parts[0].replace("_", "-").lower(),))


class _Lists:
    """The lists of a project: each is read and looked through once."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._texts: dict[str, str] = {}
        self._required: dict[str, dict[str, str]] = {}
        self.is_whole = True
        """No list was too long to be read."""

    def text(self, path: str) -> str:
        """Return the text of a list; empty if there is none, or if it is too long."""
        if path not in self._texts:
            text = self._flow.program.modules.project.read(path) or ""
            if len(text) > limits.LIST_CHARACTERS_MAX:
                self.is_whole = False
                text = ""
            self._texts[path] = text
        return self._texts[path]

    def line_of(self, path: str, name: str) -> Evidence | None:
        """Return the line of a list that requires the package of a module."""
        packages = _packages_of(name)
        folder = posixpath.dirname(path)
        for _ in range(limits.CONFIG_DEPTH_MAX):
            for listed in _LISTS:
                where = posixpath.join(folder, listed) if folder else listed
                required = self._of(where)
                line = next((required[one] for one in packages if one in required), None)
                if line is not None:
                    at = _number(self.text(where), line)
                    return Evidence(file=where, line=at, note=f"requires {packages[0]}")
            if not folder:
                return None
            folder = posixpath.dirname(folder)
        return None

    def _of(self, path: str) -> dict[str, str]:
        if path not in self._required:
            text = self.text(path)
            if path.endswith(".toml"):
                lines = _in_pyproject(text) if text else []
                self.is_whole = self.is_whole and not is_deep(text)
            else:
                lines = text.splitlines()
            found: dict[str, str] = {}
            for line in lines:
                for one in _packages_in(line):
                    found.setdefault(one, line)
            self._required[path] = found
        return self._required[path]


def _packages_in(line: str) -> list[str]:
    """Return what a line requires without a condition: a package, and each with an extra."""
    match = _NAME.match(line)
    if match is None or ";" in line.partition("#")[0]:
        return []
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    extras = [one.strip() for one in (match[2] or "").split(",")]
    return [name, *(f"{name}[{one}]" for one in extras if one)]


def _in_pyproject(text: str) -> list[str]:
    """Return what a `pyproject.toml` always requires: of the project, or of poetry."""
    told = parsed(text)
    if told is None:
        return []
    project = told.get("project")
    found = project.get("dependencies") if isinstance(project, dict) else None
    needed = [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
    tool = told.get("tool")
    poetry = tool.get("poetry") if isinstance(tool, dict) else None
    more = poetry.get("dependencies") if isinstance(poetry, dict) else None
    if isinstance(more, dict):
        for name, value in more.items():
            is_optional = isinstance(value, dict) and value.get("optional")
            extras = value.get("extras") if isinstance(value, dict) else None
            told_extras = f"[{','.join(map(str, extras))}]" if isinstance(extras, list) else ""
            needed += [] if is_optional else [f"{name}{told_extras}"]
    return needed


def _number(text: str, line: str) -> int:
    bare = line.partition("[")[0].strip()
    at = text.find(bare)
    return text.count("\n", 0, at) + 1 if at >= 0 else 1
