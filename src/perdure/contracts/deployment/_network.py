"""Names and ports of services in a network, beside the name that they are declared by."""

from collections.abc import Callable, Iterable

from perdure.contracts.deployment._compose import split_mount
from perdure.contracts.deployment._objects import kind_of, name_of
from perdure.contracts.deployment._yaml import Node
from perdure.contracts.evidence import Evidence


def compose_names(node: Node, filled: Callable[[Node], str]) -> tuple[str, ...]:
    """Return other names of a Compose service: of its container, its host, and aliases."""
    given = [node.get("container_name"), node.get("hostname")]
    networks = node.get("networks")
    for network in networks.entries.values() if networks is not None else ():
        aliases = network.get("aliases")
        given += aliases.items if aliases is not None else []
    names = [filled(each) for each in given if each is not None and each.kind == "scalar"]
    return tuple(dict.fromkeys(name for name in names if name))


def pod_names(template: Node, objects: Iterable[Node]) -> tuple[str, ...]:
    """Return the names of the Services that lead to the pods of a template."""
    labels = template.at("metadata", "labels")
    own = _texts(labels)
    found: list[str] = []
    for node in objects:
        wanted = _texts(node.at("spec", "selector")) if kind_of(node) == "Service" else {}
        if wanted and wanted.items() <= own.items():
            found.append(name_of(node))
    return tuple(found)


def _texts(node: Node | None) -> dict[str, str | None]:
    return {key: each.text for key, each in (node.entries if node is not None else {}).items()}


def fixed_ports(node: Node) -> tuple[Evidence, ...]:
    """Return what of a Compose service only one container can have: host ports, and a name."""
    found: list[Evidence] = []
    ports = node.get("ports")
    for item in ports.items if ports is not None else ():
        if item.kind == "mapping":
            published = item.text_at("published")
            is_fixed = published is not None and "-" not in published
        else:
            words = split_mount(item.text or "")
            is_fixed = len(words) > 1 and "-" not in words[-2]
        if is_fixed:
            found.append(item.evidence("a port of the host that only one container can have"))
    if node.get("container_name") is not None:
        found.append(node.place_of("container_name", "a name that only one container can have"))
    return tuple(found)
