"""What processes of a sandbox tell: packets of JSON, never longer than who reads them takes."""

import json
import socket
import traceback
from typing import Any

REPORT_BYTES_MAX = 60_000
SHORT = 50
"""Of what is too long: entries, and characters of each."""

REPORT_FD, MAPPED_FD, LOCK_FD = 3, 4, 5
"""Descriptors of the first process, beside three of /dev/null."""


def report(message: dict[str, Any], *descriptors: int) -> None:
    """Tell the launcher."""
    channel = socket.socket(fileno=REPORT_FD)
    try:
        socket.send_fds(channel, [packed(message)], descriptors)
    finally:
        channel.detach()


def packed(message: dict[str, Any]) -> bytes:
    """Return a packet; what is too long for one is shortened, never cut."""
    packet = json.dumps(message).encode()
    if len(packet) <= REPORT_BYTES_MAX:
        return packet
    left = [[pid, text[:SHORT]] for pid, text in message.get("left", [])[:SHORT]]
    services = [[name, why[: SHORT * 4]] for name, why in message.get("services", [])]
    short = {key: str(each)[: SHORT * 4] for key, each in message.items() if key == "failed"}
    kept = {key: message[key] for key in ("pid", "id", "code") if key in message}
    lists = {"left": left} if left else {"services": services} if services else {}
    return json.dumps({**kept, **lists, **short}).encode()


def told(error: BaseException) -> str:
    """Return what failed, and in which steps of the set-up."""
    steps = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {error} (in {' > '.join(steps[-3:])})"
