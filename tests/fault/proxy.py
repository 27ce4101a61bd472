"""A TCP proxy before a PostgreSQL server that loses answers, cuts, delays, stalls.

It reads the messages of both sides (no TLS), so that a rule can name the statement that it is for:
by the text that was prepared, or sent as it is.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.fault.stage import Stage

ACTIONS = ("lose", "before", "half", "delay")
"""What happens to a statement: it is done and its answer lost; it is lost itself; half of it goes
through; its answer comes late. All but the last cut the connection."""

DELAY_S = 0.2


@dataclass
class Rule:
    """What to do with statements that hold a text, so many times."""

    text: str
    action: str
    times: int = 1


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    statements: dict[bytes, str] = field(default_factory=dict)
    action: str = ""
    is_cut: bool = False

    def cut(self) -> None:
        """End both sides at once, without a word."""
        self.is_cut = True
        for side in (self.client, self.server):
            with contextlib.suppress(RuntimeError):
                side.transport.abort()


class Proxy:
    """Forwards connections to a server, but for what the rules say."""

    def __init__(self, server_port: int, chance: random.Random | None = None) -> None:
        """Forward to a port of this host; `port` is known once it was entered.

        Args:
            server_port: of the server.
            chance: where given, writes meet a random action now and then.
        """
        self._server_port = server_port
        self._chance = chance
        self._flow = asyncio.Event()
        self._flow.set()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.rules: list[Rule] = []
        self.counts: Counter[str] = Counter()
        self.share = 0.05
        self.port = 0

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._listening.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # for the sockets to be closed

    # -- what tests do -----------------------------------------------------------------------------

    def stall(self) -> None:
        """Forward nothing any more, and close nothing: the network is gone, nobody knows."""
        self._flow.clear()

    def resume(self) -> None:
        """Forward again, what came meanwhile first."""
        self._flow.set()

    def cut(self) -> None:
        """Cut all connections."""
        for link in list(self._links):
            link.cut()

    # -- connections -------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._flow.wait()
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        link = Link(writer, to_server)
        self._links.add(link)
        pumps = {
            asyncio.ensure_future(self._to_server(reader, link)),
            asyncio.ensure_future(self._to_client(from_server, link)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # it ends with the proxy
        finally:
            link.cut()
            for pump in pumps:
                pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)

    async def _to_server(self, reader: asyncio.StreamReader, link: Link) -> None:
        (length,) = struct.unpack("!i", head := await reader.readexactly(4))
        link.server.write(head + await reader.readexactly(length - 4))  # the startup has no type
        while True:
            message = await _message(reader)
            await self._flow.wait()
            action = self._action_for(_statement(message, link))
            if action:
                self.counts[action] += 1
                link.action = action
            if action == "before":
                return
            if action == "half":
                link.server.write(message[: max(len(message) // 2, 6)])
                await link.server.drain()
                return
            link.server.write(message)

    async def _to_client(self, reader: asyncio.StreamReader, link: Link) -> None:
        while True:
            message = await _message(reader)
            await self._flow.wait()
            if link.action == "lose":
                if message[:1] == b"Z":  # it is done, and the server ready for more
                    return
                continue
            if link.action == "delay" and message[:1] == b"Z":
                await asyncio.sleep(DELAY_S)
                link.action = ""
            link.client.write(message)

    def _action_for(self, statement: str) -> str:
        if not statement:
            return ""
        for rule in self.rules:
            if rule.text in statement and rule.times > 0:
                rule.times -= 1
                return rule.action
        if self._chance is not None and self._chance.random() < self.share:
            return self._chance.choice(ACTIONS)
        return ""


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return one message: a type, its length, the rest."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!i", head[1:])
    return head + await reader.readexactly(length - 4)


def _statement(message: bytes, link: Link) -> str:
    """Return the text of the statement that a message executes, or nothing."""
    kind, rest = message[:1], message[5:]
    if kind == b"Q":
        return _executed(rest.rstrip(b"\0").decode(errors="replace"), link)
    if kind == b"P":
        name, _, more = rest.partition(b"\0")
        link.statements[name] = more.partition(b"\0")[0].decode(errors="replace")
    if kind == b"B":
        _portal, _, more = rest.partition(b"\0")
        return _executed(link.statements.get(more.partition(b"\0")[0], ""), link)
    return ""


def _executed(text: str, link: Link) -> str:
    """Return a statement's text; one that only prepares another is noted under that one's name."""
    if text.startswith("PREPARE "):
        _prepare, name, rest = text.split(maxsplit=2)
        link.statements[name.encode()] = rest
        return ""
    return text


async def serve(server_port: int, told: Path, seed: int | None = None) -> None:
    """Be a proxy until the end of the process; SIGUSR1 stalls it, SIGUSR2 lets it go on.

    Args:
        server_port: of the server.
        told: a file that the proxy's port is written to.
        seed: where given, writes meet random faults.
    """
    chance = None if seed is None else random.Random(seed)  # noqa: S311  # to be repeated
    async with Proxy(server_port, chance) as proxy:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, proxy.stall)
        loop.add_signal_handler(signal.SIGUSR2, proxy.resume)
        loop.add_signal_handler(signal.SIGTERM, lambda: (_tell(told, proxy.counts), os._exit(0)))
        _tell(told, {"port": proxy.port})
        await asyncio.Event().wait()


def _tell(told: Path, what: Any) -> None:
    told.with_suffix(".new").write_text(json.dumps(what), encoding="utf-8")
    told.with_suffix(".new").rename(told)


class ProxyProcess:
    """A proxy in a process of its own."""

    def __init__(self, stage: Stage, server_port: int, seed: int | None = None) -> None:
        self._told = stage.scene.place / "proxy.json"
        self._child = stage.family.fork("proxy", lambda: serve(server_port, self._told, seed))
        stage.until("proxy", self._told.exists)
        self.port = json.loads(self._told.read_text(encoding="utf-8"))["port"]

    def stall(self) -> None:
        """Forward nothing any more."""
        self._child.send(signal.SIGUSR1)

    def resume(self) -> None:
        """Forward again."""
        self._child.send(signal.SIGUSR2)

    def end(self) -> dict[str, int]:
        """End it; return how often it did what."""
        self._child.stop()
        return dict(json.loads(self._told.read_text(encoding="utf-8")))
