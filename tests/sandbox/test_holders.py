"""Of two holders of a run the newer one has the sandbox, whatever the other is in the middle of."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from perdure.errors import LeaseLost, StoreLocked
from perdure.sandbox import DirectorySandboxes, IsolatedSandboxes
from tests import warm
from tests.fault.test_isolated_crash import nothing_is_left
from tests.sandbox.long import LONG, alive

pytestmark = pytest.mark.timeout(120)

STOPPED = textwrap.dedent("""
    import asyncio, sys
    from perdure.errors import LeaseLost
    from perdure.sandbox import IsolatedSandboxes

    async def main():
        sandbox = IsolatedSandboxes(sys.argv[1]).open("acme", "t", fence=(1, 1))
        print("ready", flush=True)
        ran = await sandbox.run("echo old > f; sleep LONG; echo old > g")
        for act in (sandbox.take, lambda: sandbox.restore(None), lambda: sandbox.run("echo z > f")):
            try:
                await act()
            except LeaseLost as error:
                print("refused:", error, flush=True)
            else:
                print("THROUGH", flush=True)

    asyncio.run(main())
""")


async def test_a_stopped_worker_holds_nobody_up_and_comes_back_to_nothing(backend):
    worker = warm.Popen(  # it is waited for in an OS thread
        [sys.executable, "-c", STOPPED.replace("LONG", LONG), str(backend.root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        worker.stdout.readline()
        while not alive():  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)
        worker.send_signal(signal.SIGSTOP)
        newer = backend.open("acme", "t", fence=(1, 2))
        await newer.restore(None)
        await nothing_is_left()
        await newer.run("echo new > f")
        taken = await newer.take()
        worker.send_signal(signal.SIGCONT)
        said, _ = await asyncio.to_thread(worker.communicate, timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert said.count("refused: ") == 3, said
    assert "token 2; this one has 1 and 1" in said
    assert (await newer.run("cat f; ls g")).output == "new\n"
    assert await newer.take() == taken


async def test_a_later_run_comes_after_an_earlier_one(backend):
    first = backend.open("acme", "t", fence=(1, 9))
    second = backend.open("acme", "t", fence=(2, 1))
    await first.run("echo 1 > f")
    await second.run("echo 2 >> f")
    with pytest.raises(LeaseLost, match="run 2 of the thread"):
        await first.run("echo 3 >> f")
    by_hand = backend.open("acme", "t")
    assert (await by_hand.run("cat f")).output == "1\n2\n"


async def test_two_of_one_holder_take_turns(backend, monkeypatch):
    monkeypatch.setattr("perdure.sandbox._disk.LOCK_WAIT_S", 0.3)
    one, two = (backend.open("acme", "t", fence=(1, 1)) for _ in range(2))
    task = asyncio.create_task(one.run(f"touch begun; sleep {LONG}"))
    while not alive():  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.01)
    with pytest.raises(StoreLocked, match="another process has been at work"):
        await two.run("true")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await two.run("ls begun")).output == "begun\n"


async def test_a_plain_folder_is_fenced_too(tmp_path):
    backend = DirectorySandboxes(tmp_path)
    old = backend.open("acme", "t", fence=(1, 1))
    newer = backend.open("acme", "t", fence=(1, 2))
    (old.path / "f").write_text("1")
    snapshot = await old.take()
    await newer.restore(snapshot)
    for act in (old.take, lambda: old.restore(None)):
        with pytest.raises(LeaseLost, match="newer holder"):
            await act()
    assert (newer.path / "f").read_text() == "1"


async def test_a_torn_note_of_holders_is_no_trouble(is_able, tmp_path):
    backend = IsolatedSandboxes(tmp_path)
    try:
        sandbox = backend.open("acme", "t", fence=(1, 1))
        await sandbox.run("true")
        [fence] = tmp_path.glob("tenants/*/threads/*/fence")
        for content in (b"", b"x", b"\xff\xfe 1"):
            fence.write_bytes(content)
            assert (await sandbox.run("echo ok")).output == "ok\n"
        assert fence.read_text() == "1 1"
    finally:
        backend.close()
