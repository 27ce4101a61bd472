"""What a Redis of a deployment can't do for a saver: by its image, and by its command."""

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Process, Service
from perdure.contracts.evidence import Evidence

_PLAIN = regex(r"^(?:docker\.io/)?(?:library/)?redis:v?(\d{1,2})(?:[.\-_]|$)")
"""The official image with a version; from 8 on it brings the modules."""
_MODULES_SINCE = 8


def without_modules(service: Service) -> bool:
    """Whether the image of a service is a Redis without RediSearch and RedisJSON, as it is started.

    Another image, one that the project builds, and a command that loads a module may have them.
    """
    found = _PLAIN.match(service.image.reference or "")
    if found is None or service.image.dockerfile is not None:
        return False
    words = [word for process in _processes(service) for word in process.argv]
    return int(found[1]) < _MODULES_SINCE and not any("loadmodule" in word for word in words)


def writes_nothing(service: Service) -> tuple[Evidence, ...]:
    """Return the command by which a Redis writes neither snapshots nor a log of what it is told.

    With a file of settings, or without `--save`, it may.
    """
    for process in _processes(service):
        words = [word.lower() for word in process.argv]
        if process.program != "redis-server" or any(word.endswith(".conf") for word in words):
            continue
        if _given(words, "--save") in {"", '""', "''"} and _given(words, "--appendonly") != "yes":
            return process.evidence[-1:]
    return ()


def _processes(service: Service) -> tuple[Process, ...]:
    return service.start.processes if service.start is not None else ()


def _given(words: list[str], name: str) -> str | None:
    """Return what the last option of a name is given."""
    found = [at for at, word in enumerate(words[:-1]) if word == name]
    return words[found[-1] + 1] if found else None
