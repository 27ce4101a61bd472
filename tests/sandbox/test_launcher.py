"""The launcher outlives whatever a turn does: others of the same worker go on."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import NotFound, StoreUnavailable, UsageError
from perdure.sandbox import Limits, _launching
from tests.sandbox.long import LONG, alive

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
    task = asyncio.create_task(bystander.run(f"sleep {LONG}; echo never"))
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


async def test_a_launcher_that_dies_says_that_the_command_may_have_been_executed(backend, sandbox):
    task = asyncio.create_task(sandbox.run(f"touch sent; sleep {LONG}"))
    while not alive():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    backend._launcher._process.kill()
    with pytest.raises(StoreUnavailable, match="may have been executed"):
        await task
    assert (await sandbox.run("ls sent")).output == "sent\n"


async def test_the_limits_of_the_first_process_are_its_own(sandbox):
    ran = await sandbox.run("touch mark; prlimit --pid 1 --nofile=0; (ulimit -n 100); echo $?")
    assert ran.output == "0\n"
    assert "Operation not permitted" in ran.errors
    assert (await sandbox.run("ls mark")).output == "mark\n"


async def test_a_command_that_is_cancelled_before_it_begins_leaves_no_lock(backend, monkeypatch):
    """The lock is taken in an OS thread, which goes on when who waits for it does not."""
    monkeypatch.setattr("perdure.sandbox._disk.LOCK_WAIT_S", 2.0)
    sandbox = backend.open("acme", "t")
    await sandbox.run("true")
    hold = sandbox._ground.hold
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(scratch=""):
        loop.call_soon_threadsafe(begun.set)
        return hold(scratch)

    for _ in range(20):
        begun.clear()
        monkeypatch.setattr(sandbox._ground, "hold", slow)
        task = asyncio.create_task(sandbox.run("true"))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    monkeypatch.setattr(sandbox._ground, "hold", hold)
    assert (await backend.open("acme", "t").run("echo on")).output == "on\n"


async def test_what_the_kernel_counts_by_user_is_counted_for_the_tenant(sandbox, is_root):
    if not is_root:
        pytest.skip("one user: the counts are its own anyway")
    code = (
        "import ctypes; c = ctypes.CDLL(None); "
        "print(sum(c.inotify_init() >= 0 for _ in range(999)))"
    )
    ran = await sandbox.run(["/usr/bin/python3", "-c", code + "; import time; time.sleep(0)"])
    assert 0 < int(ran.output) < 999
    task = asyncio.create_task(
        sandbox.run(["/usr/bin/python3", "-c", code + f"; import time; time.sleep({LONG})"])
    )
    try:
        while not alive():  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)
        fd = ctypes.CDLL(None).inotify_init()
        assert fd >= 0
        os.close(fd)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_burst_of_long_requests_is_served(backend):
    """A packet is bounded, and so is what waits in a socket: neither may end the launcher."""
    env = {"A": "\x01" * 60_000}
    sandboxes = [backend.open("acme", f"t-{n}") for n in range(30)]
    ran = await asyncio.gather(*(each.run("echo ok", env=env) for each in sandboxes))
    assert [each.output for each in ran] == ["ok\n"] * 30


ARRANGE = """
import os, sys
sys.path.append(sys.argv[1])
from inside import tree
for number in (105, 104, 103):
    source = os.memfd_create("wanted")
    os.write(source, str(number).encode())
    os.dup2(source, number)
tree._arrange([105, 104, 103], 105)
found = [os.pread(fd, 9, 0).decode() for fd in (3, 4, 5, 6)]
os._exit(found != ["105", "104", "103", "105"])
"""


def test_descriptors_are_arranged_also_where_the_launcher_has_hundreds():
    folder = Path(_launching.__file__).parent
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", ARRANGE, folder], check=False)
    assert ran.returncode == 0


async def test_a_launcher_that_hangs_is_ended_after_the_deadline(backend, sandbox, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._launching.LAUNCHER_STOP_S", 0.5)
    await sandbox.run("true")
    process = backend._launcher._process
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="may have been executed"):
        await sandbox.run("echo on", limits=Limits(deadline_s=0.5))
    assert (await sandbox.run("echo on")).output == "on\n"


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/tty"])
async def test_what_is_no_file_is_not_read(sandbox, path):
    await sandbox.run("mkfifo pipe .f.new; mkfifo /etc/perdure 2>/dev/null")
    with pytest.raises(NotFound):
        await sandbox.read(path)
    await sandbox.write("/workspace/f", b"1")
    assert (await sandbox.run("cat f")).output == "1"


async def test_text_that_can_not_be_encoded_is_refused(sandbox):
    for act in (
        lambda: sandbox.run("echo \udead\ud800"),
        lambda: sandbox.run("true", env={"A": "\ud800"}),
        lambda: sandbox.read("\ud800"),
    ):
        with pytest.raises(UsageError, match="can be encoded"):
            await act()


async def test_a_file_in_place_of_shared_memory_is_said(sandbox):
    await sandbox.run("rm -rf /run/shm; touch /run/shm")
    with pytest.raises(UsageError, match="earlier snapshot"):
        await sandbox.run("true")
    await sandbox.restore(None)
    assert (await sandbox.run("echo on")).output == "on\n"
