"""The outside world: an HTTP service in a process of its own that counts what it does.

Endpoints (`POST /act/<endpoint>` with label, key, value; the receipt depends on the label only):

- `keyed`: drops a second request with the same key.
- `lookup`: does what it is asked each time; `GET /act/lookup?key=` says what was done under a key.
- `flaky_keyed`, `flaky_lookup`: the same, and the first answer for each label is lost.
- `busy`: as `keyed`, and refuses the first request for each label before anything is done.
- `once`: does what it is asked each time and knows nothing.

What it did is in SQLite (WAL, FULL) before it answers. The headers `X-Kill-Pid` and `X-Kill-At` ask
it to kill the caller before or after it acts, without an answer: the moment that no code of the
caller can reach.
"""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

DEDUPING = frozenset({"keyed", "flaky_keyed", "busy", "undo"})
FLAKY = frozenset({"flaky_keyed", "flaky_lookup"})


class Ledger:
    """What the service was asked and what it did."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._quiet = threading.Condition()
        self._under_way: set[int] = set()
        self._accepted = 0
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE IF NOT EXISTS asked (endpoint, label, key, pid, at_s)")
        self._db.execute("CREATE TABLE IF NOT EXISTS acts (endpoint, label, key, value)")

    def accept(self) -> int:
        """Note a new connection; return its number."""
        with self._quiet:
            self._accepted += 1
            self._under_way.add(self._accepted)
            return self._accepted

    def finish(self, number: int) -> None:
        """Note that nothing more comes of a connection."""
        with self._quiet:
            self._under_way.discard(number)
            self._quiet.notify_all()

    def settle(self, number: int) -> None:
        """Return when nothing is under way that came earlier: an answer must not overtake it."""
        self.finish(number)
        with self._quiet:
            self._quiet.wait_for(
                lambda: all(other > number for other in self._under_way), timeout=10.0
            )

    def ask(self, endpoint: str, label: str, key: str, pid: int) -> int:
        """Note a request; return which one it is for its label."""
        with self._lock:
            row = (endpoint, label, key, pid, time.monotonic())
            self._db.execute("INSERT INTO asked VALUES (?, ?, ?, ?, ?)", row)
            sql = "SELECT count(*) FROM asked WHERE endpoint = ? AND label = ?"
            return int(self._db.execute(sql, (endpoint, label)).fetchone()[0])

    def act(self, endpoint: str, label: str, key: str, value: str) -> None:
        """Do it, unless the endpoint drops repetitions and this is one."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            sql = "SELECT count(*) FROM acts WHERE endpoint = ? AND key = ?"
            is_known = self._db.execute(sql, (endpoint, key)).fetchone()[0] > 0
            if not (is_known and endpoint in DEDUPING):
                self._db.execute(
                    "INSERT INTO acts VALUES (?, ?, ?, ?)", (endpoint, label, key, value)
                )

    def has(self, endpoint: str, key: str) -> str | None:
        """Return the label of what was done under a key, or None."""
        with self._lock:
            sql = "SELECT label FROM acts WHERE endpoint = ? AND key = ?"
            row = self._db.execute(sql, (endpoint, key)).fetchone()
        return None if row is None else str(row[0])

    def times(self) -> list[tuple[int, float]]:
        """Return who asked when (monotonic seconds of this host), oldest first."""
        with self._lock:
            return self._db.execute("SELECT pid, at_s FROM asked ORDER BY at_s").fetchall()

    def truth(self) -> dict[str, Any]:
        """Return how often each thing was done and asked for, by `endpoint/label`, and by pid."""
        with self._lock:
            sql = "SELECT endpoint || '/' || label, count(*) FROM {} GROUP BY 1"
            acts = dict(self._db.execute(sql.format("acts")).fetchall())
            asked = dict(self._db.execute(sql.format("asked")).fetchall())
            pids = dict(self._db.execute("SELECT pid, count(*) FROM asked GROUP BY 1").fetchall())
        return {"acts": acts, "asked": asked, "pids": {str(k): v for k, v in pids.items()}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Ledger
    server: "_Server"

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/times":
            self._answer(200, self.ledger.times())
            return
        if parts.path == "/counts":
            self._answer(200, self.ledger.truth())
            return
        self.ledger.settle(self.server.number_of(self.request))
        if parts.path == "/truth":
            self._answer(200, self.ledger.truth())
            return
        endpoint = parts.path.removeprefix("/act/")
        key = parse_qs(parts.query)["key"][0]
        self._answer(200, {"label": self.ledger.has(endpoint, key)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        endpoint = self.path.removeprefix("/act/")
        label, key = body["label"], body["key"]
        if self._kills("before"):
            return  # the request is lost with its sender
        nth = self.ledger.ask(endpoint, label, key, int(self.headers["X-Pid"]))
        if endpoint == "busy" and nth == 1:
            self._answer(429, {"error": "later"})
            return
        time.sleep(body.get("before_s", 0.0))
        self.ledger.act(endpoint, label, key, json.dumps(body["value"]))
        if self._kills("after"):
            return
        time.sleep(body.get("after_s", 0.0))
        if endpoint in FLAKY and nth == 1:
            self._answer(500, {"error": "lost"})
        else:
            self._answer(200, {"receipt": f"{endpoint}:{label}"})

    def _kills(self, at: str) -> bool:
        is_chosen = self.headers.get("X-Kill-At") == at
        if is_chosen:
            os.kill(int(self.headers["X-Kill-Pid"]), signal.SIGKILL)
            self.close_connection = True
        return is_chosen

    def _answer(self, status: int, body: Any) -> None:
        encoded = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # whoever asked may be dead
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(encoded)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._numbers: dict[Any, int] = {}
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Number the connection before its thread begins."""
        self._numbers[request] = _Handler.ledger.accept()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Note that it is over."""
        _Handler.ledger.finish(self._numbers.pop(request))
        super().shutdown_request(request)

    def number_of(self, request: Any) -> int:
        """Return the connection's number."""
        return self._numbers[request]

    def handle_error(self, *_args: object) -> None:
        """A caller that died in the middle of its request is what this is for."""


def listen() -> socket.socket:
    """Return a listening socket on a free port, to be handed to `serve` in a child."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    return listening


def serve(listening: socket.socket, path: Path) -> None:
    """Serve for ever."""
    _Handler.ledger = Ledger(path)
    server = _Server(listening.getsockname(), _Handler, bind_and_activate=False)
    server.socket = listening
    server.serve_forever(poll_interval=3600)
