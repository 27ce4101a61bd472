"""Who erases, and is killed at a point; and a worker of the person's runs that stops at one."""

import asyncio
import signal
import sys
import threading

from perdure import Runtime, WorkerSettings
from perdure.clock import Services, system_services
from perdure.governance import erase
from tests.governance.canaries import SUBJECT, graphs
from tests.sealing.conftest import local_keys


def services_that(point: str, nth: int, number: int) -> Services:
    """Return services whose probe sends this process a signal at the nth time of a point."""
    left = nth

    def probe(name: str) -> None:
        """Die, or stop, at the point."""
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            # To this very thread: another one might be the first to stop, and this one go on.
            signal.pthread_kill(threading.get_ident(), number)

    known = system_services()
    return Services(clock=known.clock, rng=known.rng, ids=known.ids, probe=probe)


async def erases(url: str, point: str, nth: int, *, sealed: bool) -> None:
    """Erase the person until the point is reached, and die there."""
    services = services_that(point, nth, signal.SIGKILL)
    keys = local_keys(1) if sealed else None
    async with Runtime.open(url, worker=False, services=services, keys=keys) as runtime:
        await erase(runtime, subject=SUBJECT, by="ada", force=True)


async def works(url: str, point: str, nth: int) -> None:
    """Execute runs, and stop at the point until somebody lets this process go on."""
    services = services_that(point, nth, signal.SIGSTOP)
    settings = WorkerSettings(lease_ttl_s=3.0, heartbeat_s=1.0)
    async with Runtime.open(url, graphs(), worker=settings, services=services):
        sys.stdout.write("works\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until it is closed


if __name__ == "__main__":
    role, url, point, *rest = sys.argv[1:]
    if role == "erase":
        asyncio.run(erases(url, point, int(rest[0]), sealed=rest[1] == "sealed"))
    else:
        asyncio.run(works(url, point, int(rest[0])))
