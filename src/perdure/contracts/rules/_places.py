"""What becomes of one place of state when its container restarts or is replaced."""

import posixpath
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code.facts import Medium, Site
from perdure.contracts.deployment.facts import Lifetime, Root, Service
from perdure.contracts.evidence import Confidence, Evidence, weakest
from perdure.contracts.findings import RootKind, Verdict
from perdure.contracts.rules._databases import (
    database_of,
    is_in_itself,
    is_on_localhost,
    kept,
    naming,
)
from perdure.contracts.rules._paths import Placed, has_unknown_mounts, is_in_memory, placed
from perdure.contracts.rules._platform import DEV_FOLDER, LANGGRAPH_DEV
from perdure.contracts.rules._redis import without_modules

REPAIR_MEMORY = (
    "Give the graph a saver that writes outside the process (PostgreSQL, or SQLite on a volume) "
    "and point it at what this deployment keeps."
)


class Outcome(Struct, frozen=True, kw_only=True):
    """What one event does to one place of state."""

    verdict: Verdict
    confidence: Confidence
    why: str
    """A clause for people: where it is, and what becomes of it."""
    evidence: tuple[Evidence, ...]
    question: str | None = None
    repair: str | None = None
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


Judge = Callable[[Service, Root, Site], Outcome]

NETWORKED = frozenset({Medium.POSTGRES, Medium.REDIS, Medium.MONGO, Medium.NETWORK})


def is_volatile(site: Site) -> bool:
    """Whether the state is in the memory of the process."""
    if site.medium is Medium.MEMORY or site.survives_process is False:
        return True
    value = site.location.value if site.location is not None else None
    return site.medium is Medium.FILE and value is not None and is_in_memory(value)


def outcome_of(site: Site, verdict: Verdict, why: str, **more: object) -> Outcome:
    """Return an outcome with what the place itself says: its evidence, confidence, assumptions."""
    location = site.location
    known = [site.chosen.confidence, *([location.confidence] if location is not None else [])]
    assumed = (*site.chosen.assumed, *(location.assumed if location is not None else ()))
    evidence = (*site.evidence, *site.chosen.evidence, *(location.evidence if location else ()))
    begun = Outcome(
        verdict=verdict,
        confidence=weakest(known),
        why=why,
        evidence=tuple(dict.fromkeys(evidence)),
        assumptions=tuple(dict.fromkeys(assumed)),
    )
    return replace(begun, **more)


def added(outcome: Outcome, evidence: tuple[Evidence, ...], confidence: Confidence) -> Outcome:
    """Return an outcome with more evidence, and no surer than it."""
    return replace(
        outcome,
        evidence=tuple(dict.fromkeys((*outcome.evidence, *evidence))),
        confidence=weakest([outcome.confidence, confidence]),
    )


def name_of(site: Site) -> str:
    """Return what people call what keeps it: its class, or else its kind."""
    return site.class_name or site.medium.value


def unknown(site: Site, question: str | None = None) -> Outcome:
    """Return that nobody can say where it is kept, as a question."""
    of_place = site.location.question if site.location else None
    question = question or of_place or site.chosen.question
    return outcome_of(
        site,
        Verdict.UNDECIDED,
        f"nobody can say where {name_of(site)} keeps it",
        question=question or f"Where does {name_of(site)} keep what it is given?",
    )


def not_entered(site: Site) -> Outcome:
    """Return that the saver is a context manager that nobody enters: what it keeps is open."""
    return outcome_of(
        site,
        Verdict.UNDECIDED,
        f"{name_of(site)} is a context manager that nobody was seen to enter",
        question=f"Is {name_of(site)} entered (with ...) before the graph gets it?",
    )


def in_memory(site: Site, event: str) -> Outcome:
    """Return that it is in the memory of the process; `event` is what becomes of that."""
    return outcome_of(
        site,
        Verdict.VIOLATED,
        f"{name_of(site)} keeps it in the memory of the process, {event}",
        repair=REPAIR_MEMORY,
    )


def without(site: Site, event: str) -> Outcome:
    """Return that a graph has no checkpointer; `event` is when nothing is kept."""
    found = outcome_of(
        site,
        Verdict.VIOLATED,
        f"the graph is compiled without a checkpointer, so that nothing is kept {event}",
        repair=REPAIR_MEMORY,
    )
    return replace(found, confidence=Confidence.INFERRED)


