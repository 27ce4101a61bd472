"""Which Dockerfile of the project an image that is only named may have been built from."""

import posixpath
import re
from collections.abc import Mapping
from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._dockerfile import Dockerfile, read_dockerfile
from perdure.contracts.deployment._images import base_of, catalog, parts
from perdure.contracts.evidence import Evidence
from perdure.contracts.files import Project

_TOLD_IN = regex(
    r"(\.md|\.sh|\.ya?ml|\.toml|\.txt|\.ps1|\.tf|/Makefile|^Makefile|justfile|Taskfile|Jenkinsfile)$"
)
_BUILD = regex(
    r"(?:docker|podman|buildah|nerdctl)\s+(?:buildx\s+)?(?:build|bud|image\s+build)\s([^\n;&|`]*)"
)
_LANGGRAPH_BUILD = regex(
    r"langgraph\s+build\b[^\n;&|`]{0,200}?(?:-t|--tag)[ =]+[\"']?([\w./:${}\-]{1,200})"
)
_FOR_TESTS = regex(r"[-_.](test|tests|dev|ci|e2e)\b", re.IGNORECASE)
_FRONT = regex(r"front|web|ui\b|client|next|react|vite|dashboard|docs", re.IGNORECASE)


_FACES = regex(r"front|(^|[-_])(ui|next|nextjs|react|vite|dashboard|client|docs)($|[-_])")
"""Images of what people look at."""

_GENERIC = frozenset({"app", "image", "service", "server", ""})
"""Words that name nothing."""

_UNTOLD = _GENERIC | {
    "agent", "agents", "ai", "api", "backend", "dev", "docker", "fastapi", "langgraph", "latest",
    "llm", "local", "my", "prod", "production", "python", "staging", "web", "worker",
}  # fmt: skip
"""Words that may be in the name of anybody's image; the others must come from the project."""

_PLACEHOLDER = regex(r"your|^my|user|^org$|example|name|registry|(project|account)[-_]?id|[<>$\{}]")
_PROJECT_NAME = regex(r"(?m)^name\s{0,9}[=:]\s{0,9}[\"']?([\w.\-]{1,100})")
_HEADING = regex(r"(?m)^#[ \t]{1,9}(\S[^\n]{0,100})")
_TITLE_MAX = 5_000
"""Characters of a README in which its first heading is looked for."""
_TITLE_WORDS_MAX = 5
_NAMED_IN = regex(r"^([^/]+/){0,3}(pyproject\.toml|Chart\.yaml)$")

_SHORT = 3
"""Letters of a name that may be within any other word."""

_KINDS = _UNTOLD | {"a", "an", "demo", "example", "of", "project", "the"}
"""Words of a heading or an image that say what a thing is, beside its name."""

_Found = tuple[str, Evidence, str | None]
"""A Dockerfile, why it is the one, and the stage that is built."""

_Told = tuple[str, Evidence, str | None, str]
"""The same, with the name that the project gives the image that it builds."""


