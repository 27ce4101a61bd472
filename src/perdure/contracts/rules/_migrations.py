"""S4: databases accept connections before what starts changes or creates their tables.

Schema set-up against Redis or a search engine at start is the same contract.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts._patterns import regex
from perdure.contracts.code.facts import CodeFacts, Medium, Migration
from perdure.contracts.deployment.facts import Dependency, Root, Service
from perdure.contracts.evidence import Confidence, Evidence, weakest
from perdure.contracts.findings import Contract, Finding, Verdict
from perdure.contracts.rules._databases import KINDS, database_of, naming
from perdure.contracts.rules._platform import is_langgraph_api, platform_evidence

REPAIR = (
    "Let the service wait until the database is healthy (depends_on with condition: "
    "service_healthy and a healthcheck), or repeat the migration until it is there."
)

REPAIR_OF_PODS = (
    "Let an init container wait until the database accepts connections, or repeat the migration in "
    "the code until it is there."
)

_NAMES = {
    "postgres": KINDS[Medium.POSTGRES],
    "redis": KINDS[Medium.REDIS],
    "mongo": KINDS[Medium.MONGO],
    "mysql": frozenset({"mysql", "mariadb"}),
}
_DATABASES = frozenset().union(*KINDS.values()) | {
    "mysql",
    "mariadb",
    "elasticsearch",
    "opensearch",
}


class _Need(Struct, frozen=True, kw_only=True):
    """Something at the start of the service that needs a database."""

    database: Service
    evidence: tuple[Evidence, ...]
    retries: tuple[Evidence, ...]
    confidence: Confidence
    is_passed_over: bool = False


def judge(service: Service, code: CodeFacts, root: Root, *, strict: bool = False) -> Finding:
    """Judge S4 for one service."""
    del strict
    begun = Finding(contract=Contract.S4, service=service.name, verdict=Verdict.NOT_APPLICABLE)
    waits = service.start.waits if service.start is not None else ()
    needs = _needs(service, code, root)
    if not needs:
        return _without_need(begun, service, code, root)
    verdicts = [_of_need(begun, service, need, waits, root) for need in needs]
    order = (Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.HELD)
    return min(verdicts, key=lambda each: order.index(each.verdict))


def _of_need(
    begun: Finding, service: Service, need: _Need, waits: tuple[Evidence, ...], root: Root
) -> Finding:
    name = need.database.name
    ordering = _ordering(service, name)
    if ordering is None or ordering.condition == "service_started":
        ordering = _through_others(service, name, root) or ordering
    if ordering is not None and ordering.condition != "service_started":
        return _ordered(begun, need, ordering)
    waits = _waits_for(need.database, waits, root)
    if waits or need.retries:
        return replace(
            begun,
            verdict=Verdict.HELD,
            confidence=need.confidence,
            summary=f"the start repeats or waits until {name} is there",
            evidence=(*need.evidence, *(need.retries or waits)),
        )
    if need.is_passed_over:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=f"the start goes on when {name} is not there yet",
            evidence=(*need.evidence, need.database.place),
            question=f"What makes it in {name} later, when the start has gone on without?",
        )
    if service.controller in {"Job", "CronJob"}:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=f"the job needs {name}, and is tried again some times when it fails",
            evidence=(*need.evidence, service.place, need.database.place),
            question=f"Do the tries of the job (backoffLimit) last until {name} is there?",
        )
    told = ordering.evidence if ordering is not None else (service.place,)
    how = "waits only until its container has started" if ordering else "waits for nothing"
    late, again, confidence = _when_late(service, name)
    return replace(
        begun,
        verdict=Verdict.VIOLATED,
        confidence=weakest([need.confidence, confidence]),
        summary=f"the start needs {name} and {how}: {late}",
        evidence=tuple(dict.fromkeys((*need.evidence, *told, *again, need.database.place))),
        repair=REPAIR if service.controller is None else REPAIR_OF_PODS,
    )


_TOOLS = {
    "postgres": regex(r"pg_isready|psql|:5432|asyncpg|psycopg"),
    "redis": regex(r"redis-cli|:6379"),
    "mysql": regex(r"mysql|mariadb|:3306"),
    "mongo": regex(r"mongo|:27017"),
}
"""What the words of a wait say of the kind of database that it waits for."""


def _waits_for(database: Service, waits: tuple[Evidence, ...], root: Root) -> tuple[Evidence, ...]:
    """Return the waits that can be for a database: they name it, or nothing that is another."""
    own = (database.image.catalog or "").lower()
    kind = next((k for k, names in _NAMES.items() if own in names), own)
    others = [each for each in root.services if each.name != database.name]
    return tuple(
        wait
        for wait in waits
        if _is_named(database, wait.note)
        or not (
            any(_is_named(other, wait.note) for other in others) or _of_other_kind(kind, wait.note)
        )
    )


def _is_named(service: Service, note: str) -> bool:
    """Whether a wait names a service as a host with a port."""
    return any(
        re.search(rf"(?<![\w-]){re.escape(name)}[:/\s]+\d{{2,5}}\b", note)
        for name in (service.name, *service.aliases)
    )


def _of_other_kind(kind: str, note: str) -> bool:
    said = {name for name, pattern in _TOOLS.items() if pattern.search(note)}
    return bool(said) and kind not in said


def _when_late(service: Service, name: str) -> tuple[str, tuple[Evidence, ...], Confidence]:
    """Return what a late database does to the service, and the lines of its restart policy.

    A restart policy repeats the attempt, and is no wait: the service fails, is down, and counts
    as crashed until the database happens to be there. By the definition it is not counted on.
    """
    policy = service.restart.value
    if policy is None or policy in {"no", "never"}:
        return f"a {name} that comes up late makes it fail", (), Confidence.PROVED
    until = "is there"
    tries = policy.partition(":")[2]
    if tries:
        until = f"is there or {tries} tries are used up"
    late = (
        f"when {name} comes up late it fails, and the container crash-loops until {name} {until}; "
        "nothing but the restart policy repeats the attempt"
    )
    return late, service.restart.evidence, Confidence.INFERRED


def _ordering(service: Service, database: str) -> Dependency | None:
    """Return the strongest wait for the database, also for a job that waits for it itself."""
    found = [each for each in service.depends_on if each.service == database]
    found += [
        each
        for each in service.depends_on
        if each.condition in {"service_completed_successfully", "init_container"}
    ]
    found.sort(key=lambda each: each.condition == "service_started")
    return found[0] if found else None


def _through_others(service: Service, database: str, root: Root) -> Dependency | None:
    """Return the wait of a service that this one waits for: it has not started before, either."""
    by_name = {each.name: each for each in root.services}
    seen = {service.name}
    waiting = [each.service for each in service.depends_on]
    while waiting:
        name = waiting.pop()
        other = by_name.get(name)
        if other is None or name in seen:
            continue
        seen.add(name)
        found = _ordering(other, database)
        if found is not None and found.condition != "service_started":
            return found
        waiting += [each.service for each in other.depends_on]
    return None


def _ordered(begun: Finding, need: _Need, ordering: Dependency) -> Finding:
    name = need.database.name
    if ordering.condition == "service_healthy" and not need.database.health:
        is_known = need.database.image.dockerfile is None and need.database.image.catalog
        return replace(
            begun,
            verdict=Verdict.VIOLATED if is_known else Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary=(
                f"the service waits for {name} to be healthy, and {name} has no health check: "
                "Compose refuses to start it"
            ),
            evidence=(*ordering.evidence, need.database.place),
            repair=f"Give {name} a healthcheck that a client's connection passes."
            if is_known
            else None,
            question=None if is_known else f"Does the image of {name} bring a health check?",
        )
    how = {
        "service_healthy": f"the service starts when {name} is healthy",
        "service_completed_successfully": "the service starts when a job before it has succeeded",
        "init_container": "an init container waits first",
    }.get(ordering.condition, f"the service waits for {name}")
    return replace(
        begun,
        verdict=Verdict.HELD,
        confidence=need.confidence,
        summary=how,
        evidence=(*ordering.evidence, *need.database.health[:1]),
        warnings=_weak_waits(need.database) if ordering.condition == "service_healthy" else (),
    )


def _weak_waits(database: Service) -> tuple[str, ...]:
    said = " ".join(each.note for each in database.health)
    if "pg_isready" in said and " -h" not in said and "--host" not in said:
        warning = (
            f"pg_isready without -h also meets the server that sets {database.name} up, which ends "
            "before the real one starts; add -h 127.0.0.1"
        )
        return (warning,)
    return ()


def _needs(service: Service, code: CodeFacts, root: Root) -> list[_Need]:
    needs = [
        found
        for migration in code.migrations
        if not migration.is_lazy and (found := _need_of(migration, service, root)) is not None
    ]
    if service.start is not None and service.start.migrations:
        needs += _of_commands(service, code, root, service.start.migrations)
    if is_langgraph_api(service):
        needs += _of_commands(service, code, root, platform_evidence(service))
    return needs


def _need_of(migration: Migration, service: Service, root: Root) -> _Need | None:
    if migration.server is not None:
        return _of_server(migration, migration.server, service, root)
    database = database_of(root, migration.medium, migration.location)
    if database is not None and database.service is None and migration.location is None:
        return _of_other_sql(migration, service, root)
    if database is None or database.service is None:
        return None
    return _Need(
        database=database.service,
        evidence=migration.evidence,
        retries=migration.retries,
        confidence=database.confidence,
    )


def _of_server(migration: Migration, server: str, service: Service, root: Root) -> _Need | None:
    """Return the need of a search engine or vector database that the service names or waits for."""
    found = [each for each in root.services if _image_name(each) in {server, f"{server}db"}]
    if len(found) != 1:
        return None
    waited = any(each.service == found[0].name for each in service.depends_on)
    if not waited and not naming(service, found[0]):
        return None
    return _Need(
        database=found[0],
        evidence=migration.evidence,
        retries=migration.retries,
        confidence=Confidence.INFERRED,
        is_passed_over=migration.is_passed_over,
    )


def _image_name(service: Service) -> str:
    return (service.image.reference or "").rpartition("/")[2].partition(":")[0].lower()


_OTHER_SQL = frozenset({"mysql", "mariadb"})


def _of_other_sql(migration: Migration, service: Service, root: Root) -> _Need | None:
    """Return the need of a migration that names no database, where MySQL alone is waited for."""
    waited = {each.service for each in service.depends_on}
    found = [
        each
        for each in root.services
        if each.name in waited and (each.image.catalog or "").lower() in _OTHER_SQL
    ]
    if migration.medium is not Medium.POSTGRES or len(found) != 1:
        return None
    return _Need(
        database=found[0],
        evidence=migration.evidence,
        retries=migration.retries,
        confidence=Confidence.INFERRED,
    )


def _of_commands(
    service: Service, code: CodeFacts, root: Root, evidence: tuple[Evidence, ...]
) -> list[_Need]:
    """Return what commands before the server need: the one database that it can be."""
    location = next((m.location for m in code.migrations if m.location is not None), None)
    database = database_of(root, Medium.POSTGRES, location)
    found = database.service if database is not None else None
    if found is None:
        waited = {each.service for each in service.depends_on}
        others = [
            s
            for s in root.services
            if s.name in waited and _is_database(s) and not _serves_redis(s)
        ]
        found = others[0] if len(others) == 1 else None
    if found is None:
        return []
    return [_Need(database=found, evidence=evidence, retries=(), confidence=Confidence.INFERRED)]


def _is_database(service: Service) -> bool:
    return (service.image.catalog or "").lower() in _DATABASES


def _serves_redis(service: Service) -> bool:
    """Whether it has no tables that a command could migrate."""
    return (service.image.catalog or "").lower() in KINDS[Medium.REDIS]


def _without_need(begun: Finding, service: Service, code: CodeFacts, root: Root) -> Finding:
    """Judge a service whose start was not seen to need a database of this deployment."""
    by_name = {each.name: each for each in root.services}
    for dependency in service.depends_on:
        database = by_name.get(dependency.service)
        if (
            database is not None
            and _is_database(database)
            and dependency.condition != "service_started"
        ):
            need = _Need(database=database, evidence=(), retries=(), confidence=Confidence.PROVED)
            return _ordered(begun, need, dependency)
    lazy = [each for each in code.migrations if each.is_lazy]
    if lazy:
        return replace(
            begun, summary="tables are made by the first request", evidence=lazy[0].evidence
        )
    begun = replace(begun, evidence=code.migrations[0].evidence if code.migrations else ())
    if any(
        one.server is None and database_of(root, one.medium, one.location) is None
        for one in code.migrations
    ):
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="the start changes one of several databases of this deployment",
            question="Which database does this service change when it starts?",
        )
    if code.question is not None and service.depends_on:
        return replace(
            begun,
            verdict=Verdict.UNDECIDED,
            confidence=Confidence.INFERRED,
            summary="the code that this service starts was not found",
            evidence=(service.place,),
            question=code.question,
        )
    return replace(begun, summary="nothing at its start needs a database of this deployment")
