"""Trees that were built in advance: used when all is as it was, gone before anything changes."""

import asyncio
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.errors import LeaseLost, UsageError
from perdure.sandbox import IsolatedSandboxes, Limits
from perdure.sandbox._prepared import Prepared
from tests import warm
from tests.sandbox.attacks import ATTACKS, PRELUDE
from tests.sandbox.processes import children_of, is_alive

pytestmark = pytest.mark.timeout(120)


async def next_of(sandbox):
    """Return the tree that waits for the next command of a sandbox, as soon as there is one."""
    while sandbox._next.tree is None:  # noqa: ASYNC110  # it is built by a task of its own
        await asyncio.sleep(0.005)
    return sandbox._next.tree


def note_of(backend):
    """Return the number of the first process that the lock was held by last."""
    [note] = backend.root.glob("tenants/*/threads/*/turn")
    return int(note.read_text().split()[0])


def line_of(pid):
    return Path("/proc", str(pid), "cmdline").read_bytes()


async def test_a_command_finds_its_tree(backend, sandbox):
    await sandbox.run("echo 1 > f")
    tree = await next_of(sandbox)
    assert note_of(backend) == tree.pid
    ran = await sandbox.run("cat f; echo 2 >> f; echo $$", given=b"")
    assert ran.output.startswith("1\n")
    assert tree.over.done()
    assert not is_alive(tree.pid)
    await next_of(sandbox)
    ran = await sandbox.run("cat; cat f; pwd", given=b"given\n", cwd="/workspace")
    assert ran.output == "given\n1\n2\n/workspace\n"


async def test_it_executes_nothing_and_holds_nobody_up(backend, sandbox):
    await sandbox.run("echo 1 > f")
    tree = await next_of(sandbox)
    lines = {line_of(pid) for pid in children_of(tree.pid)}
    assert lines == {line_of(tree.pid)}, "beside process 1 there is but a fork of it"
    other = backend.open("acme", "t-1")
    assert (await other.run("cat f; echo 2 > f")).output == "1\n"
    assert is_alive(tree.pid)
    assert (await sandbox.run("cat f")).output == "2\n", "it stood on files of before"
    assert not is_alive(tree.pid)


@pytest.mark.parametrize("act", ["take", "restore", "changes"])
async def test_what_somebody_else_did_to_the_files_is_seen(backend, sandbox, act):
    await sandbox.run("echo 1 > f")
    first = await sandbox.take()
    tree = await next_of(sandbox)
    other = backend.open("acme", "t-1")
    if act == "take":
        await other.run("echo 2 > f")
        await other.take()
    elif act == "restore":
        await other.restore(None)
        await other.restore(first)
    else:
        await other.changes()
    note = note_of(backend)
    ran = await sandbox.run("cat f")
    assert ran.output == ("2\n" if act == "take" else "1\n")
    assert note_of(backend) not in {note, tree.pid}


async def test_it_is_gone_before_a_layer_is_frozen(sandbox):
    await sandbox.run("echo 1 > f")
    tree = await next_of(sandbox)
    taken = await sandbox.take()
    assert not is_alive(tree.pid)
    later = await next_of(sandbox)
    assert await sandbox.take() == taken
    assert is_alive(later.pid), "nothing was frozen"
    assert (await sandbox.run("cat f")).output == "1\n"


async def test_it_is_gone_before_a_rollback(sandbox):
    await sandbox.run("echo 1 > f")
    first = await sandbox.take()
    await sandbox.run("echo 2 > f")
    tree = await next_of(sandbox)
    await sandbox.restore(first)
    assert not is_alive(tree.pid)
    later = await next_of(sandbox)
    await sandbox.restore(first)
    assert is_alive(later.pid), "nothing was to be restored"
    assert (await sandbox.run("cat f")).output == "1\n"
    assert later.over.done()


async def test_it_is_never_used_by_a_holder_that_was_replaced(backend):
    older = backend.open("acme", "t", fence=(1, 1))
    await older.run("echo 1 > f")
    tree = await next_of(older)
    newer = backend.open("acme", "t", fence=(1, 2))
    assert (await newer.run("cat f")).output == "1\n"
    with pytest.raises(LeaseLost, match="newer holder"):
        await older.run("echo old > f")
    await older.close()
    assert not is_alive(tree.pid)
    assert (await newer.run("cat f")).output == "1\n"


async def test_one_with_other_limits_is_not_used(sandbox):
    await sandbox.run("true")
    tree = await next_of(sandbox)
    small = Limits(processes=20, file_bytes=1 << 20)
    ran = await sandbox.run("head -c 2M /dev/zero > big; stat -c %s big", limits=small)
    assert ran.output == f"{1 << 20}\n"
    assert not is_alive(tree.pid)
    tree = await next_of(sandbox)
    quick = Limits(processes=20, file_bytes=1 << 20, deadline_s=0.3, output_bytes=3)
    ran = await sandbox.run("echo long; sleep 60", limits=quick)
    assert (ran.killed_by, ran.output, ran.is_cut) == ("deadline", "lon", True)
    assert tree.over.done()


async def test_there_are_never_more_than_were_asked_for(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path, prepared=2)
    try:
        sandboxes = [backend.open("acme", f"t-{n}") for n in range(4)]
        trees = []
        for each in sandboxes:
            await each.run("true")
            trees.append(await next_of(each))
        await asyncio.wait_for(asyncio.gather(trees[0].over, trees[1].over), 30)
        assert [is_alive(tree.pid) for tree in trees] == [False, False, True, True]
        assert (await sandboxes[0].run("echo on")).output == "on\n"
    finally:
        backend.close()
    assert [tree.pid for tree in trees if is_alive(tree.pid)] == []


