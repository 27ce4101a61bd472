"""Facts written by hand: a service, its code and its deployment, with what a test changes."""

from msgspec.structs import replace

from perdure.contracts.code.facts import CodeFacts, Medium, Role, Site
from perdure.contracts.deployment.facts import (
    Image,
    Lifetime,
    Mount,
    Process,
    Root,
    Service,
    Signal,
    Start,
    Variable,
)
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.findings import RootKind


def at(file="app.py", line=1, note="here"):
    return Evidence(file=file, line=line, note=note)


PLACE = at("compose.yaml", 3, "service api")


def start(argv="uvicorn app.main:app", signal=Signal.REACHES, **changes):
    words = tuple(argv.split())
    server = Process(
        argv=words, evidence=(at("Dockerfile", 9),), program=words[0], target=words[-1]
    )
    begun = Start(
        processes=(server,),
        server=server,
        signal=Known(value=signal, evidence=(at("Dockerfile", 9),)),
        shape="exec_server",
    )
    return replace(begun, **changes)


def service(name="api", **changes):
    begun = Service(
        name=name,
        place=at("compose.yaml", 3, f"service {name}"),
        image=Image(reference="python:3.12-slim", dockerfile="Dockerfile", context="."),
        start=start(),
        environment={},
        mounts=(),
        sources=(),
        workdir="/app",
        grace_s=Known(value=10.0, evidence=(PLACE,), is_default=True),
        pre_stop_s=Known(value=0.0, is_default=True),
        replicas=Known(value=1, is_default=True),
        workers=Known(value=1, is_default=True),
        restart=Known(value="always"),
        update=None,
        health=(),
        has_readiness=False,
        depends_on=(),
    )
    return replace(begun, **changes)


def database(name="db", catalog="postgres", reference="postgres:16", **changes):
    image = Image(reference=reference, catalog=catalog)
    given = {"image": image, "start": None, "place": at("compose.yaml", 20, f"service {name}")}
    return service(name, **{**given, **changes})


def mount(path, lifetime=Lifetime.NAMED, kind="volume", line=7, **changes):
    given = {"source": "data", "evidence": (at("compose.yaml", line, f"mounts {path}"),)}
    return Mount(path=path, lifetime=lifetime, kind=kind, **{**given, **changes})


def root(*services, kind=RootKind.COMPOSE):
    return Root(root="compose.yaml", kind=kind, services=services, files=("compose.yaml",))


def site(medium=Medium.MEMORY, role=Role.SAVER, location=None, **changes):
    given = {"evidence": (at("app.py", 12, f"makes a {medium.value} {role.value}"),)}
    known = None if location is None else Known(value=location, evidence=(at("app.py", 13),))
    return Site(role=role, medium=medium, location=known, **{**given, **changes})


def code(*sites, **changes):
    given = {"entry": (at("app.py", 1),), "uses_threads": (at("app.py", 30, "sends thread_id"),)}
    return CodeFacts(sites=sites, **{**given, **changes})


def variable(name, value, line=5):
    return {
        name: Variable(name=name, known=Known(value=value, evidence=(at("compose.yaml", line),)))
    }
