"""A first process that waits to be told what it is of: the next tree's, if all is as it was."""

import asyncio
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from tests.sandbox.processes import children_of, is_alive

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def backend(is_able, tmp_path):
    """Return a backend that builds nothing in advance, so that each command has a new tree."""
    backend = IsolatedSandboxes(tmp_path / "sandboxes", prepared=0)
    yield backend
    backend.close()


async def spare_of(backend):
    """Return the spare, when its first process is known."""
    while backend._launcher._spare is None or not backend._launcher._spare[1].pid:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return backend._launcher._spare[1]


def note_of(backend):
    [note] = backend.root.glob("tenants/*/threads/*/turn")
    return int(note.read_text().split()[0])


def namespaces(pid):
    kinds = ("mnt", "net", "pid", "ipc")
    return {kind: Path("/proc", str(pid), "ns", kind).readlink() for kind in kinds}


def mount(*command):
    subprocess.run(command, check=True)


async def test_the_next_tree_is_its(backend, sandbox):
    await sandbox.run("echo 1 > f")
    spare = await spare_of(backend)
    assert note_of(backend) != spare.pid
    assert (await sandbox.run("cat f; hostname; echo $$")).output == "1\nsandbox\n2\n"
    assert note_of(backend) == spare.pid
    assert not is_alive(spare.pid)
    other = backend.open("other", "t")
    spare = await spare_of(backend)
    await other.run("true")
    assert spare.over.done()
    assert (await spare_of(backend)).number != spare.number


async def test_it_waits_apart_and_sees_what_is_mounted_later(is_root, backend, sandbox, tmp_path):
    """In namespaces of its own but for that of mounts, which it leaves last."""
    await sandbox.run("true")
    spare = await spare_of(backend)
    own, its = namespaces(os.getpid()), namespaces(spare.pid)
    assert [kind for kind in own if own[kind] == its[kind]] == ["mnt"]
    assert children_of(spare.pid) == []
    if not is_root:
        return
    shown = tmp_path / "shown"
    shown.mkdir()
    mounting = IsolatedSandboxes(tmp_path / "others", show={"/shown": str(shown)}, prepared=0)
    try:
        box = mounting.open("acme", "t")
        await box.run("true")
        waiting = await spare_of(mounting)
        mount("/bin/mount", "-t", "tmpfs", "none", str(shown))
        try:
            (shown / "later").touch()
            assert (await box.run("ls /shown")).output == "later\n"
            assert waiting.over.done()
        finally:
            mount("/bin/umount", str(shown))
    finally:
        mounting.close()


async def test_one_that_was_killed_is_not_used(backend, sandbox):
    await sandbox.run("echo 1 > f")
    spare = await spare_of(backend)
    os.kill(spare.pid, signal.SIGKILL)
    await spare.over
    assert (await sandbox.run("cat f")).output == "1\n"
    assert [*spare.group.folders] == [] or not spare.group.folders[0].exists()


async def test_one_that_is_killed_as_it_is_wanted_costs_nothing(backend, sandbox):
    """Nobody has heard of its end when it is told what it is of: another tree is built."""
    await sandbox.run("echo 1 > f")
    for n in range(8):
        spare = await spare_of(backend)
        os.kill(spare.pid, signal.SIGKILL)
        ran = await sandbox.run(f"echo {n} >> f; cat f")
        assert (ran.code, ran.output.split()) == (0, ["1", *map(str, range(n + 1))])


async def test_a_launcher_that_can_write_no_note_ends_that_tree_alone(backend, sandbox):
    other = backend.open("other", "t")
    await other.run("true")
    await sandbox.run("true")
    going = asyncio.ensure_future(other.run("touch begun-too; sleep 3; echo survived"))
    [top] = backend.root.glob("tenants/*other*/threads/*/top")
    while not [*top.rglob("begun-too")]:  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.005)
    await spare_of(backend)
    launcher = backend._launcher._process.pid
    usual = resource.prlimit(launcher, resource.RLIMIT_FSIZE)
    resource.prlimit(launcher, resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        with pytest.raises(UsageError, match=r"File too large.*nothing was executed"):
            await sandbox.run("true")
    finally:
        resource.prlimit(launcher, resource.RLIMIT_FSIZE, usual)
    assert (await going).output == "survived\n"
    assert backend._launcher._process.pid == launcher
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_other_limits_are_not_its(backend, sandbox):
    await sandbox.run("true")
    spare = await spare_of(backend)
    few = Limits(processes=8)
    ran = await sandbox.run("for n in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; wait", limits=few)
    assert "fork" in ran.errors
    await spare.over
    # And the next one has those: it is of the same kind.
    spare = await spare_of(backend)
    ran = await sandbox.run("for n in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; wait", limits=few)
    assert "fork" in ran.errors
    assert note_of(backend) == spare.pid


async def test_it_ends_with_its_backend(backend, sandbox):
    await sandbox.run("true")
    spare = await spare_of(backend)
    assert all(folder.exists() for folder in spare.group.folders)
    backend.close()
    assert not is_alive(spare.pid)
    assert not any(folder.exists() for folder in spare.group.folders)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_it_ends_with_a_launcher_that_is_killed(backend, sandbox):
    await sandbox.run("true")
    spare = await spare_of(backend)
    ended = os.pidfd_open(spare.pid)
    try:
        backend._launcher._process.kill()
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        loop.add_reader(ended, lambda: gone.done() or gone.set_result(None))
        await gone
        loop.remove_reader(ended)
    finally:
        os.close(ended)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_a_launcher_that_is_killed_while_it_makes_a_tenant_leaves_nothing(
    is_root, backend, sandbox
):
    """Nor does what holds the tenant's ids, which has changed its user, so that it is asked."""
    if not is_root:
        pytest.skip("one user: a tenant has no ids of its own")
    await sandbox.run("true")
    spare = await spare_of(backend)
    launcher = backend._launcher._process.pid
    before = {*children_of(launcher)}
    going = asyncio.ensure_future(backend.open("other", "t").run("true"))
    while not (made := {*children_of(launcher)} - before):  # noqa: ASYNC110
        await asyncio.sleep(0)
    os.kill(launcher, signal.SIGKILL)
    await asyncio.gather(going, return_exceptions=True)
    for pid in (spare.pid, *map(int, made)):
        while state_of(pid) not in {"", "Z"}:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)


def state_of(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def test_many_at_once_share_one(backend):
    boxes = [backend.open("acme", f"t-{n}") for n in range(6)]
    await boxes[0].run("true")
    await spare_of(backend)
    ran = await asyncio.gather(*(each.run("echo $$") for each in boxes))
    assert [each.output for each in ran] == ["2\n"] * 6
