"""Which Compose files are laid over others, by the commands that the project tells people to use.

    # docker compose -f docker-compose.yml -f docker-compose.gpu.yml up

in the head of the second file, a README or a Makefile. What any command starts with is a deployment
of its own, whatever else is said of it.
"""

from collections.abc import Iterator, Mapping

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.files import Project

_TOLD_IN = ("README.md", "Makefile", "makefile", "justfile")
_GIVEN = regex(r"(?:^|\s)(?:-f|--file)[ =]{1,4}[\"']?([^\s\"'`]{1,200})")
_COMMAND = regex(r"compose\s")


def laid_over(project: Project, path: str, names: Mapping[str, str]) -> list[str]:
    """Return the files that one is laid over, in their order; empty: it stands for itself.

    Args:
        project: what is read.
        path: the file that is asked about.
        names: the Compose files of the same folder, by name in small letters.
    """
    folder, _, name = path.rpartition("/")
    name = name.lower()
    found: list[str] = []
    for given in _commands(project, path, folder):
        if name not in given:
            continue
        before = given[: given.index(name)]
        if not before:
            return []
        if not found and all(one in names for one in before):
            found = [names[one] for one in before]
    return found


def _commands(project: Project, path: str, folder: str) -> Iterator[list[str]]:
    """Yield the names of the files that each command is given."""
    near = [
        f"{each}/{name}".lstrip("/") for each in dict.fromkeys((folder, "")) for name in _TOLD_IN
    ]
    texts = [_head(project.read(path) or "")]
    texts += [project.read(each) or "" for each in near if each in project.names]
    for text in texts:
        joined = text[: limits.OVERLAY_CHARACTERS_MAX].replace("\\\n", " ")
        for line in joined.splitlines():
            if _COMMAND.search(line):
                files = _GIVEN.findall(line)
                yield [each.rpartition("/")[2].lower() for each in files]


def _head(text: str) -> str:
    """Return the comment that a file begins with."""
    lines = text.splitlines()[: limits.HEAD_LINES_MAX]
    end = next((at for at, one in enumerate(lines) if one.strip() and one[0] != "#"), len(lines))
    return "\n".join(line.lstrip("# ") for line in lines[:end])
