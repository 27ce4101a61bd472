"""The files of Render, Fly, Railway and Procfiles, as far as they are small and documented.

Sources: the reference pages of render.yaml, fly.toml and railway.json; Heroku's page on dynos that
are stopped. What the platform does by default is a default here too, and told as one.
"""

import posixpath
import re
from collections.abc import Callable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._stages import Command
from perdure.contracts.deployment._toml import read_toml
from perdure.contracts.deployment._values import seconds, size, split
from perdure.contracts.deployment._variables import is_secret
from perdure.contracts.deployment._yaml import Node, read_yaml
from perdure.contracts.deployment.facts import Lifetime, Mount
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.numbers import whole

RENDER_S = 30.0
"""maxShutdownDelaySeconds of a service of Render that says nothing."""

FLY_S = 5.0
"""kill_timeout of an app of Fly that says nothing."""

_NATIVE = frozenset({"python", "python3", ""})
"""Runtimes of Render in which Python of the project is started."""

_RENDER = "/opt/render/project/src"
"""Where Render puts the repository of a service without a Dockerfile."""

_SERVES = frozenset({"web", "worker", "pserv"})
"""Types of services of Render that go on."""


class Told(Struct, kw_only=True):
    """What a platform's file says of one service."""

    name: str
    place: Evidence
    folder: str
    """Of the project: what is built, or what the commands see."""
    dockerfile: str | None = None
    reference: str | None = None
    """An image that somebody has built already: which Dockerfile it is from, is not said here."""
    taken: Evidence | None = None
    """Why it is taken to be from `dockerfile`."""
    target: str | None = None
    command: Command | None = None
    entrypoint: Command | None = None
    workdir: str = "/app"
    """Where a build without a Dockerfile puts the project; each platform has its own place."""
    memory: Known[int] | None = None
    is_native: bool = False
    """Without a Dockerfile: the platform's own build starts the command in a shell of its own."""
    environment: dict[str, Known[str]] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    platform: str
    grace_s: Known[float]
    replicas: Known[int]
    restart: Known[str]
    stop_signal: Known[str] | None = None
    health: tuple[Evidence, ...] = ()
    has_init: bool = False


Reader = Callable[[Project, str], Iterator[Told | None]]
"""Yields what a file says of each service; `None` for one that starts nothing of the project."""


def reader_of(path: str) -> Reader | None:
    """Return what reads a file of a platform; `None`: it is none that is read."""
    name = path.rpartition("/")[2]
    if name in {"render.yaml", "render.yml"}:
        return _render
    if re.fullmatch(r"fly(\.[\w-]{1,40})?\.toml", name):
        return _fly
    if name in {"railway.json", "railway.toml"}:
        return _railway
    return _procfile if name == "Procfile" else None


# ------------------------------------------------------------------------------------ Render


def _render(project: Project, path: str) -> Iterator[Told | None]:
    for document in read_yaml(project, path):
        services, groups = document.get("services"), _groups(document)
        for node in services.items if services is not None else []:
            if node.text_at("type") in _SERVES:
                yield _of_render(project, node, groups)


def _groups(document: Node) -> dict[str, dict[str, Known[str]]]:
    """Return the variables of each group that a file defines, by name."""
    given = document.get("envVarGroups")
    items = given.items if given is not None else []
    return {item.text_at("name") or "": _env_vars(item, {}) for item in items}


def _of_render(
    project: Project, node: Node, groups: dict[str, dict[str, Known[str]]]
) -> Told | None:
    runtime = node.text_at("runtime") or node.text_at("env") or ""
    name = node.text_at("name") or "service"
    place = node.evidence(f"service {name!r} of Render")
    root = _joined("", node.text_at("rootDir") or ".")
    dockerfile = _dockerfile(project, root, node.text_at("dockerfilePath"))
    reference = node.text_at("image", "url") if runtime == "image" else None
    if reference is not None:
        dockerfile, command = None, _words(node, "dockerCommand")
    elif runtime == "docker":
        command = _words(node, "dockerCommand")
        if dockerfile is None:
            return None
    elif runtime in _NATIVE:
        dockerfile, command = None, _line(node, "startCommand")
        if command is None:
            return None
    else:
        return None
    folder = _joined("", node.text_at("dockerContext") or root or ".") if dockerfile else root
    return Told(
        platform="render",
        name=name,
        place=place,
        folder=folder,
        dockerfile=dockerfile,
        reference=reference,
        command=command,
        is_native=dockerfile is None and reference is None,
        environment=_env_vars(node, groups),
        workdir=posixpath.join(_RENDER, root),
        mounts=_disk(node),
        grace_s=_seconds(node, "maxShutdownDelaySeconds", RENDER_S, f"Render waits {RENDER_S:g} s"),
        replicas=_instances(node, place),
        restart=Known(
            value="always",
            evidence=(replace(place, note="Render starts a service again that crashed"),),
            is_default=True,
        ),
        health=_here(node, "healthCheckPath", "a deploy waits until this answers"),
    )


