"""What the figures were measured on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import apsw


def describe(folder: Path) -> dict[str, Any]:
    """Return machine and versions; `folder` is where the databases are."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": metadata.version("apsw"),
    }


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a fresh interpreter: it keeps its bytecode, in the folder."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def load() -> float:
    """Return how many processes wanted to run, in the mean over the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system: on tmpfs a flush costs nothing, so no figure counts."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
