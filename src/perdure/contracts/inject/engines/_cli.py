"""Docker and Podman, through their command lines.

The two differ in a few words of their templates and in where they say that memory ran out. Both are
asked for one primitive thing at a time, with argv lists; what is read back is JSON.

What a project says is checked here (`_allowed`), whoever checked it before. Options and their
values are one word (`--name=value`), and `--` ends them.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from perdure.contracts.inject import limits
from perdure.contracts.inject._execute import Done, execute, program
from perdure.contracts.inject.engines import _allowed, _host
from perdure.contracts.inject.engines._api import (
    BINDS,
    BuildSpec,
    ContainerSpec,
    ContainerState,
    Executed,
    Feature,
    HostProcess,
    MountKind,
    MountSpec,
)
from perdure.errors import EngineFailed, EngineMissing, TrialImpossible

GONE = re.compile(
    r"no such (?:container|network|volume|image|object)|not found|no container", re.IGNORECASE
)
NO_PROGRAM = re.compile(r"exec(?:utable file|: \S+).*(?:not found|no such file)", re.IGNORECASE)
POLICIES = {"controller": "always", "swarm_any": "always"}
"""What keeps a container up where Docker is not what does."""

LOG = f"{2 * limits.LOG_BYTES_MAX // 1_000}k"
"""What is kept of a container's log: an application that prints must not fill the disk."""

STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) ?(.*)$")


