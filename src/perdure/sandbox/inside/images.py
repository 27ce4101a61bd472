"""Images of the processes of a tree, by CRIU: how it is called, on behalf of a launcher of root.

CRIU runs outside of the sandbox, with the host's view of processes and files. It is told that
every mount but /proc and its read-only folders, and the network namespace, come from outside: on
the way back they are those of a root that was built anew, by the same code as any other root. So an
image has processes with their memory and descriptors, and no files, mounts or settings of networks.

CRIU looks at what the kernel can do and keeps that in /run, if that is a file system in memory;
where it is not, each call would look anew (50 ms). `home` is a mount namespace in which it is one.
"""

import json
import os
import re
import signal
import stat
from typing import Any, NoReturn

from . import root
from . import syscalls as sys_

OUTSIDE = "outside.json"
"""File of the images that names what came from outside: mounts, network, pipes."""
PID_FILE = "pid"
LOG = "criu.log"
NETWORK = "network"

GHOST_BYTES_MAX = 64 << 20
"""Size of a file that has no name any more but is open: it is kept with the processes."""
COLLECT_S = 20
"""How long processes may take to be stopped."""
PROCESSES_MAX = 4_096
"""Processes of a tree that are looked at."""
SOCKETS_BYTES_MAX = 16 << 20
"""Bytes of the kernel's list of sockets that are read: more than 100,000 of them."""
_SOCKET = re.compile(rb"[0-9a-f]+:(?: +[0-9A-Fa-f]+){6}(?: (.*))?")
"""A line of that list; with a line end in a path there are lines that are none."""

_TMPFS = 0x01021994
_COMMON = (
    "--manage-cgroups=ignore",
    "--tcp-established",
    "--file-locks",
    "--verbosity=2",
    f"--log-file={LOG}",
    f"--ghost-limit={GHOST_BYTES_MAX}",
)
"""Groups are made anew, outside. Connections within the sandbox go on; one to the worker ends."""


class Unfit(Exception):
    """These processes can't be kept, or not be brought back: why."""


