"""Services: processes that are up while a command runs.

A service is what can be started again: its command, its folder, its variables, and a port at which
it answers when it is ready. It is started with the first command of a tree: for each anew, where
no tree outlives its command. The list of them is a file of the sandbox, so that it is taken,
restored and forked with the files that the services work on. What writes to it can do no more by
it than by a command.
"""

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from . import commands
from .processes import Processes, session_of

MANIFEST = "/etc/perdure/services.json"
LOGS = "/var/log/services"
MANIFEST_BYTES_MAX = 1 << 16
SERVICES_MAX = 16
READY_S_MAX = 600
POLL_S = 0.02
STILL_WAITING = "it did not come up before the command was killed"
STOPPED = "it did not come up before the command was killed, and was ended with it"
LOG_BYTES = 2_000
"""How much of a log is shown of a service that is not up."""
END_ROUNDS = 50
"""How often what is left of a service is killed before its successor is started anyway."""


class Running:
    """The services of a tree that are up."""

    def __init__(
        self,
        processes: Processes,
        reap: Callable[[], None],
        is_stopped: Callable[[float], bool],
    ) -> None:
        """Have none yet.

        Args:
            processes: of the tree.
            reap: takes what ended, so that no number stays taken.
            is_stopped: waits so many seconds, and returns sooner, True, if nobody wants the command
                any more that services are brought up for.
        """
        self._processes = processes
        self._reap = reap
        self._is_stopped = is_stopped
        self._up: dict[str, tuple[dict[str, Any], int]] = {}
        self._late: set[str] = set()

    @property
    def sessions(self) -> set[int]:
        """Those that the services' processes are in, unless they left them."""
        return {pid for _settings, pid in self._up.values()}

    def ended(self, pid: int) -> None:
        """Note that a process ended, of a service or not."""
        for name, (_settings, of_service) in [*self._up.items()]:
            if of_service == pid:
                del self._up[name]

    def bring_up(
        self,
        env: dict[str, str],
        groups: list[int],
        filter_: bytes,
        tell: Callable[[list[list[str]]], None],
    ) -> bool:
        """Have up what the sandbox wants up, and nothing else.

        Args:
            env: of the command.
            groups: files that processes of services write to to be in groups.
            filter_: for seccomp.
            tell: is told [name, why it is not up] of each, before it is waited for, and in the end.

        Returns:
            Whether the command is wanted still: if not, the service that was waited for was ended.
        """
        wanted = {each["name"]: each for each in listed()}
        for name, (settings, pid) in [*self._up.items()]:
            if wanted.get(name) != settings:
                self._end(pid)
                self._up.pop(name, None)
        # One that was late may be up by now: it is looked at once more, not waited for again.
        waits = {name: {**wanted[name], "ready_s": 0} for name in self._late & self._up.keys()}
        for name, each in wanted.items():
            if name not in self._up:
                self._up[name] = each, self._start(each, env, groups, filter_)
                waits[name] = each
        told = dict.fromkeys(wanted, "")
        if waits:
            tell([[name, STILL_WAITING if name in waits else ""] for name in wanted])
        is_wanted = True
        for name, each in waits.items():
            told[name] = self._wait_until_up(each, self._up[name][1], is_wanted=is_wanted)
            if told[name] == STOPPED:
                is_wanted = False
                self._end(self._up[name][1])
                self._up.pop(name, None)
        self._late = {name for name, why in told.items() if why and name in self._up}
        if wanted:
            tell([[name, why] for name, why in told.items()])
        return is_wanted

    def remembered(self) -> list[list[Any]]:
        """Return [settings, number in the sandbox] of those that are up, for `take_up`."""
        found = [[settings, self._processes.inner(pid)] for settings, pid in self._up.values()]
        return [each for each in found if each[1]]

    def take_up(self, remembered: list[list[Any]]) -> None:
        """Know services that were brought back."""
        pids = {self._processes.inner(pid): pid for pid in self._processes.alive()}
        for settings, inner in remembered:
            if inner in pids:
                self._up[settings["name"]] = settings, pids[inner]

    def _start(
        self, service: dict[str, Any], env: dict[str, str], groups: list[int], filter_: bytes
    ) -> int:
        """Start a service; return its pid."""
        pid = os.fork()
        if pid == 0:
            be_service(service, env, groups, filter_)
        return pid

    def _ended_how(self, pid: int) -> str:
        """Return how a service ended; empty: it has not."""
        gone, status = os.waitpid(pid, os.WNOHANG)
        return f"with code {os.waitstatus_to_exitcode(status)}" if gone else ""

    def _wait_until_up(self, service: dict[str, Any], pid: int, *, is_wanted: bool) -> str:
        """Return when a service answers at its port, or can't: why; empty: it is up.

        One without a port is up when it has not ended after a moment. `is_wanted`: whether there is
        a command to wait for it.
        """
        rounds = int(service["ready_s"] / POLL_S) if service["port"] else 5
        rounds = rounds if is_wanted else 0
        for _ in range(max(rounds, 1)):
            how = self._ended_how(pid)
            if how:
                self.ended(pid)
                return f"it ended {how}: {_tail(service)}"
            if service["port"] and _answers(service["port"]):
                return ""
            if self._is_stopped(POLL_S):
                return STOPPED
        if not service["port"]:
            return ""
        waited = f"{service['ready_s']:g} s"
        return f"nothing answers at port {service['port']} after {waited}: {_tail(service)}"

    def _end(self, session: int) -> None:
        """Kill a service and what is in its session; also one that has not made its session yet."""
        for _ in range(END_ROUNDS):
            alive = self._processes.alive()
            found = [pid for pid in alive if session in (pid, session_of(pid))]
            if not found:
                return
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            select.select([], [], [], POLL_S / 10)
            self._reap()


