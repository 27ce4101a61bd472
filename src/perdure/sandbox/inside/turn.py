"""One turn: a process tree in namespaces of its own, from the fork to the last process's end.

Three processes. The *opener* leaves the host's namespaces, joins the cgroup, forks and is gone. The
*first* is process 1 of the sandbox: it builds the root, gives up its rights, starts the command,
reaps whatever loses its parent, reports how the command ended and what was still alive, and ends;
the kernel then kills all that is left. The *command* is what the turn is for.

Order of what is given up, each step needing the ones before: mounts, root, user namespace, groups
and ids, bounding set, capabilities, no_new_privs, Landlock, seccomp. Descriptors are closed first,
all but those named.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import traceback
from typing import Any, NoReturn

from . import landlock, root, seccomp, services
from . import syscalls as sys_

NAMESPACES = (
    sys_.CLONE_NEWNS
    | sys_.CLONE_NEWPID
    | sys_.CLONE_NEWNET
    | sys_.CLONE_NEWIPC
    | sys_.CLONE_NEWUTS
    | sys_.CLONE_NEWCGROUP
)

KEPT = (0, 1, 3, 4, 5, 6, 7)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID: what installing packages needs, over
the sandbox's own ids and nothing else."""
CAPABILITIES = 41
"""How many there are in all."""

_SET_FLAGS = 0x8914
_UP = 0x1
"""SIOCSIFFLAGS and IFF_UP."""

REPORT_BYTES_MAX = 60_000
SHORT = 50
"""Of what is too long: entries, and characters of each."""
LEFT_MAX = 64
"""Processes named that were alive at the end."""
CHUNK_BYTES = 1 << 16

OUTPUT_FD, ERRORS_FD, REPORT_FD, MAPPED_FD, LOCK_FD = 1, 2, 3, 4, 5


def open_turn(
    spec: dict[str, Any], descriptors: list[int], userns: int, filter_: bytes
) -> NoReturn:
    """Be the opener, in a fresh fork: start the first process, tell its pid, and end.

    Args:
        spec: see `launcher`.
        descriptors: standard input, output and errors, where to report, where to wait, and the
            lock of the sandbox, which the first process holds to its end.
        userns: user namespace to be in; 0: make one.
        filter_: for seccomp.
    """
    try:
        _arrange(descriptors, userns)
        userns = LOCK_FD + 1 if userns else 0
        _open(spec, userns, filter_)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the worker must hear of it
        _report({"failed": _told(error)})
    finally:
        os._exit(1)  # in no case may a fork go on as the launcher


def _arrange(descriptors: list[int], userns: int) -> None:
    """Put the descriptors at their numbers and close all others."""
    wanted = [*descriptors, userns] if userns else descriptors
    high = [os.dup2(fd, 100 + n, inheritable=False) for n, fd in enumerate(wanted)]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=number <= ERRORS_FD)
    os.closerange(len(wanted), 1 << 20)


def _open(spec: dict[str, Any], userns: int, filter_: bytes) -> None:
    for group in spec["cgroups"]:
        with open(group, "w") as procs:
            procs.write("0")
    sys_.unshare(NAMESPACES | (0 if userns else sys_.CLONE_NEWUSER))
    first = os.fork()
    if first == 0:
        _be_first(spec, userns, filter_)
    _report({"pid": first})
    os._exit(0)


def _be_first(spec: dict[str, Any], userns: int, filter_: bytes) -> NoReturn:
    try:
        if not os.read(MAPPED_FD, 1):  # until the launcher has written the maps
            os._exit(1)  # it died
        os.setsid()
        sys_.sethostname("sandbox")
        _raise_loopback()
        if spec["port"]:
            _open_way_out(spec["port"])
        root.enter(spec, userns)
        # Not before: a change of user clears it.
        _give_up(userns, spec)
        sessions = _start_services(spec, filter_)
        command = os.fork()
        if command == 0:
            _be_command(spec, filter_)
        os.close(0)
        status = _reap(command)
        left: list[list[Any]] = []
        # It was executed: whatever happens now, this is how it ended.
        with contextlib.suppress(OSError):
            left = _left(sessions)
        _report(status | {"left": left})
    except BaseException as error:  # noqa: BLE001  # as above
        _report({"failed": _told(error)})
    os._exit(0)


