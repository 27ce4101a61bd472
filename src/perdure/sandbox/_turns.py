"""What a turn may use, how it ended, and what can't be a turn."""

import os
import signal
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perdure.errors import SettingInvalid, UsageError
from perdure.model.sandbox import Ran, ServiceState
from perdure.sandbox._cgroups import Group
from perdure.sandbox._launching import Ended
from perdure.sandbox.limits import (
    COMMAND_BYTES_MAX,
    CORES_MAX,
    CORES_MIN,
    DEADLINE_S,
    DEADLINE_S_MAX,
    DEADLINE_S_MIN,
    FILE_BYTES_MAX,
    FILES_OPEN_MAX,
    GIVEN_BYTES_MAX,
    MEMORY_BYTES,
    MEMORY_BYTES_MIN,
    MEMORY_LOCKED_BYTES_MAX,
    NUMBER_MAX,
    OUTPUT_BYTES_MAX,
    PROCESSES_MAX,
    PROCESSES_MIN,
)

HOME = "/workspace"
"""Where commands begin, and their home: a folder that is nothing else to any program."""


_RANGES: dict[str, tuple[float, float]] = {
    "memory_bytes": (MEMORY_BYTES_MIN, NUMBER_MAX),
    "processes": (PROCESSES_MIN, NUMBER_MAX),
    "cores": (CORES_MIN, CORES_MAX),
    "file_bytes": (0, NUMBER_MAX),
    "output_bytes": (0, GIVEN_BYTES_MAX),
    "deadline_s": (DEADLINE_S_MIN, DEADLINE_S_MAX),
}
_UNDONE = "nothing was executed"


class Limits(Struct, frozen=True, kw_only=True):
    """What one turn may use.

    Attributes:
        memory_bytes: memory of all its processes, where control groups are there.
        processes: processes and OS threads, where control groups are there.
        cores: processor time per second, where control groups are there.
        file_bytes: size of one file.
        output_bytes: how much of the output is kept, and as much of the errors.
        deadline_s: seconds until it is killed.
    """

    memory_bytes: int = MEMORY_BYTES
    processes: int = PROCESSES_MAX
    cores: float = 2.0
    file_bytes: int = FILE_BYTES_MAX
    output_bytes: int = OUTPUT_BYTES_MAX
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        """Refuse what no command could be executed with.

        Raises:
            SettingInvalid: a limit is out of its range, or no number; says which.
        """
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_whole = name not in {"cores", "deadline_s"}
            if not is_number or (is_whole and not isinstance(value, int)):
                msg = f"{name}={value!r} is no {'whole ' if is_whole else ''}number; {_UNDONE}"
                raise SettingInvalid(msg)
            if not least <= value <= most:
                msg = f"{name}={value!r} is out of its range, {least} to {most}; {_UNDONE}"
                raise SettingInvalid(msg)


class Capabilities(Struct, frozen=True, kw_only=True):
    """What the isolation of this host is made of.

    Attributes:
        driver: `ns` (by root; each tenant has user ids of its own) or `userns` (by any user).
        landlock: version of the kernel's Landlock; 0: none.
        cgroups: version of the control groups that limit a turn; 0: none: memory is limited for
            each process alone, processor time not at all.
        kernel: its release.
        criu: version of what takes images of processes; empty: nothing does.
    """

    driver: str
    landlock: int
    cgroups: int
    kernel: str
    criu: str = ""


def refused(why: str) -> UsageError:
    """Return the error of a sandbox that could not be built: by the host, or by its own files."""
    if "Replaced" in why:
        msg = (
            f"the sandbox can't be entered: {why}; nothing was executed, its files are as they "
            "were. Go back to an earlier snapshot: sandbox.restore(snapshot)"
        )
    else:
        msg = (
            f"the sandbox can't be built on this host: {why}; nothing was executed. It needs "
            "namespaces and overlayfs: as root, or as a user who may make user namespaces."
        )
    return UsageError(msg)


def rlimits(limits: Limits, group: Group) -> dict[str, int]:
    """Return what the kernel limits by process, and by user where there is no group for that."""
    instead = {"DATA": limits.memory_bytes, "NPROC": limits.processes}
    return {
        "FSIZE": limits.file_bytes,
        "NOFILE": FILES_OPEN_MAX,
        "CORE": 0,
        "MEMLOCK": MEMORY_LOCKED_BYTES_MAX,
        **({} if group.folders else instead),
    }


def check(argv: Sequence[str], env: Mapping[str, str], given: bytes) -> None:
    """Refuse what a kernel would cut short or misread."""
    texts = [*argv, *env, *env.values()]
    what = ""
    if any(not _is_encodable(text) for text in texts):
        msg = "arguments and variables must be text that can be encoded; nothing was executed"
        raise UsageError(msg)
    if not argv or not argv[0]:
        what = "a command needs a program"
    elif any("\0" in text for text in texts):
        what = "arguments and variables can't hold a zero byte"
    elif any("=" in name for name in env):
        what = "the name of a variable can't hold '='"
    elif sum(len(os.fsencode(text)) for text in texts) > COMMAND_BYTES_MAX:
        what = f"a command may have {COMMAND_BYTES_MAX} bytes with its variables: use a file"
    elif len(given) > GIVEN_BYTES_MAX:
        what = f"at most {GIVEN_BYTES_MAX} bytes can be given at once"
    if what:
        msg = f"{what}; nothing was executed"
        raise UsageError(msg)


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def text_of(raw: bytes) -> str:
    """Return what was printed, as text."""
    return raw.decode("utf-8", "replace")


def as_ran(ended: Ended, *, is_out_of_memory: bool, lost: tuple[str, ...]) -> Ran:
    """Return how a command ended, for people."""
    code = ended.code
    if code is None:
        code = 128 + signal.SIGKILL
    elif code < 0:
        code = 128 - code
    kept = len(ended.output) + len(ended.errors)
    return Ran(
        code=code,
        output=text_of(ended.output),
        errors=text_of(ended.errors),
        is_cut=ended.output_bytes + ended.errors_bytes > kept,
        killed_by=ended.cause or ("memory" if is_out_of_memory else ""),
        left=tuple(line for _pid, line in ended.left),
        lost=lost,
        contacts=ended.contacts,
        services=tuple(ServiceState(name=name, reason=why) for name, why in ended.services),
    )
