"""Which file of the project a module name or a container path means, for one service."""

import ast
import bisect
import fnmatch
import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping

from perdure.contracts.code import limits
from perdure.contracts.deployment.facts import Service
from perdure.contracts.files import Project

NOT_DEPLOYED = frozenset(
    {"tests", "test", "testing", "examples", "example", "docs", "doc", "notebooks", "scripts",
     "benchmarks", "bench", "evals", "cookbook", "archive", "e2e"}
)  # fmt: skip
"""Folders that are the last place to look for a package that a service imports."""


class Files:
    """The Python files of a project, by path and by the first name of their packages."""

    def __init__(self, project: Project) -> None:
        """Index the paths; nothing is read."""
        self.project = project
        self.all = frozenset(project.paths)
        self.python = frozenset(path for path in self.all if path.endswith(".py"))
        self._sorted = sorted(self.python)
        self.folders = frozenset(_folders(self.all))
        self.packages = frozenset(_folders(self.python))
        """Folders with Python files somewhere beneath."""
        self._tops: dict[str, list[str]] = {}
        for path in self.python:
            folder, name = posixpath.split(path)
            self._tops.setdefault(name.removesuffix(".py"), []).append(folder)
        for folder in self.packages:
            above, name = posixpath.split(folder)
            self._tops.setdefault(name, []).append(above)

    @property
    def tops(self) -> Iterable[str]:
        """First names that modules and packages of the project may be imported by."""
        return self._tops.keys()

    def beneath(self, start: str) -> list[str]:
        """The Python files whose paths begin so, sorted."""
        first = bisect.bisect_left(self._sorted, start)
        found = itertools.takewhile(
            lambda path: path.startswith(start), itertools.islice(self._sorted, first, None)
        )
        return list(found)

    def roots_of(self, top: str, near: str) -> list[str]:
        """Folders that would make `top` importable, the likeliest first."""
        found = [
            folder
            for folder in set(self._tops.get(top, ()))
            if posixpath.join(folder, "__init__.py") not in self.python
        ]
        return sorted(found, key=lambda folder: _rank(folder, near))