class CliEngine:
    """A Docker Engine or Podman of this host, or the one that DOCKER_HOST names."""

    def __init__(self, program: str = "docker") -> None:
        """Use this program: `docker` or `podman`."""
        self.name = program
        self.features = frozenset(Feature)
        self._bridge: bool | None = None
        self._seen: set[str] = set()
        """Containers whose processes are of this host."""

    async def open(self) -> str:
        """Ask for the versions.

        Raises:
            EngineMissing: there is no such program, or nothing answers it.
        """
        template = "{{.Server.Version}}" if self.name == "docker" else "{{.Client.Version}}"
        try:
            done = await execute((self.name, "version", "--format", template))
        except OSError as error:
            self._missing(error.strerror or str(error), error)
        if done.exit_code != 0:
            self._missing(_last(done.errors), None)
        return f"{self.name} {done.output.strip()}"

    def _missing(self, why: str, cause: Exception | None) -> NoReturn:
        msg = (
            f"{self.name} can't be used: {why}. Nothing was started. Start it, name another one as "
            "DOCKER_HOST, or go on with: --engine process"
        )
        raise EngineMissing(msg, engine=self.name) from cause

    async def build(self, spec: BuildSpec) -> str:
        """Build quietly; without the default network where the engine has none."""
        words = ["build", "--quiet", f"--file={spec.dockerfile}", *_labels(spec.labels)]
        if not await self._has_bridge():
            words += ["--network=none"]
        for name, value in _allowed.variables(spec.arguments).items():
            words += [f"--build-arg={name}={value}"]
        if spec.target:
            words += [f"--target={_allowed.stage(spec.target)}"]
        done = await self._run(*words, "--", spec.context, timeout_s=limits.BUILD_S)
        return done.output.split()[-1]

    async def _has_bridge(self) -> bool:
        if self._bridge is None:
            named = await self._run("network", "ls", "--format", "{{.Name}}")
            self._bridge = bool({"bridge", "podman"} & set(named.output.split()))
        return self._bridge

    async def make_network(self, name: str, subnet: str, labels: Mapping[str, str]) -> None:
        """Make a bridge."""
        await self._run(
            "network", "create", f"--subnet={subnet}", *_labels(labels), "--", _allowed.name(name)
        )

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make an empty named volume."""
        await self._run("volume", "create", *_labels(labels), "--", _allowed.name(name))

    async def make(self, spec: ContainerSpec) -> str:
        """Create it, then put its files in."""
        policy = _allowed.policy(spec.restart)
        words = [
            "create",
            f"--name={_allowed.name(spec.name)}",
            *_labels(spec.labels),
            *_limits(spec),
        ]
        words += [f"--restart={POLICIES.get(policy, policy)}"]
        words += [_mount(each) for each in spec.mounts]
        words += _network(spec)
        if spec.workdir:
            words += [f"--workdir={_allowed.path(spec.workdir)}"]
        if spec.stop_signal:
            words += [f"--stop-signal={_allowed.stop_signal(spec.stop_signal)}"]
        if spec.has_init:
            words += ["--init"]
        if spec.argv:
            words += [f"--entrypoint={spec.argv[0]}"]
        # A file: a list of processes must not show values, and as variables of the command they
        # would say which program it is and what it talks to.
        words += ["--env-file=/dev/stdin", "--", _allowed.image(spec.image), *spec.argv[1:]]
        content = _allowed.variables_of_lines(spec.environment)
        done = await self._run(*words, content=content)
        container = done.output.split()[-1]
        if spec.files:
            try:
                await self._run("cp", "-", f"{container}:/", content=_archive(spec.files))
            except EngineFailed:
                await self.remove(container)
                raise
        return container

    async def start(self, container: str) -> None:
        """Start it.

        Raises:
            TrialImpossible: its image has no such program.
            EngineFailed: the engine refused it for another reason.
        """
        try:
            await self._run("start", container)
        except EngineFailed as error:
            if NO_PROGRAM.search(str(error)):
                msg = f"the command of the container can't be started: {error}"
                raise TrialImpossible(msg, engine=self.name) from error
            raise

    async def stop(self, container: str, grace_s: float) -> None:
        """Stop with explicit seconds, rounded up: the command line knows whole ones only."""
        seconds = max(0, int(-(-grace_s // 1)))
        await self._run(
            "stop", "--time", str(seconds), container, timeout_s=limits.COMMAND_S + seconds
        )

    async def kill(self, container: str, processes: tuple[HostProcess, ...]) -> None:
        """Kill by host id, each checked to be of the container: an engine's own kill is a stop.

        Raises:
            EngineFailed: a process is not one of this host, or not one that we may kill.
        """
        for process in processes:
            if container not in _host.read(process.pid, "cgroup").decode("ascii", "replace"):
                if _host.stat(process.pid) is None:
                    continue
                self._failed(f"process {process.pid} is not seen in container {container[:12]}")
            if not _host.kill(process.pid, process.started) and _host.stat(process.pid):
                self._failed(f"process {process.pid} can't be killed from here; it takes root")

    async def remove(self, container: str) -> None:
        """Remove it with its anonymous volumes."""
        await self._gone("rm", "--force", "--volumes", container)

    async def state(self, container: str) -> ContainerState:
        """Read it from an inspection."""
        found = await self._inspect(container)
        state = _table(found, "State")
        never_ran = state.get("Status") in ("created", "configured")
        running = state.get("Running") is True and state.get("Restarting") is not True
        code = state.get("ExitCode")
        return ContainerState(
            is_running=running,
            exit_code=code if isinstance(code, int) and not running and not never_ran else None,
            restarts=int(str(found.get("RestartCount") or 0)),
            port=_published(found),
        )

    async def log(self, container: str) -> str:
        """Put the two streams together by their time stamps."""
        done = await self._run(
            "logs", "--timestamps", "--tail", str(limits.LOG_LINES_MAX), container
        )
        lines = [STAMP.match(line) for line in (done.output + "\n" + done.errors).splitlines()]
        stamped = sorted(((each[1], each[2]) for each in lines if each), key=lambda pair: pair[0])
        return "\n".join(text for _, text in stamped)

    async def execute(
        self, container: str, argv: tuple[str, ...], *, timeout_s: float = limits.COMMAND_S
    ) -> Executed:
        """Run it by `exec`; a container that does not run gives an exit code, too."""
        done = await self._tried("exec", container, *argv, timeout_s=timeout_s)
        code = 124 if done.exit_code is None else done.exit_code
        return Executed(exit_code=code, output=done.output + done.errors)

    def enter(self, container: str) -> tuple[str, ...]:
        """Return `docker exec -i ID`."""
        try:
            return (program(self.name), "exec", "-i", container)
        except OSError as error:
            self._failed(str(error.strerror), error)

    async def processes(self, container: str) -> tuple[HostProcess, ...]:
        """Everything below process 1; what an `exec` started is not the application's."""
        found = await self._inspect(container)
        first = _table(found, "State").get("Pid")
        if not isinstance(first, int) or first == 0:
            return ()
        if _host.stat(first) is None:
            if container in self._seen:
                return ()  # it has ended, and the engine does not know yet
            self._failed(f"process {first} of container {container[:12]} is not one of this host")
        self._seen.add(container)
        return _host.tree(first, _host.descendants(first), _exposed(found))

    async def ran_out_of_memory(self, container: str) -> bool:
        """Docker keeps an event of it; Podman 4 says nothing, so the kernel's log is asked."""
        found = await self._inspect(container)
        if _table(found, "State").get("OOMKilled") is True:
            return True
        if self.name == "docker":
            now = (await self._run("info", "--format", "{{.SystemTime}}")).output.strip()
            done = await self._run(
                "events", "--since", str(found.get("Created")), "--until", now,
                "--format", "{{.ID}}",
                "--filter", f"container={container}", "--filter", "event=oom",
            )  # fmt: skip
            return bool(done.output.strip())
        try:
            kernel = await execute(("dmesg",))
        except OSError as error:
            self._failed(f"the kernel's log can't be read: {error.strerror}", error)
        return any("oom-kill" in line and container in line for line in kernel.output.splitlines())

    async def labelled(self, name: str) -> Mapping[str, str]:
        """Ask for containers, networks, volumes and images."""
        asked = {
            "container": ("ps", "--all", "--no-trunc"),
            "network": ("network", "ls"),
            "volume": ("volume", "ls"),
        }
        found: dict[str, str] = {}
        for kind, words in asked.items():
            for handle, value in await self._listed(name, kind, words):
                found[f"{kind}:{handle}"] = value
        return found | await self._labelled_images(name)

    async def _listed(self, name: str, kind: str, words: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return handles and label `name`; Podman's templates differ by what is listed."""
        words += ("--filter", f"label={name}", "--format")
        if self.name == "docker":
            handle = "{{.Name}}" if kind == "volume" else "{{.ID}}"
            done = await self._run(*words, f'{handle} {{{{.Label "{name}"}}}}')
            parts = [line.partition(" ") for line in done.output.splitlines()]
            return [(handle, value.strip()) for handle, _, value in parts]
        answer = json.loads((await self._run(*words, "json")).output or "[]")
        listed = [{key.lower(): each[key] for key in each} for each in answer or []]
        key = "name" if kind == "volume" else "id"
        return [(str(each[key]), str((each.get("labels") or {}).get(name))) for each in listed]

    async def _labelled_images(self, name: str) -> dict[str, str]:
        ids = (await self._run("images", "--quiet", "--filter", f"label={name}")).output.split()
        found = {}
        for each in dict.fromkeys(ids):
            words = (
                "inspect",
                "--type",
                "image",
                "--format",
                f'{{{{index .Config.Labels "{name}"}}}}',
            )
            done = await self._tried(*words, each)
            if done.exit_code == 0:
                found[f"image:{each}"] = done.output.strip()
        return found

    async def discard(self, handle: str) -> None:
        """Remove by kind; a container is stopped by it."""
        kind, _, name = handle.partition(":")
        words = {
            "container": ("rm", "--force", "--volumes"),
            "network": ("network", "rm"),
            "volume": ("volume", "rm", "--force"),
            "image": ("rmi", "--force"),
        }[kind]
        await self._gone(*words, name)

    async def _inspect(self, container: str) -> dict[str, object]:
        done = await self._run("inspect", "--type", "container", container)
        found = json.loads(done.output)
        return found[0] if isinstance(found, list) and found else {}

    async def _gone(self, *words: str) -> None:
        done = await self._tried(*words)
        if done.exit_code != 0 and not GONE.search(done.errors):
            self._failed(f"{' '.join(words[:2])}: {_last(done.errors)}")

    async def _run(
        self, *words: str, timeout_s: float = limits.COMMAND_S, content: bytes = b""
    ) -> Done:
        done = await self._tried(*words, timeout_s=timeout_s, content=content)
        if done.exit_code != 0:
            self._failed(f"{' '.join(words[:2])}: {_last(done.errors)}")
        return done

    async def _tried(
        self, *words: str, timeout_s: float = limits.COMMAND_S, content: bytes = b""
    ) -> Done:
        try:
            return await execute((self.name, *words), timeout_s=timeout_s, content=content)
        except OSError as error:  # too many words, or none that the system takes
            self._failed(f"{words[0]}: {error.strerror}", error)

    def _failed(self, why: str, cause: Exception | None = None) -> NoReturn:
        way_out = _LOADED if _UNREACHABLE.search(why) else ""
        msg = f"{self.name} refused: {why}{way_out}"
        raise EngineFailed(msg, engine=self.name) from cause


_UNREACHABLE = re.compile(
    r"no such host|dial tcp|i/o timeout|pull access denied|manifest unknown|TLS handshake|no route"
    r"|name resolution|connection refused.*registry|registry.*connection refused",
    re.IGNORECASE,
)
"""What engines say when an image is not there and can't be fetched."""

_LOADED = (
    "; the engine has not got that image and can't fetch it: pull it where there is a network, or "
    "bring it with `docker save` and `docker load` (those of the specimens: make specimens)"
)


def _labels(labels: Mapping[str, str]) -> list[str]:
    return [f"--label={name}={value}" for name, value in labels.items()]


def _limits(spec: ContainerSpec) -> list[str]:
    memory = int(spec.memory_bytes or limits.MEMORY_BYTES_MAX)
    return [f"--pids-limit={limits.PIDS_MAX}", f"--memory={memory}", f"--memory-swap={memory}"]


def _network(spec: ContainerSpec) -> list[str]:
    if spec.network is None:
        return ["--network=none"]
    words = [f"--network={_allowed.name(spec.network)}"]
    words += [f"--ip={spec.address}"] if spec.address else []
    words += [f"--network-alias={_allowed.host(alias)}" for alias in spec.aliases]
    words += [f"--add-host={_allowed.host(name)}:{at}" for name, at in spec.hosts.items()]
    return words + ([f"--publish=127.0.0.1::{int(spec.port)}"] if spec.port else [])


def _mount(mount: MountSpec) -> str:
    path = _allowed.path(mount.path)
    if mount.kind is MountKind.TMPFS:
        return f"--tmpfs={path}"
    if mount.kind is MountKind.ANONYMOUS:
        return f"--mount=type=volume,target={path}"
    ending = ",readonly" if mount.read_only else ""
    if mount.kind is MountKind.BIND:
        return f"--mount=type=bind,source={_own(mount.source)},target={path}{ending}"
    return f"--mount=type=volume,source={_allowed.name(mount.source)},target={path}{ending}"


def _own(source: str) -> str:
    """Return what of the host is mounted: a copy that a trial made, and no way around it."""
    found = Path(_allowed.path(source))
    mine = found.parent.name.startswith(BINDS) and found.parent.stat().st_uid == os.geteuid()
    if not mine or found.resolve() != found:
        _allowed.refuse("a path of the host", source, "only a trial's own copies are mounted")
    return source


def _archive(files: Mapping[str, str]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _table(found: Mapping[str, object], name: str) -> dict[str, object]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _bindings(found: Mapping[str, object], place: str, name: str) -> dict[str, object]:
    return _table(_table(found, place), name)


def _published(found: Mapping[str, object]) -> int | None:
    for bound in _bindings(found, "NetworkSettings", "Ports").values():
        for each in bound if isinstance(bound, list) else ():
            if str(each.get("HostPort", "")).isdecimal():
                return int(each["HostPort"])
    return None


def _exposed(found: Mapping[str, object]) -> int | None:
    ports = [name.partition("/")[0] for name in _bindings(found, "HostConfig", "PortBindings")]
    return int(ports[0]) if ports and ports[0].isdecimal() else None


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-limits.LINE_CHARACTERS_MAX :] or "it said nothing"
