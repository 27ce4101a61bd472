"""Packets to the launcher and to first processes, and what travels with them."""

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from typing import Any


def encoded(spec: dict[str, Any]) -> bytes:
    """Return a spec as it travels; of variables, bytes that are no text as they are."""
    return json.dumps(spec).encode("utf-8", "surrogateescape")


def in_memory(content: bytes) -> int:
    """Return a descriptor of a file in memory with this content, at its beginning."""
    source = os.memfd_create("perdure", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(source, view) :]
        os.lseek(source, 0, os.SEEK_SET)
    except BaseException:
        os.close(source)
        raise
    return source


def is_sent(channel: socket.socket, packet: bytes, descriptors: Sequence[int]) -> bool:
    """Send a packet; return False if there is no room for it now."""
    try:
        socket.send_fds(channel, [packet], descriptors)
    except BlockingIOError:
        return False
    return True


async def writable(channel: socket.socket) -> None:
    """Return when there is room for a packet."""
    loop = asyncio.get_running_loop()
    there_is_room = loop.create_future()

    def tell() -> None:
        """Go on."""
        if not there_is_room.done():
            there_is_room.set_result(None)

    # A copy: several may wait at once, and the loop keeps one of each descriptor.
    copy = os.dup(channel.fileno())
    loop.add_writer(copy, tell)
    try:
        await there_is_room
    finally:
        loop.remove_writer(copy)
        os.close(copy)
