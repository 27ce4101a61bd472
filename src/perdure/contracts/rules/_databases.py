"""Which service of a deployment a database URL means, and whether its data outlive it."""

import re
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.contracts._patterns import regex
from perdure.contracts.code.facts import Medium
from perdure.contracts.deployment.facts import Lifetime, Root, Service
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.rules._paths import placed
from perdure.contracts.rules._redis import writes_nothing

KINDS: dict[Medium, frozenset[str]] = {
    Medium.POSTGRES: frozenset({"postgres", "postgresql", "timescaledb", "pgvector"}),
    Medium.REDIS: frozenset({"redis", "valkey", "keydb", "dragonfly"}),
    Medium.MONGO: frozenset({"mongo", "mongodb"}),
}
"""Names of the catalogue that serve a medium."""

DATA_FOLDERS: dict[str, tuple[str, ...]] = {
    "mysql": ("/var/lib/mysql",),
    "mariadb": ("/var/lib/mysql",),
    "mongo": ("/data/db",),
    "mongodb": ("/data/db",),
    "redis": ("/data",),
    "valkey": ("/data",),
    "keydb": ("/data",),
    "dragonfly": ("/data",),
}
"""Where the images of the catalogue keep their data, unless told otherwise."""

_BITNAMI = {
    "postgres": "/bitnami/postgresql",
    "redis": "/bitnami/redis/data",
    "mongo": "/bitnami/mongodb",
    "mysql": "/bitnami/mysql",
    "mariadb": "/bitnami/mariadb",
}

POSTGRES_NEW_LAYOUT = 18
"""From this version on the image keeps its data in /var/lib/postgresql/VERSION/docker."""

_PG_NAMED = regex(r"pg(\d{1,2})(?![0-9])")
_PG_FIRST = regex(r"^v?(\d{1,2})(?:[.\-_]|$)")


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  # names, nothing is bound
"""Hosts that are the container itself, where it has a network of its own."""


class Database(Struct, frozen=True, kw_only=True):
    """A database that code uses: a service of the same deployment, or (`None`) one elsewhere."""

    service: Service | None
    confidence: Confidence


class Kept(Struct, frozen=True, kw_only=True):
    """Whether a database service's data outlive its container; `None`: not known."""

    is_kept: bool | None
    evidence: tuple[Evidence, ...]
    note: str
    survives_restart: bool = True
    warnings: tuple[str, ...] = ()
    repair: str | None = None


def host_of(location: str) -> str | None:
    """Return the host that a database URL or a keyword string names."""
    if "://" in location:
        try:
            return urlsplit(location).hostname
        except ValueError:
            return None
    found = re.search(r"\bhost=([\w.-]+)", location)
    return found.group(1) if found else None


def database_of(root: Root, medium: Medium, location: Known[str] | None) -> Database | None:
    """Return the database behind a location; `None` where nobody can say which it is."""
    serving = [s for s in root.services if _serves(s, medium)]
    if location is not None and (location.value or "").startswith("sqlite"):
        return Database(service=None, confidence=_surely(location))
    host = host_of(location.value) if location is not None and location.value else None
    if host is not None and "${" not in host and "$(" not in host:
        named = next((s for s in root.services if _answers_to(s, host)), None)
        if named is not None:
            return Database(service=named, confidence=_surely(location))
        if host not in _LOCAL and host != "host.docker.internal":
            return Database(service=None, confidence=_surely(location))
    if len(serving) == 1:
        return Database(service=serving[0], confidence=Confidence.INFERRED)
    if not serving:
        return Database(service=None, confidence=Confidence.INFERRED)
    return None


def is_in_itself(root: Root, medium: Medium, location: Known[str] | None) -> bool:
    """Whether a location is the container's own host, and no service here is such a database."""
    return is_on_localhost(location) and not any(_serves(each, medium) for each in root.services)


def is_on_localhost(location: Known[str] | None) -> bool:
    """Whether a location is the container's own host."""
    host = host_of(location.value) if location is not None and location.value else None
    return host in _LOCAL


def _surely(location: Known[str] | None) -> Confidence:
    return location.confidence if location is not None else Confidence.INFERRED


def _answers_to(service: Service, host: str) -> bool:
    first = host.partition(".")[0]
    return bool({host, first} & {service.name, *service.aliases})


