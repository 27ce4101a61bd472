"""For programs that are killed: the crash point at which they die."""

import os
import signal
from collections.abc import Callable


def dying(point: str, nth: str | int) -> Callable[[str], None]:
    """Return a probe that kills this process when it passes a crash point for the nth time."""
    left = int(nth)

    def die(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return die
