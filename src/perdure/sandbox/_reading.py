"""Reading what commands print, as it comes: kept up to a limit, above it counted and thrown away.

So a flood neither fills the memory nor stops what prints it, until a second limit at which whoever
waits is told.
"""

import asyncio
import os

from perdure.sandbox.limits import CATCH_UP_READS, FLOOD_BYTES_MAX, READ_BYTES


class Reading:
    """Reads one stream to its end, and keeps the beginning."""

    def __init__(self, keep_bytes: int) -> None:
        """Keep this many bytes."""
        loop = self._loop = asyncio.get_running_loop()
        self._keep_bytes = keep_bytes
        self._fd = -1
        self.kept = bytearray()
        self.count = 0
        self.ended: asyncio.Future[None] = loop.create_future()
        self.flooded: asyncio.Future[None] = loop.create_future()

    def open(self) -> int:
        """Return the end to write to, which the caller closes."""
        self._fd, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)  # the standard library's signature
        self._loop.add_reader(self._fd, self._read)
        return write

    def catch_up(self) -> None:
        """Read all that was printed until now."""
        for _ in range(CATCH_UP_READS):  # a flood never ends
            if self._fd < 0 or not self._read():
                return

    async def wait(self) -> None:
        """Return when all was read."""
        if self._fd >= 0:
            await self.ended

    def forget(self) -> None:
        """Keep nothing of what is printed from now on; a flood of it is not read any more."""
        self._keep_bytes = 0
        self.count = 0
        self.flooded.add_done_callback(lambda _: self.close())

    def _read(self) -> bool:
        """Read once; return whether there may be more now."""
        try:
            chunk = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        self.count += len(chunk)
        room = self._keep_bytes - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]
        if self.count > FLOOD_BYTES_MAX and not self.flooded.done():
            self.flooded.set_result(None)
        return True

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if not self.ended.done() and not self._loop.is_closed():
            self.ended.set_result(None)
