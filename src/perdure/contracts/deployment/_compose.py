"""Compose files as Compose reads them: merged, included, extended; values keep their lines.

Variables are not replaced here (`_services` does, value by value). Relative paths belong to the
file that they are written in, which every node knows.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._defended import defended
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._overlays import laid_over, may_be_laid_over
from perdure.contracts.deployment._started import is_started_alone
from perdure.contracts.deployment._yaml import Node, mapping, read_yaml, scalar, sequence
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.files import Project

_NAMED = regex(r"^(docker[-_.])?compose([-_.].*)?\.ya?ml$|^.+[-_.](docker[-_.]?)?compose\.ya?ml$")
_MAIN = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_OVERRIDE = regex(r"^(docker-)?compose\.override\.ya?ml$")
_REPLACED = frozenset({"command", "entrypoint", "test"})
_PAIRS = frozenset({"environment", "labels", "args", "sysctls", "annotations", "extra_hosts"})
_UNIQUE = frozenset({"volumes", "devices", "configs", "secrets"})


class Composition(Struct, frozen=True, kw_only=True):
    """A Compose project: its services and volumes after everything is merged."""

    main: str
    """The file that it is named by."""
    files: tuple[str, ...]
    services: Mapping[str, Node]
    service_lines: Mapping[str, int]
    volumes: Mapping[str, Node]
    folder: str
    perhaps: "Composition | None" = None
    """The same laid over the main file of its folder, which nothing says and its name may mean."""

    def perhaps_restarted(self, service: str, place: Evidence) -> Known[str] | None:
        """Return the question whether the main file's policy counts for a service without one."""
        node = self.perhaps.services.get(service) if self.perhaps is not None else None
        policy = node.get("restart") if node is not None else None
        if policy is None:
            return None
        question = f"Is {place.file} used with -f {policy.file} before it, where it is restarted?"
        here = policy.evidence("restarted where both files are given")
        return Known(value=None, evidence=(place, here), question=question)


class _Budget(Struct, kw_only=True):
    project: Project
    merged: int = limits.MERGED_MAX
    files: int = limits.INCLUDES_MAX
    seen: list[str] = field(default_factory=list)


def is_named_compose(path: str) -> bool:
    """Whether a file's name says that it is a Compose file."""
    return _NAMED.match(path.rpartition("/")[2].lower()) is not None


def looks_like_compose(text: str) -> bool:
    """Whether a YAML file of another name is one: services at the left edge, with images."""
    return (
        re.search(r"(?m)^services:\s*(#.*)?$", text) is not None
        and re.search(r"(?m)^[ \t]+(image|build):", text) is not None
        and re.search(r"(?m)^(jobs|on|stages|steps|pipeline|apiVersion|clone):", text) is None
    )


