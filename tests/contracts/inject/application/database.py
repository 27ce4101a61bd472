"""A database as far as connections go: it answers each byte on a socket named by its argument."""

import contextlib
import os
import socketserver
import sys


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while self.request.recv(1):
                self.request.sendall(b"!")


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


with contextlib.suppress(FileNotFoundError):
    os.unlink(sys.argv[1])  # noqa: PTH108  # of the one before
with Server(sys.argv[1], Handler) as server:
    server.serve_forever()
