"""One JSON request over HTTP, one connection each: plain, blocking, bounded.

A refusal (status 400 to 499) is `Rejected`: known not to have happened. Everything else that goes
wrong raises as it is, and then nobody knows whether the other side acted.
"""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from perdure import Rejected

TIMEOUT_S = 10.0
"""Longest silence of the other side that is waited for."""

RESPONSE_BYTES_MAX = 1024 * 1024
"""A longer answer is an error, not a reason to fill the memory."""


def call(method: str, url: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
    """Send a request and return the decoded answer."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=TIMEOUT_S)
    try:
        path = f"{at.path}?{at.query}" if at.query else at.path
        encoded = None if body is None else json.dumps(body).encode()
        connection.request(
            method, path, encoded, {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        text = response.read(RESPONSE_BYTES_MAX + 1)
    finally:
        connection.close()
    return _decoded(method, url, response, text)


def _decoded(method: str, url: str, response: http.client.HTTPResponse, text: bytes) -> Any:
    if 400 <= response.status < 500:
        wait_s = response.headers.get("Retry-After")
        msg = f"{method} {url}: {response.status} {text[:200].decode(errors='replace')}"
        raise Rejected(msg, retry_after_s=None if wait_s is None else float(wait_s))
    if response.status >= 300 or len(text) > RESPONSE_BYTES_MAX:
        msg = f"{method} {url}: status {response.status}, {len(text)} bytes"
        raise ConnectionError(msg)
    return json.loads(text)