async def test_there_is_none_unless_wanted(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path, prepared=0)
    try:
        sandbox = backend.open("acme", "t")
        await sandbox.run("true")
        assert sandbox._next._task is None
    finally:
        backend.close()
    for wrong in (-1, 65):
        with pytest.raises(UsageError, match="from 0 to 64"):
            IsolatedSandboxes(tmp_path, prepared=wrong)


async def test_none_is_built_after_the_end(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path)
    sandbox = backend.open("acme", "t")
    await sandbox.run("true")
    task = sandbox._next._task
    backend.close()
    await asyncio.wait_for(task, 30)
    assert backend._launcher._process is None
    assert (await sandbox.run("echo on")).output == "on\n"
    await next_of(sandbox)
    backend.close()


class Stepped:
    """A clock on which a tree is wanted at once, and looked at when the test says so."""

    def __init__(self, of_system):
        self._of_system = of_system
        self.looks = asyncio.Semaphore(0)

    def now_us(self):
        return self._of_system.now_us()

    def monotonic_s(self):
        return self._of_system.monotonic_s()

    async def sleep(self, delay_s):
        if delay_s >= 1:
            await self.looks.acquire()
        else:  # without a pause, the look at the room of a command would let nothing else go on
            await self._of_system.sleep(min(delay_s, 0.02))


@pytest.fixture
def stepped(is_able, tmp_path):
    services = system_services()
    clock = Stepped(services.clock)
    backend = IsolatedSandboxes(tmp_path, services=replace(services, clock=clock))
    yield backend, clock
    backend.close()


async def test_one_that_nobody_wants_is_ended(stepped):
    backend, clock = stepped
    sandbox = backend.open("acme", "t")
    await sandbox.run("true")
    tree = await next_of(sandbox)
    for _ in range(12):
        assert is_alive(tree.pid)
        clock.looks.release()
    await asyncio.wait_for(tree.over, 30)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_one_is_ended_when_memory_is_short(stepped, monkeypatch):
    backend, clock = stepped
    sandbox = backend.open("acme", "t")
    await sandbox.run("true")
    tree = await next_of(sandbox)
    monkeypatch.setattr("perdure.sandbox._prepared.PREPARED_FREE_BYTES_MIN", 1 << 60)
    clock.looks.release()
    await asyncio.wait_for(tree.over, 30)
    await sandbox.run("true")
    await sandbox._next._task
    assert sandbox._next.tree is None


async def test_one_that_was_killed_is_replaced(sandbox):
    await sandbox.run("true")
    tree = await next_of(sandbox)
    os.kill(tree.pid, 9)
    await asyncio.wait_for(tree.over, 30)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_a_spare_that_was_killed_is_replaced(sandbox):
    await sandbox.run("true")
    tree = await next_of(sandbox)
    [spare] = children_of(tree.pid)
    os.kill(int(spare), 9)
    while is_alive(spare):  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.005)
    ran = await sandbox.run("echo on")
    assert ran.output == "on\n"
    assert tree.over.done()


async def test_services_are_up_in_one(sandbox):
    await sandbox.write("/workspace/page", b"one")
    server = "/usr/bin/python3 -m http.server 8123 --directory /workspace"
    assert (await sandbox.start_service("web", server, port=8123)).is_up
    await next_of(sandbox)
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/page').read())"
    ran = await sandbox.run(["/usr/bin/python3", "-c", code])
    assert (ran.output, ran.left) == ("b'one'\n", ())
    assert [each.is_up for each in ran.services] == [True]


async def test_attacks_are_stopped_in_one(sandbox):
    await sandbox.run("true")
    for attack in ATTACKS:
        await next_of(sandbox)
        ran = await sandbox.run(["/usr/bin/python3", "-I", "-c", PRELUDE + attack.code])
        assert "THROUGH" not in ran.output, (attack.name, ran)
        assert "stopped" in ran.output or ran.code not in {0, 1}, (attack.name, ran)


async def test_a_folder_that_the_root_needs_and_was_replaced_is_said(sandbox):
    await sandbox.run("rm -rf /run; ln -s /tmp /run")
    await sandbox._next._task
    assert sandbox._next.tree is None
    with pytest.raises(UsageError, match="earlier snapshot"):
        await sandbox.run("true")


KILLED = textwrap.dedent("""
    import asyncio, sys
    from perdure.sandbox import IsolatedSandboxes

    async def main():
        backend = IsolatedSandboxes(sys.argv[1])
        sandbox = backend.open("acme", "t")
        await sandbox.run("true")
        while sandbox._next.tree is None:
            await asyncio.sleep(0.005)
        print(sandbox._next.tree.pid, flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
""")


async def test_it_dies_with_its_worker(is_able, tmp_path):
    worker = warm.Popen(  # it is waited for in an OS thread
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid = int(await asyncio.to_thread(worker.stdout.readline))
        assert is_alive(pid)
    finally:
        worker.kill()
        worker.communicate()
    while is_alive(pid):  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)


async def test_they_are_built_one_at_a_time(is_able, tmp_path, monkeypatch):
    """Beside each other they would hold up what somebody waits for, and most would not be kept."""
    backend = IsolatedSandboxes(tmp_path, prepared=2)
    build, under_way, most = Prepared._build, 0, 0

    async def counted(self, limits):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await build(self, limits)
        finally:
            under_way -= 1

    monkeypatch.setattr(Prepared, "_build", counted)
    try:
        first = backend.open("acme", "t")
        await first.run("echo 1 > f")
        snapshot = await first.take()
        forks = [backend.open("acme", f"t-{n}") for n in range(8)]
        for each in forks:
            await each.restore(snapshot)
        await next_of(forks[-1])
        await next_of(forks[-2])
        assert most == 1
        assert (await forks[0].run("cat f")).output == "1\n"
    finally:
        backend.close()
