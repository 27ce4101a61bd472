"""A worker may be killed at any instant of an export or an import; the next one goes on."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes
from tests import warm
from tests.sandbox.trees import KEY
from tests.sandbox.workload import seen

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

EXPORT_POINTS = [
    "sandbox.export.pieces",
    "sandbox.export.manifest",
    "sandbox.export.noted",
]
NAMED = "sandbox.import.named"
IMPORT_POINTS = ["sandbox.import.synced", NAMED]

WORKER = textwrap.dedent("""
    import asyncio, sys
    from dataclasses import replace
    from perdure.clock import system_services
    from perdure.sandbox import IsolatedSandboxes
    from perdure.sandbox.export import _base
    from tests.fault.dying import dying

    # What the host's own files are takes a second to look at, and is not what is killed here.
    told = _base._told
    _base._told = lambda at, *, with_content: told(at, with_content=True) if with_content else []

    act, root, url, point, nth, snapshot = sys.argv[1:]

    async def main():
        services = replace(system_services(), probe=dying(point, nth))
        backend = IsolatedSandboxes(root, export=url, keys="env:EXPORT_KEY", services=services)
        sandbox = backend.open("t", "1")
        print("ready", flush=True)
        if act == "export":
            await sandbox.make_durable(snapshot)
        else:
            await sandbox.restore(snapshot)
        backend.close()

    asyncio.run(main())
""")


def start(act, root, url, snapshot, *, point="", nth=0):
    return warm.Popen(
        [sys.executable, "-c", WORKER, act, str(root), url, point, str(nth), snapshot],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EXPORT_KEY": KEY},
        stdout=subprocess.PIPE,
    )


@pytest.fixture
async def taken(tmp_path):
    """Return (folder, snapshot, its files): three layers, none of them exported."""
    backend = IsolatedSandboxes(tmp_path / "a")
    try:
        sandbox = backend.open("t", "1")
        for n in range(3):
            await sandbox.run(
                f"head -c 700000 /dev/urandom > big{n}; mkdir d{n}; echo {n} > d{n}/f; "
                f"rm -rf d{n - 1}; for i in $(seq 50); do head -c 9000 /dev/urandom > f{n}-$i; done"
            )
            snapshot = await sandbox.take()
        return tmp_path / "a", snapshot, await seen(sandbox)
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()


def ended(worker) -> int:
    with worker:
        return worker.wait(60)


async def comes_back(folder, url, snapshot, files):
    """A host that never saw the snapshot restores it equal."""
    done = await asyncio.to_thread(ended, start("import", folder, url, snapshot))
    assert done == 0
    backend = IsolatedSandboxes(folder)
    try:
        sandbox = backend.open("t", "1")
        await sandbox.restore(snapshot)
        assert await seen(sandbox) == files
    finally:
        backend.close()


def is_durable(folder, url, snapshot, monkeypatch) -> bool:
    monkeypatch.setenv("EXPORT_KEY", KEY)
    backend = IsolatedSandboxes(folder, export=url, keys="env:EXPORT_KEY")
    try:
        return backend.open("t", "1").is_durable(snapshot)
    finally:
        backend.close()


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("point", EXPORT_POINTS)
async def test_an_export_that_was_killed_goes_on(tmp_path, taken, point, nth, monkeypatch):
    folder, snapshot, files = taken
    url = (tmp_path / "objects").as_uri()
    done = await asyncio.to_thread(
        ended, start("export", folder, url, snapshot, point=point, nth=nth)
    )
    assert done == -signal.SIGKILL
    is_whole = (point, nth) == ("sandbox.export.noted", 3)
    assert is_durable(folder, url, snapshot, monkeypatch) == is_whole
    assert await asyncio.to_thread(ended, start("export", folder, url, snapshot)) == 0
    assert is_durable(folder, url, snapshot, monkeypatch)
    manifests = list((tmp_path / "objects").glob("*/snapshots/*/*"))
    assert len(manifests) == 3
    await comes_back(tmp_path / "b", url, snapshot, files)


@pytest.mark.parametrize(("point", "nth"), [*((each, 1) for each in IMPORT_POINTS), (NAMED, 2)])
async def test_an_import_that_was_killed_goes_on(tmp_path, taken, point, nth):
    folder, snapshot, files = taken
    url = (tmp_path / "objects").as_uri()
    assert await asyncio.to_thread(ended, start("export", folder, url, snapshot)) == 0
    there = tmp_path / "b"
    done = await asyncio.to_thread(
        ended, start("import", there, url, snapshot, point=point, nth=nth)
    )
    assert done == -signal.SIGKILL
    named = [path.name for path in there.glob("tenants/*/layers/*")]
    assert len(named) == (nth if point == NAMED else 0)
    assert snapshot not in named
    await comes_back(there, url, snapshot, files)


async def test_killed_at_any_instant(tmp_path, taken, monkeypatch):
    """What says that it is durable is whole elsewhere, however often it was killed before."""
    folder, snapshot, files = taken
    url = (tmp_path / "objects").as_uri()
    for n in range(12):
        with start("export", folder, url, snapshot) as worker:
            worker.stdout.readline()
            time.sleep(random.uniform(0.0, 0.06))  # noqa: ASYNC251, S311
            worker.kill()
            worker.wait()
        if is_durable(folder, url, snapshot, monkeypatch):
            await comes_back(tmp_path / f"b{n}", url, snapshot, files)
            break
    assert await asyncio.to_thread(ended, start("export", folder, url, snapshot)) == 0
    for _ in range(6):
        with start("import", tmp_path / "c", url, snapshot) as worker:
            worker.stdout.readline()
            time.sleep(random.uniform(0.0, 0.1))  # noqa: ASYNC251, S311
            worker.kill()
            worker.wait()
    await comes_back(tmp_path / "c", url, snapshot, files)
