"""What a trial starts: the service of a deployment, what it depends on, and a scripted outside.

A plan is made once for all repetitions; it has no state. It turns facts of a deployment into what
an engine makes, under names and addresses of one trial.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.contracts.deployment.facts import Lifetime, Mount, Root, Service
from perdure.contracts.inject import limits
from perdure.contracts.inject.engines import (
    BuildSpec,
    ContainerEngine,
    ContainerSpec,
    Feature,
    MountKind,
    MountSpec,
    _allowed,
)
from perdure.contracts.inject.engines._copies import free_port
from perdure.contracts.inject.settings import Settings
from perdure.errors import TrialImpossible

OUTSIDE = "perdure-outside"
OUTSIDE_PORT = 8099
OUTSIDE_FILE = Path(__file__).with_name("outside.py")
OUTSIDE_AT = "/perdure-outside.py"
FIRST_DEPENDENCY = 20
FIRST_INSTANCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The service that is broken, with all that it needs to be started."""

    folder: Path
    root: Root
    service: Service
    settings: Settings
    engine: ContainerEngine
    dependencies: tuple[Service, ...]
    """In the order in which they start."""
    images: Mapping[str, str]
    """Image ids by service."""
    notes: tuple[str, ...] = ()
    """What differs from the deployment, for the transcript."""

    @property
    def has_images(self) -> bool:
        """Whether the engine runs images."""
        return Feature.IMAGES in self.engine.features

    @property
    def grace_s(self) -> float:
        """Seconds until SIGKILL; what a preStop hook takes is of them."""
        said = self.settings.trial.grace_s
        if said is None:
            said = self.service.grace_s.value
        return 10.0 if said is None else said

    @property
    def hook(self) -> tuple[str, ...]:
        """Return the words of the preStop hook that are executed.

        Those of the deployment are for its container. Where there is none they would act on this
        host, so that there only the settings say what is executed.
        """
        kind, *words = self.service.pre_stop or ("NONE",)
        if kind != "CMD":
            return ()
        return tuple(words) if self.has_images else self.settings.process_pre_stop

    @property
    def lacks_hook(self) -> str:
        """Return what to say of a preStop hook that is not executed; empty: there is none."""
        if self.service.pre_stop[:1] != ("CMD",) or self.hook:
            return ""
        return (
            f"the preStop hook of {self.service.name} was not executed: its words are for a "
            "container, and would act on this host. Say what does the same here as [process] "
            "pre_stop in perdure.inject.toml, or use --engine docker"
        )

    @property
    def needs_outside(self) -> bool:
        """Whether the service is told where the scripted outside is."""
        return bool(self.settings.stubs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names, addresses and labels of one trial."""

    trial: str
    owner: Mapping[str, str]
    subnet: str
    folder: Path
    """Where copies of bind mounts of this trial live."""

    @property
    def network(self) -> str:
        """The trial's network."""
        return f"perdure-{self.trial}"

    def container(self, name: str) -> str:
        """Name a container."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:40]
        return f"perdure-{self.trial}-{plain}"

    def volume(self, service: str, source: str) -> str:
        """Name a volume; services that share one in the deployment share it here."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", source)[:60]
        return f"perdure-{self.trial}-{plain or service}"

    def address(self, number: int) -> str:
        """Return an address of the network, 2 to 254."""
        return f"{self.subnet.rpartition('.')[0]}.{number}"


async def build_images(
    engine: ContainerEngine, folder: Path, services: tuple[Service, ...], labels: Mapping[str, str]
) -> dict[str, str]:
    """Return an image for each service: built, or the one that the deployment names.

    Raises:
        TrialImpossible: a service has neither.
    """
    images: dict[str, str] = {}
    built: dict[tuple[str | None, str | None, str | None], str] = {}
    for service in services:
        image = service.image
        key = (image.dockerfile, image.context, image.stage)
        if image.dockerfile is None:
            if not image.reference:
                msg = f"it is not known which image {service.name!r} runs"
                raise TrialImpossible(msg, service=service.name)
            images[service.name] = image.reference
            continue
        if key not in built:
            built[key] = await engine.build(
                BuildSpec(
                    context=_inside(folder, image.context or "."),
                    dockerfile=_inside(folder, image.dockerfile),
                    target=image.stage,
                    arguments=image.build_args,
                    labels=labels,
                )
            )
        images[service.name] = built[key]
    return images


