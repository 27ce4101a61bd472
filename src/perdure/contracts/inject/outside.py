"""The outside world of a trial in one server: a scripted model, and a counter of effects.

An application under test asks a model and acts on the world. Here both are scripted, counted and
can be *held*: a request that reaches a held point waits there, so that whoever breaks the
application knows where it is (`arrived`) and breaks it exactly there. The file stands alone
(standard library only) so that it can be mounted in a container and started with
`python outside.py --port 8099`; its limits are therefore here and not in the room's `limits.py`.
Everything is kept in memory, and all of it is bounded. It speaks to trials only: it knows no
passwords, so give it no network that others can reach.

Points: `model/3` (the third answer of any conversation), `model/alice/3` (of the conversation
that says it is `user: alice`), `effect/refund-17`, and `effect/*` for all effects.
docs/injection.md has the requests; in short:

    POST /v1/chat/completions   as OpenAI's, streamed or not; step = 1 + assistant messages so far
    POST /effects               {"operation": "x"}, header Idempotency-Key: applied once per key
    GET  /effects               how often each operation was asked for and applied
    POST /control/script|hold|release|reset     GET /control/arrived|record|ready
"""

import argparse
import json
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BODY_BYTES_MAX = 1_000_000
"""Bytes of one request; a conversation of a trial has a few kilobytes."""
OPERATIONS_MAX = 10_000
"""Operations, keys, points and records that are kept of each; the oldest records go first."""
SCRIPTS_MAX = 100
"""Models that have a script."""
STEPS_MAX = 1_000
"""Answers of one script."""
NAME_CHARACTERS_MAX = 1_000
"""Characters of the name of an operation, a point or a model."""
REQUESTS_MAX = 128
"""Requests that are served, or held, at once; more are refused with 503."""
CONNECTIONS_MAX = 256
"""Connections at once, idle ones too; further ones are closed."""
HELD_S_MAX = 600.0
"""Seconds that a request may be held: longer than any trial waits."""
IDLE_S_MAX = 30.0
"""Seconds that a connection may say nothing."""

Json = dict[str, Any]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, reason: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Refuse with `status`, saying why."""
        super().__init__(reason)
        self.status = status
        self.headers = dict(headers or {})


class World:
    """What the model says and what effects did; safe for many threads."""

    def __init__(self) -> None:
        """Begin with no script, no hold and nothing done."""
        self._changed = threading.Condition()
        self._scripts: dict[str, list[Json]] = {}
        self._holds: dict[str, str] = {}
        self._arrivals: dict[str, int] = {}
        self._operations: dict[str, Json] = {}
        self._by_key: dict[str, str] = {}
        self._record: deque[Json] = deque(maxlen=OPERATIONS_MAX)

    # What a trial says.

    def script(self, model: str, steps: object) -> None:
        """Make `model` answer with `steps`, one per assistant message, and then with "done"."""
        listed = steps if isinstance(steps, list) else [None]
        _need(len(listed) <= STEPS_MAX, f"at most {STEPS_MAX} steps")
        _need(all(isinstance(step, dict) for step in listed), "steps is a list of objects")
        with self._changed:
            _need(model in self._scripts or len(self._scripts) < SCRIPTS_MAX, "too many scripts")
            self._scripts[model] = [dict(step) for step in listed if isinstance(step, dict)]

    def hold(self, point: str, when: str) -> None:
        """Hold requests at `point`, `before` they have an effect or `after`, before the answer."""
        _need(when in ("before", "after"), "when is `before` or `after`")
        with self._changed:
            _need(len(self._holds) < OPERATIONS_MAX, "too many held points")
            self._holds[point] = when

    def release(self, point: str) -> None:
        """Let what is held at `point` go on, and hold nothing there any more; `*`: everywhere."""
        with self._changed:
            if point == "*":
                self._holds.clear()
            self._holds.pop(point, None)
            self._changed.notify_all()

    def arrived(self, point: str, count: int, timeout_s: float) -> int:
        """Wait until `count` requests were at `point`; return how many were, also if time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrivals.get(point, 0) >= count, timeout=timeout_s)
            return self._arrivals.get(point, 0)

    def reset(self) -> None:
        """Forget everything and release what is held."""
        with self._changed:
            for kept in (
                self._scripts,
                self._holds,
                self._arrivals,
                self._operations,
                self._by_key,
            ):
                kept.clear()
            self._record.clear()
            self._changed.notify_all()

    def record(self) -> list[Json]:
        """Return what was asked for, oldest first."""
        with self._changed:
            return list(self._record)

    def effects(self) -> Json:
        """Return of each operation how often it was asked for and applied, and by which keys."""
        with self._changed:
            return {name: dict(of) for name, of in self._operations.items()}

    # What an application asks for.

    def answer(self, model: str, step: int) -> Json:
        """Return the `step`-th answer of a model, from 1."""
        with self._changed:
            steps = self._scripts.get(model) or self._scripts.get("*") or []
            return steps[step - 1] if step <= len(steps) else {"say": "done"}

    def apply(self, operation: str, key: str | None) -> Json:
        """Do an effect, unless its key was seen; return what a caller may know of it."""
        with self._changed:
            known = self._operations.get(operation)
            if known is None:
                _need(len(self._operations) < OPERATIONS_MAX, "too many operations")
                known = self._operations[operation] = {"requests": 0, "applied": 0, "keys": []}
            known["requests"] += 1
            is_repeated = key is not None and key in self._by_key
            if not is_repeated:
                _need(known["applied"] < OPERATIONS_MAX, "applied too often")
                known["applied"] += 1
            if key is not None and not is_repeated:
                self._by_key[key] = f"{operation}-{known['applied']}"
                known["keys"].append(key)
            result = self._by_key[key] if key is not None else f"{operation}-{known['applied']}"
            self._changed.notify_all()
            return {"operation": operation, "result": result, "repeated": is_repeated}

    def pass_by(self, points: list[str], *, when: str, note: Json | None = None) -> None:
        """Count an arrival at `points`, and wait while one is held; `note` goes into the record."""
        with self._changed:
            if when == "before":
                self._record.append({"points": points, **(note or {})})
            for point in points:
                if when == self._holds.get(point, "before"):
                    _need(len(self._arrivals) < OPERATIONS_MAX, "too many points")
                    self._arrivals[point] = self._arrivals.get(point, 0) + 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: all(self._holds.get(point) != when for point in points), timeout=HELD_S_MAX
            )


