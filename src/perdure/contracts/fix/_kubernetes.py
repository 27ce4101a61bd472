"""Edits of Kubernetes manifests."""

import re

from perdure.contracts.check import Judged
from perdure.contracts.deployment._yaml import Node, read_yaml
from perdure.contracts.deployment.facts import Service
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind
from perdure.contracts.fix._yaml_lines import inserted, replaced
from perdure.contracts.report import Edit


def _pods(project: Project, judged: Judged) -> list[tuple[Node, Node]]:
    """Return pod specifications with the container that the service is, where it is one."""
    if judged.root.kind is not RootKind.KUBERNETES:
        return []
    service = judged.service
    found = []
    for document in read_yaml(project, service.place.file):
        pod = document.at("spec", "template", "spec") or document.at("spec")
        containers = pod.get("containers") if pod is not None else None
        if pod is None or containers is None:
            continue
        found += [(pod, each) for each in containers.items if _is(each, document, service)]
    return found


def _is(container: Node, document: Node, service: Service) -> bool:
    names = {document.text_at("metadata", "name"), container.text_at("name")}
    lines = {container.line, *container.key_lines.values(), document.line_of("metadata")}
    lines |= {document.line, *document.key_lines.values()}
    metadata = document.get("metadata")
    lines |= set(metadata.key_lines.values()) if metadata is not None else set()
    return service.place.line in lines or service.name in names


def grace(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Give the pod as much time to stop as the repair of R1 says."""
    needed = re.search(r"terminationGracePeriodSeconds: (\d+)", judged.finding.repair or "")
    pods = _pods(project, judged)
    if needed is None or len(pods) != 1:
        return ()
    pod = pods[0][0]
    key = "terminationGracePeriodSeconds"
    text = project.read(pod.file) or ""
    if key in pod.entries:
        edit = replaced(text, pod.file, pod, key, needed.group(1))
    else:
        edit = inserted(text, pod.file, pod, [f"{key}: {needed.group(1)}"])
    return (edit,) if edit is not None else ()


def readiness(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Let a pod count as ready when the port of its container answers."""
    pods = _pods(project, judged)
    if len(pods) != 1:
        return ()
    container = pods[0][1]
    ports = container.get("ports")
    first = ports.items[0] if ports is not None and ports.items else None
    port = first.text_at("containerPort") if first is not None else None
    if port is None or not port.isdecimal() or "readinessProbe" in container.entries:
        return ()
    lines = ["readinessProbe:", "  tcpSocket:", f"    port: {port}", "  periodSeconds: 5"]
    edit = inserted(project.read(container.file) or "", container.file, container, lines)
    return (edit,) if edit is not None else ()
