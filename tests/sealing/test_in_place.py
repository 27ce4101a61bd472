"""A store that has data is encrypted in place: all of it or nothing, nothing in plain is left."""

import os
import shutil
import signal
import sqlite3
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perdure import Runtime
from perdure.clock import system_services
from perdure.errors import (
    KeyMissing,
    SettingInvalid,
    StoreCorrupt,
    StoreLocked,
    StorePlain,
    StoreSealed,
)
from perdure.governance import check, export, verify
from perdure.ids import TenantId, ThreadId
from perdure.model import TagRow
from perdure.sealing import preview_seal, rotate, seal
from perdure.store import make_store
from tests import warm
from tests.governance.canaries import (
    canary,
    check_readable,
    graphs,
    marks_in,
    release,
    scan_files,
    scan_rows,
)
from tests.sealing.conftest import local_keys
from tools import golden

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@dataclass
class Place:
    """Where a store is, and how its bytes are looked through."""

    url: str
    folder: Path
    schema: str = ""
    postgres: object = None

    def scan(self) -> int:
        """Refuse anything of the person in what the store keeps."""
        return scan_rows(self.postgres, self.schema) if self.schema else scan_files(self.folder)

    def store(self, services=None):
        """Return the store, not open."""
        return make_store(self.url, services or system_services())

    async def sealed(self, services=None, **options):
        """Seal it."""
        services = services or system_services()
        return await seal(self.store(services), local_keys(1), services, **options)

    def opened(self, *, worker=False, keys=None):
        """Return a runtime over it, encrypted."""
        return Runtime.open(self.url, graphs(), worker=worker, keys=keys or local_keys(1))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    if request.param == "sqlite":
        return Place(f"sqlite:///{folder}/store.db", folder)
    postgres, schema = (request.getfixturevalue(name) for name in ("postgres", "schema"))
    return Place(postgres.url(schema), folder, schema, postgres)


async def filled(place):
    """Put the person's data there, in plain; return the run of t-1 and the one that failed."""
    async with Runtime.open(place.url, graphs()) as runtime:
        return await release(runtime)


async def everything(runtime):
    """Return what a reader of the store sees: events, states, effects, asks, schedules, tags."""
    found = []
    for row in sorted(await runtime.runs(), key=lambda row: row.run_id):
        found.append((row, [str(event) for event in await runtime.events(row.run_id)]))
        if row.checkpoint:
            found.append(await runtime.state(row.thread))
        found.append(await runtime.engine.store.read_mail(row.run_id))
    for each in (runtime.effects(None), runtime.asks(open=False), runtime.schedules()):
        found += await each
    return [*found, await runtime.tags("t-1")]


async def test_nothing_in_plain_is_left_and_all_is_read_as_before(place, tmp_path):
    run, failed = await filled(place)
    with pytest.raises(AssertionError):
        place.scan()
    async with Runtime.open(place.url, graphs(), worker=False) as runtime:
        before = await everything(runtime)
        await export(runtime, tmp_path / "before.audit")
    told = []
    done = await place.sealed(progress=lambda *each: told.append(each))
    assert place.scan() >= 1
    assert (done.rows["runs"], done.rows["tags"], done.rows["schedules"]) == (9, 2, 1)
    assert all(count > 0 for count in done.rows.values()), done.rows
    assert done.files_written
    assert told[-1] == ("files", 1, 1)
    assert {kind for kind, made, of in told if made == of} == {*done.rows, "files"}
    async with place.opened() as runtime:
        assert await everything(runtime) == before
        await check_readable(runtime, run, failed)
        assert (await verify(runtime)).findings == []
        await export(runtime, tmp_path / "after.audit")
    checked = check(tmp_path / "after.audit", since=tmp_path / "before.audit")
    assert checked.report.findings == []
    assert check(tmp_path / "before.audit").report.findings == []
    with pytest.raises(StoreSealed):
        async with Runtime.open(place.url, graphs(), worker=False):
            pass


async def test_what_waited_goes_on_and_promises_are_kept(place):
    run, _failed = await filled(place)
    await place.sealed()
    async with place.opened(worker=True) as runtime:
        given = (await runtime.read_row(run.id)).start_key
        again = await runtime.start("quiet", {}, thread="new", key="of-another")
        await again.result(timeout=30)
        assert given == canary("start-key")
        waiting = next(row for row in await runtime.runs(thread="t-2") if not row.status.is_final)
        [ask] = await runtime.asks(run_id=waiting.run_id)
        await runtime.answer(ask.id, canary("answer"), by=canary("answerer"))
        handle = await runtime.get(waiting.run_id)
        await handle.signal("topic", canary("signal"))
        state = await handle.result(timeout=30)
        assert canary("answer") in state.notes
        assert (await verify(runtime)).findings == []
    place.scan()


