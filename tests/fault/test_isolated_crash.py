"""A worker with isolated sandboxes may be killed at any instant, and its sandboxes with it."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes
from tests import warm
from tests.sandbox.long import LONG, alive
from tests.sandbox.workload import seen

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

SQUASHED = "sandbox.freeze.squashed"
CRASH_POINTS = [
    "sandbox.freeze.begun",
    "sandbox.freeze.placed",
    "sandbox.freeze.synced",
    "sandbox.freeze.named",
    SQUASHED,
    "sandbox.rollback.dropped",
]

WORKER = textwrap.dedent("""
    import asyncio, sys
    from dataclasses import replace
    from perdure.clock import system_services
    from perdure.sandbox import IsolatedSandboxes, _layers
    from tests.fault.dying import dying

    root, point, nth, *snapshots = sys.argv[1:]

    async def main():
        _layers.SQUASH_AT = 2
        services = replace(system_services(), probe=dying(point, nth))
        backend = IsolatedSandboxes(root, services=services)
        sandbox = backend.open("t", "1")
        print("ready", flush=True)
        while True:
            for snapshot in snapshots:
                await sandbox.restore(snapshot)
                await sandbox.run("head -c 20 /dev/urandom > /workspace/more; sleep LONG &")
                await sandbox.take()

    asyncio.run(main())
""")


def start(root, point, nth, snapshots):
    return warm.Popen(
        [
            sys.executable,
            "-c",
            WORKER.replace("LONG", LONG),
            str(root),
            point,
            str(nth),
            *snapshots,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )


@pytest.fixture
async def known(tmp_path):
    """Return the content of two snapshots, one on top of the other."""
    backend = IsolatedSandboxes(tmp_path)
    try:
        sandbox = backend.open("t", "1")
        found = {}
        for n in range(2):
            await sandbox.run(
                f"rm -rf /workspace/d{n - 1}; mkdir /workspace/d{n}; echo {n} > /workspace/d{n}/f"
            )
            found[await sandbox.take()] = await seen(sandbox)
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    else:
        return found
    finally:
        backend.close()


async def check(root, known):
    """Whatever was left: the sandbox can be used, and every snapshot comes back whole."""
    backend = IsolatedSandboxes(root)
    try:
        sandbox = backend.open("t", "1")
        left = await seen(sandbox)
        left.pop("/workspace/more", None)
        for files in known.values():
            files.pop("/workspace/more", None)
        assert left.keys() - known_paths(known) == set()
        for snapshot, files in known.items():
            await sandbox.restore(snapshot)
            assert await seen(sandbox) == files
            assert await sandbox.take() == snapshot
    finally:
        backend.close()


def known_paths(known):
    return {path for files in known.values() for path in files}


async def nothing_is_left():
    for _ in range(500):
        if not alive():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(alive())


@pytest.mark.parametrize(
    ("point", "nth"),
    # A chain is squashed once.
    [(point, nth) for point in CRASH_POINTS for nth in (1, 3) if (point, nth) != (SQUASHED, 3)],
)
async def test_killed_at(tmp_path, known, point, nth):
    with start(tmp_path, point, nth, known) as worker:
        assert await asyncio.to_thread(worker.wait, 60) == -signal.SIGKILL
    await nothing_is_left()
    await check(tmp_path, known)


async def test_killed_at_any_instant(tmp_path, known):
    for n in range(20):
        with start(tmp_path, "", 0, known) as worker:
            worker.stdout.readline()
            time.sleep(random.uniform(0.0, 0.3))  # noqa: ASYNC251, S311
            worker.kill()
            worker.wait()
        if n % 5 == 4:  # in between, the next process finds what the last ones left
            await nothing_is_left()
            await check(tmp_path, known)
