"""What Render, Fly, Railway and Procfiles run, as roots with their services."""

from collections.abc import Mapping

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._defended import defended
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._deployed import named_build, variables_for
from perdure.contracts.deployment._ending import of_program
from perdure.contracts.deployment._platform_files import Told, reader_of
from perdure.contracts.deployment._stages import Built
from perdure.contracts.deployment._starting import Order, start_of, workers_of
from perdure.contracts.deployment.facts import (
    Image,
    Root,
    Service,
    Signal,
    Source,
    Start,
    Variable,
)
from perdure.contracts.evidence import Known
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind


def platform_roots(project: Project, builds: Builds, assume: Mapping[str, str]) -> list[Root]:
    """Return a root for each file of a platform that starts Python or a Dockerfile of the project.

    Services whose images nothing here builds are left out, and named in `project.unread`.
    """
    found: list[Root] = []
    for path in project.paths:
        reader = reader_of(path)
        if reader is None or len(found) >= limits.PLATFORM_FILES_MAX:
            continue
        with defended(project, path, "this file of a platform"):
            told = [
                _with_build(project, each, builds)
                for each in reader(project, path)
                if each is not None
            ]
            services = tuple(_service(project, each, assume) for each in told if each is not None)
            if services:
                found.append(_root(project, path, services, assume))
    return found


def _root(
    project: Project, path: str, services: tuple[Service, ...], assume: Mapping[str, str]
) -> Root:
    return Root(
        root=path,
        kind=RootKind.PLATFORM,
        services=services,
        files=(path,),
        declared=variables_for(project, path.rpartition("/")[0], assume).declared,
    )


def _with_build(project: Project, told: Told, builds: Builds) -> Told | None:
    """Return what is said of a service with the Dockerfile that its image is built from."""
    if told.reference is None:
        return told
    found = builds.find(told.reference)
    if found is None:
        reason = (
            f"service {told.name!r} is not judged, as no Dockerfile here is known to build its "
            f"image {told.reference[:80]}"
        )
        project.not_read(told.place.file, reason, told.place.line)
        return None
    path, why, target = found
    return replace(told, dockerfile=path, target=target, taken=why)


def _service(project: Project, told: Told, assume: Mapping[str, str]) -> Service:
    built, image = (None, None)
    if told.dockerfile is not None:
        built, image = named_build(project, told.dockerfile, told.target, assume)
        if image is not None and told.taken is not None:
            image = replace(image, evidence=(told.place, told.taken), taken=told.taken)
    environment = _environment(built, told, assume)
    source = Source(container=told.workdir, project=told.folder)
    sources = tuple(built.sources) if built is not None else (source,)
    workdir = built.workdir if built is not None else told.workdir
    start, room = start_of(
        Order(
            project=project,
            built=built,
            reference="debian" if told.is_native else None,
            entrypoint=told.entrypoint,
            command=told.command,
            clears_command=False,
            environment=environment,
            workdir=workdir,
            sources=sources,
            has_init=told.has_init or told.is_native,
            place=told.place,
            written=built.written if built is not None else {},
        )
    )
    start = _trusted(start, told)
    ends = of_program(start, room)
    return Service(
        name=told.name,
        place=told.place,
        image=image or Image(reference=None, context=told.folder, evidence=(told.place,)),
        start=start,
        environment=environment,
        mounts=told.mounts,
        sources=sources,
        workdir=workdir,
        grace_s=told.grace_s,
        pre_stop_s=Known(value=0.0, evidence=(told.place,), is_default=True),
        replicas=told.replicas,
        workers=workers_of(start, told.place),
        restart=told.restart,
        update=None,
        health=told.health,
        has_readiness=bool(told.health),
        depends_on=(),
        stop_signal=told.stop_signal or (built.stop_signal if built is not None else None),
        is_one_shot=bool(ends),
        ends=ends,
        platform=told.platform,
        memory_bytes=told.memory,
    )


def _trusted(start: Start | None, told: Told) -> Start | None:
    """Return a start that a platform's own shell begins without a verdict on that shell.

    Heroku sends SIGTERM to every process; what others send, and to whom, is written nowhere.
    """
    if start is None or not told.is_native or start.signal.value is not Signal.LOST:
        return start
    question = "Does the platform send SIGTERM to the server itself, or to the shell before it?"
    signal = replace(start.signal, value=Signal.UNKNOWN, question=question)
    return replace(start, signal=signal, shape="platform_shell", unwatched=())


def _environment(built: Built | None, told: Told, assume: Mapping[str, str]) -> dict[str, Variable]:
    given = {**(built.environment if built is not None else {}), **told.environment}
    for name, said in assume.items():
        if name not in given or given[name].value is None:
            given[name] = Known(value=said, assumed=(f"{name}={said}",))
    return {name: Variable(name=name, known=known) for name, known in given.items()}
