"""Groups in which processes are stopped: both versions of them, and what can't be stopped."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

from perdure.clock import system_services
from perdure.errors import SandboxUnstoppable, entry_of
from perdure.sandbox import IsolatedSandboxes, Limits, _cgroups
from perdure.sandbox._cells import Cell
from perdure.sandbox._cgroups import MOUNT, Cgroups
from tests.sandbox.kept import living_sandboxes
from tests.sandbox.test_live import size_of

pytestmark = pytest.mark.timeout(120)


def parent_of(version):
    """Return a folder that can have cells of a version, or skip."""
    parents = {1: [MOUNT / "freezer"], 2: [MOUNT / "unified", MOUNT]}[version]
    name = "tasks" if version == 1 else "cgroup.controllers"
    for parent in parents:
        if (parent / name).exists() and os.access(parent, os.W_OK):
            return parent
    return pytest.skip(f"NOT TESTED: no control groups of version {version} can be made here")


@pytest.fixture(params=[1, 2])
def cell(request):
    parent = parent_of(request.param)
    cell = Cell(parent / f"perdure-{os.getpid()}_{os.urandom(4).hex()}" / "live", request.param)
    cell.make()
    yield cell
    cell.remove()
    assert not cell.folder.parent.exists()


COUNTS = "import sys\nwhile True: sys.stdout.write('x'); sys.stdout.flush()"
FORKS = "import os\nwhile True:\n if os.fork() == 0: os._exit(0)\n os.wait()"


@contextlib.contextmanager
def started(group, code, **kwargs):
    enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
    with subprocess.Popen([sys.executable, "-S", "-c", enter + code], **kwargs) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_is_stopped_does_nothing(cell):
    read, write = os.pipe2(os.O_NONBLOCK)
    with started(cell.child("c1"), COUNTS, stdout=write) as process:
        os.set_blocking(read, True)
        os.read(read, 1)
        with cell.frozen():
            assert process.pid in cell.pids()
            os.set_blocking(read, False)
            with contextlib.suppress(BlockingIOError):
                while os.read(read, 1 << 16):
                    pass
            for _ in range(1000):
                with pytest.raises(BlockingIOError):
                    os.read(read, 1)
        os.set_blocking(read, True)
        assert os.read(read, 1) == b"x"


def test_what_forks_all_the_time_is_stopped_and_killed(cell):
    child, other = cell.child("c1"), cell.child("c2")
    with started(child, FORKS) as forks, started(other, "input()", stdin=subprocess.PIPE) as waits:
        while not cell.pids(child) or not cell.pids(other):
            pass
        with cell.frozen():
            assert cell.pids() == cell.pids()
        cell.kill(child)
        assert forks.wait(30) == -9
        while cell.pids(child):  # what was killed is listed until it has ended
            pass
        assert waits.poll() is None
        cell.tidy()
        assert [path.name for path in cell._children() if path.name != "services"] == ["c2"]


def test_what_a_worker_left_stopped_is_let_go_and_removed(monkeypatch):
    for version in (1, 2):
        parent = parent_of(version)
        monkeypatch.setattr(_cgroups, "_found_cells", lambda v=version, p=parent: (v, p))
        # Alive while all is laid: whoever begins elsewhere removes what dead workers left.
        owner = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
        cell = Cell(parent / f"perdure-{owner.pid}_x" / "live", version)
        cell.make()
        with started(cell.folder / "services", "input()", stdin=subprocess.PIPE) as waits:
            while not cell.pids():
                pass
            with contextlib.suppress(OSError):
                cell._freeze(cell.folder)
            waits.kill()
            if version == 1:
                assert waits.poll() is None, "else there is nothing to let go"
            owner.communicate()
            Cgroups(system_services().ids)
            assert waits.wait(30) == -9
        Cgroups(system_services().ids)
        assert not cell.folder.exists()


async def test_a_snapshot_of_what_writes_by_groups_of_version_1(is_able, tmp_path, monkeypatch):
    parent = parent_of(1)
    monkeypatch.setattr(_cgroups, "_found_cells", lambda: (1, parent))
    backend = living_sandboxes(tmp_path)
    try:
        sandbox = backend.open("acme", "t")
        await sandbox.run("(while :; do echo x; done) > log &")
        taken = await sandbox.take()
        folder = sandbox._ground.layers.folder(taken, "")
        size = size_of(folder, "log")
        while int((await sandbox.run("stat -c %s log")).output) <= size:
            pass
        assert size_of(folder, "log") == size
        ran = await sandbox.run("(setsid sleep 2222 &); sleep 1111", limits=Limits(deadline_s=1))
        assert ran.killed_by == "deadline"
        ran = await sandbox.run("echo on")
        assert (ran.output, len(ran.left)) == ("on\n", 1)
        await sandbox.restore(taken)
        assert len((await sandbox.run("true")).lost) == 1
    finally:
        backend.close()
    assert not [*parent.glob(f"perdure-{os.getpid()}*")]


async def test_what_can_not_be_stopped_is_ended_and_said(is_able, tmp_path, is_root):
    if not is_root:
        pytest.skip("without control groups for limits a process is in no group of them")
    backend = living_sandboxes(tmp_path)
    try:
        sandbox = backend.open("acme", "t")
        await sandbox.run("echo 1 > f; sleep 1000 &")
        [*folders] = sandbox._live.tree.group.folders
        with contextlib.ExitStack() as strangers:
            for _ in range(2):
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                code = "print(flush=True); input()"
                one = strangers.enter_context(started(folders[0], code, **pipes))
                await asyncio.to_thread(one.stdout.readline)
            taken = await sandbox.take()
        ran = await sandbox.run("cat f")
        assert (ran.output, ran.left) == ("1\n", ())
        assert [line for line in ran.lost if line.startswith("sleep 1000")]
        assert await sandbox.take() == taken
    finally:
        backend.close()


def test_nothing_lives_on_where_nothing_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(_cgroups, "_found_cells", lambda: None)
    with pytest.raises(SandboxUnstoppable, match="delegate a group") as caught:
        IsolatedSandboxes(tmp_path, live=True)
    assert entry_of(caught.value).code == "PD505"
