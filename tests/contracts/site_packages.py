"""Installs what the specimens import, once for each Python, beside the own environment."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(__file__).parent / "specimens" / "packages.txt"
INSTALL_S = 600
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


class NotInstalled(Exception):
    """The packages can't be had; the text is what pip said."""


def site(packages: Path = PACKAGES, python: str | None = None) -> Path:
    """Return a folder for PYTHONPATH with `packages` in it, installed if need be.

    `python`: the version that will use it, as "3.11"; `None`: this one. Several processes may ask
    at once: one installs, the others wait for it.
    """
    version = python or OWN
    mark = hashlib.sha256(packages.read_bytes()).hexdigest()[:12]
    folder = ROOT / ".engines" / f"{packages.stem}-{version}-{mark}"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder, packages, version)
    return folder


def _install(folder: Path, packages: Path, version: str) -> None:
    making = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--target", making, "--requirement", packages),
    ]
    if version != OWN:  # only wheels can be installed for a Python that is not here
        command += ["--python-version", version, "--only-binary", ":all:"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        shutil.rmtree(making, ignore_errors=True)
        raise NotInstalled(done.stderr[-2_000:])
    making.rename(folder)
