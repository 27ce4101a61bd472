"""What a trial asks of a container engine: primitive things only.

The order in which things start, waiting for health, what a stop is, which process is killed: all of
that is the trial's. So engines differ only in how they make, start, signal and remove one
container, and their differences do not leak into verdicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from perdure.contracts.inject import limits

BINDS = "perdure-binds-"
"""How folders with a trial's copies begin; nothing else of the host is mounted."""


class Feature(StrEnum):
    """What not every engine can do."""

    IMAGES = "images"
    """Builds and runs images, so that process 1 is the deployment's own."""
    MOUNTS = "mounts"
    """Volumes, and container layers that go with their container: replacement means something."""
    MEMORY = "memory"
    """Limits memory, and says who was killed for it."""


class MountKind(StrEnum):
    """What is mounted."""

    VOLUME = "volume"
    ANONYMOUS = "anonymous"
    TMPFS = "tmpfs"
    BIND = "bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """One mount; `source` is a volume's name or an absolute path of the host."""

    kind: MountKind
    path: str
    source: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """An image to build from a Dockerfile beneath `context`, both absolute paths of the host."""

    context: str
    dockerfile: str
    target: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container to make; it is not started yet.

    `argv`: all of process 1; empty: as the image says. `restart`: a policy of Compose. `network`:
    its name; `None`: no network. `address`: its own there. `hosts`: addresses of the others by
    name. `port`: what is published, on a free port of the loopback. `folder`: where the project is,
    for engines without images. `files`: contents by absolute path, put into the container.
    """

    name: str
    labels: Mapping[str, str]
    image: str = ""
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountSpec, ...] = ()
    restart: str = "no"
    memory_bytes: int | None = None
    network: str | None = None
    address: str | None = None
    aliases: tuple[str, ...] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    workdir: str | None = None
    stop_signal: str | None = None
    has_init: bool = False
    folder: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """What an engine says of a container now."""

    is_running: bool
    exit_code: int | None
    """Of process 1, as shells count: 128 + signal; `None` while it runs or before it ever ran."""
    restarts: int
    """How often the policy started it again."""
    port: int | None
    """Where its port is published now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """A process of a container, by the ids of this host. `depth`: 0 for process 1."""

    pid: int
    started: int
    """Ticks since the host's start: with the id it names one process for ever."""
    parent: int
    argv: tuple[str, ...]
    depth: int
    listens: bool
    """Whether it holds a socket that listens on the container's port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What a command inside a container came to; `output` is bounded."""

    exit_code: int
    output: str


class ContainerEngine(Protocol):
    """Makes and breaks single containers.

    Ids are the engine's. Every method raises `EngineFailed` when the engine refuses, and is bounded
    in time. Everything made carries the labels it was given.
    """

    @property
    def name(self) -> str:
        """`docker`, `podman` or `process`."""

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do of what not every engine can."""

    async def open(self) -> str:
        """Look whether the engine can be used; return its name and version for transcripts."""

    async def build(self, spec: BuildSpec) -> str:
        """Build an image and return its id; the engine's cache may be used."""

    async def make_network(self, name: str, subnet: str, labels: Mapping[str, str]) -> None:
        """Make a network with these addresses."""

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make an empty named volume."""

    async def make(self, spec: ContainerSpec) -> str:
        """Make a container, and return its id."""

    async def start(self, container: str) -> None:
        """Start it; no wait for anything inside."""

    async def stop(self, container: str, grace_s: float) -> None:
        """Send the stop signal to process 1, and SIGKILL to all after `grace_s` seconds; wait."""

    async def kill(self, container: str, processes: tuple[HostProcess, ...]) -> None:
        """Send SIGKILL to these processes, from outside, as the kernel does; don't wait."""

    async def remove(self, container: str) -> None:
        """Remove it, even running, with its layer and anonymous volumes; it may be gone already."""

    async def state(self, container: str) -> ContainerState:
        """Return what it does now."""

    async def log(self, container: str) -> str:
        """Return what its processes wrote to stdout and stderr, over all its starts, the newest."""

    async def execute(
        self, container: str, argv: tuple[str, ...], *, timeout_s: float = limits.COMMAND_S
    ) -> Executed:
        """Run a command inside; one that takes longer has exit code 124."""

    def enter(self, container: str) -> tuple[str, ...]:
        """Return what to put before an argv to run it inside."""

    async def processes(self, container: str) -> tuple[HostProcess, ...]:
        """Return its processes, parents first."""

    async def ran_out_of_memory(self, container: str) -> bool:
        """Whether the kernel killed a process of it for its memory limit, since it was made."""

    async def labelled(self, name: str) -> Mapping[str, str]:
        """Return label `name` of all objects that have it, by a handle for `discard`."""

    async def discard(self, handle: str) -> None:
        """Remove an object by such a handle, whatever it is; gone already is fine."""
