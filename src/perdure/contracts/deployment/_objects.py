"""Kubernetes objects as nodes: plain manifests, and Kustomize's bases with their patches."""

import posixpath
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._yaml import Node, mapping, read_yaml, scalar, sequence
from perdure.contracts.files import Project
from perdure.contracts.numbers import whole

WORKLOADS = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "Job", "CronJob", "Rollout"}
)
_KEYS = ("mountPath", "containerPort", "name", "key", "ip", "devicePath")
"""What tells entries of a list apart, in the lists that patches merge."""

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")


def kind_of(node: Node) -> str:
    """Return the kind of an object; empty: it is none."""
    return (node.text_at("kind") or "") if node.get("apiVersion") is not None else ""


def name_of(node: Node) -> str:
    """Return the name of an object."""
    return node.text_at("metadata", "name") or "unnamed"


def looks_like_manifest(text: str) -> bool:
    """Whether a text has an object of Kubernetes."""
    return "apiVersion:" in text and "kind:" in text


def read_objects(project: Project, path: str, text: str | None = None) -> list[Node]:
    """Return the objects of a file that matter here; documents of other kinds are not parsed.

    `text`: what Helm makes of it, where the last one of two keys counts.
    """
    content = project.read(path) if text is None else text
    if content is None:
        return []
    parts = re.split(r"(?m)^(?=---)", content[: limits.YAML_BYTES_MAX + 1])
    kept = [part if _matters(part) else "\n" * part.count("\n") for part in parts]
    left = "".join(kept)
    if not left.strip():
        return []
    whole = left == content and text is None
    read = read_yaml(project, path, None if whole else left, last_wins=text is not None)
    return objects_in(read)


_KINDS = regex(
    r"(?m)^[ \t]*[\"']?kind[\"']?:\s*[\"']?(Deployment|StatefulSet|DaemonSet|ReplicaSet|Pod|Job"
    r"|CronJob|Rollout|List|PersistentVolumeClaim|HorizontalPodAutoscaler|ScaledObject|Service)\b"
)


def _matters(part: str) -> bool:
    is_small_map = len(part) < limits.CONFIG_MAP_CHARACTERS_MAX and "ConfigMap" in part
    return _KINDS.search(part) is not None or is_small_map


def objects_in(documents: Iterable[Node]) -> list[Node]:
    """Return the objects of documents; those of a List too."""
    found: list[Node] = []
    for document in documents:
        kind = kind_of(document)
        if kind == "List" or kind.endswith("List"):
            items = document.get("items")
            found += [item for item in (items.items if items is not None else []) if kind_of(item)]
        elif kind:
            found.append(document)
    return found


def template_of(node: Node) -> Node | None:
    """Return the pod template of a workload; a Pod is its own."""
    match kind_of(node):
        case "Pod":
            return node
        case "CronJob":
            return node.at("spec", "jobTemplate", "spec", "template")
        case _:
            return node.at("spec", "template")


class _Budget(Struct):
    merged: int = limits.MERGED_MAX
    folders: int = limits.INCLUDES_MAX


