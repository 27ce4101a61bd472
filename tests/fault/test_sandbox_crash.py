"""A process at work on a sandbox may be killed at any instant: all is old then, or all is new."""

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
from perdure.sandbox import DirectorySandboxes
from tests import warm

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

CRASH_POINTS = [
    "sandbox.take.blob",
    "sandbox.take.blobs",
    "sandbox.take.manifest",
    "sandbox.restore.begun",
    "sandbox.restore.removed",
    "sandbox.restore.entry",
]

WORKER = textwrap.dedent("""
    import asyncio, os, sys
    from perdure.sandbox import DirectorySandboxes
    from tests.fault.dying import dying

    root, point, nth, *snapshots = sys.argv[1:]

    async def main():
        sandbox = DirectorySandboxes(root, probe=dying(point, nth)).open("t", "1")
        print("ready", flush=True)
        while True:
            for snapshot in snapshots:
                await sandbox.restore(snapshot)
                (sandbox.path / "more").write_text(str(os.urandom(8)))
                await sandbox.take()

    asyncio.run(main())
""")


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def fill(path, seed):
    chance = random.Random(seed)  # noqa: S311
    for n in range(40):
        folder = path / f"f{chance.randrange(5)}"
        folder.mkdir(exist_ok=True)
        (folder / f"{n % 20}").write_bytes(chance.randbytes(chance.randrange(20_000)))


async def two_snapshots(root):
    sandbox = DirectorySandboxes(root).open("t", "1")
    known = {}
    for seed in (1, 2):
        await sandbox.restore(None)
        fill(sandbox.path, seed)
        known[await sandbox.take()] = contents(sandbox.path)
    return known


def start(root, point, nth, snapshots):
    return warm.Popen(
        [sys.executable, "-c", WORKER, str(root), point, str(nth), *snapshots],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )


async def check(root, known):
    """Every snapshot comes back whole, whatever was left; and only a whole tree can be taken."""
    sandbox = DirectorySandboxes(root).open("t", "1")
    try:
        left = await sandbox.take()
    except UsageError as error:
        if "not whole" not in str(error):  # killed in a restore
            raise
    else:
        taken = contents(sandbox.path)
        taken.pop("more", None)
        assert taken in [*known.values()], left
    for snapshot, files in known.items():
        await sandbox.restore(snapshot)
        assert contents(sandbox.path) == files
        assert await sandbox.take() == snapshot


@pytest.mark.parametrize("nth", [1, 2, 7])
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_killed_at(tmp_path, point, nth):
    known = await two_snapshots(tmp_path)
    with start(tmp_path, point, nth, known) as worker:
        assert await asyncio.to_thread(worker.wait, 60) == -signal.SIGKILL
    await check(tmp_path, known)


async def test_killed_at_any_instant(tmp_path):
    known = await two_snapshots(tmp_path)
    for n in range(25):
        with start(tmp_path, "", 0, known) as worker:
            worker.stdout.readline()
            time.sleep(random.uniform(0.0, 0.06))  # noqa: ASYNC251, S311
            worker.kill()
            worker.wait()
        if n % 5 == 4:  # in between, the next process finds what the last ones left
            await check(tmp_path, known)
