"""Projects of a few files, read as deployments."""

from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project

SLIM = "FROM python:3.12-slim\nWORKDIR /app\nCOPY . .\n"


def project(folder, files):
    """Write files below a folder and return it as a project."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Project(folder)


def roots(folder, files, **assume):
    """Return the deployment roots that files make, by their main files."""
    return {root.root: root for root in read_roots(project(folder, files), assume=assume)}


def services(folder, files, **assume):
    """Return the services of the only root, by name."""
    (root,) = roots(folder, files, **assume).values()
    return {service.name: service for service in root.services}


def service(folder, files, **assume):
    """Return the only service of the only root."""
    (found,) = services(folder, files, **assume).values()
    return found


def image(folder, lines, **files):
    """Return the service of a Dockerfile on a slim Python image."""
    named = {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()}
    return service(folder, {"Dockerfile": SLIM + lines, **named})