class Kustomizations:
    """Builds kustomizations as far as rules need: resources, patches, replicas, ConfigMaps."""

    def __init__(self, project: Project) -> None:
        """Read nothing yet."""
        self._project = project
        self._objects: dict[str, list[Node]] = {}
        self.used: set[str] = set()
        """Files that a kustomization consists of."""

    def build(self, path: str) -> list[Node]:
        """Return the objects of a kustomization."""
        return self._build(path, _Budget(), 0)

    def _build(self, path: str, budget: _Budget, depth: int) -> list[Node]:
        documents = read_yaml(self._project, path)
        budget.folders -= 1
        if not documents or depth > limits.NESTED_VARIABLES_MAX or budget.folders < 0:
            return []
        self.used.add(path)
        own, folder = documents[0], posixpath.dirname(path)
        found: list[Node] = []
        for key in ("resources", "bases", "components"):
            for item in _items(own.get(key)):
                found += self._resource(folder, item.text or "", budget, depth)
        for patch, target in self._patches(own, folder):
            found = _patched(found, patch, target, budget)
        found = [_with_images(_with_replicas(node, own), own) for node in found]
        if own.get("replacements") is not None:
            line = own.line_of("replacements")
            self._project.not_read(path, "its replacements are not made", line)
        return _with_generated(found, self._generated(own, folder), budget)

    def _resource(self, folder: str, text: str, budget: _Budget, depth: int) -> list[Node]:
        if "://" in text or text.startswith(("github.com", "git@")):
            self._project.not_read(
                posixpath.join(folder, "kustomization.yaml"), f"{text[:80]} is not fetched"
            )
            return []
        if not text:
            return []
        path = posixpath.normpath(posixpath.join(folder, text))
        if self._project.has(path):
            self.used.add(path)
            if path not in self._objects:
                self._objects[path] = read_objects(self._project, path)
            return self._objects[path]
        for name in KUSTOMIZATIONS:
            inner = posixpath.join(path, name)
            if self._project.has(inner):
                return self._build(inner, budget, depth + 1)
        return []

    def _patches(self, own: Node, folder: str) -> Iterable[tuple[Node, Node | None]]:
        for item in _items(own.get("patchesStrategicMerge")):
            yield from ((patch, None) for patch in self._patch_of(item, folder))
        for key in ("patches", "patchesJson6902"):
            for item in _items(own.get(key)):
                target = item.get("target")
                source = item.get("path") or item.get("patch")
                if source is not None:
                    is_file = item.get("path") is not None
                    for patch in self._patch_of(source, folder, is_file=is_file):
                        yield patch, target

    def _patch_of(self, source: Node, folder: str, *, is_file: bool | None = None) -> list[Node]:
        text = source.scalar or ""
        if is_file is None:
            is_file = "\n" not in text
        if not is_file:
            shifted = "\n" * source.line + text
            return read_yaml(self._project, source.file, shifted)
        path = posixpath.normpath(posixpath.join(folder, text))
        if not self._project.has(path):
            return []
        self.used.add(path)
        return read_yaml(self._project, path)

    def _generated(self, own: Node, folder: str) -> list[Node]:
        found: list[Node] = []
        for item in _items(own.get("configMapGenerator")):
            data: dict[str, Node] = {}
            for literal in _items(item.get("literals")):
                name, _, value = (literal.text or "").partition("=")
                data[name] = scalar(literal, value)
            for source in [*_items(item.get("envs")), *_some(item.get("env"))]:
                path = posixpath.normpath(posixpath.join(folder, source.text or ""))
                if posixpath.basename(path).startswith(".env"):
                    continue
                for number, line in enumerate((self._project.read(path) or "").splitlines(), 1):
                    name, equals, value = line.partition("=")
                    if equals and not line.startswith("#"):
                        at = Node(file=path, line=number)
                        data[name.strip()] = scalar(at, value.strip().strip("\"'"))
            found.append(
                mapping(
                    item,
                    {
                        "apiVersion": scalar(item, "v1"),
                        "kind": scalar(item, "ConfigMap"),
                        "metadata": mapping(
                            item, {"name": scalar(item, item.text_at("name") or "")}
                        ),
                        "data": mapping(item, data),
                        "behavior": scalar(item, item.text_at("behavior") or "create"),
                    },
                )
            )
        return found


def _with_generated(found: list[Node], generated: list[Node], budget: _Budget) -> list[Node]:
    """Return objects with generated ones: of one name, those of an overlay go over the base's."""
    made = list(found)
    for node in generated:
        at = next((n for n, each in enumerate(made) if _is_same(each, node)), None)
        if at is None:
            made.append(node)
        elif node.text_at("behavior") == "replace":
            made[at] = node
        else:
            made[at] = merge(made[at], node, budget, 0)
    return made


def _is_same(node: Node, other: Node) -> bool:
    return kind_of(node) == kind_of(other) and name_of(node) == name_of(other)


def _items(node: Node | None) -> list[Node]:
    return node.items if node is not None else []


def _some(node: Node | None) -> list[Node]:
    return [node] if node is not None else []


def _patched(found: list[Node], patch: Node, target: Node | None, budget: _Budget) -> list[Node]:
    is_operations = patch.kind == "sequence"
    wanted_kind = (target.text_at("kind") if target is not None else None) or kind_of(patch)
    wanted = target.text_at("name") if target is not None else None
    if wanted is None and target is None:
        wanted = name_of(patch)
    labels = (target.text_at("labelSelector") or "") if target is not None else ""
    done: list[Node] = []
    for node in found:
        fits = kind_of(node) == wanted_kind or not wanted_kind
        fits = fits and (wanted is None or _fits(wanted, name_of(node)))
        fits = fits and (not labels or _is_labelled(node, labels))
        if not fits:
            done.append(node)
        elif is_operations:
            done.append(_operated(node, patch))
        elif (patch.text_at("$patch") or "") != "delete":
            done.append(merge(node, patch, budget, 0))
    return done


def _is_labelled(node: Node, selector: str) -> bool:
    """Whether an object has the labels that a target names, as `a=b,c=d`."""
    labels = node.at("metadata", "labels")
    own = labels.entries if labels is not None else {}
    for each in selector.split(","):
        name, _, value = each.replace("==", "=").partition("=")
        given = own.get(name.strip())
        if given is None or (value and given.text != value.strip()):
            return False
    return True


def _fits(pattern: str, name: str) -> bool:
    """Whether a name fits a target's pattern: words and `.*` only, so that it takes no time."""
    return any(_fits_one(each, name) for each in pattern.strip("^$()").split("|"))


def _fits_one(pattern: str, name: str) -> bool:
    first, *rest = pattern.split(".*")
    if not name.startswith(first):
        return False
    at = len(first)
    for number, piece in enumerate(rest, 1):
        is_last = number == len(rest)
        found = name.rfind(piece, at) if is_last else name.find(piece, at)
        if found < 0 or (is_last and found + len(piece) != len(name)):
            return False
        at = found + len(piece)
    return bool(rest) or at == len(name)


