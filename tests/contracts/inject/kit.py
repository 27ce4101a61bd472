"""Deployments made by hand for tests of injection, and one way to prove something of them."""

import sys
from pathlib import Path

from perdure.clock import system_services
from perdure.contracts.deployment.facts import Image, Root, Service, Signal, Start
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.findings import Contract, RootKind
from perdure.contracts.inject.engines import ProcessEngine
from perdure.contracts.inject.prove import Asked, Event, prove
from perdure.contracts.inject.settings import Settings, Trial

APPLICATION = Path(__file__).parent / "application"
PLACE = Evidence(file="compose.yaml", line=1, note="declared here")


def service(**changes):
    """Return the service `api` as a reader would, with these fields changed."""
    fields = {
        "name": "api",
        "place": PLACE,
        "image": Image(reference=None, dockerfile="Dockerfile", context="."),
        "start": Start(
            processes=(), server=None, signal=Known(value=Signal.UNKNOWN), shape="exec_server"
        ),
        "environment": {},
        "mounts": (),
        "sources": (),
        "workdir": "/app",
        "grace_s": Known(value=10.0),
        "pre_stop_s": Known(value=0.0),
        "replicas": Known(value=1),
        "workers": Known(value=1),
        "restart": Known(value="no"),
        "update": None,
        "health": (),
        "has_readiness": False,
        "depends_on": (),
    }
    return Service(**(fields | changes))


def root(*services):
    """Return a root of these services."""
    return Root(root="compose.yaml", kind=RootKind.COMPOSE, services=services, files=())


async def proven(contract, tmp_path, *, broken=None, engine=None, **said):
    """Prove one contract once of the small application; `said` becomes settings and environment."""
    chosen = broken or service()
    trial = {name: said.pop(name) for name in list(said) if name in Trial.__dataclass_fields__}
    settings = Settings(
        environment={"PORT": "{port}", **said.pop("environment", {})},
        process_argv=said.pop("argv", (sys.executable, "app.py")),
        process_pre_stop=said.pop("process_pre_stop", ()),
        stubs=said.pop("stubs", ()),
        abilities=said.pop("abilities", None),
        probe=said.pop("probe", "http"),
        command=said.pop("command", ()),
        port=8000,
        trial=Trial(**{"ready_s": 60.0, "run_s": 60.0, "step_s": 0.01, **trial}),
    )
    services = system_services()
    asked = Asked(
        folder=said.pop("folder", APPLICATION),
        root=root(chosen, *said.pop("others", ())),
        service=chosen,
        contract=Contract(contract),
        settings=settings,
        output=tmp_path / "trials",
        repetitions=said.pop("repetitions", 1),
        probe=said.pop("probe", None),
        event=Event(said.pop("event")) if "event" in said else None,
    )
    assert not said
    return await prove(asked, engine or ProcessEngine(services.clock, tmp_path), services)
