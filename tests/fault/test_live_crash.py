"""A worker in whose sandbox something is alive may be killed at any instant."""

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
from tests.fault.test_isolated_crash import nothing_is_left
from tests.sandbox.long import LONG

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

CRASH_POINTS = [
    "sandbox.keep.copied",
    "sandbox.keep.placed",
    "sandbox.keep.synced",
    "sandbox.keep.named",
]

WRITER = "(while :; do echo x; done) >> log & exec sleep LONG > /dev/null &"

WORKER = (
    textwrap.dedent("""
    import asyncio, sys, time
    from dataclasses import replace
    from perdure.clock import system_services
    from perdure.sandbox import IsolatedSandboxes
    from tests.fault.dying import dying

    root, point, nth = sys.argv[1:]

    async def main():
        services = replace(system_services(), probe=dying(point, nth))
        backend = IsolatedSandboxes(root, live=True, services=services)
        sandbox = backend.open("t", "1", fence=(time.time_ns(), 1))
        number = 0
        while True:
            await sandbox.restore(None)
            await sandbox.run("WRITER")
            for _ in range(3):
                number += 1
                await sandbox.run(f"echo {number} > n; rm -rf d; mkdir d; echo {number} > d/n")
                snapshot = await sandbox.take()
                print(snapshot, number, flush=True)

    asyncio.run(main())
""")
    .replace("WRITER", WRITER)
    .replace("LONG", LONG)
)


def start(root, point="", nth=0):
    return warm.Popen(
        [sys.executable, "-c", WORKER, str(root), point, str(nth)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def _able(tmp_path):
    backend = IsolatedSandboxes(tmp_path / "able")
    try:
        asyncio.run(backend.capabilities())
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()


async def check(root, said):
    """Every snapshot that was told of is whole, and stays as it is; what is there can be used."""
    backend = IsolatedSandboxes(root, live=True)
    try:
        sandbox = backend.open("t", "1", fence=(time.time_ns(), 1))
        assert (await sandbox.run("echo on")).output == "on\n"
        for line in said[-4:]:
            snapshot, number = line.split()
            await sandbox.restore(snapshot)
            lost = [each.line for each in sandbox.lost()]
            assert f"sleep {LONG}" in lost
            ran = await sandbox.run("cat n d/n; ls d; stat -c %s log")
            *rest, size = ran.output.split()
            assert rest == [number, number, "n"]
            assert any(f"sleep {LONG}" in each for each in ran.lost)
            await sandbox.restore(None)
            await sandbox.restore(snapshot)
            assert (await sandbox.run("stat -c %s log")).output.split() == [size]
    finally:
        backend.close()


@pytest.mark.usefixtures("_able")
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_killed_at(tmp_path, point):
    with start(tmp_path, point, 3) as worker:
        said, _ = await asyncio.to_thread(worker.communicate, timeout=100)
        assert worker.returncode == -signal.SIGKILL
    await nothing_is_left()
    await check(tmp_path, said.splitlines())
    assert len(said.splitlines()) == 2


@pytest.mark.usefixtures("_able")
async def test_killed_at_any_instant(tmp_path):
    said = []
    for n in range(10):
        with start(tmp_path) as worker:
            said.append(worker.stdout.readline())
            time.sleep(random.uniform(0.0, 0.3))  # noqa: ASYNC251, S311
            worker.kill()
            said += worker.communicate()[0].splitlines()
        if n % 5 == 4:  # in between, the next process finds what the last ones left
            await nothing_is_left()
            await check(tmp_path, said)


@pytest.mark.usefixtures("_able")
async def test_a_launcher_that_is_killed_while_all_is_stopped(tmp_path):
    """Then nobody lets the processes go on: they must die all the same."""
    backend = IsolatedSandboxes(tmp_path, live=True)
    try:
        sandbox = backend.open("t", "1")
        await sandbox.run(f"sleep {LONG} &")
        tree = sandbox._live.tree
        cell = tree.group.cell
        with cell.frozen():
            backend._launcher._process.kill()
            if cell.version == 2:
                await asyncio.wait_for(tree.over, 60)
                await nothing_is_left()
        ran = await sandbox.run("echo on")
        assert ran.output == "on\n"
        assert [line for line in ran.lost if f"sleep {LONG}" in line]
    finally:
        backend.close()