def merge(base: Node, over: Node, budget: _Budget, depth: int) -> Node:
    """Return `over` laid over `base`, as a strategic merge patch is."""
    budget.merged -= 1
    if depth > limits.YAML_DEPTH_MAX or budget.merged < 0 or base.kind != over.kind:
        return over
    if base.kind == "sequence":
        return _merged_items(base, over, budget, depth)
    if base.kind != "mapping":
        return over
    entries, lines = dict(base.entries), dict(base.key_lines)
    for name, node in over.entries.items():
        if node.kind == "scalar" and node.text is None and node.is_plain:
            entries.pop(name, None)
            continue
        entries[name] = merge(entries[name], node, budget, depth + 1) if name in entries else node
        if name not in lines or node.kind == "scalar":
            lines[name] = over.line_of(name)
    return mapping(base, entries, lines)


def _merged_items(base: Node, over: Node, budget: _Budget, depth: int) -> Node:
    key = next(
        (k for k in _KEYS if over.items and all(i.get(k) is not None for i in over.items)), None
    )
    if key is None or not all(item.get(key) is not None for item in base.items):
        return over
    places = {item.text_at(key): at for at, item in enumerate(base.items)}
    merged = list(base.items)
    gone: set[int | None] = set()
    for item in over.items:
        at = places.get(item.text_at(key))
        if item.text_at("$patch") == "delete":
            gone.add(at)
        elif at is None:
            merged.append(item)
        else:
            merged[at] = merge(merged[at], item, budget, depth + 1)
    return sequence(base, [item for at, item in enumerate(merged) if at not in gone])


def _operated(node: Node, operations: Node) -> Node:
    """Apply add, replace and remove of a JSON patch."""
    for operation in operations.items[: limits.INCLUDES_MAX * 4]:
        path = [
            step.replace("~1", "/").replace("~0", "~")
            for step in (operation.text_at("path") or "").split("/")[1:]
        ]
        verb, value = operation.text_at("op"), operation.get("value")
        if path and verb in {"add", "replace", "remove"}:
            given = None if verb == "remove" else value
            node = _placed(node, path[: limits.YAML_DEPTH_MAX], given, is_added=verb == "add")
    return node


def _placed(node: Node, path: list[str], value: Node | None, *, is_added: bool = False) -> Node:
    """Return a node with a value put at a path, or taken from there (`None`)."""
    if node.kind == "mapping":
        return _placed_at_key(node, path, value, is_added=is_added)
    if node.kind == "sequence":
        return _placed_in_list(node, path, value, is_added=is_added)
    return node


def _placed_at_key(node: Node, path: list[str], value: Node | None, *, is_added: bool) -> Node:
    step, rest = path[0], path[1:]
    entries, lines = dict(node.entries), dict(node.key_lines)
    if rest and step in entries:
        entries[step] = _placed(entries[step], rest, value, is_added=is_added)
    elif not rest and value is None:
        entries.pop(step, None)
    elif not rest and value is not None:
        entries[step] = value
        lines[step] = value.line
    return mapping(node, entries, lines)


def _placed_in_list(node: Node, path: list[str], value: Node | None, *, is_added: bool) -> Node:
    step, rest = path[0], path[1:]
    items = list(node.items)
    at = len(items) if step == "-" else whole(step)
    if at is None or at > len(items):
        return node
    if not rest and value is not None and (is_added or at == len(items)):
        items.insert(at, value)
    elif at == len(items):
        return node
    elif rest:
        items[at] = _placed(items[at], rest, value, is_added=is_added)
    elif value is None:
        items.pop(at)
    else:
        items[at] = value
    return sequence(node, items)


IMAGE_BEFORE = "image before kustomize"
"""The key under which a container remembers the image that its manifest names."""


def _with_images(node: Node, own: Node) -> Node:
    """Return a workload whose images have the names and tags that a kustomization gives them."""
    given = {item.text_at("name"): item for item in _items(own.get("images"))}
    containers = (template_of(node) or node).at("spec", "containers") if given else None
    if containers is None or kind_of(node) not in WORKLOADS:
        return node
    path = ["spec", "template", "spec", "containers"]
    path = ["spec", "containers"] if kind_of(node) == "Pod" else path
    path = ["spec", "jobTemplate", *path] if kind_of(node) == "CronJob" else path
    return _placed(node, path, sequence(containers, [_renamed(c, given) for c in containers.items]))


def _renamed(container: Node, given: Mapping[str | None, Node]) -> Node:
    image = container.get("image")
    name, colon, tag = (image.text or "" if image is not None else "").partition(":")
    item = given.get(name)
    if image is None or item is None:
        return container
    named, digest = item.text_at("newName") or name, item.text_at("digest")
    new = item.text_at("newTag") or tag
    text = f"{named}@{digest}" if digest else f"{named}:{new}" if new or colon else named
    entries = {**container.entries, "image": scalar(image, text), IMAGE_BEFORE: image}
    return mapping(container, entries, container.key_lines)


def _with_replicas(node: Node, own: Node) -> Node:
    for item in _items(own.get("replicas")):
        count = item.get("count")
        if item.text_at("name") == name_of(node) and count is not None and node.get("spec"):
            return _placed(node, ["spec", "replicas"], count)
    return node
