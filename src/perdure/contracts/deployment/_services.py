"""A service of a Compose file as facts: every value with its line and where it comes from."""

import posixpath
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts.deployment import _ending as ending
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._compose import Composition, pairs
from perdure.contracts.deployment._deployed import named_build, samples_of
from perdure.contracts.deployment._dockerfile import parse, read_dockerfile
from perdure.contracts.deployment._health import compose_test
from perdure.contracts.deployment._mounts import Mounts, filled
from perdure.contracts.deployment._network import compose_names, fixed_ports
from perdure.contracts.deployment._room import Room
from perdure.contracts.deployment._stages import Built, Command, build
from perdure.contracts.deployment._starting import Order, catalog_of, start_of, workers_of
from perdure.contracts.deployment._values import seconds, size, split
from perdure.contracts.deployment._variables import (
    Variables,
    is_sample,
    is_secret,
    read_sample,
)
from perdure.contracts.deployment._yaml import Node, truth
from perdure.contracts.deployment.facts import (
    Dependency,
    Image,
    Service,
    Start,
    Update,
    Variable,
)
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.files import Project
from perdure.contracts.numbers import whole

GRACE_S = 10.0
"""Seconds that Compose waits after SIGTERM when a service says nothing."""


class ComposeService(Struct, frozen=True, kw_only=True):
    """Reads one service of a composition."""

    project: Project
    composition: Composition
    name: str
    node: Node
    variables: Variables
    builds: Builds

    def read(self) -> Service:
        """Return the service as facts."""
        self.project.spend(1)  # nothing more is read once there is too much
        node, place = self.node, self._place(f"service {self.name!r}")
        built, image = self._image()
        environment = self._environment(built)
        mounts, sources = Mounts(
            node=node, variables=self.variables, volumes=self.composition.volumes
        ).read(built)
        workdir = self._text("working_dir") or (built.workdir if built is not None else "/")
        start, room = start_of(
            Order(
                project=self.project,
                built=built,
                reference=image.reference if built is None else None,
                entrypoint=self._command("entrypoint"),
                command=self._command("command"),
                clears_command=self._is_set("entrypoint"),
                environment=environment,
                workdir=workdir,
                sources=sources,
                has_init=truth(self._text("init")) is True or bool(self._text("pid")),
                place=place,
                written=built.written if built is not None else {},
            )
        )
        ends = self._ends(start, room, place)
        return Service(
            name=self.name,
            place=place,
            image=image,
            start=start,
            environment=environment,
            mounts=tuple(mounts),
            sources=tuple(sources),
            workdir=workdir,
            grace_s=self._grace(place),
            pre_stop_s=Known(value=0.0, evidence=(place,), is_default=True),
            replicas=self._replicas(place),
            workers=workers_of(start, place),
            restart=self._restart(place),
            update=self._update(place),
            health=self._health(built),
            has_readiness=bool(self._health(built)),
            health_test=compose_test(node.get("healthcheck"), self._filled),
            depends_on=self._dependencies(),
            ports=self._ports(built),
            fixed_ports=fixed_ports(self.node),
            memory_bytes=self._memory(),
            stop_signal=self._stop_signal(built),
            is_interactive=self._is_interactive(start),
            is_one_shot=bool(ends),
            ends=ends,
            may_end=() if ends else self._may_end(start, room, image, place),
            profiles=self._profiles(),
            is_without_ports=not self._is_set("ports") and not self._is_set("expose"),
            aliases=compose_names(self.node, self._filled),
        )

    def teach(self) -> None:
        """Tell `builds` which Dockerfile the image of the service comes from, if it says so."""
        node, reference = self.node.get("build"), self._known("image")
        if node is None:
            return
        _, dockerfile, target = self._build_paths(node)
        if self.project.has(dockerfile):
            name = reference.value if reference is not None else None
            self.builds.learn(name, dockerfile, target, node.evidence(""))

    # -------------------------------------------------------------------------- single values

    def _place(self, note: str) -> Evidence:
        file = self.node.file
        return Evidence(file=file, line=self.composition.service_lines[self.name], note=note)

    def _is_set(self, *keys: str) -> bool:
        return self.node.at(*keys) is not None

    def _known(self, *keys: str) -> Known[str] | None:
        """Return the value at a path of keys with its variables replaced; `None`: not there."""
        parent = self.node.at(*keys[:-1]) if len(keys) > 1 else self.node
        found = self.node.at(*keys)
        if parent is None or found is None or found.scalar is None:
            return None
        here = parent.place_of(keys[-1], f"{'.'.join(keys)}: {found.scalar[:80]}")
        return self.variables.replace(found.scalar, here)

    def _text(self, *keys: str) -> str | None:
        known = self._known(*keys)
        return known.value if known is not None else None

    def _filled(self, node: Node) -> str:
        return filled(self.variables, node)

    def _command(self, key: str) -> Command | None:
        node = self.node.get(key)
        if node is None:
            return None
        if node.kind == "sequence":
            words = tuple(self._filled(item) for item in node.items if item.kind == "scalar")
        elif node.text is not None:
            words = split(self._filled(node))
        else:
            return None
        note = f"{key}: {' '.join(words)[:120]}"
        here = self.node.place_of(key, note)
        if not words:
            return None
        return Command(words=words, is_shell=False, evidence=here)

    def _grace(self, place: Evidence) -> Known[float]:
        known = self._known("stop_grace_period")
        if known is None:
            note = f"no stop_grace_period, so {GRACE_S:g} s pass before it is killed"
            return Known(value=GRACE_S, evidence=(replace(place, note=note),), is_default=True)
        value = seconds(known.value) if known.value is not None else None
        question = known.question or "What is stop_grace_period?"
        return Known(
            value=value,
            evidence=known.evidence,
            confidence=known.confidence,
            question=None if value is not None else question,
            assumed=known.assumed,
        )

    def _number(self, known: Known[str] | None, what: str) -> Known[int] | None:
        if known is None:
            return None
        value = whole(known.value)
        return Known(
            value=value,
            evidence=known.evidence,
            confidence=known.confidence,
            question=None if value is not None else known.question or f"What is {what}?",
            assumed=known.assumed,
        )

    def _replicas(self, place: Evidence) -> Known[int]:
        for keys in (("deploy", "replicas"), ("scale",)):
            found = self._number(self._known(*keys), ".".join(keys))
            if found is not None:
                return found
        return Known(value=1, evidence=(place,), is_default=True)

    def _restart(self, place: Evidence) -> Known[str]:
        known = self._known("restart")
        if known is not None:
            text = (known.value or "").strip().lower()
            value = "no" if truth(text) is False or text == "none" else text or None
            return replace(known, value=value)
        policy = self.node.at("deploy", "restart_policy")
        if policy is not None:
            condition = self._known("deploy", "restart_policy", "condition")
            here = policy.evidence("deploy.restart_policy")
            if condition is None:
                return Known(value="swarm_any", evidence=(here,))
            words = {"any": "swarm_any", "none": "no"}
            value = words.get(condition.value or "", condition.value)
            attempts = self._text("deploy", "restart_policy", "max_attempts")
            if value == "on-failure" and whole(attempts) is not None:
                value = f"on-failure:{attempts}"
            return replace(condition, value=value)
        note = "no restart policy, so a container that dies stays dead"
        none = Known(value="no", evidence=(replace(place, note=note),), is_default=True)
        return self.composition.perhaps_restarted(self.name, place) or none

    def _update(self, place: Evidence) -> Update:
        config = self.node.at("deploy", "update_config")
        if config is None:
            return Update(mechanism="compose", evidence=(place,))
        here = config.evidence("deploy.update_config: Swarm replaces the service by it")
        order = self._text("deploy", "update_config", "order") or "stop-first"
        return Update(mechanism="swarm", evidence=(here,), order=order)

    def _health(self, built: Built | None) -> tuple[Evidence, ...]:
        check = self.node.get("healthcheck")
        image = built.health if built is not None else ()
        if check is None:
            return image
        test = check.get("test")
        first = test.items[0].text if test is not None and test.items else None
        if truth(check.text_at("disable")) is True or (first or "").upper() == "NONE":
            return ()
        if test is None:
            return image
        return (self.node.place_of("healthcheck", "it has a health check"),)

    def _dependencies(self) -> tuple[Dependency, ...]:
        node = self.node.get("depends_on")
        if node is None:
            return ()
        if node.kind == "sequence":
            return tuple(
                Dependency(
                    service=item.text,
                    condition="service_started",
                    evidence=(item.evidence(f"waits only until {item.text} is started"),),
                )
                for item in node.items
                if item.text is not None
            )
        found: list[Dependency] = []
        for name, value in node.entries.items():
            condition = value.text_at("condition") or "service_started"
            at = value.get("condition")
            here = Evidence(
                file=value.file,
                line=at.line if at is not None else node.line_of(name),
                note=f"waits for {name}: {condition}",
            )
            found.append(Dependency(service=name, condition=condition, evidence=(here,)))
        return tuple(found)

    def _ports(self, built: Built | None) -> tuple[str, ...]:
        found: list[str] = []
        for item in _items(self.node.get("ports")):
            text = item.text_at("target") if item.kind == "mapping" else self._filled(item)
            found.append((text or "").rpartition(":")[2].partition("/")[0])
        found += [item.text or "" for item in _items(self.node.get("expose"))]
        found += built.ports if built is not None else []
        return tuple(dict.fromkeys(port for port in found if port))

    def _memory(self) -> Known[int] | None:
        for keys in (("deploy", "resources", "limits", "memory"), ("mem_limit",)):
            known = self._known(*keys)
            if known is not None:
                value = size(known.value) if known.value is not None else None
                question = (
                    None if value is not None else known.question or "What is the memory limit?"
                )
                return Known(
                    value=value,
                    evidence=known.evidence,
                    confidence=known.confidence,
                    question=question,
                )
        return None

    def _stop_signal(self, built: Built | None) -> Known[str] | None:
        return self._known("stop_signal") or (built.stop_signal if built is not None else None)

    def _ends(self, start: Start | None, room: Room, place: Evidence) -> tuple[Evidence, ...]:
        """Return why it ends by itself; empty: nothing says so."""
        services = self.composition.services
        found = ending.of_waiting(self.name, services) or ending.of_program(start, room)
        is_restarted = (self._text("restart") or "no") not in {"no", "false", "on-failure"}
        is_kept = is_restarted or self._is_set("deploy", "restart_policy")
        if found or is_kept or self._is_set("ports"):
            return found
        return ending.of_names(self.name, self._profiles(), start, place)

    def _may_end(
        self, start: Start | None, room: Room, image: Image, place: Evidence
    ) -> tuple[Evidence, ...]:
        """Return why it may be a job, although nothing says that it ends."""
        if ending.is_asked(self.name, self.composition.services):
            return ()
        found = ending.may_end(
            start, self._profiles(), room, place, is_known=image.catalog is not None
        )
        return (*ending.of_choice(self.name, self.composition.services), *found) if found else ()

    def _is_interactive(self, start: Start | None) -> bool:
        """Whether a terminal is attached to what is no server; those get one for colours."""
        if not any(truth(self._text(key)) is True for key in ("tty", "stdin_open")):
            return False
        server = start.server if start is not None else None
        serves = server is not None and server.program in programs.SERVING
        is_kept = (self._text("restart") or "no") not in {"no", "false"}
        return not serves and not self._is_set("ports") and not is_kept

    def _profiles(self) -> tuple[str, ...]:
        return tuple(item.text or "" for item in _items(self.node.get("profiles")))

    # -------------------------------------------------------------------------- image

    def _image(self) -> tuple[Built | None, Image]:
        node = self.node.get("build")
        reference = self._known("image")
        if node is None:
            here = reference.evidence if reference is not None else (self._place("no image"),)
            name = reference.value if reference is not None else None
            image = Image(reference=name, evidence=here, catalog=catalog_of(None, name))
            guessed = self._guessed(name, here)
            platform = self._platform(image)
            if guessed is None or platform.catalog not in {None, guessed[1].catalog}:
                return None, platform
            return guessed
        context, dockerfile, target = self._build_paths(node)
        built = self._built(node, context, dockerfile, target)
        where = dockerfile if built is not None else None
        evidence = (self.node.place_of("build", f"built from {dockerfile}"),)
        image = Image(
            reference=built.base if built is not None else None,
            dockerfile=where,
            context=context,
            stage=built.stage if built is not None else target,
            evidence=evidence,
            catalog=catalog_of(built, None),
        )
        return built, image

    def _guessed(
        self, reference: str | None, here: tuple[Evidence, ...]
    ) -> tuple[Built, Image] | None:
        """Return the image as the Dockerfile makes it that it seems to be built from elsewhere."""
        found = self.builds.find(reference, beside=self.node.file)
        if found is None and reference is None and here:
            found = self.builds.unnamed(self.name, here[0])
        if found is None:
            return None
        path, why, target = found
        built, image = named_build(self.project, path, target, self.variables.assume)
        if built is None or image is None:
            return None
        return built, replace(image, evidence=(*here, why), taken=why)

    def _platform(self, image: Image) -> Image:
        """Return an image with the variables of the LangGraph server as what they give away."""
        built_by = self.builds.langgraph_build(image.reference) if image.catalog is None else None
        if built_by is not None:
            return replace(image, catalog="langgraph-api", evidence=(*image.evidence, built_by))
        environment = pairs(self.node.get("environment") or self.node)
        names = {"REDIS_URI", "DATABASE_URI"}
        if image.catalog is None and names <= set(environment.entries):
            note = "REDIS_URI and DATABASE_URI together are what the LangGraph server is given"
            here = environment.place_of("DATABASE_URI", note)
            return replace(image, catalog="langgraph-api", evidence=(*image.evidence, here))
        return image

    def _build_paths(self, node: Node) -> tuple[str, str, str | None]:
        folder = node.file.rpartition("/")[0]
        if node.kind == "scalar":
            context, file, target = self._filled(node), "Dockerfile", None
        else:
            given = node.get("context")
            context = self._filled(given) if given is not None else "."
            named, stage = node.get("dockerfile"), node.get("target")
            file = self._filled(named) if named is not None else "Dockerfile"
            target = self._filled(stage) if stage is not None else None
        base = posixpath.normpath(posixpath.join(folder, context))
        base = "" if base == "." else base
        path = posixpath.normpath(posixpath.join(base, file))
        if not self.project.has(path):
            from_root = posixpath.normpath(posixpath.join(context, file))
            if folder and self.project.has(from_root):
                return (
                    posixpath.normpath(context).replace(".", "", 1)
                    if context == "."
                    else (posixpath.normpath(context)),
                    from_root,
                    target,
                )
            same = [p for p in self.project.paths if p.lower() == path.lower()]
            path = same[0] if len(same) == 1 else path
        return base, path, target

    def _built(self, node: Node, context: str, dockerfile: str, target: str | None) -> Built | None:
        inline = node.get("dockerfile_inline")
        if inline is not None and inline.scalar:
            read = parse("\n" * inline.line + inline.scalar, inline.file)
        else:
            found = read_dockerfile(self.project, dockerfile)
            if found is None:
                return None
            read = found
        # Of every service, as each may be given other arguments.
        self.project.spend(limits.VARIABLE_COST * len(read.instructions))
        arguments = {
            name: self.variables.replace(
                value.scalar or "", value.evidence(f"build argument {name}")
            )
            for name, value in _entries(pairs(node.get("args") or node)).items()
            if node.get("args") is not None and value.scalar is not None
        }
        return build(
            self.project,
            read,
            context=context,
            target=target,
            arguments=arguments,
            assume=self.variables.assume,
        )

    # -------------------------------------------------------------------------- environment

    def _environment(self, built: Built | None) -> Mapping[str, Variable]:
        found: dict[str, Variable] = {}
        if built is not None:
            for name, known in built.environment.items():
                found[name] = Variable(name=name, known=known)
        for name, known in self._env_files().items():
            found[name] = Variable(name=name, known=known)
        node = self.node.get("environment")
        own = 0 if node is None else len(node.entries) + len(node.items)
        self.project.spend(limits.VARIABLE_COST * (len(found) + own))
        for name, value in _entries(pairs(node) if node is not None else None).items():
            shown = "" if is_secret(name) else f" = {(value.scalar or '')[:80]}"
            here = value.evidence(f"{name}{shown}")
            if value.kind == "scalar" and (value.text is not None or not value.is_plain):
                known = self.variables.replace(value.scalar or "", here)
            else:
                declared = self.variables.value(name)
                question = f"What is the value of {name}?"
                known = declared or Known(value=None, evidence=(here,), question=question)
            found[name] = Variable(name=name, known=known)
        for name, said in self.variables.assume.items():
            if name not in found or found[name].known.value is None:
                given: Known[str] = Known(value=said, assumed=(f"{name}={said}",))
                found[name] = Variable(name=name, known=given)
        return found

    def _env_files(self) -> dict[str, Known[str]]:
        """Return what files of variables say: of `.env` only its sample is read, as defaults."""
        node = self.node.get("env_file")
        if node is None:
            return {}
        found: dict[str, Known[str]] = {}
        for item in node.items if node.kind == "sequence" else [node]:
            named = item.get("path") or item
            if named.scalar is None:
                continue
            folder = item.file.rpartition("/")[0]
            path = posixpath.normpath(posixpath.join(folder, self._filled(named)))
            if is_sample(path):
                found |= read_sample(self.project, path)
                continue
            base = path.rpartition("/")[2]
            if base.startswith(".env") or not self.project.has(path):
                for sample in samples_of(self.project, path):
                    found |= read_sample(self.project, sample)
                continue
            proved = read_sample(self.project, path).items()
            found |= {name: replace(k, confidence=Confidence.PROVED) for name, k in proved}
        return found


def _items(node: Node | None) -> list[Node]:
    return node.items if node is not None else []


def _entries(node: Node | None) -> Mapping[str, Node]:
    return node.entries if node is not None else {}
