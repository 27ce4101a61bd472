"""A small HTTP client for probes: bounded, no redirects, standard library only."""

import asyncio
import http.client
import json
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlsplit

from perdure.contracts.inject import limits
from perdure.contracts.inject._failed import ProbeFailed

Answer = TypeVar("Answer")

OK = 200
REDIRECT = 300
NOT_FOUND = 404


def quoted(text: str) -> str:
    """Return a text as one part of a path or query."""
    return quote(text, safe="")


async def ask(
    url: str, method: str = "GET", body: object = None, *, timeout_s: float = limits.ANSWER_S
) -> tuple[int, object]:
    """Send one request and return the status with the JSON of the answer (its text if it is none).

    Raises:
        ProbeFailed: no whole answer came. A status is an answer, whichever it is.
    """
    return await asyncio.to_thread(_ask, url, method, body, timeout_s)


def _ask(url: str, method: str, body: object, timeout_s: float) -> tuple[int, object]:
    def read(response: http.client.HTTPResponse) -> tuple[int, object]:
        return response.status, _decoded(bounded(response))

    return exchange(url, method, body, timeout_s=timeout_s, headers={}, read=read)


def exchange(
    url: str,
    method: str,
    body: object,
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    read: Callable[[http.client.HTTPResponse], Answer],
) -> Answer:
    """Send one request and return what `read` makes of the response; blocking.

    Raises:
        ProbeFailed: refused, reset, timed out, or not HTTP.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    content = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Connection": "close", **headers}
    try:
        connection.request(method, path, body=content, headers=sent)
        return read(connection.getresponse())
    except (OSError, http.client.HTTPException) as error:
        msg = f"{method} {path}: {type(error).__name__}: {error}"
        raise ProbeFailed(msg) from error
    finally:
        connection.close()


def bounded(response: http.client.HTTPResponse) -> bytes:
    """Return the body of a response, which may not be larger than an answer may be."""
    content = response.read(limits.ANSWER_BYTES_MAX + 1)
    if len(content) > limits.ANSWER_BYTES_MAX:
        msg = f"an answer of more than {limits.ANSWER_BYTES_MAX:,} bytes"
        raise ProbeFailed(msg)
    return content


def _decoded(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", errors="replace")