def after_restart(service: Service, root: Root, site: Site) -> Outcome:
    """Judge S1 for one place: the container ends, and the same container starts again."""
    if site.medium is Medium.NONE:
        return without(site, "after the request")
    if is_volatile(site):
        return in_memory(site, "which ends with it")
    if not site.is_entered:
        return not_entered(site)
    if site.class_name == LANGGRAPH_DEV:
        return outcome_of(
            site,
            Verdict.UNDECIDED,
            "langgraph dev writes what it has every ten seconds: a restart loses what is younger",
            question="May the last ten seconds of threads and runs be lost by a restart?",
        )
    if site.medium is Medium.FILE:
        return _file_after_restart(service, root, site)
    if site.medium is Medium.UNKNOWN:
        return unknown(site)
    if is_in_itself(root, site.medium, site.location):
        return in_itself(service, site)
    return without_modules_of(root, site) or outcome_of(
        site, Verdict.HELD, f"{name_of(site)} keeps it outside the container"
    )


def _file_after_restart(service: Service, root: Root, site: Site) -> Outcome:
    where = where_of(service, site)
    if where is None:
        return _somewhere(service, site)
    if where.lifetime is Lifetime.TMPFS:
        lost = outcome_of(
            site,
            Verdict.VIOLATED,
            f"{where.path} is on a tmpfs, which a restart empties",
            repair=f"Mount a named volume on the folder of {where.path}.",
        )
        return added(lost, where.evidence, Confidence.PROVED)
    if where.mount is None and service.platform is not None:
        return _begun_anew(service, root, site, where)
    return outcome_of(
        site, Verdict.HELD, f"{name_of(site)} writes {where.path}, which a restart keeps"
    )


def in_itself(service: Service, site: Site) -> Outcome:
    """Return that the database is said to be on the container's own host, where none is seen."""
    return outcome_of(
        site,
        Verdict.UNDECIDED,
        f"{name_of(site)} is told a database on localhost, which is the container itself",
        question=f"Which database does {name_of(site)} of {service.name} reach where it runs?",
    )


def without_modules_of(root: Root, site: Site) -> Outcome | None:
    """Return the question whether a saver can be set up in a Redis that has not what it needs."""
    database = database_of(root, Medium.REDIS, site.location) if site.needs_modules else None
    redis = database.service if database is not None else None
    if redis is None or not without_modules(redis):
        return None
    image = redis.image.reference
    found = outcome_of(
        site,
        Verdict.UNDECIDED,
        f"{name_of(site)} needs RediSearch and RedisJSON to be set up, and {image} of "
        f"{redis.name} is not known to bring them",
        question=(
            f"Does {redis.name} load RediSearch and RedisJSON? Redis 8 and Redis Stack have them."
        ),
    )
    return added(found, redis.image.evidence[-1:], Confidence.PROVED)


def _begun_anew(service: Service, root: Root, site: Site, where: Placed) -> Outcome:
    """Judge S1 for a file that no volume holds where a start may begin with the image again."""
    if service.platform == "render" and not has_unknown_mounts(service, root.kind):
        lost = outcome_of(
            site,
            Verdict.VIOLATED,
            f"{where.path} is on no disk, and Render keeps nothing else over a restart",
            repair=_repair(service, where.path),
        )
        return added(lost, _told(where), Confidence.INFERRED)
    name = {"fly": "Fly", "railway": "Railway", "render": "Render"}.get(service.platform or "")
    return outcome_of(
        site,
        Verdict.UNDECIDED,
        f"{where.path} is on no volume, as far as the files say",
        question=f"Does {name or 'the platform'} keep {where.path} when it starts a process again?",
    )


def _somewhere(service: Service, site: Site) -> Outcome:
    """Judge S1 for a file of which nobody can say where it is.

    Wherever it is, it outlives the process, unless it is on a tmpfs; but what is called a file is
    none where the service is told to keep its database in memory.
    """
    told = [
        each
        for each in service.environment.values()
        if each.known.value and is_in_memory(each.known.value)
    ]
    if told:
        return unknown(
            site, f"Is it {told[0].name} that says where {name_of(site)} keeps it: in memory?"
        )
    if service.platform is not None:
        return unknown(site)  # where no volume is, a start may begin with the image again
    found = outcome_of(site, Verdict.HELD, f"{name_of(site)} writes a file, which a restart keeps")
    return replace(found, confidence=Confidence.INFERRED)