class Builds:
    """What is known of how images of the project get their names."""

    def __init__(self, project: Project, dockerfiles: list[str]) -> None:
        """Remember the Dockerfiles; files are read when the first name is asked for."""
        self._project = project
        self._dockerfiles = dockerfiles
        self._learned: dict[str, _Told] = {}
        self._claimed: set[tuple[str, str]] = set()

    def learn(
        self, reference: str | None, dockerfile: str, target: str | None, evidence: Evidence
    ) -> None:
        """Remember what a Compose file says that it builds."""
        self._claimed.add((evidence.file, dockerfile))
        if reference and not _FOR_TESTS.search(dockerfile):
            note = f"{reference[:80]} is what is built from {dockerfile} here"
            here = replace(evidence, note=note)
            self._learned.setdefault(parts(reference)[1], (dockerfile, here, target, reference))

    def find(self, reference: str | None, *, beside: str | None = None) -> _Found | None:
        """Return the Dockerfile that an image is built from, and why; `None`: none is likely.

        First what a build command in the project says, then a Dockerfile that is named like the
        image, then the only one there is, if nothing else is built from it. A name that fits
        neither a build nor the project is somebody else's image.

        Args:
            reference: the image's name.
            beside: the Compose file that names it; what that file builds has another name.
        """
        if not reference or catalog(reference) is not None or base_of(reference).runs_arguments:
            return None
        _, name, _ = parts(reference)
        told = self._learned.get(name) or self._commands.get(name)
        if told is not None and self._is_same(reference, told[3]):
            path, why, target, _ = told
            note = f"{why.note}; it is taken for image {reference[:80]}"
            return path, replace(why, note=note), target
        return self._named(reference, name, beside)

    def unnamed(self, service: str, here: Evidence) -> _Found | None:
        """Return the Dockerfile behind an image that only a variable names, outside of the project.

        What a pipeline builds and hands over is the only server that there is to build.
        """
        servers = [path for path in self._dockerfiles if self._is_backend(path)]
        if len(servers) != 1 or _FACES.search(service) or catalog(service) is not None:
            return None
        note = f"{servers[0]} is the only server that is built here; it is taken for this image"
        return servers[0], replace(here, note=note), None

    def langgraph_build(self, reference: str | None) -> Evidence | None:
        """Return where the project says that `langgraph build` makes an image; `None`: nowhere."""
        if not reference:
            return None
        _, name, _ = parts(reference)
        return self._of_langgraph.get(name)

    @cached_property
    def _of_langgraph(self) -> Mapping[str, Evidence]:
        found: dict[str, Evidence] = {}
        paths = [p for p in self._project.paths if _TOLD_IN.search(p) and p.count("/") <= 3]  # noqa: PLR2004
        for path in sorted(paths, key=lambda p: (p.count("/"), p))[:_FILES_MAX]:
            text = self._project.read(path) or ""
            for match in islice(_LANGGRAPH_BUILD.finditer(text), limits.COMMANDS_MAX):
                _, name, _ = parts(match.group(1))
                line = text.count("\n", 0, match.start()) + 1
                note = f"langgraph build makes the image {match.group(1)[:80]}"
                found.setdefault(name, Evidence(file=path, line=line, note=note))
        return found

    def _is_same(self, reference: str, built: str) -> bool:
        """Whether two images with one name are of one owner, or named by the project."""
        owners = [parts(each)[0].rpartition("/")[2] for each in (reference, built)]
        return (
            owners[0] == owners[1]
            or not all(owners)
            or any(_PLACEHOLDER.search(owner) for owner in owners)
            or self._is_named_like_project(reference)
        )

    def _named(self, reference: str, name: str, beside: str | None) -> _Found | None:
        servers = [path for path in self._dockerfiles if self._is_backend(path)]
        words = _words(name) - _GENERIC
        alike = [
            path
            for path in servers
            if _own_words(path) & words
            and (
                words <= _own_words(path) | self._project_words | _UNTOLD
                or self._is_unclaimed(reference, path, beside)
            )
        ]
        alike = _likest(alike, words)
        if len(alike) == 1 or (alike and len({a.rpartition("/")[0] for a in alike}) == 1):
            return alike[0], _guess(alike[0], reference, "it is named like it"), None
        if _FACES.search(name):
            return None  # a front end is not what the server's Dockerfile makes
        main = [path for path in servers if path.count("/") <= 1] or servers
        main = [path for path in main if "/" not in path] or main
        if len(main) == 1 and self._is_ours(reference, main[0], beside):
            return main[0], _guess(main[0], reference, "it is the main one for a server"), None
        return None

    def _is_ours(self, reference: str, dockerfile: str, beside: str | None) -> bool:
        """Whether an image may be what the only Dockerfile of a server makes."""
        if self._is_named_like_project(reference) or self._is_unclaimed(
            reference, dockerfile, beside
        ):
            return True
        return _is_unowned(reference) and _words(parts(reference)[1]) <= _UNTOLD

    def _is_unclaimed(self, reference: str, dockerfile: str, beside: str | None) -> bool:
        """Whether nobody has his name on an image, and nothing else is built from a Dockerfile."""
        return _is_unowned(reference) and (beside, dockerfile) not in self._claimed

    def _is_named_like_project(self, reference: str) -> bool:
        """Whether an image is called as the project is.

        Projects are titled after what they extend, too: an image with an owner of its own has to
        have a whole name of the project, and all of it where the owner has the image's name.
        """
        owner, name, _ = parts(reference)
        bare = _joined(name)
        if _is_unowned(reference):
            words = _words(name) - _UNTOLD
            is_named = bool(words) and words <= self._project_words
            return is_named or (len(bare) > _SHORT and bare in _joined(self._title))
        if _joined(owner.rpartition("/")[2]).startswith(bare):
            return bare in {_joined(each) for each in self._project_names}
        core = _core(name)
        return bool(core) and core in {_core(each) for each in self._project_names}

    @cached_property
    def _project_words(self) -> set[str]:
        """The words of the names that the project has."""
        joined = {_joined(name) for name in self._project_names}
        return joined.union(*(_words(name) for name in self._project_names)) - {""}

    @cached_property
    def _project_names(self) -> list[str]:
        """The names that the project has: of its README, its packages, its charts.

        Not the folder's: a clone may have any name.
        """
        names = [self._title]
        files = [path for path in self._project.paths if _NAMED_IN.search(path)]
        for path in files[:_NAMES_MAX]:
            found = _PROJECT_NAME.search(self._project.read(path) or "")
            names += [found.group(1).lower()] if found is not None else []
        return names

    @cached_property
    def _title(self) -> str:
        """The first heading of the README, if it is short as a name is."""
        text = self._project.read("README.md") or "" if "README.md" in self._project.names else ""
        found = _HEADING.search(text[:_TITLE_MAX])
        title = found.group(1).lower() if found is not None else ""
        return title if len(title.split()) <= _TITLE_WORDS_MAX else ""

    def _is_backend(self, path: str) -> bool:
        if _FRONT.search(path) or re.search(r"test|dev|base|builder", path.lower()):
            return False
        dockerfile = read_dockerfile(self._project, path)
        if dockerfile is None:
            return False
        bases = [each for each in dockerfile.instructions if each.name == "FROM"]
        last = bases[-1].text.split() if bases else []
        base = next((word for word in last if not word.startswith("--")), "")
        return catalog(base) != "proxy"  # pages that a web server hands out

    @cached_property
    def _commands(self) -> Mapping[str, _Told]:
        """What build commands in scripts and texts of the project say, by the image's name."""
        found: dict[str, _Told] = {}
        left = limits.COMMANDS_MAX
        paths = [p for p in self._project.paths if _TOLD_IN.search(p) and p.count("/") <= 3]  # noqa: PLR2004
        for path in sorted(paths, key=lambda p: (p.count("/"), p))[:_FILES_MAX]:
            text = self._project.read(path)
            if text is None or "build" not in text:
                continue
            joined = re.sub(r"\\\n\s*", " ", text)
            for match in islice(_BUILD.finditer(joined), left):
                left -= 1
                self._command(match.group(1), path, text, found)
        return found

    def _command(self, words: str, path: str, text: str, found: dict[str, _Told]) -> None:
        tags = re.findall(r"(?:-t|--tag)[ =]+[\"']?([^\s\"']+)", words)
        stage = re.search(r"--target[ =]+([\w.\-]+)", words)
        named = re.search(r"(?:-f|--file)[ =]+[\"']?([^\s\"']+)", words)
        rest = re.sub(
            r"(-t|--tag|-f|--file|--target|--platform|--build-arg)[ =]+\S+|--?\S+", "", words
        )
        # The folder is the first word, or behind what is left of a command in an argument.
        folders = [word.strip("\"'") for word in [*rest.split(), "."][:_WORDS_MAX]]
        told = [named.group(1)] if named is not None else [f"{each}/Dockerfile" for each in folders]
        files = [re.sub(r"^(\./)+", "", each).replace("//", "/") for each in told]
        beside = path.rpartition("/")[0]
        possible = [way for each in files for way in (each, f"{beside}/{each}".lstrip("/"))]
        dockerfile = next((each for each in possible if each in self._project.names), None)
        if dockerfile is None or _FOR_TESTS.search(dockerfile):
            return
        for tag in tags:
            _, name, _ = parts(tag)
            at = text.find(tag)
            line = text.count("\n", 0, at) + 1 if at >= 0 else 1
            note = f"the image {tag[:80]} is built from {dockerfile}"
            here = Evidence(file=path, line=line, note=note)
            found.setdefault(name, (dockerfile, here, stage.group(1) if stage else None, tag))