def home() -> int:
    """Return a mount namespace for CRIU; -1: this one will do."""
    if sys_.file_system_kind("/run") == _TMPFS:
        return -1
    ready, says = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            sys_.unshare(sys_.CLONE_NEWNS)
            sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
            sys_.mount(
                "tmpfs", "/run", "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=0700,size=1m"
            )
            os.write(says, b"r")
            signal.pause()
        finally:
            os._exit(1)
    os.close(says)
    try:
        if not os.read(ready, 1):
            return -1  # slower, not worse
        return os.open(f"/proc/{holder}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(ready)


# -- taking ----------------------------------------------------------------------------------------


def be_dump(program: str, pid: int, folder: str, at_home: int) -> NoReturn:
    """Be CRIU taking images of a tree, in a fresh fork.

    The processes are ended in the same moment, before they can write to files that are not those of
    the images any more. Where CRIU fails they go on as they were.

    Args:
        program: CRIU.
        pid: of process 1 of the tree, as this process sees it.
        folder: for the images, empty.
        at_home: see `home`; -1: here.
    """
    images = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        for each in descendants(pid):
            _check_names(each)
        _check_sockets(pid)
        outside = _outside(pid)
        _put(images, OUTSIDE, json.dumps(outside).encode())
        arguments = [program, "dump", f"--tree={pid}", *_COMMON]
        arguments += ["--network-lock=skip", f"--timeout={COLLECT_S}"]
        arguments += [f"--images-dir=/proc/self/fd/{images}"]
        arguments += [f"--external=net[{outside['network']}]:{NETWORK}"]
        for number, at in enumerate(outside["mounts"]):
            arguments.append(f"--external=mnt[{at}]:m{number}")
        _be(arguments, [images], at_home)
    except BaseException as error:  # noqa: BLE001  # told by the log, as all else that goes wrong
        _put(images, LOG, f"Error: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _outside(pid: int) -> dict[str, Any]:
    """Return what of a tree comes from outside of its processes."""
    mounts = []
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            at = line.split()[4]
            if _is_from_outside(at):
                mounts.append(_checked(at))
    return {
        "mounts": mounts,
        "network": os.stat(f"/proc/{pid}/ns/net").st_ino,
        "pipes": _half_pipes(descendants(pid)),
    }


def _check_names(pid: int) -> None:
    """Refuse a process that refers to a file or folder which has no name any more.

    Raises:
        Unfit: it does; files in the kernel's own memory are none.
    """
    memory = os.memfd_create("any")
    own = os.fstat(memory).st_dev
    os.close(memory)
    base = f"/proc/{pid}"
    paths = [f"{base}/{name}" for name in ("cwd", "root", "exe")]
    for folder in ("fd", "map_files"):
        paths += [f"{base}/{folder}/{name}" for name in _listed(f"{base}/{folder}")]
    for path in paths:
        try:
            name, seen = os.readlink(path), os.stat(path)
        except OSError:
            continue  # it was closed
        is_gone = seen.st_nlink == 0 or name.endswith(" (deleted)")
        if is_gone and seen.st_dev != own and (stat.S_ISREG(seen.st_mode) or name[0] == "/"):
            msg = f"process {pid} uses {name!r}, which has no name any more"
            raise Unfit(msg)


def _check_sockets(pid: int) -> None:
    """Refuse a socket whose path is gone, and leads through what is no folder now.

    CRIU binds such a socket to its path on the way back and makes the folders that it lacks, so
    that none may be where a link of the sandbox leads.

    Raises:
        Unfit: there is one, or one whose path can't be told.
    """
    here = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"/proc/{pid}/net/unix", "rb") as file:
            _titles, *lines = file.read(SOCKETS_BYTES_MAX).split(b"\n")
        for line in filter(None, lines):
            found = _SOCKET.fullmatch(line)
            if found is None:
                msg = "a socket is bound to a path that can't be told"
                raise Unfit(msg)
            path = os.fsdecode(found[1] or b"")
            if path.startswith("/") and not _is_bound_well(here, path):
                msg = f"a socket was bound at {path!r}, which is gone and leads through a link now"
                raise Unfit(msg)
    finally:
        os.close(here)


def _is_bound_well(here: int, path: str) -> bool:
    """Return whether there is a socket at a path, or nothing, below folders that are no links."""
    flags = os.O_PATH | os.O_NOFOLLOW
    try:
        found = sys_.open_in_root(here, path, flags)
    except OSError:
        found = -1
    if found >= 0:
        is_there = stat.S_ISSOCK(os.fstat(found).st_mode)
        os.close(found)
        if is_there:
            return True
    try:
        parent = os.path.dirname(path).strip("/") or "."
        os.close(sys_.open_beneath(here, parent, flags | os.O_DIRECTORY))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a part of it is a link, or no folder
    return True


def _is_from_outside(at: str) -> bool:
    """Return whether a mount is one that is given on the way back: not /proc, nor terminals."""
    own = {"/", "/proc", "/dev/pts", *(f"/proc/{name}" for name in root.CLOSED)}
    return at not in own


def _checked(at: str) -> str:
    if any(each in at for each in "[]:\\"):
        msg = f"what is shown at {at!r} has a character in its path that CRIU can't be told"
        raise Unfit(msg)
    return at


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started and that they started.

    Raises:
        Unfit: there are more than `PROCESSES_MAX`.
    """
    found = [pid]
    for each in found:
        if len(found) > PROCESSES_MAX:
            msg = f"there are more than {PROCESSES_MAX} processes"
            raise Unfit(msg)
        for task in _listed(f"/proc/{each}/task"):
            try:
                with open(f"/proc/{each}/task/{task}/children") as file:
                    found += map(int, file.read().split())
            except OSError:
                continue  # it ended
    return found


def _half_pipes(pids: list[int]) -> list[tuple[str, str]]:
    """Return the pipes of which the processes have one end only: which.

    The other is the worker's, which reads what commands print, or what they were given.
    """
    ends: dict[str, set[str]] = {}
    for pid in pids:
        for fd in _listed(f"/proc/{pid}/fd"):
            try:
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
                mode = os.lstat(f"/proc/{pid}/fd/{fd}").st_mode
            except OSError:
                continue
            if name.startswith("pipe:["):
                kept = ends.setdefault(name, set())
                kept |= {"w"} if mode & stat.S_IWUSR else set()
                kept |= {"r"} if mode & stat.S_IRUSR else set()
    return [(name, kept.pop()) for name, kept in ends.items() if len(kept) == 1]


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


# -- bringing back ---------------------------------------------------------------------------------


def restore(program: str, images: int, new_root: str, work: str) -> tuple[int, int]:
    """Bring the processes of images back on a new root, as children of this process.

    Called in the mount and network namespaces that they are to see, in the group that they are to
    be in; namespaces of processes, IPC and host name are made by CRIU.

    Args:
        program: CRIU.
        images: descriptor of the folder.
        new_root: built by `root.build`.
        work: empty folder; what CRIU writes is put there, so that images stay as they are sealed.

    Returns:
        The pid of their process 1, and where what they print to pipes that led outside comes out:
        to be read, or they stop. Pipes that led in from outside are at their end.

    Raises:
        Unfit: it can't be done; says why. None of them is alive.
    """
    outside = json.loads(_get(images, OUTSIDE))
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    printed, prints = os.pipe()
    given, gives = os.pipe()
    os.close(gives)
    inherited = [(network, NETWORK)]
    # A copy for each: CRIU closes what it has taken.
    inherited += [(os.dup(prints if end == "w" else given), f"{p}") for p, end in outside["pipes"]]
    os.close(prints)
    os.close(given)
    arguments = [program, "restore", "--restore-detached", "--restore-sibling", *_COMMON]
    arguments += [f"--images-dir=/proc/self/fd/{images}", f"--root={new_root}"]
    arguments += [f"--pidfile={PID_FILE}", f"--work-dir={work}"]
    arguments += [f"--inherit-fd=fd[{fd}]:{name}" for fd, name in inherited]
    for number, at in enumerate(outside["mounts"]):
        arguments.append(f"--external=mnt[m{number}]:{_source(new_root, at)}")
    child = os.fork()
    if child == 0:
        try:
            sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
            _be(arguments, [images, *(fd for fd, _name in inherited)], -1)
        finally:
            os._exit(1)
    _pid, status = os.waitpid(child, 0)
    for fd, _name in inherited:
        os.close(fd)
    written = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if status != 0:
            os.close(printed)
            raise Unfit(why(written))
        return int(_get(written, PID_FILE)), printed
    finally:
        os.close(written)


def _source(new_root: str, at: str) -> str:
    """Return what a mount is a copy of: what hides a file of /proc is the null device."""
    return f"{new_root}/dev/null" if at.startswith("/proc/") else f"{new_root}{at}"


def why(folder: int) -> str:
    """Return the errors of the log that CRIU left in a folder, for people."""
    try:
        text = _get(folder, LOG).decode("utf-8", "replace")
    except OSError as error:
        return f"it left no log: {error.strerror}"
    said = [line.partition("Error")[2] for line in text.splitlines() if "Error" in line]
    # It is said every time where CAP_SYS_RESOURCE is missing, and does no harm.
    told = [line.lstrip(": ") for line in said if "RLIMIT_NOFILE for self" not in line]
    return "; ".join(told[:3])[:500] or "it said nothing"


def differences(pid: int, uid: int) -> str:
    """Return what rights a tree's processes have that they must not have; empty: none.

    Asked of what was brought back: user, capabilities, no_new_privs and the filter are parts of the
    images, and this is where it is seen that they were.
    """
    try:
        pids = descendants(pid)
    except Unfit as unfit:
        return str(unfit)
    wanted = {
        "Uid": [str(uid)] * 4, "Gid": [str(uid)] * 4, "NoNewPrivs": ["1"], "Seccomp": ["2"],
        **{key: ["0" * 16] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
    }  # fmt: skip
    for each in pids:
        try:
            with open(f"/proc/{each}/status", encoding="utf-8", errors="replace") as file:
                lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except OSError:
            continue  # it has ended
        if lines.get("State", "").startswith(("Z", "X")):
            continue
        for key, value in wanted.items():
            if lines.get(key, "").split() != value:
                return f"process {each} has {key} {lines.get(key)!r} instead of {' '.join(value)}"
    return ""


# -- both ------------------------------------------------------------------------------------------


def _be(arguments: list[str], kept: list[int], at_home: int) -> NoReturn:
    """Be CRIU, deaf to no signal: it ends processes of its own by them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signal_ in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(signal_, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for fd in kept:
        os.set_inheritable(fd, True)  # noqa: FBT003  # the standard library's signature
    if at_home >= 0:
        sys_.setns(at_home, sys_.CLONE_NEWNS)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    os.execve(arguments[0], arguments, environment)  # noqa: S606  # a program that the worker named


def _get(folder: int, name: str) -> bytes:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    with open(source, "rb") as file:
        return file.read()


def _put(folder: int, name: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
