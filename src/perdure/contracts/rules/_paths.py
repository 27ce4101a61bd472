"""Where in a container a path is, and how long what is written there lives."""

import posixpath
import re

from msgspec import Struct

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Lifetime, Mount, Service
from perdure.contracts.evidence import Evidence
from perdure.contracts.findings import RootKind

_NOT_FOR_DATA = frozenset({"configMap", "secret", "config", "projected", "downwardAPI"})
"""Mounts that nobody writes state to."""

_SQLITE_URL = regex(r"^(?:sqlite(?:\+\w+)?|file):(?:///?)?", re.IGNORECASE)


class Placed(Struct, frozen=True, kw_only=True):
    """A path of a container with what is mounted there; `mount is None`: its own layer."""

    path: str
    lifetime: Lifetime
    mount: Mount | None
    evidence: tuple[Evidence, ...]


def is_in_memory(location: str) -> bool:
    """Whether a path or URL of SQLite names a database that lives in the process."""
    return ":memory:" in location or "mode=memory" in location or location in {"sqlite://", ""}


def absolute(service: Service, location: str) -> str:
    """Return a path as the process sees it; what is relative begins at its folder."""
    path = location
    if _SQLITE_URL.match(path):
        bare = path.partition(":")[2].partition("?")[0]
        # sqlite:///x is relative to the folder, sqlite:////x is absolute; so is file:/x.
        path = bare.removeprefix("///") if bare.startswith("///") else bare
    if path.startswith("~"):
        home = service.environment.get("HOME")
        known = home.known.value if home is not None else None
        path = posixpath.join(known or "/root", path[1:].lstrip("/"))
    return posixpath.normpath(posixpath.join(service.workdir or "/", path))


def placed(service: Service, location: str) -> Placed:
    """Return where a path of the process is kept: in the longest mount that holds it."""
    path = absolute(service, location)
    holding = [
        mount
        for mount in service.mounts
        if mount.kind not in _NOT_FOR_DATA and _holds(mount.path, path)
    ]
    if not holding:
        return Placed(path=path, lifetime=Lifetime.LAYER, mount=None, evidence=(service.place,))
    # The longest mount wins; on one path, what the deployment says wins over VOLUME of the image.
    mount = max(holding, key=lambda each: (len(posixpath.normpath(each.path)), _is_declared(each)))
    return Placed(path=path, lifetime=mount.lifetime, mount=mount, evidence=mount.evidence)


def _holds(folder: str, path: str) -> bool:
    folder = posixpath.normpath(folder)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_declared(mount: Mount) -> bool:
    return mount.kind != "image_volume"


def has_unknown_mounts(service: Service, kind: RootKind) -> bool:
    """Whether who starts the container decides what is mounted: a Dockerfile says nothing.

    Volumes of Railway are made in its dashboard, and a Procfile has no word for them.
    """
    return kind is RootKind.DOCKERFILE or service.platform in {"railway", "procfile"}