def _inside(folder: Path, path: str) -> str:
    """Return a path of the project as one of the host; no engine gets what lies outside."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()):
        msg = f"{path!r} is outside of the folder that was given; give the folder that has both"
        raise TrialImpossible(msg, path=path)
    return str(found)


def needed_by(root: Root, service: Service) -> tuple[Service, ...]:
    """Return what a service needs to be there, in the order of its start.

    That is what it depends on, and services that the values of its environment name as hosts.
    """
    by_name = {each.name: each for each in root.services}
    found: dict[str, Service] = {}

    def visit(current: Service) -> None:
        named = [each.service for each in current.depends_on]
        texts = [each.known.value or "" for each in current.environment.values()]
        named += [
            name for name in by_name
            if any(re.search(rf"(?:^|//|@){re.escape(name)}(?::\d|/|$)", text) for text in texts)
        ]  # fmt: skip
        for name in named:
            needed = by_name.get(name)
            if needed and needed.name not in found and needed.name != service.name:
                found[needed.name] = needed  # before the visit, so that circles end
                visit(needed)
                found[needed.name] = found.pop(needed.name)

    visit(service)
    return tuple(found.values())


def outside_spec(plan: Plan, names: Names) -> ContainerSpec:
    """Return the scripted outside, in the service's own image: agents of Python have a Python."""
    port = OUTSIDE_PORT if plan.has_images else free_port()
    host = "0.0.0.0" if plan.has_images else "127.0.0.1"  # noqa: S104  # of the container alone
    return ContainerSpec(
        name=names.container(OUTSIDE),
        labels=names.owner,
        image=plan.images.get(plan.service.name, ""),
        argv=("python3", OUTSIDE_AT if plan.has_images else f"{{project}}{OUTSIDE_AT}",
              "--host", host, "--port", str(port)),
        network=names.network,
        address=names.address(10),
        aliases=(OUTSIDE,),
        port=port,
        files={OUTSIDE_AT: OUTSIDE_FILE.read_text(encoding="utf-8")},
    )  # fmt: skip


def service_spec(
    plan: Plan, names: Names, service: Service, *, outside: str | None, number: int = 1
) -> ContainerSpec:
    """Return one container of a service; `number` counts instances of the one that is broken."""
    is_broken = service.name == plan.service.name
    port = _port(plan, service)
    environment = _environment(service)
    if is_broken:
        said = {"effects": outside or "", "model": outside or "", "port": str(port or "")}
        environment |= {
            name: _filled(value, said) for name, value in plan.settings.environment.items()
        }
        if not plan.has_images:
            environment.setdefault("PORT", str(port))
    index = [each.name for each in plan.dependencies].index(service.name) if not is_broken else 0
    return ContainerSpec(
        name=names.container(f"{service.name}-{number}" if is_broken else service.name),
        labels=names.owner,
        image=plan.images.get(service.name, ""),
        argv=_argv(plan, service, str(port)),
        environment=environment,
        mounts=_mounts(plan, names, service) if plan.has_images else (),
        restart=service.restart.value or "no",
        memory_bytes=service.memory_bytes.value if service.memory_bytes else None,
        network=names.network,
        address=names.address(FIRST_INSTANCE + number if is_broken else FIRST_DEPENDENCY + index),
        aliases=(service.name,) if _allowed.is_host(service.name) else (),
        hosts=_hosts(plan, names),
        port=port,
        workdir=_workdir(plan, service),
        stop_signal=service.stop_signal.value if service.stop_signal else None,
        has_init=bool(service.start and service.start.has_init and _is_declared(service)),
        folder=str(plan.folder),
    )


def _is_declared(service: Service) -> bool:
    """Whether the engine is to put the init in: the deployment says so, and not the image."""
    start = service.start
    first = start.argv[0] if start and start.argv else ""
    return not re.search(r"(?:^|/)(?:tini|dumb-init)$", first)


def _environment(service: Service) -> dict[str, str]:
    return {
        name: variable.known.value
        for name, variable in service.environment.items()
        if variable.known.value is not None
    }


def _filled(value: str, said: Mapping[str, str]) -> str:
    for name, text in said.items():
        value = value.replace(f"{{{name}}}", text)
    return value


def _port(plan: Plan, service: Service) -> int | None:
    if not plan.has_images:
        return free_port()
    if service.name == plan.service.name and plan.settings.port:
        return plan.settings.port
    for said in service.ports:
        container = said.rpartition(":")[2].partition("/")[0]
        if container.isdecimal() and 0 < int(container) < limits.PORT_MAX:
            return int(container)
    return None


def _argv(plan: Plan, service: Service, port: str) -> tuple[str, ...]:
    start = service.start
    if plan.has_images:
        return start.argv if start else ()
    own = plan.settings.process_argv if service.name == plan.service.name else ()
    said = own or (start.argv if start else ())
    if not said:
        msg = (
            f"it is not known which command starts {service.name!r} without an image. Say it as "
            "[process] argv in perdure.inject.toml, or use --engine docker"
        )
        raise TrialImpossible(msg, service=service.name)
    return tuple(word.replace("{port}", port) for word in said)


