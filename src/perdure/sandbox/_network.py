"""A way out of a sandbox for what was named, and for nothing else.

A sandbox has a network of its own in which nothing is but its loopback. The first process of a turn
opens a listening socket there and hands it to the worker: a socket stays in the network that it
was made in, so that the worker answers inside the sandbox and connects outside of it. What speaks
to the socket speaks HTTP as to a proxy (`CONNECT host:port`, or a request with the whole address).
Names are resolved here, after they were found in the list, and an address that is not of the public
internet is refused: a name that somebody points at the worker's own network leads nowhere.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.errors import UsageError
from perdure.model.sandbox import Contact
from perdure.sandbox.limits import (
    CONNECT_S,
    CONNECTIONS_MAX,
    CONTACTS_MAX,
    HEAD_BYTES_MAX,
    READ_BYTES,
)

PORT = 3128
"""Where the way out is, on the sandbox's loopback: the usual port of a proxy."""


class Network(Struct, frozen=True, kw_only=True):
    """Which hosts a sandbox may reach, by HTTP and what is tunnelled through it.

    Attributes:
        allow: `host:port`, or `*.host:port` for all names below a host.
        addresses: host -> IP address to connect to, instead of resolving the name. These may be of
            any network: whoever writes them here means it.
    """

    allow: tuple[str, ...]
    addresses: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        for rule in self.allow:
            host, _, port = rule.rpartition(":")
            bare = host.removeprefix("*.")
            if not bare or "*" in bare or not port.isdecimal():
                msg = (
                    f"{rule!r} names no host that a sandbox may reach: write 'host:port' or "
                    "'*.host:port', for example '*.pythonhosted.org:443'"
                )
                raise UsageError(msg, rule=rule)

    def allows(self, host: str, port: int) -> bool:
        """Return whether a host may be reached."""
        name = host.lower().rstrip(".")
        for rule in self.allow:
            wanted, _, of_port = rule.lower().rpartition(":")
            if int(of_port) != port:
                continue
            if name == wanted or (wanted[:2] == "*." and name.endswith(wanted[1:])):
                return True
        return False

    @property
    def variables(self) -> dict[str, str]:
        """Variables that tell programs of the way out."""
        url = f"http://127.0.0.1:{PORT}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        own = "localhost,127.0.0.1,::1"  # services of the sandbox itself
        return {**dict.fromkeys(names, url), "no_proxy": own, "NO_PROXY": own}


class _Refused(Exception):
    """A connection that is not made. `status`: of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


class WayOut:
    """The proxy of one tree."""

    def __init__(self, network: Network) -> None:
        """Let through what the network names."""
        self._network = network
        self._server: asyncio.Server | None = None
        self._open = 0
        self._is_shut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.contacts: list[Contact] = []

    async def serve(self, listening: socket.socket) -> None:
        """Answer at a listening socket until it is shut."""
        if self._is_shut:
            listening.close()
            return
        self._server = await asyncio.start_server(
            self._accepted, sock=listening, limit=HEAD_BYTES_MAX
        )

    def taken(self) -> tuple[Contact, ...]:
        """Return the contacts since this was asked last."""
        contacts, self.contacts = tuple(self.contacts), []
        return contacts

    def shut(self) -> None:
        """Answer no more, and let all connections end. Idempotent."""
        self._is_shut = True
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End all connections: afterwards all contacts are told."""
        self.shut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._open >= CONNECTIONS_MAX:
            writer.close()
            return
        self._tasks.add(task)
        self._open += 1
        try:
            await self._serve_one(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the sandbox went away, or speaks no HTTP: it hears nothing more
        finally:
            self._open -= 1
            self._tasks.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CONNECT_S)
        host, port = "", 0
        try:
            host, port, first = _asked(head)
            remote_reader, remote_writer = await self._connect(host, port)
        except _Refused as refused:
            self._note(Contact(host=host[:253], port=port, reason=refused.reason))
            text = f"{refused.reason}\n".encode("utf-8", "replace")
            answer = f"HTTP/1.1 {refused.status} Refused\r\nContent-Length: {len(text)}\r\n"
            writer.write(answer.encode("ascii") + b"Connection: close\r\n\r\n" + text)
            await writer.drain()
            return
        out, back = _Counted(len(first)), _Counted()
        try:
            if first:
                remote_writer.write(first)
            else:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry(reader, remote_writer, out))
                both.create_task(_carry(remote_reader, writer, back))
        finally:
            remote_writer.close()
            self._note(Contact(host=host, port=port, sent=out.count, received=back.count))

    def _note(self, contact: Contact) -> None:
        if len(self.contacts) < CONTACTS_MAX:
            self.contacts.append(contact)

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._network.allows(host, port):
            raise _Refused(403, f"{host}:{port} is not among the hosts that may be reached")
        address = self._network.addresses.get(host.lower().rstrip("."))
        try:
            async with asyncio.timeout(CONNECT_S):
                if address is None:
                    address = await _resolved(host, port)
                return await asyncio.open_connection(address, port, limit=READ_BYTES)
        except (OSError, TimeoutError) as error:
            raise _Refused(
                502, f"{host}:{port} can't be reached: {str(error) or 'no answer'}"
            ) from error


def _asked(head: bytes) -> tuple[str, int, bytes]:
    """Return host, port, and what is to be sent there first; empty: it is a tunnel."""
    try:
        line, _, rest = head.decode("latin-1").partition("\r\n")
        method, target, version = line.split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _Refused(400, "that is no request to a proxy") from error
    if not host or (method == "CONNECT" and port is None):
        raise _Refused(400, "that is no request to a proxy")
    if method == "CONNECT":
        return host, port or 0, b""
    if parts.scheme != "http":
        raise _Refused(400, f"a request to {parts.scheme or 'nothing'} needs CONNECT")
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    kept = [
        each
        for each in rest.split("\r\n")
        if each and not each.lower().startswith(("proxy-", "connection:", "host:", " ", "\t"))
    ]
    # Of the target, whatever was sent: else a server would answer as another one than was named.
    shown = f"[{host}]" if ":" in host else host
    of_host = f"Host: {shown}" if parts.port is None else f"Host: {shown}:{port}"
    lines = [f"{method} {path}{query} {version}", of_host, *kept, "Connection: close", "", ""]
    return host, port or 80, "\r\n".join(lines).encode("latin-1")


def _is_public(address: str) -> bool:
    """Return whether an address is one host of the public internet, and no way around into another.

    Of IPv6 that is 2000::/3 without the blocks by which IPv4 is reached or tunnelled.
    """
    found = ipaddress.ip_address(address)
    if found.version == 4:  # noqa: PLR2004  # IPv4
        return found.is_global and not found.is_multicast
    is_unicast = found in ipaddress.ip_network("2000::/3")
    return is_unicast and found.is_global and not any(found in block for block in _TUNNELS)


_TUNNELS = [ipaddress.ip_network(block) for block in ("2001::/23", "2002::/16")]


async def _resolved(host: str, port: int) -> str:
    """Return an address of a host in the public internet.

    Raises:
        OSError: it has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_kind, address in found:
        if _is_public(str(address[0])):
            return str(address[0])
    msg = "its address is not of the public internet"
    raise OSError(msg)


class _Counted:
    """How many bytes went one way."""

    def __init__(self, count: int = 0) -> None:
        self.count = count


async def _carry(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, counted: _Counted
) -> None:
    """Carry bytes until the source ends."""
    with contextlib.suppress(OSError):
        while chunk := await source.read(READ_BYTES):
            counted.count += len(chunk)
            target.write(chunk)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