class Compositions:
    """All Compose projects of a folder."""

    def __init__(self, project: Project) -> None:
        """Read nothing yet."""
        self._project = project
        self._documents: dict[str, Node | None] = {}

    def all(self, paths: Iterable[str]) -> list[Composition]:
        """Return the Compose projects that these files make, alternatives each for itself."""
        folders: dict[str, list[str]] = {}
        for path in sorted(paths):
            folders.setdefault(path.rpartition("/")[0], []).append(path)
        made: list[Composition] = []
        for folder in sorted(folders):
            with defended(self._project, folders[folder][0], "the deployment of this file"):
                made += self._folder(folders[folder])
        included = {file for c in made for file in c.files[1:] if file != c.main}
        return [c for c in made if c.main not in included or _is_partial(c, made)]

    def _folder(self, paths: list[str]) -> list[Composition]:
        names = {path.rpartition("/")[2].lower(): path for path in paths}
        mains = [names[name] for name in _MAIN if name in names]
        overrides = [path for name, path in sorted(names.items()) if _OVERRIDE.match(name)]
        made: list[Composition] = []
        if mains:
            main = self._make(mains[0], overrides)
            made += [main] if main is not None else []
        others = [path for path in paths if path not in overrides and path not in mains[:1]]
        for path in others:
            alone = self._make(path, [])
            if alone is None:
                continue
            below = laid_over(self._project, path, names)
            if below:
                merged = self._make(below[0], [*below[1:], path], main=path)
                made += [merged] if merged is not None else [alone]
            elif mains and _needs_more(alone):
                merged = self._make(mains[0], [path], main=path)
                if merged is not None:
                    made.append(merged)
            elif not _needs_more(alone):
                made.append(self._perhaps_over(alone, mains[0]) if mains else alone)
        if not mains and overrides:
            alone = self._make(overrides[0], [])
            made += [alone] if alone is not None and not _needs_more(alone) else []
        return made

    def _perhaps_over(self, alone: Composition, main: str) -> Composition:
        """Return a composition with what it is if it is meant to lie over the main file."""
        below = self._make(main, []) if main != alone.main else None
        if below is None or not may_be_laid_over(alone.main, main, alone.services, below.services):
            return alone
        if is_started_alone(self._project, alone.main):
            return alone
        merged = self._make(main, [alone.main], main=alone.main)
        return replace(alone, perhaps=merged)

    def _make(self, first: str, more: list[str], main: str | None = None) -> Composition | None:
        budget = _Budget(project=self._project)
        merged = self._loaded(first, budget)
        if merged is None:
            return None
        for path in more:
            other = self._loaded(path, budget)
            if other is not None:
                merged = _merge(merged, other, budget, ())
        services = merged.get("services")
        if services is None or not services.entries:
            return None
        extended = {
            name: self._extended(name, services.entries, budget, 0)
            for name in list(services.entries)[: limits.SERVICES_MAX]
            if services.entries[name].kind == "mapping"
        }
        volumes = merged.get("volumes")
        return Composition(
            main=main or first,
            files=tuple(dict.fromkeys([first, *more, *budget.seen])),
            services=extended,
            service_lines={name: services.line_of(name) for name in extended},
            volumes=volumes.entries if volumes is not None else {},
            folder=first.rpartition("/")[0],
        )

    def _document(self, path: str) -> Node | None:
        if path not in self._documents:
            self._documents[path] = self._read(path)
        return self._documents[path]

    def _read(self, path: str) -> Node | None:
        documents = [d for d in read_yaml(self._project, path) if d.kind == "mapping"]
        if not documents:
            if self._project.has(path):
                self._project.not_read(path, "it has the name of a Compose file and is none")
            return None
        budget = _Budget(project=self._project)
        merged = documents[0]
        for other in documents[1:]:
            merged = _merge(merged, other, budget, ())
        if merged.get("services") is None and merged.get("include") is None:
            self._project.not_read(path, "it has the name of a Compose file and no services")
            return None
        return merged

    def _loaded(self, path: str, budget: _Budget) -> Node | None:
        """Return a file's document with what it includes."""
        document = self._document(path)
        includes = document.get("include") if document is not None else None
        if document is None or includes is None:
            return document
        merged = document
        for item in includes.items:
            for name in _texts(item.get("path") or item):
                if _is_remote(name):
                    reason = f"it includes {name[:80]}, which is not fetched"
                    self._project.not_read(path, reason, item.line)
                    continue
                found = posixpath.normpath(posixpath.join(path.rpartition("/")[0], name))
                if found in budget.seen or found == path or budget.files <= 0:
                    continue
                budget.files -= 1
                budget.seen.append(found)
                other = self._loaded(found, budget)
                if other is not None:
                    merged = _merge(other, merged, budget, ())
        return merged

    def _extended(
        self, name: str, services: Mapping[str, Node], budget: _Budget, depth: int
    ) -> Node:
        node = services[name]
        extends = node.get("extends")
        if extends is None or depth > limits.NESTED_VARIABLES_MAX:
            return node
        base_name = extends.text or extends.text_at("service") or ""
        file = extends.text_at("file")
        siblings = services
        if file is not None:
            found = posixpath.normpath(posixpath.join(node.file.rpartition("/")[0], file))
            budget.files -= 1
            document = self._document(found) if budget.files > 0 else None
            budget.seen.append(found)
            inner = document.get("services") if document is not None else None
            siblings = inner.entries if inner is not None else {}
        if base_name not in siblings or siblings[base_name].kind != "mapping":
            return node
        base = self._extended(base_name, siblings, budget, depth + 1)
        own = {key: value for key, value in node.entries.items() if key != "extends"}
        return _merge(base, mapping(node, own, node.key_lines), budget, ("services", name))


