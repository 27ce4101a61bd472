"""Proves a contract of the service of a folder: what `perdure inject` and `check --prove` call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.clock import Services
from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract
from perdure.contracts.inject._outcome import Event
from perdure.contracts.inject._transcript import Progress
from perdure.contracts.inject.engines import CliEngine, ContainerEngine, ProcessEngine
from perdure.contracts.inject.probes import Probe
from perdure.contracts.inject.prove import Asked, Proof, chosen, prove
from perdure.contracts.inject.settings import FILE, Settings, read_settings
from perdure.errors import SettingInvalid, TrialImpossible

ENGINES = ("docker", "podman", "process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be proved of a folder.

    Attributes:
        folder: the project, with its deployment files and perhaps a `perdure.inject.toml`.
        contract: which contract.
        service: which service; `None`: the file says so, or only one is built here.
        root: which deployment root, by its main file; `None`: the first that has the service.
        repetitions: how often; a verdict needs three that are valid.
        seed: names threads and operations.
        assume: values of variables that no file says.
        output: where transcripts go; made if need be.
        probe: an own object that talks to the application; `None`: what the file names.
        event: what is done; `None`: what the contract is usually proved by.
    """

    folder: Path
    contract: Contract
    output: Path
    service: str | None = None
    root: str | None = None
    repetitions: int = 5
    seed: int = 0
    assume: Mapping[str, str] = field(default_factory=dict)
    probe: Probe | None = None
    event: Event | None = None


def engine_named(name: str, services: Services) -> ContainerEngine:
    """Return the engine of this name; nothing is asked of it yet.

    Raises:
        SettingInvalid: there is no such engine.
    """
    if name not in ENGINES:
        msg = f"there is no engine {name!r}; there are {', '.join(ENGINES)}"
        raise SettingInvalid(msg, engine=name)
    return ProcessEngine(services.clock) if name == "process" else CliEngine(name)


async def prove_folder(
    wanted: Wanted, engine: ContainerEngine, services: Services, progress: Progress | None = None
) -> Proof:
    """Read a folder's deployment and break its service as the contract says.

    Cancel-safe, as `prove` is.

    Raises:
        EngineMissing: the engine does not answer; nothing was started.
        EngineFailed: the engine refused something before the first repetition.
        TrialImpossible: the folder or the deployment lacks what the trial needs.
        SettingInvalid: `perdure.inject.toml`, or the number of repetitions.
    """
    if not wanted.folder.is_dir():
        msg = f"{str(wanted.folder)!r} is no folder; nothing was started"
        raise TrialImpossible(msg)
    project = Project(wanted.folder)
    text = project.read(FILE)
    settings = read_settings(text) if text is not None else Settings()
    roots = read_roots(project, assume=dict(wanted.assume))
    root, service = chosen(roots, settings, root=wanted.root, service=wanted.service)
    asked = Asked(
        folder=project.folder,
        root=root,
        service=service,
        contract=wanted.contract,
        settings=settings,
        output=wanted.output,
        repetitions=wanted.repetitions,
        seed=wanted.seed,
        probe=wanted.probe,
        event=wanted.event,
    )
    return await prove(asked, engine, services, progress)
