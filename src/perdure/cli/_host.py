"""What `doctor --host` shows: what this host can isolate, tried rather than guessed."""

import os
import tempfile
from typing import Any

from perdure.cli._options import await_
from perdure.cli._output import print_json, say
from perdure.errors import PerdureError
from perdure.sandbox import Capabilities, IsolatedSandboxes

CRIU_VARIABLE = "PERDURE_CRIU"
UNABLE = 1
"""Exit code where nothing can be isolated."""


def show_host(*, as_json: bool) -> int:
    """Try an isolated sandbox in a folder that is removed, and say what it is made of."""
    with tempfile.TemporaryDirectory(prefix="perdure-doctor-") as folder:
        found, reason = await_(_tried(folder))
        unkept = await_(_tried_images(f"{folder}/kept")) if found else reason
    if as_json:
        print_json({"host": _as_json(found, reason, unkept)})
    else:
        for line in _lines(found, reason, unkept):
            say(line)
    return UNABLE if found is None else 0


async def _tried(folder: str) -> tuple[Capabilities | None, str]:
    try:
        backend = IsolatedSandboxes(folder)
    except PerdureError as error:
        return None, str(error)
    try:
        return await backend.capabilities(), ""
    except PerdureError as error:
        return None, str(error)
    finally:
        backend.close()


async def _tried_images(folder: str) -> str:
    """Return why processes can't be kept in snapshots here; empty: one was."""
    program = os.environ.get(CRIU_VARIABLE)
    if not program:
        return f"no CRIU is named: make criu, then {CRIU_VARIABLE}=.criu/criu"
    try:
        backend = IsolatedSandboxes(folder, criu=program)
    except PerdureError as error:
        return str(error)
    try:
        sandbox = backend.open("perdure", "probe")
        await sandbox.run("sleep 600 &")
        await sandbox.take()
        return "; ".join((await sandbox.run("true")).lost)
    except PerdureError as error:
        return str(error)
    finally:
        backend.close()


def _as_json(found: Capabilities | None, reason: str, unkept: str) -> dict[str, Any]:
    return {
        "can_isolate": found is not None,
        "driver": None if found is None else found.driver,
        "landlock": 0 if found is None else found.landlock,
        "cgroups": 0 if found is None else found.cgroups,
        "kernel": None if found is None else found.kernel,
        "reason": reason or None,
        "keeps_processes": not unkept,
        "keeps_no_processes_because": unkept or None,
    }


def _lines(found: Capabilities | None, reason: str, unkept: str) -> list[str]:
    if found is None:
        return [
            f"isolated sandboxes: no. {reason}",
            "for tools that you trust there is DirectorySandboxes, which isolates nothing",
        ]
    ids = (
        "each tenant has user ids of its own"
        if found.driver == "ns"
        else "all have the user of this process"
    )
    limited = "memory, processes and processor time of a command"
    return [
        f"isolated sandboxes: yes, driver {found.driver} ({ids}), kernel {found.kernel}",
        f"landlock: {f'version {found.landlock}' if found.landlock else 'no'}",
        f"limits: {limited}, by control groups version {found.cgroups}"
        if found.cgroups
        else "limits: memory of each process and processes of the user; no control groups here",
        f"processes in snapshots: no. {unkept}" if unkept else "processes in snapshots: yes",
    ]
