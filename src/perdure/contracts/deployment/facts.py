"""What is known of a deployment root, whatever it was written in.

Readers of Compose files, manifests and Dockerfiles fill these; rules read them. Paths of containers
are absolute, with `/`. Paths of the project are relative to the checked folder.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.findings import RootKind


class Lifetime(StrEnum):
    """How long what is written to a path lives, shortest first."""

    TMPFS = "tmpfs"
    """Gone with a restart."""
    LAYER = "layer"
    """The container's own layer, `emptyDir`: kept by a restart, gone with container or pod."""
    ANONYMOUS = "anonymous"
    """Kept when Compose makes the container anew, gone after down and up, one a replica."""
    NAMED = "named"
    """A named volume, a bind mount, a claim: outlives containers."""


class Mount(Struct, frozen=True, kw_only=True):
    """Something mounted in a container."""

    path: str
    lifetime: Lifetime
    kind: str
    """`volume`, `bind`, `tmpfs`, `emptyDir`, `pvc`, `configMap`, `secret`, `image_volume` ..."""
    evidence: tuple[Evidence, ...]
    source: str | None = None
    """Name of the volume or claim; for a bind mount the path, of the project if it lies in it."""
    read_only: bool = False
    is_shared: bool | None = None
    """Whether all replicas see the same files; `None`: not known."""
    access_mode: str | None = None
    """Of a claim: `ReadWriteOnce`, `ReadWriteMany` ..."""


class Variable(Struct, frozen=True, kw_only=True):
    """A variable of a container's environment; value `None` with a question: set from elsewhere."""

    name: str
    known: Known[str]


class Signal(StrEnum):
    """What becomes of SIGTERM that is sent to process 1."""

    REACHES = "reaches"
    """The server gets it."""
    LOST = "lost"
    """It never gets it, or can't act on it."""
    UNKNOWN = "unknown"


class Process(Struct, frozen=True, kw_only=True):
    """One program of a container, as far as it is known without running it."""

    argv: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    program: str
    """`uvicorn`, `gunicorn`, `python`, `langgraph`, `node`, `sh` ..., without folder."""
    target: str | None = None
    """What Python imports or executes: `app.main:app`, `-m pkg.mod` as `pkg.mod`, or `run.py`."""
    is_module: bool = False
    """Whether `target` names a module rather than a file."""
    is_background: bool = False


class Start(Struct, frozen=True, kw_only=True):
    """How a container starts: process 1, what it executes, and what SIGTERM meets on the way."""

    processes: tuple[Process, ...]
    """In the order in which they begin; the server is `server`."""
    server: Process | None
    signal: Known[Signal]
    """With the evidence of every step: who is process 1, and why the signal (does not) arrive."""
    shape: str
    """The row of the table of docs/contracts.md: `exec_server`, `shell_dash`, `script_no_exec`."""
    has_init: bool = False
    migrations: tuple[Evidence, ...] = ()
    """Commands before the server that change a database (`alembic upgrade` ...)."""
    waits: tuple[Evidence, ...] = ()
    """Loops and tools before the server that wait for a database."""
    question: str | None = None
    argv: tuple[str, ...] = ()
    """All of process 1: ENTRYPOINT and CMD after every override; empty: only the image says it."""
    options: Mapping[str, Known[str]] = field(default_factory=dict)
    """What the server is told: `workers`, `graceful_timeout_s`, `worker_class`, `reload`."""
    unwatched: tuple[Evidence, ...] = ()
    """Why the container lives on when the server dies; empty: it ends with the server."""
    beside: tuple[Evidence, ...] = ()
    """Servers in the background, beside the one that the container ends with."""


class Source(Struct, frozen=True, kw_only=True):
    """Files of the project at a path of the container: COPY, ADD, or a bind mount.

    `project` is a file or a folder, and `""` the checked folder. Of several, the last one counts.
    """

    container: str
    project: str


