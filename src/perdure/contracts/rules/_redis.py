"""What a Redis of a deployment can't do for a saver: by its image, and by its command."""

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Process, Service
from perdure.contracts.evidence import Evidence

_PLAIN = regex(
    r"^(?:docker\.io/|public\.ecr\.aws/docker/)?(?:library/)?redis(?::v?(\d{1,2})(?=[.\-_@]|$)|@)"
)
"""The official image with a version, or with a digest alone, of which nobody sees the version."""
_VALKEY = regex(r"^(?:docker\.io/|public\.ecr\.aws/|ghcr\.io/)?valkey/valkey(?:[:@]|$)")
"""Valkey without the modules that its bundle has."""
_OFFICIAL = regex(r"^(?:docker\.io/|public\.ecr\.aws/docker/)?(?:library/)?redis(?:[:@]|$)")
"""Images whose entrypoint puts the server before a command that begins with an option."""
_MODULES_SINCE = 8


def without_modules(service: Service, *, surely: bool = False) -> bool:
    """Whether the image of a service is a Redis without RediSearch and RedisJSON, as it is started.

    Another image, one that the project builds, and a command that loads a module may have them.
    `surely`: only where the version is written, and no file of settings that nobody sees is given.
    """
    reference = service.image.reference or ""
    found = _PLAIN.match(reference)
    if service.image.dockerfile is not None or not (found or _VALKEY.match(reference)):
        return False
    if found is not None and found[1] is not None and int(found[1]) >= _MODULES_SINCE:
        return False
    words = [word for process in _processes(service) for word in process.argv]
    if surely and ((found is not None and found[1] is None) or any(map(_is_conf, words))):
        return False
    return not any("loadmodule" in word for word in words)


def _is_conf(word: str) -> bool:
    return word.lower().endswith(".conf")


def writes_nothing(service: Service) -> tuple[Evidence, ...]:
    """Return the command by which a Redis writes neither snapshots nor a log of what it is told.

    With a file of settings, or without `--save`, it may.
    """
    for process in _processes(service):
        words = [word.lower() for word in process.argv]
        if not _serves(process, service) or any(map(_is_conf, words)):
            continue
        if _given(words, "--save") in {"", '""', "''"} and _given(words, "--appendonly") != "yes":
            return process.evidence[-1:]
    return ()


def _serves(process: Process, service: Service) -> bool:
    """Whether a process is the server: named, or put there by the official image's entrypoint."""
    if process.program in {"redis-server", "valkey-server"}:
        return True
    reference = service.image.reference or ""
    is_official = _OFFICIAL.match(reference) or _VALKEY.match(reference)
    options = process.argv[:1] and process.argv[0].startswith("-")
    return bool(options and is_official and service.image.dockerfile is None)


def _processes(service: Service) -> tuple[Process, ...]:
    return service.start.processes if service.start is not None else ()


def _given(words: list[str], name: str) -> str | None:
    """Return what the last option of a name is given."""
    found = [at for at, word in enumerate(words[:-1]) if word == name]
    return words[found[-1] + 1] if found else None
