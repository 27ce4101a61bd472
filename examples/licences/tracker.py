"""A small issue tracker: an HTTP service in a process of its own, with SQLite behind it.

    POST /findings           JSON object; header Idempotency-Key -> {"id": ..., "is_new": ...}
    GET  /findings?key=K     the findings that were filed under a key
    GET  /count[?run=R]      rows, distinct keys, distinct names, requests, rows per repeated key

With `--dedupe` a repeated key gives the first finding, as payment and ticket services do; with
`--no-dedupe` every POST is a new row, as most others do. Both keep the key, so that a caller can
look its finding up.

Rule: a GET is answered after every request that was accepted before it. Each connection carries one
request, and connections are accepted in order; so a caller that finds nothing knows that nothing of
it is still under way.
"""

import argparse
import json
import os
import random
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

BODY_BYTES_MAX = 64 * 1024
"""Largest request body."""

KEY_CHARS_MAX = 200
"""Longest idempotency key."""

CONNECTIONS_MAX = 64
"""Open requests, an OS thread each; beyond it a new connection is closed."""

SILENCE_S_MAX = 5.0
"""A client that sends nothing for so long is dropped."""

LOOKUP_WAIT_S_MAX = 10.0
"""Longest wait of a GET for earlier requests, above SILENCE_S_MAX; then 503."""

_TABLES = """
CREATE TABLE IF NOT EXISTS findings (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, run TEXT NOT NULL, name TEXT NOT NULL,
    body TEXT NOT NULL, requests INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX IF NOT EXISTS findings_by_key ON findings (key);
CREATE INDEX IF NOT EXISTS findings_by_run ON findings (run);
"""


class KeyReused(Exception):
    """A key came again with another body."""


class Findings:
    """The table of findings, for many OS threads."""

    def __init__(self, path: Path, *, dedupes: bool) -> None:
        self._dedupes = dedupes
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_TABLES)

    def add(self, key: str, body: dict[str, Any]) -> tuple[int, bool]:
        """Return the id of the finding, and whether it is new. It is on disk then."""
        text = json.dumps(body, sort_keys=True)
        with self._lock, self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            found = self._first(key) if self._dedupes else None
            if found is not None:
                if found[1] != text:
                    msg = f"key {key!r} was used for another finding"
                    raise KeyReused(msg)
                connection.execute(
                    "UPDATE findings SET requests = requests + 1 WHERE id = ?", (found[0],)
                )
                return found[0], False
            row = (key, str(body.get("run", "")), str(body.get("name", "")), text)
            added = connection.execute(
                "INSERT INTO findings (key, run, name, body) VALUES (?, ?, ?, ?)", row
            )
            return int(added.lastrowid or 0), True

    def of_key(self, key: str) -> list[dict[str, Any]]:
        """Return the findings of a key, oldest first."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT id, body FROM findings WHERE key = ? ORDER BY id", (key,)
            ).fetchall()
        return [{"id": str(row), "finding": json.loads(body)} for row, body in rows]

    def count(self, run: str | None) -> dict[str, Any]:
        """Return rows, distinct keys and names, requests, and the rows of each repeated key."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT key, name, requests FROM findings WHERE run = ? OR ? IS NULL", (run, run)
            ).fetchall()
        keys = Counter(key for key, _, _ in rows)
        return {
            "rows": len(rows),
            "keys": len(keys),
            "names": len({name for _, name, _ in rows}),
            "requests": sum(requests for _, _, requests in rows),
            "duplicates": {key: count for key, count in keys.items() if count > 1},
        }

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _first(self, key: str) -> tuple[int, str] | None:
        found = self._connection.execute(
            "SELECT id, body FROM findings WHERE key = ? ORDER BY id LIMIT 1", (key,)
        ).fetchone()
        return None if found is None else (found[0], found[1])


@dataclass
class Latency:
    """Seconds that a request takes, half before and half after it is written."""

    least_s: float = 0.0
    most_s: float = 0.0

    def half(self) -> None:
        time.sleep(random.uniform(self.least_s, self.most_s) / 2)


