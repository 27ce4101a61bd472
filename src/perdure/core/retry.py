"""When to try again: exponential backoff with full jitter, and the longest wait that is honoured.

Source: Marc Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), full jitter.
"""

from msgspec import Struct

from perdure.clock import Rng
from perdure.errors import SettingInvalid

BACKOFF_S_MAX = 366 * 86400.0
"""Longest backoff that can be declared: a year; what is longer is a mistake, not a backoff."""

RETRY_AFTER_S_MAX = 24 * 3600.0
"""Longest `Retry-After` that is honoured; longer ones are cut: no header parks a run for ever."""


class Retry(Struct, frozen=True, kw_only=True):
    """How often and how fast to try again.

    Attributes:
        max_attempts: tries in all, at least 1.
        base_s: the backoff before try n + 1 is uniform in [0, min(cap_s, base_s * 2 ** (n - 1))].
        cap_s: longest backoff in seconds.
        on: exception classes that are worth another try.
    """

    max_attempts: int = 3
    base_s: float = 0.5
    cap_s: float = 30.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.max_attempts < 1:
            msg = f"Retry(max_attempts={self.max_attempts!r}): must be at least 1 (1: never again)"
            raise SettingInvalid(msg)
        if not 0 <= self.base_s <= self.cap_s <= BACKOFF_S_MAX:
            msg = (
                f"Retry(base_s={self.base_s!r}, cap_s={self.cap_s!r}): need "
                f"0 <= base_s <= cap_s <= {BACKOFF_S_MAX:.0f} (a year)"
            )
            raise SettingInvalid(msg)


def backoff_s(
    retry: Retry, attempt: int, rng: Rng, retry_after_s: float | None = None
) -> float | None:
    """Return the seconds to wait after failed try `attempt` (from 1), or None: no more tries.

    A `retry_after_s` from the other side is a lower bound, up to RETRY_AFTER_S_MAX.
    """
    if attempt >= retry.max_attempts:
        return None
    # 2.0 ** 64 is beyond every cap: a large attempt count must not overflow the float.
    ceiling = min(retry.cap_s, retry.base_s * 2.0 ** min(attempt - 1, 64))
    jittered = rng.uniform(0.0, ceiling)
    if retry_after_s is None:
        return jittered
    return max(jittered, min(max(retry_after_s, 0.0), RETRY_AFTER_S_MAX))