def be_service(
    service: dict[str, Any], env: dict[str, str], groups: list[int], filter_: bytes
) -> NoReturn:
    """Be a service, in a fresh fork of the first process; what it prints goes to its log."""
    try:
        os.makedirs(LOGS, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        log = os.open(log_of(service["name"]), flags, 0o644)
        null = os.open("/dev/null", os.O_RDONLY)
        spec = {"act": "run", "argv": service["argv"], "cwd": service["cwd"]}
        spec["env"] = {**env, **service["env"]}
        commands.be_command(spec, [null, log, log], groups, filter_)
    finally:
        os._exit(126)


def listed() -> list[dict[str, Any]]:
    """Return the services that the sandbox wants up; what can't be read as such is left out."""
    try:
        source = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with open(source, "rb") as file:
        try:
            found = json.loads(file.read(MANIFEST_BYTES_MAX))
        except (ValueError, RecursionError, OSError):
            return []
    return [each for each in found if _is_service(each)][:SERVICES_MAX] if _is_list(found) else []


def _is_list(found: object) -> bool:
    return isinstance(found, list)


def _is_service(each: Any) -> bool:
    try:
        return (
            isinstance(each["name"], str)
            and each["name"].isidentifier()
            and len(each["name"]) <= 64  # noqa: PLR2004  # a name, not a text
            and all(isinstance(word, str) and "\0" not in word for word in each["argv"])
            and bool(each["argv"])
            and all(isinstance(v, str) for pair in each["env"].items() for v in pair)
            and isinstance(each["cwd"], str)
            and isinstance(each["port"], int)
            and 0 <= each["port"] < 1 << 16
            and 0 <= each["ready_s"] <= READY_S_MAX
        )
    except (KeyError, TypeError, AttributeError):
        return False


def log_of(name: str) -> str:
    """Return where a service prints to."""
    return f"{LOGS}/{name}.log"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(POLL_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _tail(service: dict[str, Any]) -> str:
    try:
        source = os.open(log_of(service["name"]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "it has no log"
    with open(source, "rb") as file:
        file.seek(max(0, os.fstat(source).st_size - LOG_BYTES))
        return file.read(LOG_BYTES).decode("utf-8", "replace").strip() or "its log is empty"
