"""An endpoint that speaks the chat-completions protocol, as badly as it is told.

Each request takes the next answer of a list; what was asked is kept. An answer is bytes for the
body of an event stream, or an `Answer` that says more.
"""

import asyncio
import json
from dataclasses import dataclass, field

STREAM = "text/event-stream; charset=utf-8"


@dataclass
class Answer:
    """What is sent: status, headers, and the body in these pieces, each flushed by itself."""

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = STREAM
    drops: bool = False  # the connection is cut behind the pieces
    hangs: bool = False  # nothing comes behind the pieces, and the connection stays


class Endpoint:
    """A server for one test."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []
        self.headers = []
        self.url = ""
        self._server = None
        self._stop = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_exc):
        self._stop.set()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.asked.append({"line": head[0], **json.loads(body)})
        self.headers.append(headers)
        answer = self.answers.pop(0)
        if not isinstance(answer, Answer):
            answer = Answer([answer])
        lines = [f"HTTP/1.1 {answer.status} X", f"Content-Type: {answer.kind}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines += ["Transfer-Encoding: chunked", "Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode())
        for piece in answer.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        if answer.hangs:
            await self._stop.wait()
        if not answer.drops:
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def event(value) -> bytes:
    """Return an event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def delta(*, finish=None, **fields) -> bytes:
    """Return a piece of a reply."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def called(index, *, arguments="", **fields) -> bytes:
    """Return a piece of a call."""
    function = {"arguments": arguments}
    if "name" in fields:
        function["name"] = fields.pop("name")
    return delta(tool_calls=[{"index": index, "function": function, **fields}])


def counted(given, made) -> bytes:
    """Return the last piece, which counts the tokens."""
    return event({"choices": [], "usage": {"prompt_tokens": given, "completion_tokens": made}})


def text_reply(text="hello") -> bytes:
    """Return a whole reply."""
    return delta(content=text) + delta(finish="stop") + counted(7, 2) + DONE


def call_reply(name, arguments, alias="call_x") -> bytes:
    """Return a whole reply that calls one tool."""
    return called(0, name=name, arguments=arguments, id=alias) + delta(finish="tool_calls") + DONE


def split(body: bytes, size: int) -> list[bytes]:
    """Cut a body into pieces of this many bytes, through lines and characters."""
    return [body[at : at + size] for at in range(0, len(body), size)]