_WORDS_MAX = 20
"""Words of one build command that are taken for its folder."""

_FILES_MAX = 300
"""Files of one project in which build commands are looked for, those nearest to its top first."""

_NAMES_MAX = 20
"""Files of one project that are asked for its names."""


def _is_unowned(reference: str) -> bool:
    """Whether a name has no owner before it, or one that stands for anybody."""
    owner = parts(reference)[0].rpartition("/")[2]
    return not owner or _PLACEHOLDER.search(owner) is not None


def _likest(paths: list[str], words: set[str]) -> list[str]:
    """Return the Dockerfiles that share most words with an image, if they share more than one."""
    most = max((len(_own_words(path) & words) for path in paths), default=0)
    return [path for path in paths if most == 1 or len(_own_words(path) & words) == most]


def _joined(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _core(name: str) -> str:
    """Return a name in one word, without those that say only what it is."""
    return "".join(word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in _KINDS)


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _own_words(path: str) -> set[str]:
    """Return the words that a Dockerfile's path is named by."""
    words = set(re.split(r"[-_./]", path.lower()))
    return words - {
        "dockerfile",
        "docker",
        "app",
        "deploy",
        "deployments",
        "service",
        "image",
        "src",
        "",
    }


def _guess(path: str, reference: str, why: str) -> Evidence:
    note = f"this Dockerfile is taken for image {reference[:80]}: {why}"
    return Evidence(file=path, line=1, note=note)


def context_of(project: Project, dockerfile: Dockerfile) -> str:
    """Return the folder that most of what a Dockerfile copies lies in: its own, or one above it."""
    copied = [
        source
        for instruction in dockerfile.instructions
        if instruction.name in {"COPY", "ADD"} and instruction.flag("from") is None
        for source in (instruction.words or instruction.text.split())[:-1]
        if not source.startswith(("$", "<<", "http", "-")) and source not in {".", "./", "/"}
    ]
    folder = posixpath.dirname(dockerfile.path)
    best, hits = folder, -1
    while True:
        found = sum(_is_there(project, posixpath.join(folder, source)) for source in copied)
        if found > hits:
            best, hits = folder, found
        if not folder:
            return best
        folder = posixpath.dirname(folder)


def _is_there(project: Project, path: str) -> bool:
    path = posixpath.normpath(path).rstrip("*").rstrip("/")
    return path in project.names or path in project.folders
