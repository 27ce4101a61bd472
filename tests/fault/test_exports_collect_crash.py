"""Who collects exports may be killed at any instant, and so may who exports meanwhile."""

import os
import signal
import sys
import textwrap

import pytest

from perdure.clock import system_services
from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes, folder_name, verify
from perdure.sandbox.export import _base
from perdure.sealing import make_keys
from tests import warm
from tests.sandbox.trees import KEY

pytestmark = [pytest.mark.fault, pytest.mark.timeout(200)]

POINTS = [
    ("sandbox.condemn.published", 1),
    ("sandbox.condemn.manifest", 1),
    ("sandbox.condemn.manifest", 3),
    ("sandbox.condemn.piece", 1),
    ("sandbox.condemn.piece", 2),
]
EXPORT_POINTS = ["sandbox.export.pieces", "sandbox.export.manifest", "sandbox.export.noted"]

COLLECTOR = textwrap.dedent("""
    import asyncio, sys
    from dataclasses import replace
    from perdure.clock import system_services
    from perdure.sandbox import ExportCollection, Taker, folder_name, make_objects
    from perdure.sandbox.export._sealer import load_sealer
    from perdure.sealing import make_keys
    from tests.fault.dying import dying

    url, point, nth, named = sys.argv[1:]
    services = replace(system_services(), probe=dying(point, int(nth)))
    objects = make_objects(url, services)
    keys = make_keys("env:EXPORT_KEY", services)
    sealer = asyncio.run(load_sealer(objects, folder_name("acme"), keys, services))
    takers = {folder_name("gone"): Taker(erased=1 << 40), folder_name("stays"): Taker()}
    ExportCollection(objects, sealer, services).finish({named}, takers)
""")
EXPORTER = textwrap.dedent("""
    import asyncio, sys
    from dataclasses import replace
    from perdure.clock import system_services
    from perdure.sandbox import IsolatedSandboxes
    from perdure.sandbox.export import _base
    from tests.fault.dying import dying

    told = _base._told
    _base._told = lambda at, *, with_content: told(at, with_content=True) if with_content else []
    root, url, point, nth, snapshot = sys.argv[1:]

    async def main():
        services = replace(system_services(), probe=dying(point, int(nth)))
        backend = IsolatedSandboxes(root, export=url, keys="env:EXPORT_KEY", services=services)
        await backend.open("acme", "late").make_durable(snapshot)
        backend.close()

    asyncio.run(main())
""")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look at no file of the host's: that takes a second, and is not what is tested."""
    told = _base._told
    monkeypatch.setenv("EXPORT_KEY", KEY)
    monkeypatch.setattr(
        _base,
        "_told",
        lambda at, *, with_content: told(at, with_content=True) if with_content else [],
    )


def run(program, *arguments):
    return warm.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EXPORT_KEY": KEY},
        timeout=100,
    ).returncode


def opened(folder, url, **settings):
    return IsolatedSandboxes(folder, export=url, keys="env:EXPORT_KEY", **settings)


@pytest.fixture
async def filled(tmp_path):
    """Return (place, snapshot that stays): beside a thread that is erased, with the same content.

    And a third one, taken and not exported yet.
    """
    url = (tmp_path / "objects").as_uri()
    backend = opened(tmp_path / "a", url)
    try:
        gone, stays = backend.open("acme", "gone"), backend.open("acme", "stays")
        for n in range(3):
            await gone.run(f"seq 100000 > same; seq {n} 100000 > own{n}")
            await gone.make_durable(await gone.take())
        await stays.run("seq 100000 > same")
        kept = await stays.take()
        await stays.make_durable(kept)
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()
    return url, kept


async def late(tmp_path):
    """Return a snapshot on another host that has content of the one that is erased."""
    backend = IsolatedSandboxes(tmp_path / "late")
    try:
        sandbox = backend.open("acme", "late")
        await sandbox.run("seq 2 100000 > x; echo late > y")
        return await sandbox.take()
    finally:
        backend.close()


async def whole(folder, url, thread, snapshot, *, expected):
    """Another host that never saw a snapshot has its files."""
    backend = opened(folder, url)
    try:
        sandbox = backend.open("acme", thread)
        await sandbox.fetch(snapshot)
        await sandbox.restore(snapshot)
        assert (await sandbox.run(COUNTS)).output == expected
        services = system_services()
        objects = backend.exports.objects
        keys = make_keys("env:EXPORT_KEY", services)
        looked = await verify(objects, keys, services, folder=folder_name("acme"))
        assert [each.problem for each in looked if each.problem] == []
        return objects
    finally:
        backend.close()


COUNTS = "for each in same x y; do [ -e $each ] && echo $each $(wc -l < $each); done; true"
STAYS = "same 100000\n"
LATE = "x 99999\ny 1\n"


@pytest.mark.parametrize(("point", "nth"), POINTS)
async def test_a_collection_that_was_killed_is_finished_by_the_next(tmp_path, filled, point, nth):
    url, kept = filled
    assert run(COLLECTOR, url, point, nth, kept) == -signal.SIGKILL
    await whole(tmp_path / "b", url, "stays", kept, expected=STAYS)
    # Whoever exports in between counts on nothing that was given up.
    snapshot = await late(tmp_path)
    assert run(EXPORTER, tmp_path / "late", url, "", 0, snapshot) == 0
    assert run(COLLECTOR, url, "", 0, kept) == 0
    objects = await whole(tmp_path / "c", url, "stays", kept, expected=STAYS)
    await whole(tmp_path / "d", url, "late", snapshot, expected=LATE)
    folder = folder_name("acme")
    assert len(objects.list(f"{folder}/snapshots/")) == 2
    assert len(objects.list(f"{folder}/pieces/")) == 2


@pytest.mark.parametrize("point", EXPORT_POINTS)
async def test_an_export_that_was_killed_before_a_collection_goes_on(tmp_path, filled, point):
    url, kept = filled
    snapshot = await late(tmp_path)
    assert run(EXPORTER, tmp_path / "late", url, point, 1, snapshot) == -signal.SIGKILL
    assert run(COLLECTOR, url, "", 0, kept) == 0
    assert run(EXPORTER, tmp_path / "late", url, "", 0, snapshot) == 0
    await whole(tmp_path / "b", url, "late", snapshot, expected=LATE)
    await whole(tmp_path / "c", url, "stays", kept, expected=STAYS)