def _is_remote(name: str) -> bool:
    """Whether a file of Compose names something in a registry or a repository elsewhere."""
    return "://" in name or name.startswith(("git@", "github.com/"))


def _needs_more(composition: Composition) -> bool:
    """Whether a file can't be deployed alone: a service of it has neither image nor build."""
    return any(
        node.get("image") is None and node.get("build") is None and node.get("provider") is None
        for node in composition.services.values()
    )


def _is_partial(composition: Composition, made: list[Composition]) -> bool:
    """Whether a composition is main and override, which is listed beside its main alone."""
    return composition.files[0] != composition.main and any(
        other.main == composition.files[0] for other in made
    )


def _texts(node: Node) -> list[str]:
    if node.kind == "sequence":
        return [item.text for item in node.items if item.text is not None]
    return [node.text] if node.text is not None else []


def _merge(base: Node, over: Node, budget: _Budget, path: tuple[str, ...]) -> Node:
    """Return `over` laid over `base`, by the rules of Compose for override files."""
    budget.merged -= 1
    if over.tag in {"!reset", "!override"} or budget.merged < 0:
        return over
    key = path[-1] if path else ""
    budget.project.spend(1 + len(base.items) + len(over.items))
    if key in _PAIRS:
        base, over = pairs(base), pairs(over)
    if key == "depends_on":
        base, over = _conditions(base), _conditions(over)
    if base.kind == "mapping" and over.kind == "mapping":
        return _merged_mapping(base, over, budget, path)
    if base.kind == over.kind == "sequence" and key not in _REPLACED:
        if key in _UNIQUE:
            return sequence(over, _by_target(base.items, over.items))
        return sequence(over, [*base.items, *over.items])
    return over


def _merged_mapping(base: Node, over: Node, budget: _Budget, path: tuple[str, ...]) -> Node:
    budget.project.spend(len(base.entries) + len(over.entries))
    entries = dict(base.entries)
    lines = dict(base.key_lines)
    for name, node in over.entries.items():
        if node.tag == "!reset":
            entries.pop(name, None)
            continue
        deeper = name in entries and len(path) < limits.YAML_DEPTH_MAX
        entries[name] = _merge(entries[name], node, budget, (*path, name)) if deeper else node
        is_service = path == ("services",) and name in lines
        if not is_service:
            lines[name] = over.line_of(name)
    return mapping(base, entries, lines)


def pairs(node: Node) -> Node:
    """Return a list of `KEY=VALUE` as a mapping; a mapping as it is."""
    if node.kind != "sequence":
        return node
    entries: dict[str, Node] = {}
    lines: dict[str, int] = {}
    for item in node.items:
        name, equals, value = (item.text or "").partition("=")
        if not name:
            continue
        entries[name] = scalar(item, value if equals else "", is_plain=not equals)
        lines[name] = item.line
    return mapping(node, entries, lines)


def _conditions(node: Node) -> Node:
    """Return the short form of `depends_on` in its long form."""
    if node.kind != "sequence":
        return node
    entries = {
        item.text: mapping(item, {"condition": scalar(item, "service_started")})
        for item in node.items
        if item.text is not None
    }
    return mapping(node, entries)


def _by_target(base: list[Node], over: list[Node]) -> list[Node]:
    """Return lists of mounts joined; one at the same path of the container is replaced."""
    targets = {target_of(item) for item in over}
    return [item for item in base if target_of(item) not in targets] + over


def target_of(item: Node) -> str:
    """Return the container path of a mount in either form."""
    if item.kind == "mapping":
        return item.text_at("target") or ""
    words = _outside_braces(item.text or "")
    return words[1] if len(words) > 1 else words[0] if words else ""


def _outside_braces(text: str) -> list[str]:
    """Split at colons, but not at those of `${A:-b}`."""
    words: list[str] = []
    depth = begin = 0
    for at, sign in enumerate(text):
        if sign == "{" and at and text[at - 1] == "$":
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
        if sign == ":" and not depth:
            words.append(text[begin:at])
            begin = at + 1
    return [*words, text[begin:]]


def split_mount(text: str) -> list[str]:
    """Return the parts of a mount's short form."""
    return _outside_braces(text)
