"""What is the same for every platform: images of the project, declared values."""

from collections.abc import Mapping

from perdure.contracts.deployment._builds import context_of
from perdure.contracts.deployment._dockerfile import read_dockerfile
from perdure.contracts.deployment._stages import Built, build, served_stage
from perdure.contracts.deployment._starting import catalog_of
from perdure.contracts.deployment._variables import Variables, read_sample, samples_near
from perdure.contracts.deployment.facts import Image
from perdure.contracts.evidence import Known
from perdure.contracts.files import Project


def named_build(
    project: Project, path: str, target: str | None, assume: Mapping[str, str]
) -> tuple[Built | None, Image | None]:
    """Return the image of a Dockerfile alone; `None`: it can't be read."""
    dockerfile = read_dockerfile(project, path)
    if dockerfile is None:
        return None, None
    context = context_of(project, dockerfile)
    target = target or served_stage(dockerfile)
    built = build(project, dockerfile, context=context, target=target, arguments={}, assume=assume)
    if built is None:
        return None, None
    return built, image_of(built, path, context)


def image_of(built: Built, path: str, context: str) -> Image:
    """Return the image that is built of the Dockerfile at `path`."""
    return Image(
        reference=built.base,
        dockerfile=path,
        context=context,
        stage=built.stage,
        evidence=built.evidence,
        catalog=catalog_of(built, None),
    )


def samples_of(project: Project, path: str) -> list[str]:
    """Return the samples of an environment file: its own, else those beside it."""
    folder = path.rpartition("/")[0]
    own = [f"{path}.{end}" for end in ("example", "sample", "template", "dist")]
    present = [name for name in own if name in project.names]
    return present or samples_near(project, folder)


def variables_for(project: Project, folder: str, assume: Mapping[str, str]) -> Variables:
    """Return where a composition's variables come from."""
    declared: dict[str, Known[str]] = {}
    for sample in reversed(samples_near(project, folder)):
        declared |= read_sample(project, sample)
    return Variables(assume=assume, declared=declared)