def after_replacement(service: Service, root: Root, site: Site) -> Outcome:
    """Judge S2 for one place: the container is removed, and another one is made."""
    if site.medium is Medium.NONE:
        return without(site, "after the request")
    if is_volatile(site):
        return in_memory(site, "which ends with it")
    if not site.is_entered:
        return not_entered(site)
    if site.medium is Medium.FILE:
        return _file_after_replacement(service, root, site)
    if site.medium in NETWORKED or site.medium is Medium.PLATFORM:
        return _database_after_replacement(service, root, site)
    return unknown(site)


def where_of(service: Service, site: Site) -> Placed | None:
    """Return where the path of a place lies in the container; `None`: it has no known path."""
    value = site.location.value if site.location is not None else None
    return None if value is None else placed(service, value)


def _file_after_replacement(service: Service, root: Root, site: Site) -> Outcome:
    where = where_of(service, site)
    if where is None:
        return unknown(site)
    if where.lifetime is Lifetime.NAMED and where.mount is not None:
        held = outcome_of(
            site,
            Verdict.HELD,
            f"{where.path} is on a {where.mount.kind} that outlives the container",
        )
        return added(held, where.evidence, Confidence.PROVED)
    if where.mount is None and has_unknown_mounts(service, root.kind):
        return outcome_of(
            site,
            Verdict.UNDECIDED,
            f"{where.path} is in the container's own layer unless a volume is mounted there",
            question=f"Is a volume mounted on the folder of {where.path} where this image runs?",
        )
    kind = "the container's own layer" if where.mount is None else _kind(where)
    lost = outcome_of(
        site,
        Verdict.VIOLATED,
        f"{where.path} is on {kind}, which goes with it",
        repair=_repair(service, where.path),
    )
    return added(lost, _told(where), Confidence.PROVED)


def _repair(service: Service, path: str) -> str:
    folder, name = posixpath.split(path)
    if name == DEV_FOLDER:
        return (
            f"Mount a named volume on {path}: langgraph dev keeps it beside langgraph.json, and no "
            "setting moves it. To serve people, use langgraph-api, which keeps threads in a "
            "database."
        )
    if folder == posixpath.normpath(service.workdir or "/"):
        data = posixpath.join(folder, "data")
        where = posixpath.join(data, name)
        return f"Let it be {where}, away from the code, and mount a named volume on {data}."
    return f"Mount a named volume (or a claim) on the folder of {path}."


def _kind(where: Placed) -> str:
    names = {"image_volume": "an anonymous volume", "volume": "an anonymous volume"}
    kind = where.mount.kind if where.mount is not None else "layer"
    return names.get(kind, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}")


def _told(where: Placed) -> tuple[Evidence, ...]:
    if where.mount is not None:
        return where.evidence
    return tuple(
        Evidence(file=each.file, line=each.line, note=f"mounts nothing over {where.path}")
        for each in where.evidence
    )


def _database_after_replacement(service: Service, root: Root, site: Site) -> Outcome:
    medium = Medium.POSTGRES if site.medium is Medium.PLATFORM else site.medium
    if is_in_itself(root, medium, site.location):
        return in_itself(service, site)
    database = database_of(root, medium, site.location)
    if database is None:
        return outcome_of(
            site,
            Verdict.UNDECIDED,
            f"{name_of(site)} uses one of several databases",
            question=(site.location.question if site.location else None)
            or f"Which database does {name_of(site)} use?",
        )
    if database.service is None:
        held = outcome_of(
            site, Verdict.HELD, f"{name_of(site)} uses a database outside this deployment"
        )
        return added(held, (), database.confidence)
    lacking = without_modules_of(root, site)
    if lacking is not None:
        return lacking
    stored = kept(database.service)
    named = naming(service, database.service)
    if stored.is_kept is None:
        return outcome_of(
            site,
            Verdict.UNDECIDED,
            f"{stored.note}, so that its folder of data is not known",
            question=f"Where does {database.service.name} keep its data?",
        )
    if stored.is_kept:
        held = outcome_of(
            site, Verdict.HELD, f"{stored.note}, on a volume", warnings=stored.warnings
        )
        return added(held, (*named, *stored.evidence), database.confidence)
    if not named and root.kind is not RootKind.KUBERNETES and is_on_localhost(site.location):
        return in_itself(service, site)
    lost = outcome_of(
        site,
        Verdict.VIOLATED,
        f"{stored.note}, so that they go with its container",
        repair=stored.repair
        or f"Mount a named volume on the folder of data of {database.service.name}.",
    )
    return added(lost, (*named, *stored.evidence), database.confidence)
