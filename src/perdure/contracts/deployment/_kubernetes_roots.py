"""Helm charts, kustomizations and plain manifests as deployment roots."""

from collections.abc import Iterable, Mapping

from perdure.contracts._defended import defended
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._deployed import variables_for
from perdure.contracts.deployment._helm import read_chart
from perdure.contracts.deployment._objects import (
    KUSTOMIZATIONS,
    WORKLOADS,
    Kustomizations,
    kind_of,
    looks_like_manifest,
    read_objects,
)
from perdure.contracts.deployment._pods import Cluster
from perdure.contracts.deployment._yaml import Node
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind


def kubernetes_roots(
    project: Project, paths: Iterable[str], builds: Builds, assume: Mapping[str, str]
) -> list[Root]:
    """Return a root for each chart, each kustomization and each folder of manifests."""
    found: list[Root] = []
    charts = [p for p in project.paths if p.rpartition("/")[2] == "Chart.yaml"]
    for chart in charts:
        with defended(project, chart, "this chart"):
            objects = read_chart(project, chart)
            found += _root(project, chart, objects, builds, assume)
    kustomizations = Kustomizations(project)
    for path in project.paths:
        if path.rpartition("/")[2] in KUSTOMIZATIONS:
            with defended(project, path, "this kustomization"):
                found += _root(project, path, kustomizations.build(path), builds, assume)
    in_charts = tuple(chart.rpartition("/")[0] + "/" for chart in charts if "/" in chart)
    folders: dict[str, list[Node]] = {}
    for path in paths:
        if path in kustomizations.used or path.startswith(in_charts or ("\0",)):
            continue
        text = project.read(path)
        if text is None or not looks_like_manifest(text) or "{{" in text:
            continue
        with defended(project, path, "this manifest"):
            objects = read_objects(project, path)
            folders.setdefault(path.rpartition("/")[0], []).extend(objects)
    for _, objects in sorted(folders.items()):
        first = next((node.file for node in objects if kind_of(node) in WORKLOADS), None)
        if first is not None:
            with defended(project, first, "the deployment of this folder"):
                found += _root(project, first, objects, builds, assume)
    return found


def _root(
    project: Project,
    path: str,
    objects: list[Node],
    builds: Builds,
    assume: Mapping[str, str],
) -> list[Root]:
    if not any(kind_of(node) in WORKLOADS for node in objects):
        return []
    declared = variables_for(project, path.rpartition("/")[0], assume).declared
    services: tuple[Service, ...] = ()
    with defended(project, path, "its manifests"):
        services = Cluster(
            project=project, objects=tuple(objects), builds=builds, assume=assume, declared=declared
        ).services()
    if not services:
        return []
    files = (path, *(node.file for node in objects))
    return [
        Root(
            root=path,
            kind=RootKind.KUBERNETES,
            services=services,
            files=tuple(dict.fromkeys(files)),
            declared=declared,
        )
    ]
