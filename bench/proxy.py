"""A way to a server that can be cut: what is sent then goes nowhere, and nobody is told."""

import asyncio
from typing import Any


class Proxy:
    """Forwards connections on a loopback port of its own, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to this server; `start` listens."""
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._is_cut = False

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Forward nothing any more, and close nothing: as if the other host had lost its power."""
        self._is_cut = True
        for pump in self._pumps:
            pump.cancel()

    async def close(self) -> None:
        """Close everything. Idempotent."""
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._is_cut:
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers.append(far_writer)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(_pump(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, target: Any) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()