def _serves(service: Service, medium: Medium) -> bool:
    catalog = (service.image.catalog or "").lower()
    return catalog in KINDS.get(medium, frozenset())


def naming(service: Service, database: Service) -> tuple[Evidence, ...]:
    """Return the variables of a service that name a database service as their host."""
    found = []
    for variable in service.environment.values():
        value = variable.known.value or ""
        if {value, host_of(value)} & {database.name, *database.aliases}:
            note = f"{variable.name} names {database.name}"
            found += [
                Evidence(file=e.file, line=e.line, note=note) for e in variable.known.evidence
            ]
    return tuple(found[:2])


def kept(service: Service) -> Kept:
    """Return whether the data of a database service outlive its container."""
    folders = data_folders(service)
    if folders is None:
        return Kept(
            is_kept=None,
            evidence=(service.place,),
            note=f"{service.name} runs an image that is not known",
        )
    where = placed(service, folders[0])
    note = f"{service.name} keeps its data in {where.path}"
    unwritten = writes_nothing(service)
    if unwritten:
        return Kept(
            is_kept=False,
            evidence=_with_note(unwritten, f"{service.name} writes no snapshot and no log"),
            note=f"{service.name} keeps its data in its memory alone",
            survives_restart=False,
            repair=f"Let {service.name} write a log (--appendonly yes) to a named volume.",
        )
    if where.lifetime is Lifetime.NAMED and where.mount is not None:
        return Kept(
            is_kept=True,
            evidence=_with_note(
                where.evidence, f"{note}, on {where.mount.kind} {where.mount.source or ''}".rstrip()
            ),
            note=note,
            warnings=_wrong_layout(service),
        )
    what = (
        "no volume is mounted there"
        if where.mount is None
        else f"a {where.mount.kind} is mounted there"
    )
    return Kept(
        is_kept=False,
        evidence=(
            service.place,
            *_with_note(where.evidence if where.mount else (), f"{note}: {what}"),
        ),
        note=f"{note}, and {what}",
        survives_restart=where.lifetime is not Lifetime.TMPFS,
    )


def _with_note(evidence: tuple[Evidence, ...], note: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(file=each.file, line=each.line, note=note) for each in evidence[:1])


def _wrong_layout(service: Service) -> tuple[str, ...]:
    """Warn of an image without a version whose data move away from the mount at version 18."""
    reference = service.image.reference or ""
    is_postgres = (service.image.catalog or "").lower() in KINDS[Medium.POSTGRES]
    names_data = any(m.path.rstrip("/") == "/var/lib/postgresql/data" for m in service.mounts)
    if not is_postgres or not names_data or postgres_version(reference.lower()) is not None:
        return ()
    warning = (
        f"{service.name}: the image {reference} names no version; from PostgreSQL "
        f"{POSTGRES_NEW_LAYOUT} on its data are in /var/lib/postgresql/VERSION/docker, beside "
        "this mount"
    )
    return (warning,)


def data_folders(service: Service) -> tuple[str, ...] | None:
    """Return where an image of the catalogue keeps its data; `None` for one that is not known."""
    catalog = (service.image.catalog or "").lower()
    reference = (service.image.reference or "").lower()
    if "bitnami" in reference:
        folder = _BITNAMI.get(catalog.removesuffix("ql").removesuffix("db"))
        return (folder,) if folder else None
    if catalog in KINDS[Medium.POSTGRES]:
        return (_postgres_folder(service, reference),)
    return DATA_FOLDERS.get(catalog)


def _postgres_folder(service: Service, reference: str) -> str:
    given = service.environment.get("PGDATA")
    if given is not None and given.known.value:
        return given.known.value
    version = postgres_version(reference)
    if version is not None and version >= POSTGRES_NEW_LAYOUT:
        return f"/var/lib/postgresql/{version}/docker"
    return "/var/lib/postgresql/data"


def postgres_version(reference: str) -> int | None:
    """Return the major version that an image reference of PostgreSQL names, if it names one."""
    tag = reference.rpartition("/")[2].partition("@")[0].partition(":")[2]
    found = _PG_NAMED.search(tag) or _PG_FIRST.search(tag)
    return int(found.group(1)) if found else None