class TrackerServer(ThreadingHTTPServer):
    """Serves findings; each connection gets the next number when it is accepted."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], findings: Findings, latency: Latency) -> None:
        super().__init__(address, _Handler)
        self.findings = findings
        self.latency = latency
        self._accepted = 0
        self._under_way: set[int] = set()
        self._changed = threading.Condition()
        self._mine = threading.local()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            if len(self._under_way) >= CONNECTIONS_MAX:
                self.shutdown_request(request)
                return
            self._accepted += 1
            number = self._accepted
            self._under_way.add(number)
        threading.Thread(
            target=self._serve, args=(request, client_address, number), daemon=True
        ).start()

    def _serve(self, request: socket.socket, client_address: Any, number: int) -> None:
        self._mine.number = number
        try:
            self.process_request_thread(request, client_address)
        finally:
            self.leave()

    def leave(self) -> None:
        """Count this OS thread's request as ended: those accepted after it need not wait."""
        with self._changed:
            self._under_way.discard(self._mine.number)
            self._changed.notify_all()

    def wait_for_earlier(self) -> bool:
        """Wait until every request accepted before this one has ended; False: too long."""
        number = self._mine.number
        with self._changed:
            return self._changed.wait_for(
                lambda: all(other >= number for other in self._under_way), LOOKUP_WAIT_S_MAX
            )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a client that went away; print every other error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: TrackerServer
    timeout = SILENCE_S_MAX

    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/findings":
            self._answer(404, {"error": "POST /findings"})
            return
        key = self.headers.get("Idempotency-Key", "")
        if not 0 < len(key) <= KEY_CHARS_MAX:
            self._answer(400, {"error": f"Idempotency-Key needs 1 to {KEY_CHARS_MAX} characters"})
            return
        body = self._body()
        if body is None:
            return
        self.server.latency.half()
        try:
            finding, is_new = self.server.findings.add(key, body)
        except KeyReused as error:
            self._answer(422, {"error": str(error)})
            return
        self.server.latency.half()
        self._answer(201 if is_new else 200, {"id": str(finding), "is_new": is_new})

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        query = parse_qs(at.query)
        if not self.server.wait_for_earlier():
            self._answer(503, {"error": "earlier requests are still under way"})
        elif at.path == "/findings" and "key" in query:
            self._answer(200, {"findings": self.server.findings.of_key(query["key"][0])})
        elif at.path == "/count":
            self._answer(200, self.server.findings.count(query.get("run", [None])[0]))
        else:
            self._answer(404, {"error": "GET /findings?key= or /count"})

    def _body(self) -> dict[str, Any] | None:
        """Return the JSON object sent, or None after answering what is wrong with it."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            self._answer(411, {"error": "Content-Length is needed"})
            return None
        if int(length) > BODY_BYTES_MAX:
            self._answer(413, {"error": f"at most {BODY_BYTES_MAX} bytes"})
            return None
        sent = self.rfile.read(int(length))
        try:
            body = json.loads(sent) if len(sent) == int(length) else None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._answer(400, {"error": "a whole JSON object is needed"})
            return None
        return body

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        encoded = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  # the base class's name
        """Log nothing: the counts tell."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve findings until stdin is closed.")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any free one, printed as JSON")
    parser.add_argument("--latency-ms", default="5-40", metavar="LEAST-MOST")
    dedupe = parser.add_mutually_exclusive_group(required=True)
    dedupe.add_argument("--dedupe", action="store_true")
    dedupe.add_argument("--no-dedupe", dest="dedupe", action="store_false")
    options = parser.parse_args()
    least, _, most = options.latency_ms.partition("-")
    latency = Latency(float(least) / 1000, float(most or least) / 1000)
    findings = Findings(options.database, dedupes=options.dedupe)
    server = TrackerServer(("127.0.0.1", options.port), findings, latency)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": server.url, "pid": os.getpid()}), flush=True)
    sys.stdin.read()  # ends when whoever started it ends, however that ends
    server.shutdown()
    findings.close()


if __name__ == "__main__":
    main()
