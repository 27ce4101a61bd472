"""A program beside one command of the process engine: no descendant of the command gets away.

It makes itself the parent of all orphans below it (PR_SET_CHILD_SUBREAPER), so that a process that
emptied its environment, left its session and works elsewhere is still found below it. When the
command ends, it kills what is left and ends with the command's exit code, as shells count.

Started as a program, with the standard library only: `python -I -S _supervisor.py WANTED REPORT`.
WANTED is a descriptor of JSON with `argv`, `folder` and `environment`; one line of JSON goes to
REPORT: `{"pid": N}`, or `{"errno": N}` if the command can't be started. Each byte of its standard
input is a signal for the command, sent before it is reaped, so that its number is nobody else's.

`_supervisor.py beside FOLDER COUNT NAME=VALUE... WORD...` executes words beside the application,
with COUNT variables and our own input and output. It ends with their exit code when all below them
is killed; if it is killed itself, what it executes is, too.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36
PARENT = 1
"""Field of /proc/PID/stat after the name."""

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
STAT_BYTES = 4_096
"""More than such a file has."""

SIGNALS_MAX = 64
"""Signals that are read at once."""

COULD_NOT_START = 127
KILLED = 137


def main(wanted: int, report: int) -> int:
    """Start the command, forward signals to it, and return its exit code when nothing is left."""
    os.set_inheritable(report, False)  # noqa: FBT003  # the command says nothing in our name
    woken = _takes_orphans()
    with open(wanted, "rb") as file:
        said = json.load(file)
    command, error = _started(said)
    answer = {"errno": error} if error else {"pid": command}
    with open(report, "w", encoding="ascii") as file:
        file.write(json.dumps(answer) + "\n")
    if error:
        os.waitpid(command, 0)
        return COULD_NOT_START
    code = _supervised(command, woken, 0)
    _kill_the_rest()
    return code


def beside(folder: str, count: int, words: "list[str]") -> int:
    """Execute words as the application's neighbour, and return their exit code.

    What waits for them is in a session of its own: it outlives us, so that it can kill the rest.
    """
    alive, held = os.pipe2(os.O_CLOEXEC)
    guard = os.fork()
    if guard:
        os.close(alive)
        code = os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])
        return code if code >= 0 else 128 - code
    os.close(held)
    os.setsid()
    woken = _takes_orphans()
    environment = dict(word.split("=", 1) for word in words[:count])
    argv = words[count:]
    command, error = _started({"argv": argv, "folder": folder, "environment": environment}, None)
    if error:
        os.waitpid(command, 0)
        os.write(2, f"{argv[0]} can't be started: {os.strerror(error)}\n".encode())
        return COULD_NOT_START
    code = _supervised(command, woken, alive)
    _kill_the_rest()
    return code


def _takes_orphans() -> int:
    """Become the parent of all orphans below; return where it is said that a child has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return woken


def _started(said: "dict[str, object]", given: "str | None" = os.devnull) -> "tuple[int, int]":
    """Return the command's id, and 0 or why it could not be executed."""
    failed, fails = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            _become(said, given)
        except OSError as error:
            os.write(fails, str(error.errno or 1).encode())
        finally:
            os._exit(COULD_NOT_START)
    os.close(fails)
    why = os.read(failed, 32)
    os.close(failed)
    return child, int(why or b"0")


def _become(said: "dict[str, object]", given: "str | None") -> None:
    """Become the command; `given`: the file that is its input, `None`: ours."""
    os.setsid()
    if given is not None:
        os.dup2(os.open(given, os.O_RDONLY), 0)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    os.chdir(str(said["folder"]))
    argv, environment = said["argv"], said["environment"]
    os.execvpe(argv[0], argv, environment)  # type: ignore[index,arg-type]  # noqa: S606  # our own


def _supervised(command: int, woken: int, told: int) -> int:
    """Wait for the command, and reap what else ends; `told`: where its signals are read."""
    watched = [told, woken]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, SIGNALS_MAX)
        if told in ready:
            numbers = os.read(told, SIGNALS_MAX)
            if not numbers and told:
                return KILLED  # who waits for it was killed
            if not numbers:
                watched.remove(told)  # who started us is gone; the next start ends us
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.kill(command, number)
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == command:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if child == 0:
                break


def _kill_the_rest() -> None:
    """Kill all children until there are none: whom a dead one leaves is our child, too."""
    while True:
        for child in _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> "list[int]":
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208  # one name at a time
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                opened = os.open(f"/proc/{entry}/stat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fields = os.read(opened, STAT_BYTES).rpartition(b")")[2].split()
                finally:
                    os.close(opened)
                if int(fields[PARENT]) == os.getpid():
                    found.append(int(entry))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "beside":
        sys.exit(beside(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
