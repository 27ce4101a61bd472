"""The server's time, without asking it each time.

Leases and due times are compared by whoever claims, on any host. So they go by one clock, the
server's: it is asked at the opening and with each heartbeat, and this host's monotonic clock says
how long ago that was. A wall clock that is wrong, or jumps, changes nothing here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.clock import Clock
from perdure.store.postgres.limits import TIME_ANSWER_S_MAX, TIME_STEP_US

SERVER_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class ServerTime:
    """What the server's clock shows."""

    def __init__(self, clock: Clock) -> None:
        """Begin with this host's clock, until the server was asked."""
        self._monotonic_s = clock.monotonic_s
        self._asked_s = clock.monotonic_s()
        self._then_us = clock.now_us()
        self._was_asked = False

    def now_us(self) -> int:
        """Return the time in microseconds since the epoch."""
        return self._then_us + int((self._monotonic_s() - self._asked_s) * 1_000_000)

    async def ask(self, query: Callable[[], Awaitable[Any]]) -> None:
        """Ask the server; an answer that took long says little and is passed over.

        Args:
            query: runs `SERVER_TIME` and returns its rows.
        """
        sent_s = self._monotonic_s()
        [(then_us,)] = await query()
        took_s = self._monotonic_s() - sent_s
        if self._was_asked and took_s > TIME_ANSWER_S_MAX:
            return
        middle_us = then_us + round(took_s * 500_000)
        # Small differences are the network's: following them would make time run backwards.
        if not self._was_asked or abs(middle_us - self.now_us()) > TIME_STEP_US:
            self._then_us, self._asked_s = middle_us, sent_s + took_s
        self._was_asked = True
