"""Health of a worker over HTTP, for what places and restarts processes.

The server has an OS thread and an event loop of its own, so that it answers also while the worker's
event loop is blocked: that is what `/livez` is for. It reads only plain attributes of the worker.

- `/livez`: 200 while the worker's event loop turns and its heartbeats are not overdue. A store that
  can't be reached does not make it 503: to restart a worker mends no store.
- `/readyz`: 200 while it claims runs: its newest accepted heartbeat holds, and it does not drain.

Every answer closes its connection. Requests are bounded in size, time and number (`limits.py`).
"""

import asyncio
import json
from collections.abc import Callable
from threading import Thread
from typing import Any

from msgspec import Struct

from perdure.clock import Clock
from perdure.engine.limits import (
    HEALTH_CONNECTIONS_MAX,
    HEALTH_HEAD_BYTES_MAX,
    HEALTH_READ_S,
    HEALTH_STALL_S,
)
from perdure.errors import SettingInvalid

SCHEMA = 1
"""Version of the JSON bodies. Fields are only added within one version."""

_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_PHRASES |= {503: "Service Unavailable"}


class Vitals(Struct, frozen=True, kw_only=True):
    """What a worker says of itself at one moment.

    Attributes:
        heartbeat_age_s: seconds since its newest heartbeat that the store accepted was sent.
        beat_age_s: seconds since it last sent one, accepted or not.
        is_store_reachable: whether the newest accepted heartbeat still holds its leases.
        is_overdue: whether it has sent none for longer than a lease lasts.
    """

    worker_id: str
    held: int
    concurrency: int
    graphs: tuple[tuple[str, int], ...]
    heartbeat_age_s: float
    beat_age_s: float
    is_store_reachable: bool
    is_overdue: bool
    is_draining: bool


class HealthServer:
    """Answers `/livez` and `/readyz` from an OS thread of its own."""

    def __init__(self, vitals: Callable[[], Vitals], clock: Clock, *, host: str, port: int) -> None:
        """Prepare; `start` listens.

        Args:
            vitals: called in the server's OS thread: it must only read.
            clock: the worker's.
            host: address to listen at.
            port: 0: any free one.
        """
        self._vitals = vitals
        self._clock = clock
        self._host = host
        self._port = port
        self._turned_s = clock.monotonic_s()
        self._turning: asyncio.Task[None] | None = None
        self._os_thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event
        self._open = 0

    async def start(self) -> int:
        """Begin to answer; return the port.

        Raises:
            SettingInvalid: the address can't be listened at.
        """
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._turning = asyncio.create_task(self._turn(), name="perdure-turn")
        self._os_thread = Thread(
            target=self._main, args=(listening,), name="perdure-health", daemon=True
        )
        self._os_thread.start()
        try:
            return await listening
        except OSError as error:
            self._turning.cancel()
            msg = f"health server: {self._host}:{self._port} can't be listened at: {error}"
            raise SettingInvalid(msg) from error

    async def stop(self) -> None:
        """Stop answering. Idempotent."""
        if self._turning is not None:
            self._turning.cancel()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopped.set)
        if self._os_thread is not None:
            await asyncio.to_thread(self._os_thread.join, HEALTH_READ_S)

    async def _turn(self) -> None:
        """Note again and again that the worker's event loop turns."""
        while True:
            self._turned_s = self._clock.monotonic_s()
            await self._clock.sleep(HEALTH_STALL_S / 10)

    # -- in the OS thread --------------------------------------------------------------------------

    def _main(self, listening: "asyncio.Future[int]") -> None:
        asyncio.run(self._serve(listening))

    async def _serve(self, listening: "asyncio.Future[int]") -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        asked = listening.get_loop()
        try:
            server = await asyncio.start_server(
                self._answer, self._host, self._port, limit=HEALTH_HEAD_BYTES_MAX
            )
        except OSError as error:
            asked.call_soon_threadsafe(listening.set_exception, error)
            return
        port = server.sockets[0].getsockname()[1]
        asked.call_soon_threadsafe(listening.set_result, port)
        async with server:
            await self._stopped.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= HEALTH_CONNECTIONS_MAX:
                async with asyncio.timeout(HEALTH_READ_S):
                    writer.write(self._respond(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, too slow, or says too much: there is nothing to answer
        finally:
            self._open -= 1
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:  # noqa: PLR2004  # method, target, version
            return _response(400, {"error": "this is no HTTP request"})
        method, path = words[0], words[1].split(b"?", 1)[0]
        if path not in {b"/livez", b"/readyz"}:
            return _response(404, {"error": "ask for /livez or /readyz"}, method)
        if method not in {b"GET", b"HEAD"}:
            return _response(405, {"error": "GET and HEAD only"}, method)
        vitals = self._vitals()
        turned_age_s = self._clock.monotonic_s() - self._turned_s
        reasons = _ills(vitals, turned_age_s)
        reasons += _hindrances(vitals) if path == b"/readyz" else []
        body = _body(vitals, turned_age_s, reasons)
        return _response(503 if reasons else 200, body, method)


def _ills(vitals: Vitals, turned_age_s: float) -> list[str]:
    """Return why the worker is not alive; empty: it is."""
    found = []
    if turned_age_s > HEALTH_STALL_S:
        found.append(f"the event loop has not turned for {turned_age_s:.1f} s")
    if vitals.is_overdue:
        found.append(f"no heartbeat was sent for {vitals.beat_age_s:.1f} s")
    return found


def _hindrances(vitals: Vitals) -> list[str]:
    """Return why a living worker takes no runs; empty: it does."""
    found = []
    if vitals.is_draining:
        found.append("the worker drains")
    if not vitals.is_store_reachable:
        found.append(f"the store has accepted no heartbeat for {vitals.heartbeat_age_s:.1f} s")
    return found


def _body(vitals: Vitals, turned_age_s: float, reasons: list[str]) -> dict[str, Any]:
    return {
        "status": "unavailable" if reasons else "ok",
        "reasons": reasons,
        "worker": vitals.worker_id,
        "held": vitals.held,
        "concurrency": vitals.concurrency,
        "graphs": [{"graph": name, "version": version} for name, version in vitals.graphs],
        "heartbeat_age_s": round(vitals.heartbeat_age_s, 3),
        "turned_age_s": round(turned_age_s, 3),
        "is_draining": vitals.is_draining,
    }


def _response(status: int, body: dict[str, Any], method: bytes = b"GET") -> bytes:
    encoded = json.dumps({"schema": SCHEMA, **body}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(encoded)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else encoded)
