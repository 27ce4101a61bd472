"""A process tree in namespaces of its own, from the fork until it may be told what to execute.

Three kinds of processes. The *opener* leaves the host's namespaces, joins the cgroup, forks and is
gone. The *first* is process 1 of the sandbox: it builds the root, gives up its rights, and then
waits for what it is to start, see `first`; when it ends, the kernel kills all that is left. The
*commands* are what the tree is for. A tree that waits executes nothing and has no lock. A tree of
which images are taken has another process 1, see `keeping`.

Order of what is given up, each step needing the ones before: mounts, root, user namespace, groups
and ids, bounding set, capabilities, no_new_privs, Landlock; by each command, seccomp. Descriptors
are closed first, all but those named.
"""

import fcntl
import json
import os
import resource
import signal
import socket
import struct
from typing import Any, NoReturn

from . import keeping, landlock, root
from . import syscalls as sys_
from .first import First
from .reports import LOCK_FD, MAPPED_FD, REPORT_FD, report, told

BEFOREHAND = sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
"""Namespaces that a tree can have before it is known what it is for."""

_AT_LAST = sys_.CLONE_NEWNS | sys_.CLONE_NEWCGROUP
"""Those that show what is there when they are made."""

NAMESPACES = BEFOREHAND | _AT_LAST

KEPT = (0, 1, 3, 4, 5, 6, 7)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID: what installing packages needs, over
the sandbox's own ids and nothing else."""
CAPABILITIES = 41
"""How many there are in all."""

_SET_FLAGS = 0x8914
_UP = 0x1
"""SIOCSIFFLAGS and IFF_UP."""


def open_tree(
    spec: dict[str, Any],
    descriptors: list[int],
    userns: int,
    filter_: bytes,
    at_home: int = -1,
) -> NoReturn:
    """Be the opener, in a fresh fork: start the first process, tell its pid, and end.

    Args:
        spec: see `launcher`.
        descriptors: where to report, where to wait, and the lock of the sandbox, held while the
            root is built.
        userns: user namespace to be in; 0: make one.
        filter_: for seccomp.
        at_home: mount namespace to come from, see `images.home`; -1: this one.
    """
    try:
        if at_home >= 0:
            sys_.setns(at_home, sys_.CLONE_NEWNS)
        _arrange(descriptors, userns)
        userns = LOCK_FD + 1 if userns else 0
        _open(spec, userns, filter_)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the worker must hear of it
        report({"failed": told(error)})
    finally:
        os._exit(1)  # in no case may a fork go on as the launcher


def open_spare(spec: dict[str, Any], descriptors: list[int], filter_: bytes) -> NoReturn:
    """Be the opener of a tree of which only groups are known, in a fresh fork, and end.

    The first process waits with what takes long and depends on nothing else: joining a control
    group waits for every processor of the host. It executes nothing, sees the host's mounts as they
    are until it is told what its root is made of, and ends when the launcher does.

    Args:
        spec: `cgroups`, `is_rootless`: whether the tree makes its own user namespace.
        descriptors: where to report and to be told, where to wait.
        filter_: for seccomp.
    """
    try:
        _arrange([*descriptors, os.open("/dev/null", os.O_RDONLY)], 0)
        _join(spec["cgroups"])
        sys_.unshare(BEFOREHAND | (sys_.CLONE_NEWUSER if spec["is_rootless"] else 0))
        first = os.fork()
        if first == 0:
            _be_first_told(filter_)
        report({"pid": first})
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # as below
        report({"failed": told(error)})
    finally:
        os._exit(1)


def _arrange(descriptors: list[int], userns: int) -> None:
    """Put the descriptors at their numbers, after three of /dev/null, and close all others."""
    null = os.open("/dev/null", os.O_RDWR)
    wanted = [null, null, null, *descriptors, *([userns] if userns else [])]
    # Each to a number that nothing has: the launcher may have hundreds open.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(wanted)) for fd in wanted]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=False)
    os.closerange(len(wanted), 1 << 20)


def _open(spec: dict[str, Any], userns: int, filter_: bytes) -> None:
    _join(spec["cgroups"])
    own = keeping.NAMESPACES if "criu" in spec else NAMESPACES
    sys_.unshare(own | (0 if userns else sys_.CLONE_NEWUSER))
    first = os.fork()
    if first == 0:
        _be_first(spec, userns, filter_)
    report({"pid": first})
    os._exit(0)


def _join(groups: list[str]) -> None:
    for group in groups:
        with open(group, "w") as procs:
            procs.write("0")


def _settle() -> None:
    """Have what needs no more than the namespaces, once the launcher has written the maps."""
    if not os.read(MAPPED_FD, 1):
        os._exit(1)  # it died
    os.close(MAPPED_FD)
    os.setsid()
    sys_.sethostname("sandbox")
    _raise_loopback()


def _be_first_told(filter_: bytes) -> NoReturn:
    """Be the first process, and wait to be told of what: of a file, the lock, a user namespace."""
    try:
        _settle()
        channel = socket.socket(fileno=REPORT_FD)
        packet, handed, _flags, _address = socket.recv_fds(channel, 64, 3)
        channel.detach()
        if not packet:
            os._exit(1)  # the launcher died, or wants none
        spec_file, lock, *userns = handed
        os.dup2(lock, LOCK_FD, inheritable=False)
        with open(spec_file, "rb") as file:
            spec = json.loads(file.read())
        os.close(lock)
        sys_.unshare(_AT_LAST)
        _be_root_of(spec, userns[0] if userns else 0, filter_)
    except BaseException as error:  # noqa: BLE001  # as above
        report({"failed": told(error)})
    os._exit(0)


def _be_first(spec: dict[str, Any], userns: int, filter_: bytes) -> NoReturn:
    try:
        _settle()
        _be_root_of(spec, userns, filter_)
    except BaseException as error:  # noqa: BLE001  # as above
        report({"failed": told(error)})
    os._exit(0)


def _be_root_of(spec: dict[str, Any], userns: int, filter_: bytes) -> None:
    """Build the root, give up what is not needed any more, and serve."""
    if spec["port"]:
        _open_way_out(spec["port"])
    if "criu" in spec:
        processes, printed = keeping.settle(spec, userns, filter_)
        report({"keeper": processes.keeper})
        First(spec, filter_, processes, printed).serve()
        os._exit(0)
    root.enter(spec, userns)
    # Not before: a change of user clears it.
    _give_up(userns, spec)
    First(spec, filter_).serve()


def _raise_loopback() -> None:
    """Bring the sandbox's own loopback up: servers and tests in it want one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.pack("16sH14x", b"lo", _UP)
        fcntl.ioctl(any_socket.fileno(), _SET_FLAGS, flags)


def _open_way_out(port: int) -> None:
    """Listen on the loopback, and hand the socket to the worker."""
    with socket.create_server(("127.0.0.1", port), backlog=128) as listening:
        report({"listening": True}, listening.fileno())


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