async def test_an_answer_that_nobody_has_read_is_read_after_it(place):
    async with Runtime.open(place.url, graphs()) as runtime:
        run = await runtime.start("asking", {}, thread="t")
        parked = await runtime.start("parking", {}, thread="p")
        store = runtime.engine.store
        asked, lost = [], []
        while not (asked and lost):
            mark = store.change_mark()
            asked = await runtime.asks(run_id=run.id)
            lost = await runtime.effects("uncertain", run_id=parked.id)
            if not (asked and lost):
                await store.wait_for_change(5.0, since=mark)
    async with Runtime.open(place.url, graphs(), worker=False) as runtime:
        await runtime.answer(asked[0].id, canary("answer"), by=canary("answerer"))
        await (await runtime.get(run.id)).signal("topic", canary("signal"), by=canary("sender"))
        await runtime.resolve(
            lost[0].id, happened=True, result=canary("decided-result"), by=canary("decider")
        )
    done = await place.sealed()
    assert done.rows["mail"] == 3
    place.scan()
    async with place.opened(worker=True) as runtime:
        state = await (await runtime.get(run.id)).result(timeout=30)
        assert {canary("answer"), canary("answerer"), canary("signal")} <= set(state.notes)
        state = await (await runtime.get(parked.id)).result(timeout=30)
        assert state.notes == [canary("decided-result")]


async def test_a_dry_run_counts_and_changes_nothing(place):
    await filled(place)
    counted = await preview_seal(place.store())
    async with Runtime.open(place.url, graphs(), worker=False) as runtime:
        assert len(await runtime.runs()) == counted.rows["runs"] == 9
    done = await place.sealed()
    assert counted.rows == done.rows
    again = await preview_seal(place.store())
    assert (again.rows, again.files_written) == ({}, False)


async def test_what_is_encrypted_is_left_as_it_is(place):
    async with place.opened() as runtime:
        await runtime.start("quiet", {"text": "one"}, thread="t")
    done = await place.sealed()
    assert (done.rows, done.files_written) == ({}, False)
    with pytest.raises(KeyMissing):
        await seal(place.store(), local_keys(2), system_services())


async def test_its_keys_can_be_rotated(place):
    run, failed = await filled(place)
    await place.sealed()
    store = place.store()
    await store.open()
    await rotate(store, local_keys(1, 2), system_services())
    await store.close()
    async with place.opened(keys=local_keys(2)) as runtime:
        await check_readable(runtime, run, failed)


async def test_it_is_refused_while_a_worker_is_alive(place):
    async with Runtime.open(place.url, graphs()) as runtime:
        run = await runtime.start("quiet", {"text": "one"}, thread="t")
        await run.result(timeout=30)
        for refused in (place.sealed(), preview_seal(place.store())):
            with pytest.raises(StoreLocked, match="workers are alive"):
                await refused
        assert (await runtime.state("t")).text == "one"
    assert (await place.sealed()).rows["runs"] == 1


