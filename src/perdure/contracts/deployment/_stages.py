"""What an image built from a Dockerfile starts and holds: the final stage, with all it inherits."""

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._dockerfile import (
    Dockerfile,
    Instruction,
    env_pairs,
    split_words,
    unquoted,
)
from perdure.contracts.deployment._variables import Variables
from perdure.contracts.deployment.facts import Source
from perdure.contracts.evidence import Evidence, Known, weakest
from perdure.contracts.files import Project
from perdure.contracts.numbers import whole

_SHELL = ("/bin/sh", "-c")


class Command(Struct, frozen=True, kw_only=True):
    """An ENTRYPOINT or CMD: its words, or a line for a shell."""

    words: tuple[str, ...]
    """What is executed; of the shell form: the shell, its options and the line."""
    is_shell: bool
    evidence: Evidence


class Written(Struct, frozen=True, kw_only=True):
    """A file that the Dockerfile itself writes."""

    text: str
    place: Evidence


class Built(Struct, kw_only=True):
    """The image of one stage."""

    dockerfile: str
    stage: str | None
    base: str | None
    """The image it is built on in the end; `None`: not known."""
    base_question: str | None = None
    evidence: tuple[Evidence, ...] = ()
    entrypoint: Command | None = None
    cmd: Command | None = None
    is_cmd_own: bool = False
    environment: dict[str, Known[str]] = field(default_factory=dict)
    arguments: dict[str, Known[str]] = field(default_factory=dict)
    workdir: str = "/"
    shell: tuple[str, ...] = _SHELL
    volumes: list[tuple[str, Evidence]] = field(default_factory=list)
    stop_signal: Known[str] | None = None
    health: tuple[Evidence, ...] = ()
    ports: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    written: dict[str, Written] = field(default_factory=dict)


def build(
    project: Project,
    dockerfile: Dockerfile,
    *,
    context: str,
    target: str | None,
    arguments: Mapping[str, Known[str]],
    assume: Mapping[str, str],
) -> Built | None:
    """Return the image that a build makes; `None`: there is no such stage."""
    return _Builder(project, dockerfile, context, arguments, assume).stage(target)


