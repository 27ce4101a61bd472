"""A worker is killed before, in and after the start of a scheduled run: it is one run."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests import warm
from tests.fault.conftest import ROOT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

WORKER = """
import asyncio, dataclasses, os, signal, sys
from perdure import Runtime
from perdure.clock import system_services

async def tick(_given):
    return "tock"

def probe(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    services = dataclasses.replace(system_services(), probe=probe)
    async with Runtime.open(sys.argv[1], [tick], services=services) as runtime:
        await runtime.schedule("s", tick, 1, cron="* * * * * *")
        print("scheduled", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

LOOK = """
import asyncio, sys
from perdure import Runtime

async def main():
    async with Runtime.open(sys.argv[1], worker=False) as runtime:
        for row in await runtime.runs(limit=1000):
            print(row.start_key, row.status.value)

asyncio.run(main())
"""


def python(code, *arguments):
    return warm.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("point", ["store.start.before", "store.start.during", "store.start.after"])
def test_killed_at_the_start_of_a_scheduled_run(tmp_path, point):
    url = f"sqlite:///{tmp_path}/store.db"
    victim = python(WORKER, url, point)
    assert victim.stdout.readline() == "scheduled\n"
    assert victim.wait(timeout=30) == -signal.SIGKILL
    victim.stdout.close()
    other = python(WORKER, url, "nowhere")
    assert other.stdout.readline() == "scheduled\n"
    time.sleep(3)
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=30)
    found, _err = python(LOOK, url).communicate(timeout=30)
    keys = [line.split()[0] for line in found.splitlines()]
    assert len(keys) == len(set(keys)) >= 2
    assert all(key.startswith("schedule:s:") for key in keys)
