"""A tree that is killed just before a command comes to it: the command has another one."""

import asyncio
import ctypes
import os
import select
import signal
from pathlib import Path

import pytest

from perdure.errors import LeaseLost, UsageError
from perdure.sandbox import IsolatedSandboxes
from perdure.sandbox._ground import Ground
from perdure.sandbox._trees import Tree
from tests.sandbox.kept import kept_sandboxes, living_sandboxes
from tests.sandbox.processes import is_alive

pytestmark = pytest.mark.timeout(120)

KINDS = {"new": IsolatedSandboxes, "live": living_sandboxes, "kept": kept_sandboxes}


@pytest.fixture(params=KINDS)
def backend(request, is_able, tmp_path):
    backend = KINDS[request.param](tmp_path / "sandboxes")
    yield backend
    backend.close()


async def kill(tree, *, is_known):
    """Kill a tree; `is_known`: the worker hears of its end before it goes on."""
    if not is_alive(tree.pid):  # a newer holder did
        return
    ended = os.pidfd_open(tree.pid)
    try:
        os.kill(tree.pid, signal.SIGKILL)
        if is_known:
            await tree.over
        select.select([ended], [], [])
    finally:
        os.close(ended)


@pytest.fixture
def killing(monkeypatch):
    """Have the next trees killed when all is ready for their command."""
    left = []
    watch = Ground.watch

    async def watched(self, tree, **pace):
        found = await watch(self, tree, **pace)
        if left and not pace:
            await tree.ready
            await kill(tree, is_known=left.pop())
        return found

    monkeypatch.setattr(Ground, "watch", watched)
    return left


@pytest.mark.parametrize("is_known", [True, False])
async def test_the_command_has_another_tree(backend, killing, is_known):
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo kept > f")
    killing.append(is_known)
    ran = await asyncio.wait_for(sandbox.run("cat f; echo more >> f"), 60)
    assert (ran.code, ran.output) == (0, "kept\n")
    assert (await sandbox.run("cat f")).output == "kept\nmore\n"


def sockets_of(pid):
    """Return copies of the sockets of a process, which hold them open after its end."""
    system = ctypes.CDLL(None, use_errno=True)
    process, copies = os.pidfd_open(pid), []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind = str(path.readlink())
        except FileNotFoundError:  # it was closed since it was listed: not one that is kept
            continue
        copy = system.syscall(438, process, int(path.name), 0) if "socket:" in kind else -1
        copies += [copy] if copy >= 0 else []  # pidfd_getfd
    os.close(process)
    assert copies
    return copies


async def test_what_was_sent_and_never_read_is_not_taken_for_executed(
    backend, is_root, monkeypatch
):
    """A fork of the first process can hold its end of the channel for a moment longer."""
    if not is_root:
        pytest.skip("only root may take copies of the descriptors of a first process")
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo kept > f")
    watch, order, held, sent = Ground.watch, Tree.order, [], []

    async def watched(self, tree, **pace):
        found = await watch(self, tree, **pace)
        if not (pace or sent or held):
            await tree.ready
            held.extend(sockets_of(tree.pid))
            await kill(tree, is_known=False)
        return found

    def ordered(self, request, descriptors):
        is_sent = order(self, request, descriptors)
        if held:
            sent.append(is_sent)
        while held:
            os.close(held.pop())
        return is_sent

    monkeypatch.setattr(Ground, "watch", watched)
    monkeypatch.setattr(Tree, "order", ordered)
    ran = await asyncio.wait_for(sandbox.run("cat f; echo more >> f"), 60)
    assert sent == [True]
    assert (ran.code, ran.output) == (0, "kept\n")
    assert (await sandbox.run("cat f")).output == "kept\nmore\n"


async def test_the_second_time_it_says_that_nothing_was_executed(backend, killing):
    sandbox = backend.open("acme", "t")
    await sandbox.run("true")
    killing += [True, False]
    with pytest.raises(UsageError, match="before it could start a command"):
        await asyncio.wait_for(sandbox.run("echo no > f"), 60)
    assert (await sandbox.run("ls")).output == ""


async def test_who_was_replaced_meanwhile_is_told_so(backend, killing):
    older = backend.open("acme", "t", fence=(1, 1))
    await older.run("true")
    newer = backend.open("acme", "t", fence=(1, 2))
    await newer.restore(None)
    killing.append(True)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(older.run("true"), 60)


async def test_a_tree_that_hears_nothing_is_ended(backend, monkeypatch):
    """Its first process may be alive, with a socket that takes nothing more."""
    sandbox = backend.open("acme", "t")
    await sandbox.run("echo kept > f")
    order, deaf = Tree.order, []

    def ordered(self, request, descriptors):
        if not deaf and isinstance(request["do"], int):
            deaf.append(self)
            return False
        return order(self, request, descriptors)

    monkeypatch.setattr(Tree, "order", ordered)
    ran = await asyncio.wait_for(sandbox.run("cat f"), 60)
    assert (ran.code, ran.output) == (0, "kept\n")
    assert deaf[0].over.done()


async def test_what_lived_is_lost_in_words_only(is_able, tmp_path, monkeypatch):
    """Brought back, killed when it has changed a file, and not to be brought back once more."""
    backend = kept_sandboxes(tmp_path / "sandboxes")
    watch, killed = Ground.watch, []

    def sizes():
        return [path.stat().st_size for path in tmp_path.rglob("ticks")]

    async def watched(self, tree, **pace):
        found = await watch(self, tree, **pace)
        if not (pace or killed):
            await tree.ready
            before = sizes()
            while sizes() == before:  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.01)
            await kill(tree, is_known=True)
            killed.append(tree)
        return found

    try:
        sandbox = backend.open("acme", "t")
        loop = "while :; do echo more >> ticks; sleep 0.01; done"
        await sandbox.run(f"({loop}) < /dev/null > /dev/null 2>&1 & sleep 0.1")
        await sandbox.take()
        monkeypatch.setattr(Ground, "watch", watched)
        ran = await asyncio.wait_for(sandbox.run("true"), 60)
        assert killed
        assert ran.left == ()
        assert "files were changed since" in ran.lost[0]
        assert len(sandbox.lost()) == len(ran.lost)
    finally:
        backend.close()
