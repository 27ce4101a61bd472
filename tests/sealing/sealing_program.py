"""Who seals a store in place, and is killed at a point."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

from perdure.clock import system_services
from perdure.sealing import seal
from perdure.store import make_store
from tests.sealing.conftest import local_keys


async def main(url: str, point: str, nth: int) -> None:
    """Seal until the point is reached for the nth time, and die there."""
    left = nth

    def probe(name: str) -> None:
        """Die at the point."""
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    services = replace(system_services(), probe=probe)
    await seal(make_store(url, services), local_keys(1), services)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