async def test_whoever_has_a_file_open_keeps_it_plain(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        run = await runtime.start("quiet", {"text": "one"}, thread="t")
        with pytest.raises(StoreLocked, match="another part of this one"):
            await seal(make_store(url, system_services()), local_keys(1), system_services())
        await run.signal("topic", "still plain")


async def test_who_took_a_schema_for_a_plain_one_writes_nothing_there(postgres, schema):
    url = postgres.url(schema)
    async with Runtime.open(url, graphs(), worker=False) as plain:
        run = await plain.start("asking", {"text": "one"}, thread="t")
        await plain.schedule("nightly", "quiet", {}, cron="0 3 * * *")
        await seal(make_store(url, system_services()), local_keys(1), system_services())
        for write in (
            plain.start("quiet", {"text": canary("state")}, thread="other"),
            run.signal("topic", canary("signal"), by=canary("sender")),
            plain.schedule("other", "quiet", {"text": canary("schedule-input")}, cron="0 3 * * *"),
            plain.engine.store.put_tag(tag_of(canary("tag"))),
        ):
            with pytest.raises(StoreSealed, match="encrypted meanwhile"):
                await write
    scan_rows(postgres, schema)
    async with Runtime.open(url, graphs(), keys=local_keys(1), worker=False) as runtime:
        await (await runtime.get(run.id)).signal("topic", canary("signal"))
        assert len(await runtime.runs()) == 1


def tag_of(name):
    return TagRow(
        tenant=TenantId("default"), thread=ThreadId("t"), name=name, checkpoint=1, by="", at_us=1
    )


async def test_a_row_that_cannot_be_read_stops_it_before_anything_is_written(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        await runtime.start("quiet", {"text": "one"}, thread="t")
        await runtime.start("quiet", {"text": "two"}, thread="u")
    db = sqlite3.connect(tmp_path / "store.db")
    db.execute("UPDATE perdure_runs SET waits = x'c1' WHERE thread = 'u'")
    db.commit()
    db.close()
    with pytest.raises(StoreCorrupt, match="run row of 'r_"):
        await seal(make_store(url, system_services()), local_keys(1), system_services())
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        assert len(await runtime.runs(thread="t")) == 1
        assert await runtime.engine.store.read_keys() == []


async def test_a_memory_store_cannot_be_encrypted_in_place():
    with pytest.raises(SettingInvalid, match="in place"):
        await seal(make_store("memory://", system_services()), local_keys(1), system_services())


GOLDEN = sorted(golden.GOLDEN.rglob("store.db"))


@pytest.mark.parametrize("source", GOLDEN, ids=lambda path: path.parent.name)
async def test_stores_of_every_released_format_are_sealed(tmp_path, source):
    folder = tmp_path / "store"
    folder.mkdir()
    shutil.copy(source, folder / "store.db")
    url = f"sqlite:///{folder}/store.db"
    async with Runtime.open(url, worker=False) as runtime:
        before = await seen(runtime)
    done = await seal(make_store(url, system_services()), local_keys(1), system_services())
    assert done.rows["frames"] > 0
    async with Runtime.open(url, worker=False, keys=local_keys(1)) as runtime:
        assert await seen(runtime) == before
        assert (await verify(runtime)).findings == []


async def seen(runtime):
    return [
        [str(event) for event in await runtime.events(row.run_id)]
        for row in sorted(await runtime.runs(), key=lambda row: row.run_id)
    ]


POINTS = [
    ("keys.seal.rows", 1),
    ("keys.seal.rows", 4),
    ("keys.seal.commit.before", 1),
    ("keys.seal.commit.after", 1),
    ("keys.seal.files.after", 1),
]
PLAIN = {"keys.seal.rows", "keys.seal.commit.before"}


@pytest.mark.parametrize(("point", "nth"), POINTS)
async def test_killed_anywhere_it_is_plain_or_encrypted_and_goes_on(place, point, nth, caplog):
    run, failed = await filled(place)
    died = await warm.execute(
        *(sys.executable, "-m", "tests.sealing.sealing_program", place.url, point, str(nth)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert await died.wait() == -signal.SIGKILL
    if point in PLAIN:
        async with Runtime.open(place.url, graphs(), worker=False) as runtime:
            await check_readable(runtime, run, failed)
            assert await runtime.engine.store.read_keys() == []
        with pytest.raises(StorePlain, match="perdure keys seal"):
            async with place.opened():
                pass
    else:
        async with place.opened() as runtime:
            await check_readable(runtime, run, failed)
        assert "perdure keys seal" in caplog.text
    done = await place.sealed()
    assert done.files_written
    assert bool(done.rows) == (point in PLAIN)
    place.scan()
    caplog.clear()
    async with place.opened() as runtime:
        await check_readable(runtime, run, failed)
        assert (await verify(runtime)).findings == []
    assert "perdure keys seal" not in caplog.text


async def test_the_kill_leaves_something_in_plain_that_the_next_call_removes(tmp_path):
    """What the scan is worth: right after the commit the file still holds what it held."""
    place = Place(f"sqlite:///{tmp_path}/store/store.db", tmp_path / "store")
    place.folder.mkdir()
    await filled(place)

    class Stopped(Exception):
        pass

    def probe(name):
        if name == "keys.seal.commit.after":
            raise Stopped

    services = replace(system_services(), probe=probe)
    with pytest.raises(Stopped):
        await place.sealed(services)
    assert any(marks_in(path.read_bytes()) for path in place.folder.iterdir())
    await place.sealed()
    place.scan()