class Image(Struct, frozen=True, kw_only=True):
    """What a service runs: a reference, or a Dockerfile of the project and its final stage."""

    reference: str | None
    """`postgres:16`; with a Dockerfile: the base of its final stage."""
    dockerfile: str | None = None
    context: str | None = None
    stage: str | None = None
    evidence: tuple[Evidence, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    """Arguments that the deployment gives the build."""
    catalog: str | None = None
    """What we know of it by name: `postgres`, `redis`, `langgraph-api`, `mongo`, `mysql` ..."""
    taken: Evidence | None = None
    """Why this Dockerfile is taken for an image that is only named; `None`: it is built here."""


class Dependency(Struct, frozen=True, kw_only=True):
    """A service that another one waits for."""

    service: str
    condition: str
    """`service_started`, `service_healthy`, `service_completed_successfully`, `init_container`."""
    evidence: tuple[Evidence, ...]


class Update(Struct, frozen=True, kw_only=True):
    """How a service is replaced by a newer one."""

    mechanism: str
    """`kubernetes_rolling`, `kubernetes_recreate`, `swarm`, `compose`."""
    evidence: tuple[Evidence, ...]
    max_unavailable: Known[int] | None = None
    """Resolved to pods, rounded as the platform rounds."""
    max_surge: Known[int] | None = None
    replicas: Known[int] | None = None
    """How many pods there are at least while it is updated (an autoscaler's minimum)."""
    order: str | None = None
    """Swarm: `stop-first` or `start-first`."""


class Service(Struct, frozen=True, kw_only=True):
    """One container of a deployment, as the platform will run it (per pod template or service)."""

    name: str
    place: Evidence
    """Where it is declared."""
    image: Image
    start: Start | None
    environment: Mapping[str, Variable]
    mounts: tuple[Mount, ...]
    sources: tuple[Source, ...]
    workdir: str
    grace_s: Known[float]
    """Seconds between SIGTERM and SIGKILL, before what a preStop hook takes."""
    pre_stop_s: Known[float]
    replicas: Known[int]
    """The most that may run at once (an autoscaler's maximum)."""
    workers: Known[int]
    """Server processes in one container."""
    restart: Known[str]
    """`no`, `always`, `unless-stopped`, `on-failure`, `on-failure:N`, `controller`, `swarm_any`."""
    update: Update | None
    health: tuple[Evidence, ...]
    """A healthcheck (Compose, image) or readiness probe; empty: none."""
    has_readiness: bool
    depends_on: tuple[Dependency, ...]
    ports: tuple[str, ...] = ()
    fixed_ports: tuple[Evidence, ...] = ()
    """Host ports and container names that two containers can't have at once."""
    memory_bytes: Known[int] | None = None
    stop_signal: Known[str] | None = None
    is_interactive: bool = False
    """A terminal is attached: a tool for a person."""
    is_one_shot: bool = False
    """It ends by itself: a migration, a job."""
    ends: tuple[Evidence, ...] = ()
    """Why it ends by itself: what it starts, who waits for its end, or what names it."""
    may_end: tuple[Evidence, ...] = ()
    """Why it may be a job, although nothing says that it ends; empty: it was seen to go on."""
    controller: str | None = None
    """`Deployment`, `StatefulSet`, `Pod`, `Job`, `CronJob`, `DaemonSet`; `None` in Compose."""
    platform: str | None = None
    """`render`, `fly`, `railway` or `procfile`; `None` for all others."""
    profiles: tuple[str, ...] = ()
    is_without_ports: bool = False
    """The deployment itself declares no port of it, whatever its image exposes."""
    aliases: tuple[str, ...] = ()
    """Other names that it has in the network."""
    health_test: tuple[str, ...] = ()
    """The healthcheck or readiness probe itself: `CMD` and an argv, `CMD-SHELL` and a script,
    `HTTP` with port and path, or `TCP` with a port; empty: there is none, or it can't be said."""
    pre_stop: tuple[str, ...] = ()
    """What is done before the stop signal: `CMD` and an argv, `HTTP` with port and path, or `SLEEP`
    with seconds; empty: nothing, or it can't be said."""


class Root(Struct, frozen=True, kw_only=True):
    """A deployment root with its services."""

    root: str
    kind: RootKind
    services: tuple[Service, ...]
    files: tuple[str, ...]
    """All files it was read from."""
    declared: Mapping[str, Known[str]] = field(default_factory=dict)
    """Values of variables that the project declares as defaults and this root does not set:
    `.env.example`, ConfigMaps nobody mounts. Never values of a real `.env`."""
