"""Kubernetes objects as facts: each container of each workload is a service."""

import posixpath
import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._amounts import filled, mode_of, number, pre_stop_of, share
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._deployed import named_build
from perdure.contracts.deployment._ending import of_names, of_program
from perdure.contracts.deployment._health import hook_of, probe_test
from perdure.contracts.deployment._helm import OPEN
from perdure.contracts.deployment._images import catalog
from perdure.contracts.deployment._network import pod_names
from perdure.contracts.deployment._objects import (
    IMAGE_BEFORE,
    WORKLOADS,
    kind_of,
    name_of,
    template_of,
)
from perdure.contracts.deployment._room import Room
from perdure.contracts.deployment._stages import Built, Command
from perdure.contracts.deployment._starting import Order, catalog_of, start_of, workers_of
from perdure.contracts.deployment._values import size
from perdure.contracts.deployment._variables import is_secret
from perdure.contracts.deployment._yaml import Node, truth
from perdure.contracts.deployment.facts import (
    Dependency,
    Image,
    Lifetime,
    Mount,
    Service,
    Start,
    Update,
    Variable,
)
from perdure.contracts.evidence import Evidence, Known
from perdure.contracts.files import Project

GRACE_S = 30.0
"""terminationGracePeriodSeconds of a pod that says nothing."""


class Cluster(Struct, frozen=True, kw_only=True):
    """Objects that are applied together."""

    project: Project
    objects: tuple[Node, ...]
    builds: Builds
    assume: Mapping[str, str]
    declared: Mapping[str, Known[str]]

    def services(self) -> tuple[Service, ...]:
        """Return the containers of all workloads, in order."""
        found: list[Service] = []
        for node in self.objects:
            template = template_of(node) if kind_of(node) in WORKLOADS else None
            containers = template.at("spec", "containers") if template is not None else None
            if template is None or containers is None:
                continue
            inner = [item for item in containers.items if item.kind == "mapping"]
            found += [_Pod(self, node, template, item, len(inner)).read() for item in inner]
        return tuple(found[: limits.SERVICES_MAX])

    def named(self, kind: str, name: str | None) -> Node | None:
        """Return the object of a kind and name."""
        return next((n for n in self.objects if kind_of(n) == kind and name_of(n) == name), None)


