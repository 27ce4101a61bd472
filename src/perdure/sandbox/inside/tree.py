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
import os
import resource
import signal
import socket
import struct
from typing import Any, NoReturn

from . import keeping, landlock, root
from . import syscalls as sys_
from .first import First
from .reports import LOCK_FD, MAPPED_FD, report, told

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


def _arrange(descriptors: list[int], userns: int) -> None:
    """Put the descriptors at their numbers, after three of /dev/null, and close all others."""
    null = os.open("/dev/null", os.O_RDWR)
    wanted = [null, null, null, *descriptors, *([userns] if userns else [])]
    high = [os.dup2(fd, 100 + n, inheritable=False) for n, fd in enumerate(wanted)]
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=False)
    os.closerange(len(wanted), 1 << 20)


def _open(spec: dict[str, Any], userns: int, filter_: bytes) -> None:
    for group in spec["cgroups"]:
        with open(group, "w") as procs:
            procs.write("0")
    own = keeping.NAMESPACES if "criu" in spec else NAMESPACES
    sys_.unshare(own | (0 if userns else sys_.CLONE_NEWUSER))
    first = os.fork()
    if first == 0:
        _be_first(spec, userns, filter_)
    report({"pid": first})
    os._exit(0)


def _be_first(spec: dict[str, Any], userns: int, filter_: bytes) -> NoReturn:
    try:
        if not os.read(MAPPED_FD, 1):  # until the launcher has written the maps
            os._exit(1)  # it died
        os.close(MAPPED_FD)
        os.setsid()
        sys_.sethostname("sandbox")
        _raise_loopback()
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
    except BaseException as error:  # noqa: BLE001  # as above
        report({"failed": told(error)})
    os._exit(0)


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