def _folders(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = posixpath.dirname(folder)
    return found


def _rank(folder: str, near: str) -> tuple[int, int, int, str]:
    parts, wanted = folder.split("/"), near.split("/")
    strange = sum(1 for part in parts if part in NOT_DEPLOYED and part not in wanted)
    shared = 0
    for one, other in zip(parts, wanted, strict=False):
        if one != other:
            break
        shared += 1
    return (strange, -shared, len(parts), folder)


class Layout:
    """How a service's container sees the files of the project."""

    def __init__(self, files: Files, service: Service) -> None:
        """Take the sources of `service`; without any, its build context is taken to be copied."""
        self.files = files
        self.workdir = posixpath.normpath(service.workdir or "/")
        self._sources = [
            (posixpath.normpath(source.container), _clean(source.project))
            for source in service.sources
        ]
        image = service.image
        folder = posixpath.dirname(image.dockerfile or service.place.file)
        self.context = _clean(image.context if image.context is not None else folder)
        if not self._sources:
            self._sources = [(self.workdir, self.context)]
        self._mounted = tuple(
            sorted(
                posixpath.normpath(one.path)
                for one in service.mounts
                if one.kind != "bind" or not self._is_here(one.source)
            )
        )
        self._said_in = tuple(
            path for path in (service.place.file, image.dockerfile) if path is not None
        )
        self.roots = [self.workdir]
        """Folders of the container that Python imports from."""
        self.modules: dict[str, str | None] = {}
        """What each module name means that was asked for."""
        self.answers: dict[tuple[str, ...], object] = {}
        """What else was asked of it: the name of the question, with what it was about."""

    @property
    def key(self) -> tuple[object, ...]:
        """What two services must have in common, beside these answers, for the same facts."""
        return (self.workdir, self._said_in)

    def takes(self, modules: dict[str, str | None]) -> bool:
        """Go on with what was asked elsewhere, if these module names mean the same files here."""
        if not self.has(modules):
            return False
        self.modules = modules
        return True

    def has(self, modules: Mapping[str, str | None]) -> bool:
        """Whether these module names mean the same files here."""
        return all(self.module(name) == path for name, path in modules.items())

    def answers_so(self, answers: Mapping[tuple[str, ...], object]) -> bool:
        """Whether other questions have the same answers here."""
        return all(getattr(self, name)(*about) == said for (name, *about), said in answers.items())

    def add_root(self, container: str) -> None:
        """Import from this folder of the container, too; relative ones are of the work folder."""
        whole = self.absolute(container)
        if whole not in self.roots:
            self.roots.append(whole)

    def absolute(self, path: str) -> str:
        """Return a path of the container as seen from its work folder."""
        return posixpath.normpath(posixpath.join(self.workdir, path))

    def in_project(self, container: str) -> list[str]:
        """Paths of the project that may be at this path of the container, likeliest first."""
        path = self.absolute(container)
        found = []
        fits = [source for source in self._sources if _beneath(path, source[0]) is not None]
        fits.reverse()  # of two sources for one place, the later one is on top
        for place, origin in sorted(fits, key=lambda source: -len(source[0])):
            rest = _beneath(path, place)
            if rest is not None:
                found.append(_clean(posixpath.join(origin, rest)))
        for place, origin in self._sources:
            # A single file that was copied into a folder.
            if origin in self.files.all and _beneath(path, place) == posixpath.basename(origin):
                found.append(origin)
        return found

    def file(self, container: str) -> str | None:
        """Return the file of the project at a path of the container."""
        found = next((path for path in self.in_project(container) if path in self.files.all), None)
        self.answers["file", container] = found
        return found

    def _is_here(self, source: str | None) -> bool:
        path = _clean(source or "")
        return bool(path) and (path in self.files.all or path in self.files.folders)

    def may_differ(self, container: str, path: str) -> bool:
        """Whether the container may have another file, or none, where the project has this one.

        Something is mounted there, a Compose config or a line of the Dockerfile names it, or
        `.dockerignore` leaves it out.
        """
        found = self._may_differ(container, path)
        self.answers["may_differ", container, path] = found
        return found

    def _may_differ(self, container: str, path: str) -> bool:
        whole = self.absolute(container)
        if any(_beneath(whole, folder) is not None for folder in self._mounted):
            return True
        name = posixpath.basename(path)
        for said_in in self._said_in:
            text = self.files.project.read(said_in) or ""
            for line in text[: limits.LIST_CHARACTERS_MAX].splitlines():
                words = line.replace('"', " ").replace("'", " ").replace(",", " ").split()
                is_config = "target:" in words and whole in words
                if is_config or (words[:1] == ["RUN"] and name in line):
                    return True
        ignored = self.files.project.read(posixpath.join(self.context, ".dockerignore")) or ""
        inner = _beneath(path, self.context) if self.context else path
        return inner is not None and _is_ignored(inner, ignored[: limits.LIST_CHARACTERS_MAX])

    def in_container(self, path: str) -> str:
        """Return where the container has a file of the project."""
        best: tuple[int, str] = (-1, posixpath.join(self.workdir, path))
        for place, origin in self._sources:
            rest = _beneath(path, origin) if origin else path
            if rest is not None and len(origin) > best[0]:
                best = (len(origin), posixpath.normpath(posixpath.join(place, rest)))
        self.answers["in_container", path] = best[1]
        return best[1]

    def module(self, name: str) -> str | None:
        """Return the file that `import name` executes last, if it is one of the project's."""
        if name not in self.modules:
            self.modules[name] = self._find(name)
        return self.modules[name]

    def _find(self, name: str) -> str | None:
        if not name or not all(part.isidentifier() for part in name.split(".")):
            return None
        relative = name.replace(".", "/")
        for root in self.roots:
            for path in self.in_project(posixpath.join(root, relative)):
                found = self.at(path)
                if found is not None:
                    return found
        for root in self.files.roots_of(name.split(".", maxsplit=1)[0], self.context):
            found = self.at(_clean(posixpath.join(root, relative)))
            if found is not None:
                return found
        return self._within_package(relative) if "." in name else None

    def _within_package(self, relative: str) -> str | None:
        """Return a module that is beneath a package which was copied as a whole.

        Its folder is made importable by what no file says: a variable of the platform, an install.
        """
        for _place, origin in self._sources:
            if origin and posixpath.join(origin, "__init__.py") in self.files.python:
                found = self.at(_clean(posixpath.join(origin, relative)))
                if found is not None:
                    return found
        return None

    def at(self, stem: str) -> str | None:
        """Return the module at a path without ending; a folder without `__init__` is `path/`."""
        for path in (f"{stem}/__init__.py" if stem else "__init__.py", f"{stem}.py"):
            if path in self.files.python:
                return path
        return f"{stem}/" if stem in self.files.packages else None


def targets_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield module and name of texts like `package.module:app`, of the first ones there are."""
    for node in itertools.islice(nodes, limits.ENTRIES_WALKED_MAX):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, colon, attribute = node.value.partition(":")
            attribute = attribute.partition("(")[0]
            if colon and attribute.isidentifier():
                yield name, attribute


def _is_ignored(path: str, ignored: str) -> bool:
    """Whether any line of a `.dockerignore` may leave a file out."""
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for line in ignored.splitlines()[: limits.IGNORED_MAX]:
        pattern = line.strip().strip("/")[: limits.SHOWN_MAX]
        if not pattern or pattern.startswith(("#", "!")):
            continue
        anywhere = pattern.removeprefix("**/")
        names = parts if anywhere != pattern else []
        if any(fnmatch.fnmatchcase(one, anywhere) for one in (*above, *names)):
            return True
    return False


def _clean(path: str) -> str:
    normal = posixpath.normpath(path or ".").lstrip("/")
    return "" if normal == "." else normal


def _beneath(path: str, folder: str) -> str | None:
    if path == folder:
        return ""
    start = folder if folder.endswith("/") else f"{folder}/"
    return path[len(start) :] if path.startswith(start) else None
