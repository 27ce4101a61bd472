"""Files that deploy something in a format that is not read: they are named.

Nobody shall take a verdict on a Dockerfile for one on what is deployed.
"""

import re

from msgspec import Struct

from perdure.contracts import limits
from perdure.contracts._patterns import regex
from perdure.contracts.files import Project


class _Format(Struct, frozen=True):
    name: re.Pattern[str]
    has: re.Pattern[str]
    """What tells it from files of the same name."""
    what: str
    word: str = ""
    """What it holds besides, wherever."""


def _format(name: str, has: str, what: str, word: str = "") -> _Format:
    return _Format(regex(name), regex(has, re.MULTILINE), what, word)


_FORMATS = (
    _format(r"^app\.json$", r'"(formation|buildpacks|addons)"', "Heroku"),
    _format(r"^heroku\.ya?ml$", r"^(build|run|setup):", "Heroku"),
    _format(r"^app\.ya?ml$", r"^runtime:", "App Engine"),
    _format(r"^app\.ya?ml$", r"^(services|jobs|workers):", "App Platform", "github:"),
    _format(r"\.ya?ml$", r"^apiVersion: serving\.knative\.dev/", "Cloud Run (Knative)"),
    _format(r"(task|ecs|container)[\w.-]{0,60}\.json$", r'"containerDefinitions"', "ECS"),
    _format(r"\.(nomad|hcl)$", r"^job\s+\"", "Nomad"),
    _format(
        r"\.tf$",
        r"^resource\s+\"(google_cloud_run\w*|aws_ecs_task_definition|aws_apprunner_service"
        r"|azurerm_container_app|kubernetes_deployment\w*)\"",
        "Terraform",
    ),
    _format(r"\.bicep$", r"Microsoft\.App/containerApps", "Azure Container Apps"),
    _format(r"\.service$", r"^ExecStart=", "systemd"),
    _format(r"\.container$", r"^\[Container\]", "Podman (Quadlet)"),
    _format(r"^modal_\w+\.py$|^modal\.py$", r"^import modal\b|modal\.App\(", "Modal"),
)

_BESIDE = frozenset({"node_modules", ".github", "tests", "test", "docs", "examples", "templates"})


def name_unread(project: Project) -> None:
    """Remember files of platforms that are not read in `project.unread`, up to a number of them."""
    left = limits.PLATFORM_FILES_MAX
    for path in project.paths:
        *folders, name = path.split("/")
        likely = [each for each in _FORMATS if each.name.search(name)]
        if not likely or left <= 0 or _BESIDE & set(folders) or len(folders) > _DEPTH_MAX:
            continue
        text = (project.read(path) or "")[: limits.PLATFORM_CHARACTERS_MAX]
        found = next((each for each in likely if each.word in text and each.has.search(text)), None)
        if found is not None:
            left -= 1
            project.not_read(path, f"it deploys with {found.what}, which a check can't read yet")


_DEPTH_MAX = 5
"""Folders above a file that somebody deploys by hand or by a pipeline."""