class _Builder:
    def __init__(
        self,
        project: Project,
        dockerfile: Dockerfile,
        context: str,
        arguments: Mapping[str, Known[str]],
        assume: Mapping[str, str],
    ) -> None:
        self._project = project
        self._file = dockerfile
        self._context = context
        self._arguments = arguments
        self._assume = assume
        self._global: dict[str, Known[str]] = {}
        self._globs = limits.INCLUDES_MAX
        self._stages: list[list[Instruction]] = []
        self._built: dict[int, Built] = {}
        for instruction in dockerfile.instructions:
            if instruction.name == "FROM":
                self._stages.append([instruction])
            elif self._stages:
                self._stages[-1].append(instruction)
            elif instruction.name == "ARG":
                self._declare(instruction, self._global, {})

    def stage(self, target: str | None) -> Built | None:
        if not self._stages:
            return None
        at = len(self._stages) - 1 if target is None else self._find(target, len(self._stages))
        return None if at is None else self._make(at)

    def _find(self, name: str, before: int) -> int | None:
        number = whole(name)
        if number is not None:
            return number if number < before else None
        for at in reversed(range(before)):
            if _stage_name(self._stages[at][0]) == name.lower():
                return at
        return None

    def _make(self, at: int) -> Built:
        """Make the stages in their order: each stands on earlier ones only."""
        for number in range(at + 1):
            if number not in self._built:
                self._built[number] = self._play(number)
                del self._built[number].sources[limits.SOURCES_MAX :]
        return self._built[at]

    def _parent(self, at: int) -> int | None:
        return self._find(self._reference(at).value or "", at)

    def _reference(self, at: int) -> Known[str]:
        origin = self._stages[at][0]
        words = split_words(origin.text, self._file.escape)
        return self._expand(words[0] if words else "", origin.evidence("base"), self._global, {})

    def _play(self, at: int) -> Built:
        origin = self._stages[at][0]
        reference = self._reference(at)
        parent = self._parent(at)
        if parent is not None:
            built = _inherit(self._built[parent])
            built.evidence = (*built.evidence, origin.evidence("the stage goes on from it"))
        else:
            note = f"the image is built on {reference.value or 'a base that is not known'}"
            built = Built(
                dockerfile=self._file.path,
                stage=None,
                base=reference.value or None,
                base_question=reference.question,
                evidence=(origin.evidence(note),),
            )
        built.stage = _stage_name(origin)
        for instruction in self._stages[at][1:]:
            self._apply(built, instruction, at)
        return built

    def _apply(  # noqa: C901, PLR0912  # one case for each instruction
        self, built: Built, instruction: Instruction, at: int
    ) -> None:
        match instruction.name:
            case "ARG":
                self._declare(instruction, built.arguments, built.environment)
            case "ENV":
                before = dict(built.environment)  # its own variables don't count yet
                for name, value in env_pairs(instruction.text, self._file.escape):
                    here = instruction.evidence(f"{name} is set in the image")
                    built.environment[name] = self._expand(value, here, built.arguments, before)
            case "WORKDIR":
                path = self._text(built, instruction, instruction.text)
                built.workdir = posixpath.normpath(posixpath.join(built.workdir, path))
            case "SHELL":
                built.shell = instruction.words or built.shell
            case "CMD":
                built.cmd = _command(built, instruction)
                built.is_cmd_own = True
            case "ENTRYPOINT":
                built.entrypoint = _command(built, instruction)
                if not built.is_cmd_own:
                    built.cmd = None
            case "VOLUME":
                for path in instruction.words or split_words(instruction.text):
                    note = "the image declares a volume here"
                    known = self._text(built, instruction, path)
                    built.volumes.append((known, instruction.evidence(note)))
            case "STOPSIGNAL":
                text = self._text(built, instruction, instruction.text)
                note = f"the image is stopped with {text}"
                built.stop_signal = Known(value=text, evidence=(instruction.evidence(note),))
            case "HEALTHCHECK":
                note = "the image has a health check"
                off = instruction.text.strip().upper() == "NONE"
                built.health = () if off else (instruction.evidence(note),)
            case "EXPOSE":
                built.ports += [
                    self._text(built, instruction, word).partition("/")[0]
                    for word in split_words(instruction.text)
                ]
            case "COPY" | "ADD":
                self._copy(built, instruction, at)
            case "RUN":
                _remember_written(built, instruction)
            case _:
                pass  # LABEL, MAINTAINER, USER, ONBUILD: nothing that a start depends on

    def _declare(
        self,
        instruction: Instruction,
        arguments: dict[str, Known[str]],
        environment: Mapping[str, Known[str]],
    ) -> None:
        for word in split_words(instruction.text, self._file.escape):
            name, equals, value = word.partition("=")
            here = instruction.evidence(f"build argument {name}")
            given = self._arguments.get(name)
            if name in self._assume:
                said = self._assume[name]
                arguments[name] = Known(value=said, assumed=(f"{name}={said}",))
            elif given is not None:
                arguments[name] = given
            elif equals:
                arguments[name] = self._expand(value, here, arguments, environment)
            elif name in self._global:
                arguments[name] = self._global[name]
            else:
                arguments[name] = Known(
                    value=None, question=f"What is the build argument {name}?", evidence=(here,)
                )

    def _expand(
        self,
        word: str,
        here: Evidence,
        arguments: Mapping[str, Known[str]],
        environment: Mapping[str, Known[str]],
    ) -> Known[str]:
        variables = Variables(assume=self._assume, given={**arguments, **environment})
        pieces = [
            variables.replace(text, here, is_compose=False) if counts else Known(value=text)
            for text, counts in unquoted(word, self._file.escape)
        ]
        question = next((p.question for p in pieces if p.value is None), None)
        return Known(
            value=None if question else "".join(p.value or "" for p in pieces)[: limits.TEXT_MAX],
            evidence=(here,),
            confidence=weakest([p.confidence for p in pieces]),
            question=question,
            assumed=tuple(a for p in pieces for a in p.assumed),
        )

    def _text(self, built: Built, instruction: Instruction, word: str) -> str:
        known = self._expand(
            word.strip(), instruction.evidence(""), built.arguments, built.environment
        )
        return known.value if known.value is not None else word.strip()

    def _copy(self, built: Built, instruction: Instruction, at: int) -> None:
        words = list(instruction.words or split_words(instruction.text, self._file.escape))
        words = [self._text(built, instruction, word) for word in words]
        if len(words) < 2:  # noqa: PLR2004
            return
        *sources, target = words
        into = posixpath.normpath(posixpath.join(built.workdir, target))
        is_folder = target.endswith("/") or target in {".", "./"} or len(sources) > 1
        named = {heredoc.name: heredoc.body for heredoc in instruction.heredocs}
        for source in sources:
            opened = source.lstrip("0123456789").removeprefix("<<").removeprefix("-").strip("\"'")
            if "<<" in source and opened in named:
                place = replace(instruction.evidence("written here"), line=instruction.line + 1)
                path = posixpath.join(into, opened) if is_folder else into
                built.written[path] = Written(text=named[opened], place=place)
                continue
            origin = instruction.flag("from")
            if origin is None:
                self._copy_context(built, source, into, is_folder=is_folder)
            else:
                self._copy_stage(built, origin, source, into, at)

    def _copy_context(self, built: Built, source: str, into: str, *, is_folder: bool) -> None:
        if re.match(r"^(https?://|git@|git://)", source):
            return
        path = posixpath.normpath(posixpath.join(self._context or ".", source.lstrip("/")))
        path = "" if path == "." else path
        if path.startswith(".."):
            return
        for found in self._matching(path):
            if found in self._files and (is_folder or found != path):
                built.sources.append(
                    Source(container=posixpath.join(into, posixpath.basename(found)), project=found)
                )
            else:
                built.sources.append(Source(container=into, project=found))

    @property
    def _files(self) -> frozenset[str]:
        return self._project.names

    def _matching(self, path: str) -> list[str]:
        if not re.search(r"[*?\[]", path):
            return [path]
        self._globs -= 1
        if self._globs < 0:
            return []
        depth = path.count("/")
        heads = [h for h in self._project.names | self._project.folders if h.count("/") == depth]
        return sorted(h for h in heads if fnmatch.fnmatchcase(h, path))[: limits.SOURCES_MAX]

    def _copy_stage(self, built: Built, origin: str, source: str, into: str, at: int) -> None:
        number = self._find(origin, at)
        if number is None:
            return
        other = self._built[number]
        path = posixpath.normpath(posixpath.join("/", source))
        for held in other.sources:
            if held.container == path or held.container.startswith(path.rstrip("/") + "/"):
                rest = held.container[len(path.rstrip("/")) :].lstrip("/")
                built.sources.append(
                    Source(container=posixpath.join(into, rest).rstrip("/"), project=held.project)
                )
            elif path.startswith(held.container.rstrip("/") + "/"):
                rest = path[len(held.container.rstrip("/")) :].lstrip("/")
                project = posixpath.join(held.project, rest)
                built.sources.append(Source(container=into, project=project))
        for name, written in other.written.items():
            if name == path:
                built.written[into] = written


