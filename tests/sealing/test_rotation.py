"""Rotation: every data key is wrapped anew, one by one, wherever it is cut off."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.clock import system_services
from perdure.errors import Conflict, KeyMissing, StorePlain
from perdure.sealing import rotate, wrappings
from perdure.store import make_store
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from tests import warm
from tests.governance.canaries import canary, graphs
from tests.sealing.conftest import local_keys

ROOT = Path(__file__).resolve().parents[2]
THREADS = 6
ALL = THREADS + 2
"""Data keys: of each thread, of the tenant, of the store."""


@pytest.fixture(params=["sqlite", "postgres"])
def make_plain(request, tmp_path):
    """Return a function that makes an unopened store; each one is the same place."""
    if request.param == "sqlite":
        return lambda: SqliteStore(f"sqlite:///{tmp_path}/store.db", system_services())
    url = request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))
    return lambda: PostgresStore(url, system_services())


async def fill(store):
    async with Runtime.open(store, graphs(), worker=False, keys=local_keys(1)) as runtime:
        for number in range(THREADS):
            await runtime.start("asking", {"text": canary(f"state {number}")}, thread=f"t{number}")


async def read_all(store, keys):
    """Return the inputs of all runs, in the order of their threads."""
    async with Runtime.open(store, graphs(), worker=False, keys=keys) as runtime:
        runs = sorted(await runtime.runs(), key=lambda run: run.thread)
        return [str((await runtime.events(run.run_id))[0]) for run in runs]


async def rotated(store, keys, services=None):
    await store.open()
    try:
        return await rotate(store, keys, services or system_services())
    finally:
        await store.close()


async def counts(store):
    await store.open()
    found = {each.key_id: each.data_keys for each in await wrappings(store)}
    await store.close()
    return found


async def test_after_a_rotation_the_old_key_is_not_needed(make_plain):
    await fill(make_plain())
    before = await read_all(make_plain(), local_keys(1))
    assert all(canary(f"state {number}") in text for number, text in enumerate(before))
    assert await counts(make_plain()) == {"k1": ALL}
    done = await rotated(make_plain(), local_keys(1, 2))
    assert (done.key_id, done.wrapped, done.kept) == ("k2", ALL, 0)
    assert await counts(make_plain()) == {"k2": ALL}
    assert await read_all(make_plain(), local_keys(2)) == before
    with pytest.raises(KeyMissing, match="'k2'"):
        await read_all(make_plain(), local_keys(1))
    again = await rotated(make_plain(), local_keys(1, 2))
    assert (again.wrapped, again.kept) == (0, ALL)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("point", ["keys.rewrap.before", "keys.rewrap.after"])
async def test_a_rotation_that_is_cut_off_anywhere_goes_on(make_plain, point):
    await fill(make_plain())
    before = await read_all(make_plain(), local_keys(1))
    for _ in range(ALL):
        left = iter([None])

        def dies(name, left=left):
            if name == point and next(left, name) is not None:
                raise Killed

        services = replace(system_services(), probe=dies)
        with pytest.raises(Killed):
            await rotated(make_plain(), local_keys(1, 2), services)
        found = await counts(make_plain())
        assert sum(found.values()) == ALL
        assert await read_all(make_plain(), local_keys(1, 2)) == before
        if found.get("k1", 0) <= 2:
            break
    await rotated(make_plain(), local_keys(1, 2))
    assert await counts(make_plain()) == {"k2": ALL}
    assert await read_all(make_plain(), local_keys(2)) == before


DYING = """
import asyncio, os, signal, sys
from dataclasses import replace
from perdure.clock import system_services
from perdure.sealing import rotate
from perdure.store import make_store
from tests.sealing.conftest import local_keys

left = [int(sys.argv[2])]

def probe(name):
    if name == sys.argv[3]:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    services = replace(system_services(), probe=probe)
    store = make_store(sys.argv[1], services)
    await store.open()
    await rotate(store, local_keys(1, 2), services)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres").url(request.getfixturevalue("schema"))


@pytest.mark.parametrize("point", ["keys.rewrap.before", "keys.rewrap.after"])
@pytest.mark.parametrize("number", [1, 4, ALL])
@pytest.mark.timeout(60)
async def test_a_rotation_whose_process_is_killed_goes_on(place, point, number):
    url = place
    await fill(make_store(url, system_services()))
    before = await read_all(url, local_keys(1))
    died = await warm.execute(
        *(sys.executable, "-c", DYING, url, str(number), point),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert await died.wait() == -signal.SIGKILL
    done = number if point.endswith("after") else number - 1
    found = await counts(make_store(url, system_services()))
    assert found == {key: count for key, count in (("k1", ALL - done), ("k2", done)) if count}
    assert await read_all(url, local_keys(1, 2)) == before
    await rotated(make_store(url, system_services()), local_keys(1, 2))
    assert await read_all(url, local_keys(2)) == before


async def test_a_runtime_goes_on_while_its_keys_are_rotated(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), worker=False, keys=local_keys(2, 1)) as runtime:
        await runtime.start("asking", {"text": "one"}, thread="t1")
        await rotated(SqliteStore(url, system_services()), local_keys(1, 2))
        await runtime.start("asking", {"text": "two"}, thread="t1")
        await runtime.start("asking", {"text": "three"}, thread="t3")  # wrapped by its own current
        done = await rotated(SqliteStore(url, system_services()), local_keys(1, 2))
        assert (done.wrapped, done.kept) == (1, 3)
    assert len(await read_all(url, local_keys(2))) == 3


async def test_two_rotations_to_different_keys_do_not_go_on_for_ever():
    store = MemoryStore("memory://", system_services())
    await fill(store)
    await store.open()
    other = local_keys(2, 1)

    class Undone:
        """Undoes each pass of the rotation, as another one would that wants the other key."""

        def __getattr__(self, name):
            return getattr(store, name)

        async def read_keys(self, *args, after=None, **kwargs):
            found = await store.read_keys(*args, after=after, **kwargs)
            if after is not None and not found:
                await rotate(store, other, system_services())
            return found

    with pytest.raises(Conflict, match="End the other rotation"):
        await rotate(Undone(), local_keys(1, 2), system_services())
    assert sum(each.data_keys for each in await wrappings(store)) == ALL


async def test_a_plain_store_has_no_keys_to_rotate(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = SqliteStore(url, system_services())
    with pytest.raises(StorePlain):
        await rotated(store, local_keys(1))


async def test_a_rotation_without_the_old_key_changes_nothing(make_plain):
    await fill(make_plain())
    with pytest.raises(KeyMissing, match="'k1'"):
        await rotated(make_plain(), local_keys(2))
    assert await counts(make_plain()) == {"k1": ALL}
