"""How the effects of the tests reach the service: plain HTTP, one connection a request."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """The service refused, and did nothing."""


class Lost(Exception):
    """No usable answer: it may have happened."""


class Outside:
    """Where the service is, and whether this call is the one that it is to kill us in."""

    def __init__(self) -> None:
        self.port = 0
        self.mark = "?"
        """What stands for a parameter in the SQL of transaction effects."""
        self.is_chosen: Callable[[str], bool] = lambda _name: False

    async def act(
        self, endpoint: str, label: str, *, key: str = "", value: Any = None, **more: Any
    ) -> str:
        """Ask the service to do something; return its receipt."""
        body = {"label": label, "key": key, "value": value, **more}
        headers = {"X-Pid": str(os.getpid())}
        for moment in ("before", "after"):
            if self.is_chosen(f"service.{endpoint}.{moment}"):
                headers |= {"X-Kill-Pid": str(os.getpid()), "X-Kill-At": moment}
        status, answer = await self.ask("POST", f"/act/{endpoint}", body, headers)
        if status == 429:
            raise Refused(answer["error"])
        if status != 200:
            raise Lost(f"{status}: {answer}")
        return str(answer["receipt"])

    async def find(self, endpoint: str, key: str) -> str | None:
        """Return the receipt of what was done under a key, or None."""
        _status, answer = await self.ask("GET", f"/act/{endpoint}?key={key}")
        return None if answer["label"] is None else f"{endpoint}:{answer['label']}"

    async def truth(self) -> dict[str, Any]:
        """Return what the service counted, once it has finished what it was asked."""
        return (await self.ask("GET", "/truth"))[1]

    async def counts(self) -> dict[str, Any]:
        """Return what it has counted up to now."""
        return (await self.ask("GET", "/counts"))[1]

    async def times(self) -> list[tuple[int, float]]:
        """Return who asked when (monotonic seconds of this host)."""
        return [tuple(each) for each in (await self.ask("GET", "/times"))[1]]

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send one request and return status and decoded body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            encoded = b"" if body is None else json.dumps(body).encode()
            lines = [
                f"{method} {path} HTTP/1.1",
                "Host: service",
                f"Content-Length: {len(encoded)}",
            ]
            lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + encoded)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            return status, json.loads(await reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(f"no answer: {error!r}") from error
        finally:
            writer.close()


OUTSIDE = Outside()
