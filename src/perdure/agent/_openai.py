"""Models behind an endpoint that speaks the chat-completions protocol, as most do.

It repeats nothing: an attempt that failed is an error, and whether and when there is another is the
kernel's to decide, durably.
"""

import math
import os
import ssl
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from perdure.agent._messages import Message, OnChunk, Reply, ToolSpec
from perdure.agent._text import cut
from perdure.agent._wire import Assembly, Garbled, error_text, request_body
from perdure.agent.limits import (
    CONNECT_S_MAX,
    ERROR_BODY_BYTES_MAX,
    ERROR_CHARS_MAX,
    RETRY_AFTER_S_MAX,
    SILENCE_S_MAX,
    STREAM_BYTES_MAX,
)
from perdure.errors import ModelUnavailable, Rejected, SettingInvalid, UsageError

KEY_VARIABLE = "OPENAI_API_KEY"

_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})
"""Besides all from 500 on."""

_SERVER_ERRORS = 500
_OK = 200

_OUT_OF_MONEY = "insufficient_quota"
"""Said with status 429, but no pause will help."""


class OpenAIModel:
    """A model of any endpoint that speaks the chat-completions protocol (`perdure[openai]`)."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        options: Mapping[str, Any] | None = None,
        silence_s: float = SILENCE_S_MAX,
    ) -> None:
        """Keep where to ask; nothing is sent.

        Args:
            model: its name, as the endpoint knows it.
            base_url: up to and without `/chat/completions`.
            api_key: None: that of the variable OPENAI_API_KEY when it is asked, if it is set.
            options: more fields of each request (`temperature`, `max_tokens`, ...); they replace
                ours, and None leaves a field out, for servers that don't know it.
            silence_s: longest pause in a stream, in seconds.

        Raises:
            SettingInvalid: the URL is none.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            msg = "OpenAIModel(base_url=...): must be http://... or https://..."
            raise SettingInvalid(msg)
        self.model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._place = urlunsplit(
            (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
        )
        self._api_key = api_key
        self._options = dict(options or {})
        self._silence_s = silence_s
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"OpenAIModel({self.model!r}, base_url={self._place!r})"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_chunk: OnChunk
    ) -> Reply:
        """Ask, and return the whole reply.

        Raises:
            Rejected: with `retry_after_s`: the endpoint is busy or broken; without: it refused.
            ModelUnavailable: it can't be reached, or what came is no reply.
            UsageError: the extra is not installed.
        """
        http = _client_library()
        key = self._key()
        body = request_body(self.model, messages, tools, self._options)
        try:
            return await self._ask(http, key, body, on_chunk)
        except http.HTTPError as error:
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise self._unavailable(why, key) from error
        except Garbled as error:
            raise self._unavailable(str(error), key) from error

    def _key(self) -> str:
        key = (self._api_key or os.environ.get(KEY_VARIABLE, "")).strip()
        if not (key.isascii() and key.isprintable()):
            msg = f"OpenAIModel: the key (api_key= or {KEY_VARIABLE}) has characters that none has"
            raise SettingInvalid(msg)
        return key

    async def _ask(self, http: Any, key: str, body: bytes, on_chunk: OnChunk) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        headers["Accept-Encoding"] = "identity"  # a small answer never becomes a large one
        if key:
            headers["Authorization"] = f"Bearer {key}"
        timeout = http.Timeout(self._silence_s, connect=CONNECT_S_MAX)
        async with (
            http.AsyncClient(timeout=timeout, verify=self._verify(http)) as client,
            client.stream("POST", self._url, content=body, headers=headers) as response,
        ):
            if response.status_code != _OK:
                raise await self._refusal(response, key)
            return await _assembled(http, response, on_chunk)

    def _verify(self, http: Any) -> ssl.SSLContext | bool:
        """Return what checks certificates; reading them takes long, so it is kept."""
        if not self._url.startswith("https:"):
            return False  # nothing to check; True would read them all the same
        if self._tls is None:
            self._tls = http.create_ssl_context()
        return self._tls

    async def _refusal(self, response: Any, key: str) -> Rejected:
        said = await _error_body(response)
        status = response.status_code
        text = self._without_key(f"HTTP {status}: {said}", key)
        if _OUT_OF_MONEY not in said and (status in _WORTH_ANOTHER_TRY or status >= _SERVER_ERRORS):
            after_s = _retry_after_s(response.headers) or 0.0
            msg = f"model {self.model!r} at {self._place}: {text}"
            return Rejected(msg, retry_after_s=after_s, model=self.model, status=status)
        msg = f"model {self.model!r} at {self._place} refused: {text}{_advice(status, key)}"
        return Rejected(msg, model=self.model, status=status)

    def _unavailable(self, why: str, key: str) -> ModelUnavailable:
        text = self._without_key(why, key)
        msg = f"model {self.model!r} at {self._place}: {text}; no reply was kept"
        return ModelUnavailable(msg, model=self.model)

    def _without_key(self, text: str, key: str) -> str:
        """Return a text of the endpoint's as it may be stored and shown."""
        return cut(text.replace(key, "[key]") if key else text, ERROR_CHARS_MAX)


async def _assembled(http: Any, response: Any, on_chunk: OnChunk) -> Reply:
    assembly = Assembly(on_chunk)
    if response.headers.get("content-type", "").startswith("application/json"):
        assembly.add(await _body(response, STREAM_BYTES_MAX))  # one that does not stream
        return assembly.reply()
    received = 0
    async for event in http.EventSource(response):
        if event.data == "[DONE]":
            break
        received += len(event.data)
        if received > STREAM_BYTES_MAX:
            msg = f"the stream is longer than {STREAM_BYTES_MAX} bytes"
            raise Garbled(msg)
        assembly.add(event.data)
    return assembly.reply()


async def _body(response: Any, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > bytes_max:
            msg = f"the answer is longer than {bytes_max} bytes"
            raise Garbled(msg)
    return bytes(body)


async def _error_body(response: Any) -> str:
    try:
        body = await _body(response, ERROR_BODY_BYTES_MAX)
    except Garbled as error:
        return str(error)
    try:
        return error_text(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return body.decode("utf-8", "replace").strip() or "(no body)"


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for, in either of its forms.

    A date is measured from the answer's own `Date`, so no clock of ours has to agree with theirs.
    """
    given = headers.get("retry-after", "")
    try:
        return _bounded(float(given))
    except ValueError:
        pass
    try:
        until, now = parsedate_to_datetime(given), parsedate_to_datetime(headers.get("date", ""))
        return _bounded((until - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _bounded(wanted_s: float) -> float | None:
    """Return a time that can be meant; None: it says nothing, so that the usual backoff holds."""
    return min(max(wanted_s, 0.0), RETRY_AFTER_S_MAX) if math.isfinite(wanted_s) else None


def _advice(status: int, key: str) -> str:
    if status in {401, 403}:
        have = "the key was not accepted" if key else "no key was sent"
        return f". {have}: set {KEY_VARIABLE}, or give OpenAIModel(api_key=...)"
    if status in {404, 405} or status < 400:  # noqa: PLR2004  # what a wrong address answers
        return ". Check OpenAIModel(base_url=...) and the model's name"
    return ""


def _client_library() -> Any:
    try:
        import httpx2  # noqa: PLC0415  # of an extra
    except ImportError as error:
        msg = "OpenAIModel needs the extra: pip install 'perdure[openai]'; nothing was sent"
        raise UsageError(msg) from error
    return httpx2
