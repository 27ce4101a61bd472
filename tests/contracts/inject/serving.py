"""Servers of the standard library on a thread, and ports for those that want one named."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.contracts.inject.outside import OutsideServer


@contextmanager
def serving(server: OutsideServer) -> Iterator[OutsideServer]:
    """Serve while the block lasts; what is held is released at its end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.world.reset()
            server.shutdown()
            thread.join()


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