def _instances(node: Node, place: Evidence) -> Known[int]:
    most = node.at("scaling", "maxInstances")
    if most is not None and (count := whole(most.scalar)) is not None:
        return Known(value=count, evidence=(most.evidence(f"it scales to {count}"),))
    given = whole(node.text_at("numInstances"))
    if given is not None:
        here = node.place_of("numInstances", f"numInstances: {given}")
        return Known(value=given, evidence=(here,))
    return Known(value=1, evidence=(place,), is_default=True)


def _disk(node: Node) -> tuple[Mount, ...]:
    disk = node.get("disk")
    path = disk.text_at("mountPath") if disk is not None else None
    if disk is None or not path:
        return ()
    here = disk.evidence(f"a disk on {path}")
    return (_kept(path, disk.text_at("name"), here),)


def _kept(path: str, source: str | None, here: Evidence) -> Mount:
    return Mount(
        path=posixpath.normpath(path),
        lifetime=Lifetime.NAMED,
        kind="volume",
        evidence=(here,),
        source=source,
        is_shared=False,
    )


def _env_vars(node: Node, groups: dict[str, dict[str, Known[str]]]) -> dict[str, Known[str]]:
    found: dict[str, Known[str]] = {}
    given = node.get("envVars")
    items = given.items if given is not None else []
    for item in items:
        found |= groups.get(item.text_at("fromGroup") or "", {})
    for item in items:
        name, value = item.text_at("key"), item.get("value")
        if name:
            found[name] = _setting(name, value if value is not None else item)
    return found


def _setting(name: str, node: Node) -> Known[str]:
    text = node.scalar if node.kind == "scalar" else None
    if text is None:
        here = node.evidence(f"{name} comes from elsewhere")
        return Known(value=None, evidence=(here,), question=f"What is the value of {name}?")
    shown = "" if is_secret(name) else f" = {text[:80]}"
    return Known(value=text[: limits.TEXT_MAX], evidence=(node.evidence(f"{name}{shown}"),))


# ------------------------------------------------------------------------------------ Fly


def _fly(project: Project, path: str) -> Iterator[Told | None]:
    node = read_toml(project, path)
    if node is None or node.text_at("app") is None:
        return
    folder = posixpath.dirname(path)
    dockerfile, reference = None, node.text_at("build", "image")
    if reference is None:
        dockerfile = _dockerfile(project, folder, node.text_at("build", "dockerfile"))
        if dockerfile is None or _is_built_otherwise(node):
            return
    commands = node.get("processes")
    names = list(commands.entries) if commands is not None else []
    for name in names or ["app"]:
        command = _words(commands, name) if commands is not None and names else None
        told = _of_fly(node, name, command, folder, dockerfile)
        yield replace(told, reference=reference)


def _is_built_otherwise(node: Node) -> bool:
    """Whether fly.toml names buildpacks, whatever Dockerfile lies there."""
    named = ("builder", "buildpacks", "builtin")
    return node.text_at("build", "dockerfile") is None and any(
        node.at("build", key) is not None for key in named
    )


def _experimental(node: Node, key: str) -> Command | None:
    """Return what `[experimental]` starts instead of what the image says."""
    table = node.get("experimental")
    given = table.get(key) if table is not None else None
    if table is None or given is None:
        return None
    words = tuple(item.text or "" for item in given.items) or split(given.text or "")
    shown = " ".join(words)[:120]
    here = table.place_of(key, f"{key}: {shown}")
    return Command(words=words, is_shell=False, evidence=here) if words else None


def _vm_memory(node: Node, process: str) -> Known[int] | None:
    """Return the memory of a machine, where fly.toml says it."""
    given = node.get("vm")
    for item in given.items or [given] if given is not None else []:
        if not _is_of(item, process):
            continue
        text = item.text_at("memory")
        key = "memory" if text else "memory_mb"
        text = text or f"{item.text_at(key) or ''}mb"
        value = size(text)
        if value is not None:
            return Known(value=value, evidence=(item.place_of(key, f"a machine has {text}"),))
    return None