class _Pod:
    """Reads one container of one workload."""

    def __init__(
        self, cluster: Cluster, owner: Node, template: Node, container: Node, count: int
    ) -> None:
        self._cluster = cluster
        self._owner = owner
        self._kind = kind_of(owner)
        self._template = template
        self._spec = template.get("spec") or template
        self._container = container
        own = container.text_at("name") or name_of(owner)
        self._name = name_of(owner) if count == 1 else f"{name_of(owner)}/{own}"
        self._place = container.evidence(f"container {own!r} of {self._kind} {name_of(owner)!r}")

    def read(self) -> Service:
        """Return the container as facts."""
        built, image = self._image()
        environment = self._environment(built)
        start, room = start_of(
            Order(
                project=self._cluster.project,
                built=built,
                reference=image.reference if built is None else None,
                entrypoint=self._command("command", environment),
                command=self._command("args", environment),
                clears_command=self._container.get("command") is not None,
                environment=environment,
                workdir=self._container.text_at("workingDir")
                or (built.workdir if built is not None else "/"),
                sources=built.sources if built is not None else (),
                has_init=any(truth(self._spec.text_at(one)) for one in _SHARED_PROCESSES),
                place=self._place,
                written=built.written if built is not None else {},
            )
        )
        ends = self._ends(start, room)
        probe = self._container.get("readinessProbe")
        health = (
            (self._container.place_of("readinessProbe", "it has a readiness probe"),)
            if probe is not None and (probe.entries or probe.scalar)
            else ()
        )
        return Service(
            name=self._name,
            place=self._place,
            image=image,
            start=start,
            environment=environment,
            mounts=self._mounts(built),
            sources=tuple(built.sources) if built is not None else (),
            workdir=self._container.text_at("workingDir")
            or (built.workdir if built is not None else "/"),
            grace_s=self._grace(),
            pre_stop_s=pre_stop_of(self._container, self._place),
            pre_stop=hook_of(self._container.at("lifecycle", "preStop"), self._container),
            replicas=self._replicas(),
            workers=workers_of(start, self._place),
            restart=self._restart(),
            update=None if ends or self._kind == "Pod" else self._update(),
            health=health,
            has_readiness=bool(health),
            health_test=probe_test(probe, self._container),
            depends_on=self._dependencies(),
            ports=self._ports(built),
            fixed_ports=self._fixed_ports(),
            memory_bytes=self._memory(),
            stop_signal=built.stop_signal if built is not None else None,
            is_interactive=truth(self._container.text_at("tty")) is True,
            is_one_shot=bool(ends),
            ends=ends,
            controller=self._kind,
            is_without_ports=not _items(self._container.get("ports")),
            aliases=pod_names(self._template, self._cluster.objects),
        )

    def _ends(self, start: Start | None, room: Room) -> tuple[Evidence, ...]:
        """Return why it ends by itself: a job, or a pod that is there for one time."""
        if self._kind in {"Job", "CronJob"}:
            return (self._owner.evidence(f"a {self._kind} ends by itself"),)
        if self._kind != "Pod":
            return ()
        hook = self._owner.at("metadata", "annotations", "helm.sh/hook")
        if hook is not None:
            return (hook.evidence("a hook of Helm does its work and ends"),)
        if (self._spec.text_at("restartPolicy") or "Always") == "Always":
            return ()
        return of_program(start, room) or of_names(name_of(self._owner), (), start, self._place)

    # -------------------------------------------------------------------------- image, command

    def _image(self) -> tuple[Built | None, Image]:
        node = self._container.get("image")
        reference = node.text if node is not None else None
        here = node.evidence(f"image {reference}") if node is not None else self._place
        image = Image(reference=reference, evidence=(here,), catalog=catalog_of(None, reference))
        if reference is not None and OPEN in reference:
            known = next((c for c in map(catalog, self._name.split("-")) if c is not None), None)
            image = replace(image, reference=None, catalog=known)
            if known is not None:
                return None, image
            reference = self._name if OPEN in reference.rpartition("/")[2] else reference
        before = self._container.text_at(IMAGE_BEFORE)
        found = self._cluster.builds.find(reference) or self._cluster.builds.find(before)
        if found is None:
            return None, image
        path, why, target = found
        built, made = named_build(self._cluster.project, path, target, self._cluster.assume)
        if built is None or made is None:
            return None, image
        return built, replace(made, evidence=(here, why), taken=why)

    def _command(self, key: str, environment: Mapping[str, Variable]) -> Command | None:
        node = self._container.get(key)
        if node is None:
            return None
        items = node.items if node.kind == "sequence" else [node]
        words = tuple(filled(item.scalar or "", environment) for item in items)
        if not words:
            return None
        note = f"{key}: {' '.join(words)[:120]}"
        return Command(words=words, is_shell=False, evidence=self._container.place_of(key, note))

    # -------------------------------------------------------------------------- environment

    def _environment(self, built: Built | None) -> Mapping[str, Variable]:
        found: dict[str, Variable] = {}
        if built is not None:
            for name, known in built.environment.items():
                found[name] = Variable(name=name, known=known)
        for item in _items(self._container.get("envFrom")):
            data = self._config_map(item.text_at("configMapRef", "name"))
            entries = data.entries if data is not None else {}
            self._cluster.project.spend(limits.VARIABLE_COST * len(entries))
            for name, node in entries.items():
                found[name] = Variable(name=name, known=self._value(name, node))
        own = _items(self._container.get("env"))
        self._cluster.project.spend(limits.VARIABLE_COST * (1 + len(own)))
        for item in own:
            variable = item.text_at("name")
            if variable:
                found[variable] = Variable(name=variable, known=self._variable(variable, item))
        for name, said in self._cluster.assume.items():
            if name not in found or found[name].known.value is None:
                given: Known[str] = Known(value=said, assumed=(f"{name}={said}",))
                found[name] = Variable(name=name, known=given)
        return found

    def _config_map(self, name: str | None) -> Node | None:
        object_ = self._cluster.named("ConfigMap", name)
        return object_.get("data") if object_ is not None else None

    def _value(self, name: str, node: Node) -> Known[str]:
        shown = "" if is_secret(name) else f" = {(node.scalar or '')[:80]}"
        here = node.evidence(f"{name}{shown}")
        if node.scalar is not None and OPEN in node.scalar:
            return Known(value=None, evidence=(here,), question=f"What is the value of {name}?")
        return Known(value=node.scalar or "", evidence=(here,))

    def _variable(self, name: str, item: Node) -> Known[str]:
        value = item.get("value")
        if value is not None and value.kind == "scalar":
            return self._value(name, value)
        key = item.at("valueFrom", "configMapKeyRef")
        data = self._config_map(key.text_at("name")) if key is not None else None
        node = data.get(key.text_at("key") or "") if data is not None and key is not None else None
        if node is not None:
            return self._value(name, node)
        declared = self._cluster.declared.get(name)
        if declared is not None:
            return declared
        return Known(
            value=None,
            evidence=(item.evidence(f"{name} comes from elsewhere"),),
            question=f"What is the value of {name}?",
        )

    # -------------------------------------------------------------------------- mounts

    def _mounts(self, built: Built | None) -> tuple[Mount, ...]:
        volumes = {item.text_at("name"): item for item in _items(self._spec.get("volumes"))}
        claims = {
            item.text_at("metadata", "name"): item
            for item in _items(self._owner.at("spec", "volumeClaimTemplates"))
        }
        found: list[Mount] = []
        for item in _items(self._container.get("volumeMounts")):
            name, path = item.text_at("name"), item.text_at("mountPath")
            if path is None:
                continue
            made = self._mount(item, posixpath.normpath(path), volumes.get(name), claims.get(name))
            found.append(replace(made, read_only=truth(item.text_at("readOnly")) is True))
        taken = {mount.path for mount in found}
        for path, here in built.volumes if built is not None else []:
            if path not in taken:
                note = (
                    "the image declares a volume, and Kubernetes gives it none: it is in the layer"
                )
                found.append(
                    Mount(
                        path=path,
                        lifetime=Lifetime.LAYER,
                        kind="image_volume",
                        evidence=(replace(here, note=note),),
                        is_shared=False,
                    )
                )
        return tuple(found)

    def _mount(self, item: Node, path: str, volume: Node | None, template: Node | None) -> Mount:
        here = item.evidence(f"{path} is mounted")
        if template is not None:
            mode = mode_of(template.at("spec", "accessModes"))
            return Mount(
                path=path,
                lifetime=Lifetime.NAMED,
                kind="pvc",
                evidence=(here, template.evidence("a claim of each replica's own")),
                source=template.text_at("metadata", "name"),
                is_shared=False,
                access_mode=mode,
            )
        kind = next((k for k in (volume.entries if volume is not None else {}) if k != "name"), "")
        if volume is None or not kind:
            return Mount(path=path, lifetime=Lifetime.NAMED, kind="unknown", evidence=(here,))
        what = volume.evidence(f"the volume is of kind {kind}")
        if kind == "emptyDir":
            in_memory = (volume.text_at("emptyDir", "medium") or "") == "Memory"
            note = "emptyDir: gone with the pod" + (", and held in memory" if in_memory else "")
            return Mount(
                path=path,
                lifetime=Lifetime.TMPFS if in_memory else Lifetime.LAYER,
                kind="emptyDir",
                evidence=(here, replace(what, note=note)),
                is_shared=False,
            )
        if kind == "persistentVolumeClaim":
            return self._claim(path, volume, here, what)
        words = {"configMap": "configMap", "secret": "secret", "hostPath": "hostPath"}
        return Mount(
            path=path,
            lifetime=Lifetime.NAMED,
            kind=words.get(kind, kind),
            evidence=(here, what),
            source=volume.text_at(kind, "name") or volume.text_at(kind, "path"),
            is_shared=True if kind in {"configMap", "secret", "nfs"} else None,
        )

    def _claim(self, path: str, volume: Node, here: Evidence, what: Evidence) -> Mount:
        name = volume.text_at("persistentVolumeClaim", "claimName")
        object_ = self._cluster.named("PersistentVolumeClaim", name)
        mode = mode_of(object_.at("spec", "accessModes")) if object_ is not None else None
        evidence = [here, what]
        if object_ is not None:
            evidence.append(object_.evidence(f"claim {name!r} with access {mode}"))
        return Mount(
            path=path,
            lifetime=Lifetime.NAMED,
            kind="pvc",
            evidence=tuple(evidence),
            source=name,
            is_shared=None if mode is None else mode == "ReadWriteMany",
            access_mode=mode,
        )

    # -------------------------------------------------------------------------- policies

    def _grace(self) -> Known[float]:
        node = self._spec.get("terminationGracePeriodSeconds")
        if node is None:
            note = f"no terminationGracePeriodSeconds, so {GRACE_S:g} s pass before it is killed"
            here = replace(self._place, note=note)
            return Known(value=GRACE_S, evidence=(here,), is_default=True)
        here = self._spec.place_of(
            "terminationGracePeriodSeconds", f"terminationGracePeriodSeconds: {node.scalar}"
        )
        value = number(node)
        question = None if value is not None else "What is terminationGracePeriodSeconds?"
        return Known(
            value=None if value is None else float(value), evidence=(here,), question=question
        )

    def _scaler(self) -> Node | None:
        for node in self._cluster.objects:
            if kind_of(node) in {"HorizontalPodAutoscaler", "ScaledObject"}:
                target = node.text_at("spec", "scaleTargetRef", "name")
                if target == name_of(self._owner):
                    return node.get("spec")
        return None

    def _replicas(self) -> Known[int]:
        scaler = self._scaler()
        for key in ("maxReplicas", "maxReplicaCount"):
            most = scaler.get(key) if scaler is not None else None
            if most is not None and scaler is not None:
                here = scaler.place_of(key, f"an autoscaler may start {most.scalar}")
                question = None if number(most) is not None else f"What is {key}?"
                declared = self._declared_replicas()
                begun = () if declared.is_default else declared.evidence
                return Known(value=number(most), evidence=(*begun, here), question=question)
        return self._declared_replicas()

    def _declared_replicas(self) -> Known[int]:
        spec = self._owner.get("spec")
        node = spec.get("replicas") if spec is not None else None
        if node is None or spec is None or self._kind in {"Pod", "DaemonSet"}:
            return Known(value=1, evidence=(self._place,), is_default=True)
        here = spec.place_of("replicas", f"replicas: {node.scalar}")
        question = None if number(node) is not None else "How many replicas are there?"
        return Known(value=number(node), evidence=(here,), question=question)

    def _least(self) -> Known[int]:
        """Return how many pods there are at least: an autoscaler's minimum, else the replicas."""
        scaler = self._scaler()
        if scaler is None:
            return self._declared_replicas()
        for key in ("minReplicas", "minReplicaCount"):
            least = scaler.get(key)
            if least is not None:
                here = scaler.place_of(key, f"an autoscaler keeps at least {least.scalar}")
                question = None if number(least) is not None else f"What is {key}?"
                return Known(value=number(least), evidence=(here,), question=question)
        return Known(value=1, evidence=(scaler.evidence("an autoscaler keeps at least 1"),))

    def _restart(self) -> Known[str]:
        if self._kind != "Pod":
            here = self._owner.evidence(f"a {self._kind} starts its containers again")
            return Known(value="controller", evidence=(here,))
        node = self._spec.get("restartPolicy")
        if node is None:
            return Known(value="always", evidence=(self._place,), is_default=True)
        here = self._spec.place_of("restartPolicy", f"restartPolicy: {node.scalar}")
        words = {"Never": "no", "OnFailure": "on-failure", "Always": "always"}
        return Known(value=words.get(node.scalar or "", "always"), evidence=(here,))

    def _update(self) -> Update:
        spec = self._owner.get("spec") or self._owner
        key = "updateStrategy" if self._kind in {"StatefulSet", "DaemonSet"} else "strategy"
        strategy = spec.get(key)
        here = self._owner.evidence(f"{self._kind} {name_of(self._owner)!r} is updated pod by pod")
        replicas = self._least()
        if strategy is None:
            return self._rolling(None, here, replicas)
        type_ = strategy.text_at("type") or "RollingUpdate"
        at = spec.place_of(key, f"{key}: {type_}")
        if type_ == "Recreate":
            return Update(mechanism="kubernetes_recreate", evidence=(at,), replicas=replicas)
        return self._rolling(strategy.get("rollingUpdate"), at, replicas)

    def _rolling(self, rolling: Node | None, here: Evidence, replicas: Known[int]) -> Update:
        is_deployment = self._kind in {"Deployment", "ReplicaSet", "Rollout"}
        default = ("25%", "25%") if is_deployment else ("1", "0")
        return Update(
            mechanism="kubernetes_rolling",
            evidence=(here,),
            max_unavailable=share(rolling, "maxUnavailable", default[0], replicas, here),
            max_surge=share(rolling, "maxSurge", default[1], replicas, here),
            replicas=replicas,
        )

    # -------------------------------------------------------------------------- the rest

    def _dependencies(self) -> tuple[Dependency, ...]:
        found: list[Dependency] = []
        for item in _items(self._spec.get("initContainers")):
            words = " ".join(
                part.scalar or ""
                for key in ("command", "args")
                for part in [*_items(item.get(key))]
            )
            name = item.text_at("name") or "init"
            host = re.search(
                r"(?:nc\s+(?:-\S{1,20}\s+){0,6}(?:\d+\s+)?|pg_isready.{0,200}?-h\s*|wait-for\S{0,40}\s+|/dev/tcp/)([\w.\-]+)",
                words[: limits.TEXT_MAX],
            )
            if programs.waits(words) or host is not None:
                service = host.group(1).partition(".")[0] if host is not None else name
                note = f"init container {name!r} waits before the server is started"
            else:
                service, note = name, f"init container {name!r} ends before the server is started"
            found.append(
                Dependency(
                    service=service, condition="init_container", evidence=(item.evidence(note),)
                )
            )
        return tuple(found)

    def _ports(self, built: Built | None) -> tuple[str, ...]:
        found = [
            item.text_at("containerPort") or "" for item in _items(self._container.get("ports"))
        ]
        found += built.ports if built is not None else []
        return tuple(dict.fromkeys(port for port in found if port))

    def _fixed_ports(self) -> tuple[Evidence, ...]:
        found = [
            item.evidence("a port of the node that only one pod can have")
            for item in _items(self._container.get("ports"))
            if item.text_at("hostPort") is not None
        ]
        if truth(self._spec.text_at("hostNetwork")) is True and found:
            found.append(self._spec.place_of("hostNetwork", "the pod uses the node's network"))
        return tuple(found)

    def _memory(self) -> Known[int] | None:
        node = self._container.at("resources", "limits", "memory")
        if node is None or node.scalar is None:
            return None
        value = size(node.scalar, is_kubernetes=True)
        here = node.evidence(f"memory limit {node.scalar}")
        question = None if value is not None else "What is the memory limit?"
        return Known(value=value, evidence=(here,), question=question)


_SHARED_PROCESSES = ("shareProcessNamespace", "hostPID")  # another program is process 1


def _items(node: Node | None) -> list[Node]:
    return node.items if node is not None else []
