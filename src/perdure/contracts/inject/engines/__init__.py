"""Container engines as trials see them, and plain processes for where there is none."""

from perdure.contracts.inject.engines._api import (
    BINDS,
    BuildSpec,
    ContainerEngine,
    ContainerSpec,
    ContainerState,
    Executed,
    Feature,
    HostProcess,
    MountKind,
    MountSpec,
)
from perdure.contracts.inject.engines._cli import CliEngine
from perdure.contracts.inject.engines._processes import ProcessEngine

__all__ = [
    "BINDS",
    "BuildSpec",
    "CliEngine",
    "ContainerEngine",
    "ContainerSpec",
    "ContainerState",
    "Executed",
    "Feature",
    "HostProcess",
    "MountKind",
    "MountSpec",
    "ProcessEngine",
]