def _of_fly(
    node: Node, name: str, command: Command | None, folder: str, dockerfile: str | None
) -> Told:
    app = node.text_at("app") or "app"
    place = node.place_of("app", f"app {app!r} of Fly")
    kill = node.text_at("kill_signal")
    told = f"kill_signal: {kill}" if kill else "no kill_signal, so Fly sends SIGINT"
    return Told(
        platform="fly",
        name=app if name == "app" else name,
        place=place,
        folder=folder,
        dockerfile=dockerfile,
        target=node.text_at("build", "build-target"),
        command=command or _experimental(node, "cmd"),
        entrypoint=_experimental(node, "entrypoint"),
        memory=_vm_memory(node, name),
        environment=_table(node.get("env")),
        mounts=tuple(_volumes(node, name)),
        grace_s=_seconds(node, "kill_timeout", FLY_S, f"Fly waits {FLY_S:g} s"),
        replicas=Known(
            value=None,
            evidence=(place,),
            question=f"How many machines of {app} run at once (fly scale count)?",
        ),
        restart=_fly_restart(node, name, place),
        stop_signal=Known(
            value=kill or "SIGINT",
            evidence=(node.place_of("kill_signal", told) if kill else replace(place, note=told),),
            is_default=not kill,
        ),
        has_init=True,
    )


def _fly_restart(node: Node, name: str, place: Evidence) -> Known[str]:
    given = node.get("restart")
    for item in given.items or [given] if given is not None else []:
        policy = item.text_at("policy")
        if policy is not None and _is_of(item, name):
            here = item.place_of("policy", f"restart policy {policy}")
            return Known(value="no" if policy == "never" else policy, evidence=(here,))
    note = "Fly starts a machine again that crashed, ten times (its default)"
    return Known(value="on-failure", evidence=(replace(place, note=note),), is_default=True)


def _volumes(node: Node, process: str) -> Iterator[Mount]:
    given = node.get("mounts") or node.get("mount")
    for item in given.items or [given] if given is not None else []:
        path = item.text_at("destination")
        if path and _is_of(item, process):
            here = item.place_of("destination", f"a volume of each machine on {path}")
            yield _kept(path, item.text_at("source"), here)


def _is_of(item: Node, process: str) -> bool:
    """Whether a table of fly.toml is about a process group: those it names, else all."""
    named = item.get("processes")
    return named is None or any(each.text == process for each in named.items)


def _table(node: Node | None) -> dict[str, Known[str]]:
    entries = node.entries if node is not None else {}
    return {name: _setting(name, each) for name, each in entries.items()}


# ------------------------------------------------------------------------------------ Railway


def _railway(project: Project, path: str) -> Iterator[Told | None]:
    if path.endswith(".toml"):
        node = read_toml(project, path)
    else:
        node = next(iter(read_yaml(project, path)), None)
    deploy = node.get("deploy") if node is not None else None
    if node is None or (deploy is None and node.get("build") is None):
        return
    folder = posixpath.dirname(path)
    builder = (node.text_at("build", "builder") or "").upper()
    dockerfile = _dockerfile(project, folder, node.text_at("build", "dockerfilePath"))
    if builder in {"NIXPACKS", "RAILPACK", "HEROKU", "PAKETO"}:
        dockerfile = None
    command = _words(deploy, "startCommand") if deploy is not None else None
    if dockerfile is None:
        command = _line(deploy, "startCommand") if deploy is not None else None
    if dockerfile is not None or command is not None:
        yield _of_railway(deploy or node, folder, dockerfile, command, _replicas(node))


def _replicas(node: Node) -> Known[int]:
    """Return how many run at once: of all regions, and of the environment that has most."""
    environments = node.get("environments")
    others = environments.entries.values() if environments is not None else []
    found: list[Known[int]] = []
    for deploy in (node.get("deploy"), *(each.get("deploy") for each in others)):
        if deploy is None:
            continue
        if (told := whole(deploy.text_at("numReplicas"))) is not None:
            here = deploy.place_of("numReplicas", f"numReplicas: {told}")
            found.append(Known(value=told, evidence=(here,)))
        regions = deploy.get("multiRegionConfig")
        counts = regions.entries.values() if regions is not None else []
        if regions is not None and counts:
            total = sum(whole(each.text_at("numReplicas")) or 1 for each in counts)
            here = deploy.place_of("multiRegionConfig", f"{total} replicas in all regions")
            found.append(Known(value=total, evidence=(here,)))
    if found:
        return max(found, key=lambda each: each.value or 0)
    place = (node.get("deploy") or node).evidence("what Railway deploys")
    return Known(value=1, evidence=(place,), is_default=True)


