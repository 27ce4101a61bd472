"""The launcher outlives whatever a turn does: others of the same worker go on."""

import asyncio
import json

import pytest

from perdure.sandbox import Limits
from tests.fault.test_isolated_crash import alive

pytestmark = pytest.mark.timeout(120)

MANY = """
import os, time
for _ in range(80):
    if os.fork() == 0:
        os.execv("/usr/bin/python3", [chr(1) * 190, "-c", "import time; time.sleep(60)"])
time.sleep(1)
"""


async def test_a_report_that_is_too_long_is_shortened(backend, sandbox):
    bystander = backend.open("other", "t")
    task = asyncio.create_task(bystander.run("sleep 7337; echo never"))
    while not alive():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    ran = await sandbox.run(["/usr/bin/python3", "-c", MANY], limits=Limits(deadline_s=60))
    assert ran.code == 0
    assert len(ran.left) >= 50
    assert alive()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await bystander.run("echo on")).output == "on\n"


async def test_long_logs_of_services_are_shortened(sandbox):
    one = {"argv": ["sh", "-c", "head -c 4000 /dev/zero | tr '\\\\0' '\\\\1'; exit 1"]}
    settings = {"env": {}, "cwd": "/", "port": 1, "ready_s": 1}
    many = [one | settings | {"name": f"s{n}"} for n in range(16)]
    await sandbox.write("/etc/perdure/services.json", json.dumps(many).encode())
    ran = await sandbox.run("echo on")
    assert (ran.output, len(ran.services)) == ("on\n", 16)
    assert not any(each.is_up for each in ran.services)


async def test_a_first_process_that_is_killed_is_told(sandbox):
    ran = await sandbox.run("kill -9 1; echo on", limits=Limits(deadline_s=20))
    assert ran.output in {"on\n", ""}
    assert (await sandbox.run("echo on")).output == "on\n"
