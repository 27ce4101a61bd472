"""Time, chance and identity of the machine itself."""

import os
import random
import sys
import time

from perdure.clock._api import Services

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32: sorts like the number it spells
_TIME_DIGITS = 10  # 50 bits of milliseconds: until the year 37648
_TAIL_DIGITS = 16  # 80 bits


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        """Return the wall-clock time in microseconds since the epoch (UTC)."""
        return time.time_ns() // 1000

    if sys.platform == "linux":

        def monotonic_s(self) -> float:
            """Return the monotonic clock in seconds; time that the machine sleeps counts."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def monotonic_s(self) -> float:
            """Return the monotonic clock in seconds."""
            return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds."""
        import asyncio  # noqa: PLC0415  # a sixth of the start of programs that never sleep

        await asyncio.sleep(delay_s)


class SystemRng:
    """The operating system's randomness."""

    def __init__(self) -> None:
        """Seed from the operating system."""
        self._random = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        """Return a float between low and high."""
        return self._random.uniform(low, high)


class SystemIds:
    """Identifiers that sort by time and are unique by 80 random bits."""

    def new(self, prefix: str, at_us: int) -> str:
        """Return `prefix_` + 10 digits of milliseconds + 16 random digits (base 32)."""
        return spell_id(prefix, at_us, int.from_bytes(os.urandom(10), "big"))


def spell_id(prefix: str, at_us: int, tail: int) -> str:
    """Return `prefix_` + 26 digits that sort by the millisecond of `at_us`, then by `tail`.

    Args:
        prefix: what is named, such as `r` for a run.
        at_us: microseconds since the epoch, from 0.
        tail: what makes it unique within its millisecond, from 0 to 2 ** 80 - 1.
    """
    number = at_us // 1000 << 5 * _TAIL_DIGITS | tail
    digits = [_ALPHABET[number >> 5 * place & 31] for place in range(_TIME_DIGITS + _TAIL_DIGITS)]
    return f"{prefix}_{''.join(reversed(digits))}"


def no_probe(_name: str) -> None:
    """Do nothing: the probe of production."""


def system_services() -> Services:
    """Return the services of the machine itself."""
    return Services(clock=SystemClock(), rng=SystemRng(), ids=SystemIds(), probe=no_probe)
