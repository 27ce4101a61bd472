"""Small projects on disk, and services that start them, described by hand."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perdure.contracts.code import CodeReader
from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment.facts import (
    Image,
    Process,
    Root,
    Service,
    Signal,
    Source,
    Start,
    Variable,
)
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind

PLACE = Evidence(file="compose.yaml", line=2, note="service api")


def service_of(
    argv: tuple[str, ...],
    *,
    environment: Mapping[str, str] | None = None,
    sources: tuple[tuple[str, str], ...] = (("/app", ""),),
    workdir: str = "/app",
    catalog: str | None = None,
    dockerfile: str | None = None,
) -> Service:
    """Describe a service that starts a command in /app, where the project is copied to."""
    process = Process(argv=argv, evidence=(PLACE,), program=argv[0] if argv else "")
    start = Start(
        processes=(process,), server=process, signal=Known(value=Signal.REACHES), shape="exec"
    )
    unset: Known[float] = Known(value=10.0, is_default=True)
    one: Known[int] = Known(value=1)
    return Service(
        name="api",
        place=PLACE,
        image=Image(reference=None, catalog=catalog, dockerfile=dockerfile),
        start=start if argv else None,
        environment={
            name: Variable(name=name, known=Known(value=value, evidence=(PLACE,)))
            for name, value in (environment or {}).items()
        },
        mounts=(),
        sources=tuple(Source(container=where, project=origin) for where, origin in sources),
        workdir=workdir,
        grace_s=unset,
        pre_stop_s=Known(value=0.0),
        replicas=one,
        workers=one,
        restart=Known(value="no"),
        update=None,
        health=(),
        has_readiness=False,
        depends_on=(),
    )


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., CodeFacts]:
    """Write files, and read what a command starts of them."""

    def run(
        files: Mapping[str, str],
        *argv: str,
        declared: Mapping[str, str] | None = None,
        assume: Mapping[str, str] | None = None,
        **more: object,
    ) -> CodeFacts:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        root = Root(
            root="compose.yaml",
            kind=RootKind.COMPOSE,
            services=(),
            files=(),
            declared={
                name: Known(value=value, confidence=Confidence.DECLARED_DEFAULT)
                for name, value in (declared or {}).items()
            },
        )
        service = service_of(argv or ("uvicorn", "app:app"), **more)
        return CodeReader(Project(tmp_path)).read(service, root, assume=assume or {})

    return run
