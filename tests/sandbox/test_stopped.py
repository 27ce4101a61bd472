"""A command that is killed takes nothing with it but what it began; what it left has its name."""

import asyncio
import json

import pytest

from perdure.sandbox import Limits
from perdure.sandbox._trees import Answer
from tests.sandbox.kept import kept_sandboxes, living_sandboxes

pytestmark = pytest.mark.timeout(120)

DEAF = {"name": "deaf", "argv": ["/bin/sleep", "1000"], "env": {}, "cwd": "/"}
"""A service that answers at no port, ever."""
WAITS = {**DEAF, "port": 9, "ready_s": 600}


@pytest.fixture(params=["live", "criu"])
def staying(request, is_able, tmp_path):
    """Return a backend whose processes go on after a command."""
    make = kept_sandboxes if request.param == "criu" else living_sandboxes
    backend = make(tmp_path / request.param)
    yield backend
    backend.close()


async def with_a_service_that_is_slow(box):
    await box.run("sleep 1000 & mkdir -p /etc/perdure")
    await box.write("/etc/perdure/services.json", json.dumps([WAITS]).encode())


async def test_a_deadline_while_a_service_starts_ends_that_service_only(staying):
    box = staying.open("acme", "t")
    await with_a_service_that_is_slow(box)
    ran = await box.run("echo never", limits=Limits(deadline_s=1))
    assert (ran.code, ran.output, ran.killed_by) == (137, "", "deadline")
    [service] = ran.services
    assert (service.name, service.is_up) == ("deaf", False)
    assert "did not come up before the command was killed, and was ended" in service.reason
    await box.write("/etc/perdure/services.json", b"[]")
    ran = await box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert ran.output.count("sleep 1000") == 1, "what an earlier command left goes on"
    assert "/bin/sleep 1000" not in ran.output, "the service was ended"
    assert (ran.lost, box.lost()) == ((), ())


async def test_cancelling_while_a_service_starts_leaves_what_is_alive(staying, monkeypatch):
    box = staying.open("acme", "t")
    await with_a_service_that_is_slow(box)
    is_waiting = asyncio.Event()
    told = Answer.told

    def hear(answer: Answer, message: dict) -> None:
        told(answer, message)
        is_waiting.set()

    monkeypatch.setattr(Answer, "told", hear)
    doing = asyncio.ensure_future(box.run("echo never"))
    await is_waiting.wait()  # until it says that it waits
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    await box.write("/etc/perdure/services.json", b"[]")
    ran = await box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", limits=Limits(deadline_s=60))
    assert (ran.killed_by, ran.output.count("sleep 1000"), ran.lost) == ("", 1, ())


async def test_a_command_killed_in_a_slow_start_says_so(sandbox):
    await sandbox.run("mkdir -p /etc/perdure")
    await sandbox.write("/etc/perdure/services.json", json.dumps([WAITS]).encode())
    ran = await sandbox.run("echo never", limits=Limits(deadline_s=3))
    assert (ran.killed_by, ran.output) == ("deadline", "")
    assert [each.reason for each in ran.services] == [
        "it did not come up before the command was killed"
    ]


async def test_what_was_just_started_has_its_own_name(sandbox):
    """Each time: the shell ends before its child has become another program, or just after."""
    for _ in range(25):
        ran = await sandbox.run("sleep 300 & echo started")
        assert ran.left == ("sleep 300",)


async def test_a_fork_that_stays_what_it_is_is_named_at_once(sandbox):
    ran = await sandbox.run("(while :; do :; done) & (read never < /dev/zero; :) & echo started")
    assert len(ran.left) == 2
    assert all(line.startswith("/bin/sh -c (while") for line in ran.left)
