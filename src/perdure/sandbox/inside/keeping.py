"""Trees whose processes can be kept as images and brought back: who is in them, and who is not.

CRIU takes a whole tree, process 1 included, and nothing that is tied to the outside. So process 1
of such a tree has nothing of the launcher: it is the *keeper*, a program that waits, whose ended
children the kernel reaps. What starts commands is the *steward*, outside: it is in the sandbox's
namespaces but for that of processes, so that nothing inside can see or signal it, and its children
are born inside. What a command leaves running becomes a child of the keeper. After a way back the
keeper is the one of the image, and the steward a new one.

Nobody here is in a user namespace: CRIU takes none that the tree's other namespaces don't belong
to, and one that they do belong to would give the sandbox's root rights over its mounts and network.
So processes have the first id of the tenant's range, no capabilities, and are root over nothing.
Landlock is not used, as it is lost on the way back.
"""

import contextlib
import os
import resource
import signal
from typing import Any, NoReturn

from . import images, root, seccomp, services, yard
from . import syscalls as sys_
from .keeper import PATH as PROGRAM
from .processes import Processes

USER = "sandbox"
ACCOUNTS_BYTES_MAX = 1 << 16

NAMESPACES = (
    sys_.CLONE_NEWNS
    | sys_.CLONE_NEWNET
    | sys_.CLONE_NEWIPC
    | sys_.CLONE_NEWUTS
    | sys_.CLONE_NEWCGROUP
)
"""Those that a steward leaves for new ones; beside them, its children begin one of processes."""
CAPABILITIES = 41
_MADE = (
    ("pid", sys_.CLONE_NEWPID),
    ("time", sys_.CLONE_NEWTIME),
    ("ipc", sys_.CLONE_NEWIPC),
    ("uts", sys_.CLONE_NEWUTS),
    ("mnt", sys_.CLONE_NEWNS),
)
"""Namespaces that CRIU made, which a steward joins: the last changes its root. That of time has
what clocks showed in the image: processes of two such are in no image."""


def settle(spec: dict[str, Any], userns: int, filter_: bytes) -> tuple[Processes, int]:
    """Become the steward of a tree, a new one or one that is brought back.

    Called in fresh namespaces, those in `NAMESPACES`.

    Args:
        spec: see `launcher`.
        userns: by whose map the base is shown.
        filter_: for seccomp.

    Returns:
        Its processes, and where comes out what they print to pipes of before; -1: there are none.

    Raises:
        images.Unfit: it can't be built or brought back; says why.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    printed = -1
    if spec["images"]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(spec["images"], flags)
        keeper, printed = bring_back(spec, userns, folder)
        os.close(folder)
        join(keeper)
    else:
        sys_.unshare(sys_.CLONE_NEWPID)
        keeper = keep(spec, userns, filter_)
    os.close(userns)
    give_up(spec)
    os.chdir("/")
    return Processes(proc, keeper), printed


def keep(spec: dict[str, Any], userns: int, filter_: bytes) -> int:
    """Start the keeper of a new tree, as a child of this process; return its pid.

    Called in fresh namespaces, those in `NAMESPACES` and one of processes for children.

    Args:
        spec: see `launcher`.
        userns: by whose map the base is shown.
        filter_: for seccomp.

    Raises:
        images.Unfit: it can't be started; says why.
    """
    heard, says = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        _be_keeper(spec, userns, filter_, says)
    os.close(says)
    with open(heard, "rb") as file:
        failed = file.read(1_000).decode("utf-8", "replace")
    if failed:
        os.waitpid(keeper, 0)
        raise images.Unfit(failed)
    return keeper


def _be_keeper(spec: dict[str, Any], userns: int, filter_: bytes, says: int) -> NoReturn:
    try:
        os.setsid()
        root.enter(spec, userns)
        give_up(spec)
        _name_user(spec["range"][0])
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.dup2(says, 3, inheritable=False)
        os.closerange(4, 1 << 20)
        says = 3
        seccomp.install(filter_)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which has the kernel reap
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execve(PROGRAM, [PROGRAM], {})  # noqa: S606  # ours, with the sandbox's rights
    except BaseException as error:  # noqa: BLE001  # whatever it is, the steward must hear of it
        os.write(says, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(1)


def bring_back(spec: dict[str, Any], userns: int, folder: int) -> tuple[int, int]:
    """Bring a tree back from its images, as children of this process.

    Called as `keep`, but that namespaces of processes, IPC and host name come with the images.

    Args:
        spec: see `launcher`; `criu`: the program.
        userns: by whose map the base is shown.
        folder: descriptor of the images.

    Returns:
        The keeper's pid, and what its tree prints, see `images.restore`.

    Raises:
        images.Unfit: it can't be done; says why. None of the processes is alive.
    """
    new_root, work = yard.closed(root.build(spec, userns), spec["criu"])
    keeper, printed = images.restore(spec["criu"], folder, new_root, work)
    wrong = images.differences(keeper, spec["range"][0])
    if wrong:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)
        raise images.Unfit(wrong)
    return keeper, printed


def join(keeper: int) -> None:
    """Have the children of this process be born in a tree, and see what it sees.

    Of the tree's namespaces it is in those of network and groups already.
    """
    with contextlib.ExitStack() as opened:
        namespaces = [(_opened(opened, f"/proc/{keeper}/ns/{name}"), kind) for name, kind in _MADE]
        for descriptor, kind in namespaces:
            sys_.setns(descriptor, kind)
    os.chdir("/")


def _opened(opened: contextlib.ExitStack, path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


class Adopted(services.Running):
    """Services that are children of the keeper, so that they are in images."""

    def _start(
        self, service: dict[str, Any], env: dict[str, str], groups: list[int], filter_: bytes
    ) -> int:
        waits, go = os.pipe()
        between = os.fork()
        if between == 0:
            try:
                if os.fork() == 0:
                    os.close(go)
                    os.read(waits, 1)  # until this process is the keeper's
                    services.be_service(service, env, groups, filter_)
                os.close(go)
                os.read(waits, 1)
            finally:
                os._exit(0)
        os.close(waits)
        pids = self._processes.below(between)
        while not pids and self._processes.is_there(between):
            pids = self._processes.below(between)
        os.kill(between, signal.SIGKILL)
        os.waitpid(between, 0)
        os.close(go)
        return pids[0] if pids else 0

    def _ended_how(self, pid: int) -> str:
        return "" if self._processes.is_there(pid) else "at once"


def give_up(spec: dict[str, Any]) -> None:
    """Become the user of the sandbox, without any capability."""
    for kind, value in spec["rlimits"].items():
        number = getattr(resource, f"RLIMIT_{kind}")
        resource.setrlimit(number, (value, value))
    user = spec["range"][0]
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(CAPABILITIES):
        sys_.prctl(sys_.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    sys_.set_capabilities(0)
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)


def _name_user(user: int) -> None:
    """Give the user a name, so that programs that ask find one; as that user."""
    for name, line in (
        ("passwd", f"{USER}:x:{user}:{user}:{USER}:/workspace:/bin/sh\n"),
        ("group", f"{USER}:x:{user}:\n"),
    ):
        with contextlib.suppress(OSError):  # its files are the sandbox's own business
            flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            # To open it for writing is a change already.
            with open(os.open(f"/etc/{name}", os.O_RDONLY | flags), "rb") as file:
                if f":{user}:".encode() in file.read(ACCOUNTS_BYTES_MAX):
                    continue
            with open(os.open(f"/etc/{name}", os.O_WRONLY | os.O_APPEND | flags), "wb") as file:
                file.write(line.encode())
