"""What a Redis of a deployment can't do for a saver: by its image, and by its command."""

import re

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
_VERSION = regex(r":v?\d")
_NAMES_FILE = regex(r"(?i)conf|include|module|\$\{?[A-Za-z_]*(?:ARG|OPT)")
_SERVERS = {"redis-server", "valkey-server"}
_MODULES_SINCE = 8


def without_modules(service: Service, *, surely: bool = False) -> bool:
    """Whether the image of a service is a Redis without RediSearch and RedisJSON, as it is started.

    Another image, one that the project builds, and a command that loads a module may have them.
    `surely`: only where the version is written, and nothing but options is given to the server.
    """
    reference = service.image.reference or ""
    found = _PLAIN.match(reference)
    if service.image.dockerfile is not None or not (found or _VALKEY.match(reference)):
        return False
    if found is not None and found[1] is not None and int(found[1]) >= _MODULES_SINCE:
        return False
    words = [word for process in _processes(service) for word in process.argv]
    if surely and not (_has_version(reference, found) and _has_options_alone(service)):
        return False
    return not any("loadmodule" in word for word in words)


def _has_version(reference: str, found: re.Match[str] | None) -> bool:
    return bool(_VERSION.search(reference)) if found is None else found[1] is not None


def _has_options_alone(service: Service) -> bool:
    """Whether a server is started as its image does it, or with options that name no file."""
    start = service.start
    if start is None:
        return True
    words = start.argv[1:] if start.argv[:1] and start.argv[0] in _SERVERS else start.argv
    if not start.argv or (words and not words[0].startswith("--")):
        return False
    return not any(word in {"-", "--"} or _NAMES_FILE.search(word) for word in words)


def loads_modules(service: Service) -> bool:
    """Whether a container tells another Redis something of modules."""
    words = [*(service.start.argv if service.start is not None else ())]
    words += [word for process in _processes(service) for word in process.argv]
    return any("redis-cli" in word for word in words) and any(
        "module" in word.lower() for word in words
    )


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
    if process.program in _SERVERS:
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
