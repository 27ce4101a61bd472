"""Compose projects as deployment roots."""

from collections.abc import Iterable, Iterator, Mapping

from perdure.contracts._defended import defended
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._compose import Composition, Compositions
from perdure.contracts.deployment._deployed import variables_for
from perdure.contracts.deployment._services import ComposeService
from perdure.contracts.deployment._variables import Variables
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind


def compose_roots(
    project: Project, paths: Iterable[str], builds: Builds, assume: Mapping[str, str]
) -> list[Root]:
    """Return a root for each Compose project that the files make; `builds` learns from them."""
    found = [
        (composition, variables_for(project, composition.folder, assume))
        for composition in Compositions(project).all(paths)
    ]
    read = [_services(project, composition, variables, builds) for composition, variables in found]
    for (composition, _variables), services in zip(found, read, strict=True):
        for service in services:
            with defended(project, composition.main, f"the image of service {service.name!r}"):
                service.teach()
    return [
        Root(
            root=composition.main,
            kind=RootKind.COMPOSE,
            services=tuple(_read(project, composition, services)),
            files=composition.files,
            declared=variables.declared,
        )
        for (composition, variables), services in zip(found, read, strict=True)
    ]


def _read(
    project: Project, composition: Composition, services: list[ComposeService]
) -> Iterator[Service]:
    for service in services:
        with defended(project, composition.main, f"service {service.name!r}"):
            yield service.read()


def _services(
    project: Project, composition: Composition, variables: Variables, builds: Builds
) -> list[ComposeService]:
    return [
        ComposeService(
            project=project,
            composition=composition,
            name=name,
            node=node,
            variables=variables,
            builds=builds,
        )
        for name, node in composition.services.items()
    ]
