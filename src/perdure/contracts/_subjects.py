"""Which services of a deployment are the project's own to answer for."""

import re

from perdure.contracts._patterns import regex
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.findings import RootKind

AGENT_SERVERS = frozenset({"langgraph-api", "aegra"})
"""Images of others that run the project's graphs."""

OTHER_PROGRAMS = frozenset(
    {
        "node", "npm", "npx", "yarn", "pnpm", "bun", "deno", "nginx", "caddy", "httpd", "apache2",
        "java", "dotnet", "ruby", "php", "php-fpm", "traefik", "envoy", "serve", "next", "vite",
        "mlflow", "jupyter", "jupyter-lab", "jupyter-notebook", "tensorboard", "flower", "ollama",
        "vllm", "supercronic", "crond", "cron", "redis-server", "postgres", "mongod", "http-server",
    }
)  # fmt: skip
"""Servers and tools in which no Python of the project runs."""

PYTHON_PROGRAMS = frozenset(
    {
        "python", "python3", "uvicorn", "gunicorn", "hypercorn", "fastapi", "granian", "celery",
        "arq", "streamlit", "chainlit", "langgraph", "uv", "poetry", "flask", "dramatiq", "rq",
    }
)  # fmt: skip
"""Programs that execute Python of the project."""

OTHER_IMAGES = frozenset(
    {
        "node", "nginx", "caddy", "httpd", "traefik", "bun", "deno", "golang", "rust", "php",
        "ruby", "eclipse-temurin", "openjdk", "amazoncorretto", "maven", "gradle", "aspnet",
    }
)  # fmt: skip
"""Images of other languages, by name without folder."""


_OF_TESTS = regex(r"(^|[._-])(tests?|testing|e2e|ci|smoke|bench(marks?)?)([._-]|$)", re.IGNORECASE)


def deployed(roots: tuple[Root, ...]) -> tuple[Root, ...]:
    """Return the roots that deploy something: not those named for tests, if others are there."""
    others = [each for each in roots if not _OF_TESTS.search(each.root.rpartition("/")[2])]
    return tuple(others or roots)


def subjects(root: Root) -> tuple[Service, ...]:
    """Return the services whose contracts are judged.

    Databases and other people's images are read, because the project's services depend on them,
    and not judged: nobody wants fifteen lines for a proxy. A front end in another language is
    judged only where nothing else is there.
    """
    own = [each for each in root.services if _is_own(each) and each.replicas.value != 0]
    usual = [each for each in own if not _is_beside(each)]
    own = usual or own
    python = [each for each in own if not is_other_language(each)]
    return tuple(python or own)


def beside(root: Root) -> tuple[str, ...]:
    """Return the names of services that are built here and not judged, as they run no Python."""
    judged = subjects(root)
    return tuple(
        each.name
        for each in root.services
        if all(each is not one for one in judged)
        and each.image.dockerfile is not None
        and each.replicas.value != 0
        and is_other_language(each)
        and not _is_beside(each)
    )


def judged_roots(roots: tuple[Root, ...]) -> list[tuple[Root, tuple[Service, ...]]]:
    """Return the roots with the services of them that are judged.

    A Dockerfile alone that starts another language is a front end or a service beside, where
    anything else of the project is judged.
    """
    found = [(root, subjects(root)) for root in roots]
    kept = [
        (root, own)
        for root, own in found
        if root.kind is not RootKind.DOCKERFILE or not all(map(is_other_language, own))
    ]
    return kept if any(own for _root, own in kept) else found


_BESIDE = frozenset({"dev", "devel", "development", "local", "debug", "test", "tests", "e2e", "ci"})
"""Profiles of Compose that are switched on by developers only."""


def _is_beside(service: Service) -> bool:
    """Whether a server is started in profiles for development or tests only, beside the others."""
    return (
        bool(service.profiles)
        and not service.is_one_shot
        and all(each.lower() in _BESIDE for each in service.profiles)
    )


def _is_own(service: Service) -> bool:
    catalog = service.image.catalog
    if catalog in AGENT_SERVERS:
        return True
    server = service.start.server if service.start is not None else None
    if server is not None and _only_waits(server.argv):
        return False
    if service.image.dockerfile is not None:
        # A catalogue's image under the project's own program is the project's: a browser, a GPU.
        return catalog is None or (server is not None and server.program in PYTHON_PROGRAMS)
    return catalog is None and server is not None


_WITHOUT_PYTHON = frozenset(
    {"scratch", "static", "base", "cc", "static-debian12", "base-debian12", "cc-debian12", "alpine"}
)
"""Images without Python, by name without folder: what is copied into them was compiled."""


def _is_binary(service: Service, argv: tuple[str, ...]) -> bool:
    """Whether a program of a path of its own starts in an image that has no Python."""
    reference = (service.image.reference or "").rpartition("/")[2].partition(":")[0]
    name = reference.partition("@")[0]
    is_own = service.image.dockerfile is not None and argv[0].startswith(("/", "./"))
    return is_own and name in _WITHOUT_PYTHON and not argv[0].endswith((".sh", ".py"))


def _only_waits(argv: tuple[str, ...]) -> bool:
    """Whether a command does nothing but keep a container alive, for people who go into it."""
    program = argv[0].rpartition("/")[2] if argv else ""
    if program == "tail":
        return "/dev/null" in argv
    return program == "sleep" and argv[1:2] in {("infinity",), ("inf",)}


def is_other_language(service: Service) -> bool:
    """Whether what a service runs is no Python, by its program or its image."""
    server = service.start.server if service.start is not None else None
    if server is not None and server.program in OTHER_PROGRAMS:
        return True
    if server is not None and server.program in PYTHON_PROGRAMS:
        return False
    if server is not None and _is_binary(service, server.argv):
        return True
    base = (service.image.reference or "").rpartition("/")[2].partition(":")[0].partition("@")[0]
    return base in OTHER_IMAGES