_ECHO = regex(r"""(?:echo|printf)\s+(?:-e\s+)?(['"])""")
_INTO = regex(r"""(['"])\s*(>>?)\s*(/[\w./-]+)""")
_CAT = regex(r"(?:cat|tee)\b[^;&|]{0,80}?(/[\w./-]+)")


def _remember_written(built: Built, instruction: Instruction) -> None:
    """Remember the small files that a RUN writes by echo, or from a here-document."""
    if len(instruction.text) > limits.CONFIG_MAP_CHARACTERS_MAX:
        return
    place = instruction.evidence("written here")
    for said, arrow, path in islice(_echoes(instruction.text), limits.INCLUDES_MAX):
        text = said.replace("\\n", "\n").replace('\\"', '"')
        before = built.written.get(path)
        added = f"{before.text}\n{text}" if arrow == ">>" and before is not None else text
        built.written[path] = Written(text=added[: limits.TEXT_MAX], place=place)
    if len(instruction.heredocs) == 1 and (target := _CAT.search(instruction.text)) is not None:
        line = instruction.line + instruction.text.count("\n") + 1
        written = Written(text=instruction.heredocs[0].body, place=replace(place, line=line))
        built.written[target.group(1)] = written


def _echoes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield what is echoed, how (`>`, `>>`) and where to; each part of the text is read once."""
    ends = list(_INTO.finditer(text))
    at, next_end = 0, 0
    for begin in _ECHO.finditer(text):
        if begin.start() < at:
            continue
        while next_end < len(ends) and ends[next_end].start() <= begin.end():
            next_end += 1
        of_it = (e for e in ends[next_end : next_end + 20] if e.group(1) == begin.group(1))
        end = next(of_it, None)
        if end is not None and "\n" not in text[begin.end() : end.start()]:
            yield text[begin.end() : end.start()], end.group(2), end.group(3)
            at = end.end()


def _stage_name(origin: Instruction) -> str | None:
    found = re.search(r"\s[aA][sS]\s+(\S+)\s*$", origin.text)
    return found.group(1).lower() if found else None


def _inherit(parent: Built) -> Built:
    return Built(
        dockerfile=parent.dockerfile,
        stage=None,
        base=parent.base,
        base_question=parent.base_question,
        evidence=parent.evidence,
        entrypoint=parent.entrypoint,
        cmd=parent.cmd,
        environment=dict(parent.environment),
        arguments={},
        workdir=parent.workdir,
        shell=parent.shell,
        volumes=list(parent.volumes),
        stop_signal=parent.stop_signal,
        health=parent.health,
        ports=list(parent.ports),
        sources=list(parent.sources),
        written=dict(parent.written),
    )


def _command(built: Built, instruction: Instruction) -> Command | None:
    name = instruction.name
    if instruction.words is not None:
        note = f"{name} in exec form: {' '.join(instruction.words)[:120]}"
        return (
            Command(words=instruction.words, is_shell=False, evidence=instruction.evidence(note))
            if instruction.words
            else None
        )
    note = f"{name} in shell form, so {built.shell[0]} is started with it: {instruction.text[:120]}"
    return Command(
        words=(*built.shell, instruction.text), is_shell=True, evidence=instruction.evidence(note)
    )


_NOT_SERVED = regex(r"test|dev|debug|lint|ci$|docs|bench", re.IGNORECASE)
_SERVED = regex(r"prod|runtime|release|final|server|deploy|runner", re.IGNORECASE)


def served_stage(dockerfile: Dockerfile) -> str | None:
    """Return the stage that is deployed where nothing says a target; `None`: the last one.

    A Dockerfile may end with a stage for tests or development; then the last one that is named for
    production is meant.
    """
    names = [_stage_name(i) for i in dockerfile.instructions if i.name == "FROM"]
    if not names or names[-1] is None or not _NOT_SERVED.search(names[-1]):
        return None
    served = [n for n in names if n and _SERVED.search(n) and not _NOT_SERVED.search(n)]
    return served[-1] if served else None
