"""Who erases is killed anywhere: nothing was erased, or the next call finishes it."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from perdure import Runtime
from perdure.errors import NotFound, ThreadBusy
from perdure.governance import erase, verify
from tests import warm
from tests.fault.conftest import ROOT
from tests.governance.canaries import (
    OTHERS,
    SUBJECT,
    all_canaries,
    blobs_of,
    canary,
    found_in,
    graphs,
    release,
    release_others,
)
from tests.sealing.conftest import local_keys

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

POINTS = [
    ("erase.begin.before", 1),
    ("erase.begin.after", 1),
    ("erase.schedule.before", 1),
    ("erase.schedule.after", 1),
    ("erase.pages.before", 1),
    ("erase.pages.after", 1),
    ("erase.run.before", 1),
    ("erase.run.after", 1),
    ("erase.run.after", 4),
    ("erase.keys.before", 1),
    ("erase.keys.after", 1),
    ("erase.end.before", 1),
    ("erase.end.after", 1),
]
CASES = [
    *(("sqlite", *point) for point in POINTS),
    *(("postgres", *point) for point in POINTS[::2]),
    *(("sealed", *point) for point in POINTS if point[0].startswith(("erase.run", "erase.keys"))),
]
UNTOUCHED = {"erase.begin.before"}
DONE = {"erase.end.after"}


@pytest.fixture
def url(kind, request, tmp_path):
    if kind != "postgres":
        (tmp_path / "store").mkdir()
        return f"sqlite:///{tmp_path}/store/store.db"
    return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))


@pytest.fixture
def opened(url, kind):
    """Return a function that opens a runtime on the store."""
    keys = local_keys(1) if kind == "sealed" else None

    def open_one(*known, worker=False):
        return Runtime.open(url, known, worker=worker, keys=keys)

    return open_one


async def run_program(*arguments, dies=True):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.fault.erasing", *map(str, arguments)]
    process = await warm.execute(*command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    _out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == (-signal.SIGKILL if dies else 0), err.decode()


async def others_of(runtime):
    [row] = await runtime.runs(thread="other")
    events = [str(event) for event in await runtime.events(row.run_id)]
    return await runtime.state("other"), events, row


@pytest.mark.parametrize(("kind", "point", "nth"), CASES)
async def test_killed_while_erasing(opened, url, tmp_path, point, nth, *, kind):
    async with opened(*graphs(), worker=True) as runtime:
        await release_others(runtime)
        await release(runtime)
    async with opened(*graphs()) as runtime:
        others = await others_of(runtime)
        before = await runtime.state("t-1")
    await run_program("erase", url, point, nth, kind)
    async with opened(*graphs()) as runtime:
        under_way = await runtime.engine.store.find_erasures(open_only=True)
        if point in UNTOUCHED:
            assert await runtime.state("t-1") == before
        else:
            with pytest.raises(NotFound, match="was erased"):
                await runtime.state("t-1")
        assert bool(under_way) == (point not in UNTOUCHED | DONE)
        assert (await verify(runtime)).findings == []
        if point in DONE:
            with pytest.raises(NotFound):
                await erase(runtime, subject=SUBJECT, by="ada")
        else:
            receipt = await erase(runtime, subject=SUBJECT, by="ada", force=True)
            assert receipt.is_resumed == (point not in UNTOUCHED)
            assert len(receipt.threads) == 8
            assert receipt.is_clean
        assert await runtime.engine.store.find_erasures(open_only=True) == []
        assert (await verify(runtime)).findings == []
        assert await others_of(runtime) == others
        if kind == "postgres":
            needles = [text.encode() for text in (*all_canaries(), OTHERS)]
            *gone, left = await runtime.engine.store.count_bytes(needles)
            assert (set(gone), left > 0) == ({0}, True)
    if kind != "postgres":
        found = found_in(blobs_of(tmp_path / "store"), [*all_canaries(), OTHERS])
        assert found == ({OTHERS} if kind == "sqlite" else set())


# Not within a transaction: whoever stops there keeps everybody else from writing to the file.
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_stopped_worker_brings_nothing_back(tmp_path, nth):
    """It held a run when it was stopped; when it goes on, all of the run is erased."""
    folder = tmp_path / "store"
    folder.mkdir()
    url = f"sqlite:///{folder}/store.db"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        await runtime.start("failing", {"text": canary("failed-state")}, thread="t-3")
        command = [sys.executable, "-m", "tests.fault.erasing", "work", url]
        command += ["store.append.before", str(nth)]
        worker = subprocess.Popen(  # noqa: ASYNC220  # it is waited for in a thread
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            _pid, status = await asyncio.to_thread(os.waitpid, worker.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            while True:  # until its lease has ended
                try:
                    await erase(runtime, thread="t-3", by="ada", force=True)
                    break
                except ThreadBusy:
                    await asyncio.sleep(0.2)
        finally:
            worker.send_signal(signal.SIGCONT)
            worker.stdin.close()
            worker.stdout.close()
            await asyncio.to_thread(worker.wait, 60)
        if await runtime.engine.store.find_erasures(open_only=True):
            # It was stopped while it read: what it could still read kept the erasure open.
            await erase(runtime, thread="t-3", by="ada")
        report = await verify(runtime)
        assert report.findings == []
        assert await runtime.engine.store.find_erasures(open_only=True) == []
    assert found_in(blobs_of(folder), all_canaries()) == set()
