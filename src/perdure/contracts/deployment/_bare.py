"""A Dockerfile that no other deployment uses, as a root with one service."""

from collections.abc import Mapping

from perdure.contracts.deployment._builds import context_of
from perdure.contracts.deployment._deployed import image_of, variables_for
from perdure.contracts.deployment._dockerfile import read_dockerfile
from perdure.contracts.deployment._ending import of_program
from perdure.contracts.deployment._room import Room
from perdure.contracts.deployment._stages import Built, build, served_stage
from perdure.contracts.deployment._starting import Order, start_of, workers_of
from perdure.contracts.deployment.facts import (
    Image,
    Lifetime,
    Mount,
    Root,
    Service,
    Source,
    Start,
    Variable,
)
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind


def bare_root(project: Project, path: str, assume: Mapping[str, str]) -> Root | None:
    """Return the root of a Dockerfile alone; `None`: it can't be read."""
    dockerfile = read_dockerfile(project, path)
    if dockerfile is None:
        return None
    context = context_of(project, dockerfile)
    built = build(
        project,
        dockerfile,
        context=context,
        target=served_stage(dockerfile),
        arguments={},
        assume=assume,
    )
    if built is None:
        return None
    declared = variables_for(project, context, assume).declared
    service = _service(project, path, context, built, assume)
    return Root(
        root=path,
        kind=RootKind.DOCKERFILE,
        services=(service,),
        files=(path,),
        declared=declared,
    )


def name_of(path: str) -> str:
    """Return a service name for a Dockerfile: `api` of `docker/api.Dockerfile`, `web` of `web/`."""
    folder, _, file = path.rpartition("/")
    words = [
        w
        for w in file.replace("-", ".").split(".")
        if w.lower() not in {"dockerfile", "containerfile"}
    ]
    return "-".join(words) or folder.rpartition("/")[2] or "image"


def _start(
    project: Project, built: Built, environment: Mapping[str, Variable], place: Evidence
) -> tuple[Start | None, Room]:
    return start_of(
        Order(
            project=project,
            built=built,
            reference=None,
            entrypoint=None,
            command=None,
            clears_command=False,
            environment=environment,
            workdir=built.workdir,
            sources=built.sources,
            has_init=False,
            place=place,
            written=built.written,
        )
    )


def _service(
    project: Project, path: str, context: str, built: Built, assume: Mapping[str, str]
) -> Service:
    place = built.evidence[-1] if built.evidence else Evidence(file=path, line=1, note=path)
    environment = {
        name: Variable(name=name, known=known) for name, known in built.environment.items()
    }
    for name, said in assume.items():
        environment.setdefault(
            name, Variable(name=name, known=Known(value=said, assumed=(f"{name}={said}",)))
        )
    start, room = _start(project, built, environment, place)
    ends = of_program(start, room)
    return Service(
        name=name_of(path),
        place=place,
        image=image_of(built, path, context),
        start=start,
        environment=environment,
        mounts=tuple(
            Mount(
                path=volume,
                lifetime=Lifetime.ANONYMOUS,
                kind="image_volume",
                evidence=(here,),
                is_shared=False,
            )
            for volume, here in built.volumes
        ),
        sources=tuple(built.sources),
        workdir=built.workdir,
        grace_s=Known(
            value=None,
            evidence=(place,),
            question="How is the image run: what is its grace period?",
        ),
        pre_stop_s=Known(value=0.0, evidence=(place,), is_default=True),
        replicas=Known(value=None, evidence=(place,), question="How many containers run at once?"),
        workers=workers_of(start, place),
        restart=Known(
            value=None, evidence=(place,), question="How is the image run: what restarts it?"
        ),
        update=None,
        health=built.health,
        has_readiness=bool(built.health),
        depends_on=(),
        ports=tuple(dict.fromkeys(built.ports)),
        stop_signal=built.stop_signal,
        is_one_shot=bool(ends),
        ends=ends,
    )


def platform_root(path: str) -> Root:
    """Return the root of a `langgraph.json` alone: the LangGraph server with its graphs."""
    place = Evidence(file=path, line=1, note="graphs for the LangGraph server")

    def asked(what: str) -> str:
        return f"Where does the LangGraph server run: {what}?"

    return Root(
        root=path,
        kind=RootKind.DOCKERFILE,
        services=(
            Service(
                name="langgraph",
                place=place,
                image=Image(
                    reference="langchain/langgraph-api",
                    context=path.rpartition("/")[0],
                    evidence=(place,),
                    catalog="langgraph-api",
                ),
                start=None,
                environment={},
                mounts=(),
                sources=(Source(container="/deps", project=path.rpartition("/")[0]),),
                workdir="/api",
                grace_s=Known(
                    value=None, evidence=(place,), question=asked("what is its grace period")
                ),
                pre_stop_s=Known(value=0.0, evidence=(place,), is_default=True),
                replicas=Known(
                    value=None, evidence=(place,), question=asked("how many containers")
                ),
                workers=Known(value=1, evidence=(place,), is_default=True),
                restart=Known(value=None, evidence=(place,), question=asked("what restarts it")),
                update=None,
                health=(),
                has_readiness=False,
                depends_on=(),
            ),
        ),
        files=(path,),
    )
