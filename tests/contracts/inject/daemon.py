"""An engine's address where nothing runs: it answers the real client, and keeps what it is told."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    asked: list[tuple[str, dict[str, object]]]

    def get_request(self):
        """Give the handler an address, which sockets of this kind don't have."""
        return super().get_request()[0], ("client", 0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def _answer(self, code, answer):
        content = json.dumps(answer).encode()
        self.send_response(code)
        for name, value in (("Api-Version", "1.45"), ("OSType", "linux"),
                            ("Content-Type", "application/json"),
                            ("Content-Length", str(len(content)))):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self):
        self._answer(200, {})

    def do_GET(self):
        known = {"/version": {"Version": "27.0", "ApiVersion": "1.45"}, "/volumes": {"Volumes": []}}
        self._answer(200, next((known[each] for each in known if each in self.path), []))

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, json.loads(content or b"{}")))
        self._answer(201, {"Id": "c" * 64, "Warnings": []})


class Daemon:
    """Use it as a context; `created` is the body of the only container that was asked for."""

    def __init__(self, folder: Path) -> None:
        """Listen on a socket in this folder."""
        self._server = _Server(str(folder / "engine.sock"), _Handler)
        self._server.asked = []
        self.address = f"unix://{folder / 'engine.sock'}"

    def __enter__(self):
        """Begin to listen."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def asked(self):
        """All paths and bodies that were posted."""
        return tuple(self._server.asked)

    @property
    def created(self):
        """What the container was to be."""
        [body] = [body for path, body in self.asked if "/containers/create" in path]
        return body
