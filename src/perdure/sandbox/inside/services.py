"""Services: processes that are up while a command runs, started anew for each.

Nothing lives from one turn to the next, so a service is what can be started again: its command, its
folder, its variables, and a port at which it answers when it is ready. The list of them is a file
of the sandbox, so that it is taken, restored and forked with the files that the services work on.
What writes to it can do no more by it than by a command.
"""

import json
import os
import select
import socket
from typing import Any

MANIFEST = "/etc/perdure/services.json"
LOGS = "/var/log/services"
MANIFEST_BYTES_MAX = 1 << 16
SERVICES_MAX = 16
READY_S_MAX = 600
POLL_S = 0.02
LOG_BYTES = 2_000
"""How much of a log is shown of a service that is not up."""


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


def wait_until_up(service: dict[str, Any], pid: int) -> str:
    """Return when a service answers at its port, or can't: why; empty: it is up.

    One without a port is up when it has not ended after a moment.
    """
    rounds = int(service["ready_s"] / POLL_S) if service["port"] else 5
    for _ in range(max(rounds, 1)):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return f"it ended with code {os.waitstatus_to_exitcode(status)}: {_tail(service)}"
        if service["port"] and _answers(service["port"]):
            return ""
        select.select([], [], [], POLL_S)
    if not service["port"]:
        return ""
    waited = f"{service['ready_s']:g} s"
    return f"nothing answers at port {service['port']} after {waited}: {_tail(service)}"


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