def _need(is_met: bool, reason: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not is_met:
        raise Refused(HTTPStatus.BAD_REQUEST, reason)


class _Handler(BaseHTTPRequestHandler):
    """One connection; a handler of the standard library, so its names are the library's."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S_MAX
    server: "OutsideServer"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: the record has it."""

    def do_GET(self) -> None:
        """Answer a question of a trial."""
        self._serve(self._get)

    def do_POST(self) -> None:
        """Answer an application, or do what a trial says."""
        self._serve(self._post)

    def _serve(self, act: Any) -> None:
        if not self.server.places.acquire(blocking=False):
            self._discard_body()
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "too many requests at once"})
            return
        try:
            act(urlsplit(self.path))
        except Refused as refused:
            self.close_connection = True  # some of the body may not have been read
            error = {"error": {"message": str(refused), "type": "refused"}}
            self._send(refused.status, error, headers=refused.headers)
        except ConnectionError:
            self.close_connection = True  # the application was killed: that is what trials do
        finally:
            self.server.places.release()

    def _get(self, url: Any) -> None:
        world, asked = self.server.world, {name: of[-1] for name, of in parse_qs(url.query).items()}
        if url.path == "/control/ready":
            self._send(HTTPStatus.OK, {"ready": True})
        elif url.path == "/control/record":
            self._send(HTTPStatus.OK, {"record": world.record()})
        elif url.path == "/control/arrived":
            timeout_s = min(_number(asked.get("timeout_s", "0")), HELD_S_MAX)
            count = int(_number(asked.get("count", "1")))
            arrived = world.arrived(asked.get("point", ""), count, timeout_s)
            self._send(HTTPStatus.OK, {"arrived": arrived})
        elif url.path == "/effects":
            self._send(HTTPStatus.OK, {"operations": world.effects()})
        elif url.path.startswith("/effects/"):
            known = world.effects().get(unquote(url.path.removeprefix("/effects/")))
            self._send(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, known or {"applied": 0})
        elif url.path == "/v1/models":
            self._send(
                HTTPStatus.OK, {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
            )
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"nothing at {url.path!r}")

    def _post(self, url: Any) -> None:
        world, body = self.server.world, self._body()
        if url.path == "/v1/chat/completions":
            self._complete(body)
        elif url.path == "/effects":
            self._effect(body)
        elif url.path == "/control/script":
            world.script(_text(body, "model"), body.get("steps", []))
            self._send(HTTPStatus.OK, {})
        elif url.path == "/control/hold":
            world.hold(_text(body, "point"), body.get("when", "before"))
            self._send(HTTPStatus.OK, {})
        elif url.path == "/control/release":
            world.release(_text(body, "point"))
            self._send(HTTPStatus.OK, {})
        elif url.path == "/control/reset":
            world.reset()
            self._send(HTTPStatus.OK, {})
        else:
            raise Refused(HTTPStatus.NOT_FOUND, f"nothing at {url.path!r}")

    def _effect(self, body: Json) -> None:
        operation = _text(body, "operation")
        key = self.headers.get("Idempotency-Key")
        points = [f"effect/{operation}", "effect/*"]
        self.server.world.pass_by(points, when="before", note={"key": key})
        applied = self.server.world.apply(operation, key)
        self.server.world.pass_by(points, when="after")
        self._send(HTTPStatus.OK, applied)

    def _complete(self, body: Json) -> None:
        messages, model = body.get("messages"), str(body.get("model", "scripted"))
        if not isinstance(messages, list):
            raise Refused(HTTPStatus.BAD_REQUEST, "messages is a list")
        roles = [each.get("role") for each in messages if isinstance(each, dict)]
        step = 1 + roles.count("assistant")
        points = [f"model/{step}", "model/*"]
        if body.get("user"):
            points.append(f"model/{body['user']}/{step}")
        answer = self.server.world.answer(model, step)
        if body.get("stream"):
            self._stream(_Answer(model, step, answer), points)
            return
        self.server.world.pass_by(points, when="before", note={"model": model})
        _fail_if_scripted(answer)
        self.server.world.pass_by(points, when="after")
        self._send(HTTPStatus.OK, _Answer(model, step, answer).whole())

    def _stream(self, answer: "_Answer", points: list[str]) -> None:
        """Send the answer in pieces; a hold `before` comes before the first, `after` behind it."""
        self.server.world.pass_by(points, when="before", note={"model": answer.model})
        _fail_if_scripted(answer.step)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, chunk in enumerate(answer.chunks()):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.flush()
            if number == 0:
                self.server.world.pass_by(points, when="after")
        self.wfile.write(b"data: [DONE]\n\n")

    def _body(self) -> Json:
        length = self.headers.get("Content-Length", "")
        _need(length.isdigit(), "Content-Length is needed")
        if int(length) > BODY_BYTES_MAX:
            self._discard_body()
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
        _need(isinstance(body, dict), "the body is an object")
        return dict(body)

    def _discard_body(self) -> None:
        """Read what is sent but not wanted, at least some of it, so that the answer arrives."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(int(length) if length.isdigit() else 0, 4 * BODY_BYTES_MAX))

    def _send(self, status: int, body: Json, *, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    _need(
        isinstance(value, str) and 0 < len(value) <= NAME_CHARACTERS_MAX,
        f"{name} is a text of 1 to {NAME_CHARACTERS_MAX} characters",
    )
    return str(value)


def _number(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{text!r} is no number") from error


def _fail_if_scripted(step: Json) -> None:
    if "fail" in step:
        headers = {"Retry-After": str(step["retry_after"])} if "retry_after" in step else None
        raise Refused(int(step["fail"]), "scripted failure", headers=headers)


class _Answer:
    """One step of a script in the two forms in which OpenAI's API says it."""

    def __init__(self, model: str, number: int, step: Json) -> None:
        self.model, self.number, self.step = model, number, step

    def _calls(self) -> list[Json]:
        calls = self.step.get("call", [])
        return [
            {
                "id": f"call-{self.number}-{index}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json.dumps(call.get("arguments", {})),
                },
            }
            for index, call in enumerate(calls if isinstance(calls, list) else [calls])
        ]

    def _frame(self, kind: str, choice: Json) -> Json:
        return {
            "id": f"scripted-{self.number}",
            "object": kind,
            "created": 0,
            "model": self.model,
            "choices": [{"index": 0, **choice}],
        }

    def _reason(self) -> str:
        return "tool_calls" if "call" in self.step else "stop"

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": self.step.get("say")}
        if "call" in self.step:
            message["tool_calls"] = self._calls()
        frame = self._frame(
            "chat.completion", {"message": message, "finish_reason": self._reason()}
        )
        frame["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return frame

    def chunks(self) -> Iterator[Json]:
        words = str(self.step.get("say") or "").split(" ")
        deltas: list[Json] = [{"role": "assistant", "content": words[0]}]
        deltas += [{"content": " " + word} for word in words[1:]]
        deltas += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(self._calls())]
        for delta in deltas:
            yield self._frame("chat.completion.chunk", {"delta": delta, "finish_reason": None})
        yield self._frame("chat.completion.chunk", {"delta": {}, "finish_reason": self._reason()})


class OutsideServer(ThreadingHTTPServer):
    """The server; `server_address` says where it listens (port 0: any free one)."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = REQUESTS_MAX

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on `host` and `port`; `serve_forever` begins to answer."""
        self.world = World()
        self.places = threading.BoundedSemaphore(REQUESTS_MAX)
        self.connections = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or close it where there are too many."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    @property
    def url(self) -> str:
        """Where it is reached from this host."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Serve until the process is ended; print the port as one line of JSON once it listens."""
    parser = argparse.ArgumentParser(
        description="A scripted model and a counter of effects, for trials"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8099, help="0: any free one")
    chosen = parser.parse_args(arguments)
    server = OutsideServer(chosen.host, chosen.port)
    sys.stdout.write(json.dumps({"port": server.server_address[1]}) + "\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
