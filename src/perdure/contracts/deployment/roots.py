"""Finds what is deployed: Compose projects, manifests, and Dockerfiles that nothing else uses."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts._defended import defended
from perdure.contracts._patterns import regex
from perdure.contracts.deployment._bare import bare_root, platform_root
from perdure.contracts.deployment._builds import Builds
from perdure.contracts.deployment._compose import is_named_compose, looks_like_compose
from perdure.contracts.deployment._compose_roots import compose_roots
from perdure.contracts.deployment._kubernetes_roots import kubernetes_roots
from perdure.contracts.deployment._platforms import platform_roots
from perdure.contracts.deployment._unread_platforms import name_unread
from perdure.contracts.deployment.facts import Root, Variable
from perdure.contracts.evidence import Confidence, Known
from perdure.contracts.files import Project

_DOCKERFILE = regex(
    r"^(dockerfile|containerfile)([._-].+)?$|^.+\.(dockerfile|containerfile)$", re.IGNORECASE
)
_NO_DEPLOYMENT = frozenset({".devcontainer", ".github", ".gitlab", "testdata", "fixtures"})


def read_roots(project: Project, *, assume: Mapping[str, str]) -> tuple[Root, ...]:
    """Return the deployment roots of a project, in the order of their main files.

    Args:
        project: The files; what can't be read is remembered there.
        assume: Values of variables that nothing in the project says, as `--assume` gives them.

    Returns:
        Compose projects (alternatives each for itself), manifests, files of platforms, and
        Dockerfiles that none of them builds; with none of these, what the LangGraph server is
        given (`langgraph.json`).
        Empty: nothing that deploys was found.
    """
    composes: list[str] = []
    yamls = _yaml_paths(project)
    for path in yamls:
        text = None if is_named_compose(path) else project.read(path)
        if is_named_compose(path) or (text is not None and looks_like_compose(text)):
            composes.append(path)
    builds = Builds(project, dockerfiles(project))
    roots = compose_roots(project, composes, builds, assume)
    others = [path for path in yamls if path not in set(composes)]
    roots += kubernetes_roots(project, others, builds, assume)
    roots = _without_side_roots(project, roots)
    roots += platform_roots(project, builds, assume)
    used = {service.image.dockerfile for root in roots for service in root.services}
    for path in dockerfiles(project):
        is_link = (project.folder / path).is_symlink()
        if path not in used and not is_link and not (used - {None} and _SIDE.search(path + ".")):
            root = None
            with defended(project, path, "this Dockerfile"):
                root = bare_root(project, path, assume)
            roots += [root] if root is not None else []
    name_unread(project)
    if not roots:
        roots = [platform_root(path) for path in project.paths if _is_platform(path)]
    ordered = sorted(roots, key=lambda root: (root.kind, root.root))[: limits.ROOTS_MAX]
    return tuple(_assumed(root, assume) for root in ordered)


def _assumed(root: Root, assume: Mapping[str, str]) -> Root:
    """Return a root whose services have what was said where a sample of a file says something.

    What `.env.example` declares is no part of what is deployed: who runs it knows better.
    """
    services = []
    for service in root.services:
        told = {
            name: Variable(name=name, known=Known(value=value, assumed=(f"{name}={value}",)))
            for name, value in assume.items()
            if (variable := service.environment.get(name)) is not None
            and variable.known.confidence is Confidence.DECLARED_DEFAULT
        }
        known = {**service.environment, **told}
        services.append(replace(service, environment=known) if told else service)
    return replace(root, services=tuple(services))


def _is_platform(path: str) -> bool:
    folders = path.split("/")
    return folders[-1] == "langgraph.json" and not _NO_DEPLOYMENT & set(folders)


def _without_side_roots(project: Project, roots: list[Root]) -> list[Root]:
    """Leave out Compose files for tests and development of what other files deploy.

    They are named in `project.unread`. A file for development stays if it alone builds something.
    """
    kept = [root for root in roots if not _SIDE.search(root.root.rpartition("/")[2])]
    deployed = {service.image.dockerfile for root in kept for service in root.services} - {None}
    found: list[Root] = []
    for root in roots:
        named = _SIDE.search(root.root.rpartition("/")[2])
        built = {service.image.dockerfile for service in root.services} - {None}
        is_test = named is not None and named.group(1).lower() in _TESTS
        if named is None or not deployed or not (is_test or built <= deployed):
            found.append(root)
        else:
            project.not_read(root.root, "it is for tests or development of what other files deploy")
    return found


_TESTS = frozenset({"test", "tests", "testing", "e2e", "ci", "integration", "bench", "smoke"})
_SIDE = regex(
    r"[-_.](test|tests|testing|e2e|ci|integration|bench|smoke|dev|devel|development|local|debug)[-_.]",
    re.IGNORECASE,
)


def dockerfiles(project: Project) -> list[str]:
    """Return the paths that have the name of a Dockerfile."""
    found = [
        path
        for path in project.paths
        if _DOCKERFILE.match(path.rpartition("/")[2])
        and not path.endswith((".dockerignore", ".md", ".sh", ".py", ".txt", ".j2", ".tmpl"))
        and not _NO_DEPLOYMENT & set(path.split("/"))
    ]
    return found[: limits.DOCKERFILES_MAX]


def _yaml_paths(project: Project) -> list[str]:
    found = [
        path
        for path in project.paths
        if path.lower().endswith((".yml", ".yaml"))
        and not _NO_DEPLOYMENT & set(path.split("/"))
        and not (project.folder / path).is_symlink()
    ]
    if len(found) > limits.YAML_FILES_MAX:
        project.not_read(".", f"only {limits.YAML_FILES_MAX} of {len(found)} YAML files were read")
        found.sort(key=lambda path: (not is_named_compose(path), path.count("/"), path))
    return found[: limits.YAML_FILES_MAX]
