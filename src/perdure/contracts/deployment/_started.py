"""Whether any file of a project may start a Compose file without those that it is laid over.

    run: docker compose -f docker-compose.prod.yml up -d

in a workflow, a script, a text, or COMPOSE_FILE of an environment. In doubt it may.
"""

import posixpath

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.files import Project

_SAYS = regex(
    r"(\.(md|mdx|rst|txt|sh|bash|zsh|fish|ps1|bat|cmd|ya?ml|toml|service|tf|py|js|mjs|ts)"
    r"|(^|/)(package\.json|\.env[^/]*|[^/.]+|GNUmakefile))$"
)
_CODE = regex(r"\.(py|js|mjs|ts)$")
_TEXT = regex(r"\.(md|mdx|rst|txt)$")
_COMMANDS = regex(r"&&|[;|`]|(?=(?:docker|podman)[ -]compose\s)")
_GIVEN = regex(
    r"(?:^|[\s\"'\[(=])(?:-f[\s=,\"']{0,6}|(?:--file|-c|--compose-file)[\s=,\"']{1,6})"
    r"([^\s\"'`,\])]{1,200})"
)
_NAMED = regex(
    r"(?i)\b(\w{0,40}(?:compose|file)\w{0,40})[\"']?\s{0,3}(?:[?:+]?=|:-?)\s{0,3}"
    r"[\"']?([^\s\"'`:;,}]{1,200})"
)
_FILE = regex(r"(?i)\.ya?ml$|\$")


def is_started_alone(project: Project, path: str) -> bool:
    """Whether a command or a variable of any file names a Compose file as the first one."""
    name = path.rpartition("/")[2]
    said = [each for each in project.paths if _SAYS.search(each)]
    said.sort(key=lambda each: (_CODE.search(each) is not None, each.count("/"), each))
    for teller in said[: limits.OVERLAY_FILES_MAX]:
        text = project.glance(teller)
        if name not in text:
            continue
        for line in text.replace("\\\n", " ").splitlines():
            if name in line and _starts(project, line, path, teller):
                return True
    return False


def _starts(project: Project, line: str, path: str, teller: str) -> bool:
    """Whether a line of a file has a command, or sets a variable, that begins with a file."""
    for command in _COMMANDS.split(line):
        given = [one for one in _GIVEN.findall(command) if _FILE.search(one)]
        if given and _may_be(project, given[0], path, teller):
            return True
    is_text = _TEXT.search(teller) is not None
    return any(
        _may_be(project, value, path, teller)
        for key, value in _NAMED.findall(line)
        if not is_text or key.upper() == "COMPOSE_FILE"
    )


def _may_be(project: Project, given: str, path: str, teller: str) -> bool:
    """Whether a file that is named somewhere may be this one; another that is there is not."""
    if given.rpartition("/")[2] != path.rpartition("/")[2]:
        return False
    bases = (teller.rpartition("/")[0], "") if "/" in given else ()
    found = {posixpath.normpath(posixpath.join(base, given)) for base in bases}
    return path in found or not found & project.names
