"""What a sandbox does not need any more is set aside at once and removed later, for certain."""

import asyncio
import os
import threading

import pytest

from perdure.sandbox import IsolatedSandboxes
from perdure.sandbox._disk import ASIDE, set_aside, sweep
from perdure.sandbox._forgetting import forget
from perdure.sandbox._names import folder_name
from perdure.sandbox.limits import ASIDE_MAX

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="namespaces are Linux's")


@pytest.fixture
def sandboxes(tmp_path):
    backend = IsolatedSandboxes(tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tenants" / folder_name("acme") / "threads" / folder_name("t")


def aside_of(folder):
    return sorted((folder / ASIDE).iterdir()) if (folder / ASIDE).is_dir() else []


async def test_what_a_rollback_drops_is_gone_soon(sandboxes, folder):
    sandbox = sandboxes.open("acme", "t")
    await sandbox.run("echo secret > dropped")
    await sandbox.restore(None)
    while aside_of(folder) or list(folder.rglob("dropped")):  # noqa: ASYNC110  # a thread removes
        await asyncio.sleep(0.01)


async def test_closing_leaves_nothing_aside(sandboxes, folder):
    sandbox = sandboxes.open("acme", "t")
    await sandbox.run("mkdir -p a/b/c; echo secret > a/b/c/dropped")
    await sandbox.restore(None)
    await sandbox.close()
    assert aside_of(folder) == []
    assert list(folder.rglob("dropped")) == []


async def test_forgetting_removes_what_was_set_aside_while_a_command_runs(sandboxes, folder):
    sandbox = sandboxes.open("acme", "t")
    await sandbox.run("true")
    (folder / "lost").mkdir()
    (folder / "lost" / "secret").write_text("of the run that is erased")
    set_aside(folder / "lost", folder / ASIDE)
    forget(folder, 0)
    assert not list(folder.rglob("secret"))


async def test_more_than_so_many_are_removed_by_who_uses_it(sandboxes, folder):
    sandbox = sandboxes.open("acme", "t")
    await sandbox.run("true")
    await sandbox.close()
    for number in range(ASIDE_MAX + 1):
        (folder / ASIDE).mkdir(exist_ok=True)
        (folder / ASIDE / f"left-{number}").mkdir()
    await sandbox.take()
    assert len(aside_of(folder)) <= ASIDE_MAX


def test_many_may_remove_the_same_at_once(tmp_path):
    aside = tmp_path / ASIDE
    for number in range(40):
        (tmp_path / "tree" / "below" / "further").mkdir(parents=True)
        (tmp_path / "tree" / "below" / f"file-{number}").write_text("x")
        set_aside(tmp_path / "tree", aside)
    removing = [threading.Thread(target=sweep, args=(aside,)) for _ in range(4)]
    for each in removing:
        each.start()
    for each in removing:
        each.join()
    sweep(aside)
    assert list(aside.iterdir()) == []