def _raise_loopback() -> None:
    """Bring the sandbox's own loopback up: servers and tests in it want one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.pack("16sH14x", b"lo", _UP)
        fcntl.ioctl(any_socket.fileno(), _SET_FLAGS, flags)


def _open_way_out(port: int) -> None:
    """Listen on the loopback, and hand the socket to the worker."""
    with socket.create_server(("127.0.0.1", port), backlog=128) as listening:
        channel = socket.socket(fileno=os.dup(REPORT_FD))
        socket.send_fds(channel, [b'{"listening": true}\n'], [listening.fileno()])
        channel.close()


def _told(error: BaseException) -> str:
    """Return what failed, and in which steps of the set-up."""
    steps = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {error} (in {' > '.join(steps[-3:])})"


def _report(message: dict[str, Any]) -> None:
    """Tell the launcher; what is too long for it is shortened, never cut."""
    line = json.dumps(message).encode()
    if len(line) > REPORT_BYTES_MAX:
        left = [[pid, text[:SHORT]] for pid, text in message.get("left", [])[:SHORT]]
        told = [[name, why[: SHORT * 4]] for name, why in message.get("services", [])]
        short = {key: str(each)[: SHORT * 4] for key, each in message.items() if key == "failed"}
        kept = {key: message[key] for key in ("pid", "code") if key in message}
        lists = {"left": left} if left else {"services": told} if told else {}
        line = json.dumps({**kept, **lists, **short}).encode()
    view = memoryview(line + b"\n")
    while view:
        view = view[os.write(REPORT_FD, view) :]


def _give_up(userns: int, spec: dict[str, Any]) -> None:
    """Become root of the sandbox and of nothing else."""
    known = landlock.version() if spec["landlock"] else 0
    for kind, value in spec["rlimits"].items():
        number = getattr(resource, f"RLIMIT_{kind}")
        resource.setrlimit(number, (value, value))
    if userns:
        sys_.setns(userns, sys_.CLONE_NEWUSER)
        os.close(userns)
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(CAPABILITIES):
        if capability not in KEPT:
            sys_.prctl(sys_.PR_CAPBSET_DROP, capability)
    sys_.set_capabilities(sum(1 << capability for capability in KEPT))
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(known)


def _start_services(spec: dict[str, Any], filter_: bytes) -> set[int]:
    """Start what the sandbox wants up, tell how that went, and return their sessions."""
    started = []
    for each in services.listed() if spec["act"] == "run" else []:
        pid = os.fork()
        if pid == 0:
            _be_service(spec, each, filter_)
        started.append((each, pid))
    told = []
    for each, pid in started:
        told.append([each["name"], services.wait_until_up(each, pid)])
    if told:
        _report({"services": told})
    return {pid for _each, pid in started}


def _be_service(spec: dict[str, Any], service: dict[str, Any], filter_: bytes) -> NoReturn:
    try:
        os.makedirs(services.LOGS, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        log = os.open(services.log_of(service["name"]), flags, 0o644)
        null = os.open("/dev/null", os.O_RDONLY)
        for number, fd in enumerate((null, log, log)):
            os.dup2(fd, number)
        env = {**spec["env"], **service["env"]}
        _be_command({**spec, "argv": service["argv"], "env": env, "cwd": service["cwd"]}, filter_)
    finally:
        os._exit(126)


def _be_command(spec: dict[str, Any], filter_: bytes) -> NoReturn:
    code = 126
    try:
        os.close(REPORT_FD)
        os.close(MAPPED_FD)
        os.close(LOCK_FD)
        os.setsid()
        os.umask(0o022)
        seccomp.install(filter_)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
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
        _pour(source, OUTPUT_FD)
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


def _reap(command: int) -> dict[str, Any]:
    """Wait for the command, reaping whatever loses its parent meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == command:
            return {"code": os.waitstatus_to_exitcode(status)}


def _left(sessions: set[int]) -> list[list[Any]]:
    """Return [pid, command line] of what is alive beside this process and the services."""
    left: list[list[Any]] = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != "1" and len(left) < LEFT_MAX:
            line = _command_line(name)
            if line and _session(int(name)) not in sessions:
                left.append([int(name), line])
    return left


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _command_line(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(200).rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
