"""How many copies of a service run, and what they see of each other's state."""

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Medium, Site
from perdure.contracts.deployment.facts import Lifetime, Root, Service
from perdure.contracts.evidence import Confidence, Evidence, Known, weakest
from perdure.contracts.findings import Verdict
from perdure.contracts.rules._databases import database_of, is_in_itself, naming
from perdure.contracts.rules._paths import Placed, has_unknown_mounts
from perdure.contracts.rules._places import (
    NETWORKED,
    Judge,
    Outcome,
    added,
    in_itself,
    in_memory,
    is_volatile,
    name_of,
    not_entered,
    outcome_of,
    unknown,
    where_of,
    without,
    without_modules_of,
)

ONE_WRITER = (
    "several processes write one SQLite file: one at a time, the others wait or fail as locked"
)


class Copies(Struct, frozen=True, kw_only=True):
    """How many containers and server processes serve the same thing."""

    replicas: int
    workers: int
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    question: str | None = None
    twins: tuple[Service, ...] = ()

    @property
    def is_several(self) -> bool:
        """Whether two requests may meet different processes."""
        return self.replicas > 1 or self.workers > 1

    @property
    def what(self) -> str:
        """Name them."""
        if self.replicas > 1:
            return f"{self.replicas} replicas"
        return f"{self.workers} workers"


def copies_of(service: Service, code: CodeFacts, root: Root) -> Copies:
    """Return how many copies of the service run, of its twins in the same deployment too."""
    twins = [each for each in root.services if _is_twin(each, service)]
    replicas = service.replicas
    workers = _workers(service, code)
    if twins:
        named = tuple(each.place for each in (service, *twins))
        total = sum(each.replicas.value or 1 for each in (service, *twins))
        replicas = Known(value=total, evidence=named)
    for known in (replicas, workers):
        if known.value is None and known.question is not None:
            # Several workers are several, whatever nobody says of the containers.
            has_several = known is replicas and (workers.value or 1) > 1
            return Copies(
                replicas=1,
                workers=(workers.value or 1) if has_several else 1,
                evidence=workers.evidence if has_several else known.evidence,
                confidence=known.confidence,
                question=known.question,
            )
    several = [known for known in (replicas, workers) if (known.value or 1) > 1]
    return Copies(
        replicas=replicas.value or 1,
        workers=workers.value or 1,
        evidence=tuple(e for known in several for e in known.evidence),
        confidence=weakest([known.confidence for known in several]),
        twins=tuple(twins),
    )


def _workers(service: Service, code: CodeFacts) -> Known[int]:
    """Return the workers of a container: those of the command, or else those of the code."""
    if code.workers is None or (service.workers.value or 1) > 1:
        return service.workers
    return code.workers


def _is_twin(other: Service, service: Service) -> bool:
    """Whether another service of the deployment serves the same thing, under another name."""
    if other is service or other.image.dockerfile is None or other.profiles != service.profiles:
        return False
    same_image = (other.image.dockerfile, other.image.context, other.image.stage) == (
        service.image.dockerfile,
        service.image.context,
        service.image.stage,
    )
    return same_image and _target(other) is not None and _target(other) == _target(service)


def _target(service: Service) -> tuple[str, str] | None:
    server = service.start.server if service.start is not None else None
    if server is None or server.target is None or service.is_one_shot:
        return None
    return server.program, server.target


def among_replicas(copies: Copies) -> Judge:
    """Return the judge of S3 for so many copies."""

    def judge(service: Service, root: Root, site: Site) -> Outcome:
        if site.medium is Medium.NONE:
            return without(site, f"for the other {copies.what}")
        if is_volatile(site):
            return in_memory(site, f"and there are {copies.what}")
        if not site.is_entered:
            return not_entered(site)
        if site.medium is Medium.FILE:
            return _file(service, root, site, copies)
        if site.medium in NETWORKED or site.medium is Medium.PLATFORM:
            if is_in_itself(root, site.medium, site.location):
                return in_itself(service, site)
            lacking = without_modules_of(root, site)
            if lacking is not None:
                return lacking
            held = outcome_of(site, Verdict.HELD, f"all reach {name_of(site)} over the network")
            return added(held, _named(service, root, site, copies), Confidence.PROVED)
        return unknown(site)

    return judge


def _named(service: Service, root: Root, site: Site, copies: Copies) -> tuple[Evidence, ...]:
    """Return what tells every copy the same database."""
    database = database_of(root, site.medium, site.location)
    if database is None or database.service is None:
        return ()
    same = (service, *copies.twins)
    return tuple(step for each in same for step in naming(each, database.service))


def _file(service: Service, root: Root, site: Site, copies: Copies) -> Outcome:
    where = where_of(service, site)
    if where is None:
        return unknown(site)
    if copies.replicas <= 1:
        return outcome_of(
            site,
            Verdict.HELD,
            f"all workers of the container open {where.path}",
            warnings=(ONE_WRITER,),
        )
    if where.mount is None and has_unknown_mounts(service, root.kind):
        return unknown(site)
    return added(_shared(site, where), where.evidence, Confidence.PROVED)


def _shared(site: Site, where: Placed) -> Outcome:
    mount = where.mount
    repair = "Use a database over the network (PostgreSQL); until then run one replica."
    if mount is None or where.lifetime is not Lifetime.NAMED:
        return outcome_of(
            site, Verdict.VIOLATED, f"each replica has a {where.path} of its own", repair=repair
        )
    if mount.access_mode is not None and mount.access_mode != "ReadWriteMany":
        return outcome_of(
            site,
            Verdict.VIOLATED,
            f"{where.path} is on a claim with {mount.access_mode}, which other nodes can't mount",
            repair=repair,
        )
    if mount.access_mode == "ReadWriteMany":
        found = outcome_of(
            site,
            Verdict.VIOLATED,
            f"{where.path} is on a file system of the network, whose locks SQLite can't trust",
            repair=repair,
        )
        return replace(found, confidence=Confidence.INFERRED)
    if mount.is_shared is False:
        return outcome_of(
            site, Verdict.VIOLATED, f"each replica has a {where.path} of its own", repair=repair
        )
    if mount.kind == "hostPath":
        return outcome_of(
            site,
            Verdict.UNDECIDED,
            f"{where.path} is of the node that a replica runs on",
            question="Do all replicas run on one node?",
        )
    held = outcome_of(
        site,
        Verdict.HELD,
        f"all replicas of this host open the same {where.path}",
        warnings=(ONE_WRITER,),
    )
    return replace(held, confidence=weakest([held.confidence, Confidence.INFERRED]))
