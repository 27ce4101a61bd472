"""What a command does between the fork that made it and the program that it becomes.

It is a child of process 1, which is not dumpable, and neither is the child until it has become
another program: nothing of the sandbox can look into either, or at their descriptors.
"""

import contextlib
import json
import os
import signal
import socket
import stat
from typing import Any, NoReturn

from . import seccomp

CHUNK_BYTES = 1 << 16
ERRORS_FD = 2
SPARE_FD = 3
"""Where a spare hears what it is to become."""
DESCRIPTORS_MAX = 8


def be_spare(channel: int, filter_: bytes) -> NoReturn:
    """Be the next command, in a fresh fork of the first process: wait to be told which.

    Args:
        channel: where an order comes: a packet, with standard input, output and errors, a file
            with the command, and those to write to to be in groups.
        filter_: for seccomp.
    """
    try:
        os.dup2(channel, SPARE_FD, inheritable=False)
        os.closerange(SPARE_FD + 1, 1 << 20)
        _settle()
        seccomp.install(filter_)
        waiting = socket.socket(fileno=SPARE_FD)
        packet, descriptors, _flags, _address = socket.recv_fds(waiting, 64, DESCRIPTORS_MAX)
        if packet:
            streams, told, groups = descriptors[:3], descriptors[3], descriptors[4:]
            _perform_with(read_spec(told), streams, groups)
    finally:
        os._exit(126)


def be_program(  # as execve
    channel: int, filter_: bytes, program: str, argv: list[str], env: dict[str, str]
) -> NoReturn:
    """Be a program that waits, in a fresh fork of the first process: it hears orders at 3."""
    try:
        os.dup2(channel, SPARE_FD, inheritable=True)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)  # the sandbox's, not the host's
        for number in (0, 1, 2):
            os.dup2(null, number, inheritable=True)
        os.closerange(SPARE_FD + 1, 1 << 20)
        _settle()
        seccomp.install(filter_)
        environment = {os.fsencode(k): os.fsencode(v) for k, v in env.items()}
        os.execve(program, argv, environment)  # noqa: S606  # as it was asked for
    finally:
        os._exit(126)


def be_command(
    spec: dict[str, Any], streams: list[int], groups: list[int], filter_: bytes
) -> NoReturn:
    """Be a command that is known, in a fresh fork of the first process."""
    try:
        _settle()
        seccomp.install(filter_)
        _perform_with(spec, streams, groups)
    finally:
        os._exit(126)


def read_spec(told: int) -> dict[str, Any]:
    """Return the command that a file holds; the position in it stays."""
    spec: dict[str, Any] = json.loads(os.pread(told, os.fstat(told).st_size, 0))
    return spec


def _settle() -> None:
    """Be in a session of its own, and deaf to nothing that others are not."""
    os.setsid()
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (
        signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD,
    ):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)


def _perform_with(spec: dict[str, Any], streams: list[int], groups: list[int]) -> NoReturn:
    """Do what is asked with these streams and no other descriptor, in these groups."""
    code = 126
    try:
        for group in groups:
            os.write(group, b"0")
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(len(streams), 1 << 20)
        os.chdir(spec["cwd"])
        _perform(spec)
        code = 0
    except FileNotFoundError as error:
        code = 127
        _say(spec, error)
    except BaseException as error:  # noqa: BLE001  # what was asked for makes it: it is told
        _say(spec, error)
    finally:
        os._exit(code)


def _say(spec: dict[str, Any], error: BaseException) -> None:
    text = error.strerror if isinstance(error, OSError) else str(error)
    os.write(ERRORS_FD, f"{spec['argv'][0]}: {text}\n".encode("utf-8", "surrogateescape"))


def _perform(spec: dict[str, Any]) -> None:
    act, *arguments = spec["argv"]
    if spec["act"] == "read":
        source = os.open(act, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(source).st_mode):
            os.read(source, 0)  # says what it is, if it is a folder
            msg = "it is no file"
            raise ValueError(msg)
        _pour(source, 1)
    elif spec["act"] == "write":
        _write(act, int(arguments[0], 8))
    else:
        environment = {os.fsencode(k): os.fsencode(v) for k, v in spec["env"].items()}
        os.execvpe(act, [act, *arguments], environment)  # noqa: S606  # the command, as it was given


def _write(path: str, mode: int) -> None:
    """Replace a file by what comes in; others see the old one or the new one."""
    folder, _, name = path.rpartition("/")
    _make_folders(folder)
    beside = f"{folder or '.'}/.{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    target = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    os.fchmod(target, mode)
    _pour(0, target)
    os.close(target)
    os.rename(beside, path)


def _make_folders(path: str) -> None:
    """Make a folder and what is above it, one by one: a path may be longer than any stack."""
    made = "/" if path.startswith("/") else ""
    for part in filter(None, path.split("/")):
        made = f"{made}{part}/"
        try:
            os.mkdir(made, 0o755)
        except FileExistsError:
            continue


def _pour(source: int, target: int) -> None:
    while chunk := os.read(source, CHUNK_BYTES):
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
