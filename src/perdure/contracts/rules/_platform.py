"""Servers that keep state, migrate and drain by themselves: how they are recognised."""

from perdure.contracts.code.facts import CodeFacts, Medium, Role, Site
from perdure.contracts.deployment.facts import Service
from perdure.contracts.evidence import Confidence, Evidence, Known

LANGGRAPH_API = "langgraph-api"

DATABASE_VARIABLES = ("DATABASE_URI", "POSTGRES_URI", "POSTGRES_URI_CUSTOM")
"""Where langgraph-api is told its database; with REDIS_URI beside it nothing else reads these."""


def is_langgraph_api(service: Service) -> bool:
    """Whether a service is LangGraph's server: by its image, or by the variables that it is given.

    `langgraph build` makes an image of any name, which a deployment then only refers to.
    """
    if service.image.catalog is not None:
        return service.image.catalog == LANGGRAPH_API
    server = service.start.server if service.start is not None else None
    if server is not None and server.program not in {"langgraph", "python"}:
        return False
    return "REDIS_URI" in service.environment and _database(service) is not None


def serves_graphs(service: Service) -> bool:
    """Whether a service is LangGraph's server in either of its forms."""
    return dev_site(service) is not None or is_langgraph_api(service)


def platform_evidence(service: Service) -> tuple[Evidence, ...]:
    """Return the lines that say so."""
    if service.image.catalog == LANGGRAPH_API:
        return service.image.evidence or (service.place,)
    database = _database(service)
    told = database.evidence if database is not None else ()
    return tuple(
        Evidence(file=e.file, line=e.line, note="langgraph-api reads this: made by langgraph build")
        for e in told
    ) or (service.place,)


def platform_confidence(service: Service) -> Confidence:
    """Return how surely it is LangGraph's server."""
    is_named = service.image.catalog == LANGGRAPH_API
    return Confidence.PROVED if is_named else Confidence.INFERRED


LANGGRAPH_DEV = "langgraph dev"

DEV_FOLDER = ".langgraph_api"
"""Where `langgraph dev` keeps all it has, as pickles that it writes every ten seconds."""


def dev_site(service: Service) -> Site | None:
    """Return where `langgraph dev` keeps threads; `None`: it is not what the service runs."""
    server = service.start.server if service.start is not None else None
    if server is None or server.program != "langgraph" or "dev" not in server.argv:
        return None
    last = server.evidence[-1:] or (service.place,)
    note = f"langgraph dev keeps threads in memory, and writes them to {DEV_FOLDER}"
    return Site(
        role=Role.SAVER,
        medium=Medium.FILE,
        evidence=tuple(Evidence(file=e.file, line=e.line, note=note) for e in last),
        class_name=LANGGRAPH_DEV,
        location=Known(value=DEV_FOLDER),
    )


def _database(service: Service) -> Known[str] | None:
    found = (service.environment.get(name) for name in DATABASE_VARIABLES)
    return next((each.known for each in found if each is not None), None)


def platform_site(service: Service, code: CodeFacts) -> Site | None:
    """Return where LangGraph's server keeps threads, whatever saver the code passes."""
    dev = dev_site(service)
    if dev is not None:
        return dev
    if not is_langgraph_api(service):
        return None
    if any(site.medium is Medium.PLATFORM for site in code.sites):
        return None
    return Site(
        role=Role.SAVER,
        medium=Medium.PLATFORM,
        evidence=platform_evidence(service),
        class_name="langgraph-api",
        location=_database(service),
        chosen=Known(value=True, confidence=platform_confidence(service)),
    )