def _workdir(plan: Plan, service: Service) -> str | None:
    if plan.has_images:
        return None
    inside = service.workdir.rstrip("/") + "/"
    for source in sorted(service.sources, key=lambda each: -len(each.container)):
        below = source.container.rstrip("/") + "/"
        if inside.startswith(below) and (plan.folder / source.project).is_dir():
            return str(Path(source.project) / inside.removeprefix(below))
    return None


def _hosts(plan: Plan, names: Names) -> dict[str, str]:
    hosts = {OUTSIDE: names.address(10), plan.service.name: names.address(FIRST_INSTANCE + 1)}
    for index, each in enumerate(plan.dependencies):
        hosts[each.name] = names.address(FIRST_DEPENDENCY + index)
    return {name: at for name, at in hosts.items() if _allowed.is_host(name)}


def refuse_unsafe(plan: Plan) -> None:
    """Look at all that a project says to an engine, before anything is built or started.

    Raises:
        TrialImpossible: something could be an option, or show the host; it says what.
    """
    for service in (*plan.dependencies, plan.service):
        environment = _environment(service)
        if service is plan.service:
            environment |= plan.settings.environment
        if service.stop_signal and service.stop_signal.value:
            _allowed.stop_signal(service.stop_signal.value)
        for word in (*(service.start.argv if service.start else ()), *service.pre_stop):
            _allowed.text("a word of a command", word)
        if plan.has_images:
            _allowed.variables_of_lines(environment)
            _refuse_unsafe_container(service)
        else:
            _allowed.variables(environment)


def _refuse_unsafe_container(service: Service) -> None:
    _allowed.policy(service.restart.value or "no")
    if service.image.reference and service.image.dockerfile is None:
        _allowed.image(service.image.reference)
    for mount in service.mounts:
        if not _is_given(mount):
            _allowed.path(mount.path)


def _is_given(mount: Mount) -> bool:
    """Whether it is there without a trial, or no state."""
    return mount.kind in ("image_volume", "configMap", "secret", "projected")


def _mounts(plan: Plan, names: Names, service: Service) -> tuple[MountSpec, ...]:
    made = [_mount(plan, names, service, mount) for mount in service.mounts]
    return tuple(each for each in made if each is not None)


def _mount(plan: Plan, names: Names, service: Service, mount: Mount) -> MountSpec | None:
    """Return a fresh mount that lives as long as the deployment's, `None` for what is not state."""
    if _is_given(mount):
        return None
    if mount.lifetime is Lifetime.TMPFS:
        return MountSpec(kind=MountKind.TMPFS, path=mount.path)
    if mount.lifetime in (Lifetime.LAYER, Lifetime.ANONYMOUS):
        return MountSpec(kind=MountKind.ANONYMOUS, path=mount.path)
    if mount.kind == "bind":
        copy = _copy(plan.folder, mount.source, names.folder)
        if copy is not None:
            return MountSpec(
                kind=MountKind.BIND, path=mount.path, source=str(copy), read_only=mount.read_only
            )
    name = names.volume(service.name, mount.source or mount.path)
    return MountSpec(kind=MountKind.VOLUME, path=mount.path, source=name)


def _copy(folder: Path, source: str | None, to: Path) -> Path | None:
    """Copy what a bind mount of the project shows, once a trial; `None`: it is not of the project.

    A trial writes to it, and must neither find what an earlier one wrote nor change the project.
    """
    if source is None or source.startswith(("/", "~")) or ".." in Path(source).parts:
        return None
    original = folder / source
    if not original.resolve().is_relative_to(folder.resolve()):
        return None
    # Each copy is its own: in one that a container writes to there may be links by now.
    copy = to / hashlib.sha256(os.path.normpath(source).encode()).hexdigest()[:16]
    if copy.exists():
        return copy
    try:
        _copy_bounded(original, copy)
    except OSError as error:  # shutil.Error is one: a pipe, a file that may not be read
        msg = f"{source!r} can't be copied to be mounted: {str(error)[:400]}"
        raise TrialImpossible(msg, source=source) from error
    return copy


def _copy_bounded(original: Path, copy: Path) -> None:
    if original.is_dir():
        size = sum(file.lstat().st_size for file in original.rglob("*") if file.is_file())
        if size > limits.COPY_BYTES_MAX:
            msg = f"{original.name!r} has more than {limits.COPY_BYTES_MAX:,} bytes to mount"
            raise TrialImpossible(msg, source=original.name)
        shutil.copytree(original, copy, symlinks=True)
    elif original.is_file():
        shutil.copy2(original, copy)
    else:
        copy.mkdir()  # as Docker does where there is nothing