def _of_railway(
    deploy: Node,
    folder: str,
    dockerfile: str | None,
    command: Command | None,
    replicas: Known[int],
) -> Told:
    place = deploy.evidence("what Railway deploys")
    grace = deploy.text_at("drainingSeconds")
    wait = seconds(grace) if grace else None
    return Told(
        platform="railway",
        name=posixpath.basename(folder) or "app",
        place=place,
        folder=folder,
        dockerfile=dockerfile,
        command=command,
        is_native=dockerfile is None,
        grace_s=Known(
            value=wait,
            evidence=(deploy.place_of("drainingSeconds", f"drainingSeconds: {grace}"),)
            if grace
            else (place,),
            question=None if wait is not None else "What is drainingSeconds of the service?",
        ),
        replicas=replicas,
        restart=_railway_restart(deploy, place),
        health=_here(deploy, "healthcheckPath", "a deploy waits until this answers"),
    )


def _railway_restart(deploy: Node, place: Evidence) -> Known[str]:
    policy = deploy.text_at("restartPolicyType")
    if policy is None:
        note = "Railway starts a service again that crashed, ten times (its default)"
        return Known(value="on-failure", evidence=(replace(place, note=note),), is_default=True)
    words = {"ALWAYS": "always", "NEVER": "no", "ON_FAILURE": "on-failure"}
    here = deploy.place_of("restartPolicyType", f"restartPolicyType: {policy}")
    return Known(value=words.get(policy.upper(), "on-failure"), evidence=(here,))


# ------------------------------------------------------------------------------------ Procfile

_PROCESS = regex(r"^([A-Za-z][\w-]{0,60}):\s*(\S.*)$")
_ENDING = frozenset({"release", "console", "migrate"})
"""Process types that end."""


def _procfile(project: Project, path: str) -> Iterator[Told | None]:
    folder = posixpath.dirname(path)
    if _dockerfile(project, folder, None) is not None:
        return  # a platform builds with the Dockerfile, where there is one
    text = (project.read(path) or "")[: limits.PLATFORM_CHARACTERS_MAX]
    for number, line in enumerate(text.splitlines(), 1):
        process = _PROCESS.match(line)
        if process is None or process.group(1) in _ENDING:
            continue
        place = Evidence(file=path, line=number, note=f"{line.strip()[:120]}")
        asked = "Which platform reads the Procfile, and"
        yield Told(
            platform="procfile",
            name=process.group(1),
            place=place,
            folder=folder,
            command=_in_shell(process.group(2).rstrip(), place),
            is_native=True,
            grace_s=Known(
                value=None,
                evidence=(place,),
                question=f"{asked} how long does it wait after SIGTERM (Heroku: 30 s)?",
            ),
            replicas=Known(
                value=None, evidence=(place,), question=f"{asked} how many of these run at once?"
            ),
            restart=Known(
                value=None, evidence=(place,), question=f"{asked} does it restart a process?"
            ),
        )


# ------------------------------------------------------------------------------------ all


def _dockerfile(project: Project, folder: str, named: str | None) -> str | None:
    """Return the Dockerfile that is built; `None`: there is none."""
    name = (named or "Dockerfile").removeprefix("./").lstrip("/")
    for path in (_joined(folder, name), _joined("", name)):
        if project.has(path):
            return path
    return None


def _joined(folder: str, name: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, name.removeprefix("./") or "."))
    return "" if path == "." else path


def _words(node: Node, key: str) -> Command | None:
    text = node.text_at(key)
    if not text:
        return None
    here = node.place_of(key, f"{key}: {text[:120]}")
    return Command(words=split(text), is_shell=False, evidence=here)


def _line(node: Node, key: str) -> Command | None:
    text = node.text_at(key)
    return _in_shell(text, node.place_of(key, f"{key}: {text[:120]}")) if text else None


def _in_shell(text: str, here: Evidence) -> Command:
    return Command(words=("bash", "-c", text), is_shell=False, evidence=here)


def _here(node: Node, key: str, note: str) -> tuple[Evidence, ...]:
    return (node.place_of(key, note),) if node.text_at(key) else ()


def _seconds(node: Node, key: str, default: float, note: str) -> Known[float]:
    text = node.text_at(key)
    value = seconds(text) if text else None
    if value is not None:
        return Known(value=value, evidence=(node.place_of(key, f"{key}: {text}"),))
    here = node.evidence(f"no {key}, so {note} before it kills")
    return Known(value=default, evidence=(here,), is_default=True)
