"""Pages that nothing refers to go; pages that anybody uses, or begins to use meanwhile, stay."""

import pytest

from perdure import Runtime
from perdure.errors import Conflict, DecodeFailed, StoreCorrupt
from perdure.governance import _collect, collect, prune, verify
from perdure.governance._marks import Marks
from perdure.testing.postgres import PostgresServer
from tests.fault.kept import graph, states_of

LINE = [[1, 2, 3], [4, 5], [6]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.url(request.getfixturevalue("schema"))
    return {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db"}[request.param]


@pytest.fixture(autouse=True)
def many_copies(monkeypatch):
    monkeypatch.setattr("perdure.engine.driver.SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("perdure.engine.driver.WHOLE_COPY_SHARE", 0)
    monkeypatch.setattr("perdure.engine.driver.STATE_BYTES_SHARE", 1_000_000)


async def ran(runtime, line, thread="t"):
    for todo in line:
        await (await runtime.start(graph, {"todo": todo}, thread=thread)).result(timeout=20)


async def pages(runtime, tenant="default"):
    return (await runtime.engine.store.usage(tenant)).pages


async def test_pages_in_use_stay(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        before = await pages(runtime)
        assert (await collect(runtime)).pages == 0
        assert await pages(runtime) == before > 0
        for checkpoint, state in enumerate(states_of(LINE), 1):
            assert await runtime.state("t", at=checkpoint) == state


async def test_pages_of_what_was_pruned_go(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        await ran(runtime, [[1]], thread="other")
        before = await pages(runtime)
        told = []
        done = await prune(runtime, keep=1, threads=["t"], on_progress=told.append)
        assert done.collected.pages > 0
        assert told
        assert await pages(runtime) == before - done.collected.bytes
        assert await runtime.state("t") == states_of(LINE)[-1]
        assert await runtime.state("other", at=2) == states_of([[1]])[1], "it shares a page"
        assert (await verify(runtime)).findings == []
        assert (await collect(runtime)).pages == 0


@pytest.mark.parametrize("moment", ["begun", "marked"])
async def test_a_page_that_is_wanted_again_stays(url, monkeypatch, moment):
    """A run writes what was garbage when the collection began, or when all was marked."""
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        mark = _collect._Sweep._mark

        async def meanwhile(sweep):
            if moment == "begun":
                await ran(runtime, [[1]])
            await mark(sweep)
            if moment == "marked":
                await ran(runtime, [[1, 2]], thread="new")
                await ran(runtime, [[1]])

        monkeypatch.setattr(_collect._Sweep, "_mark", meanwhile)
        done = await prune(runtime, keep=1, threads=["t"])
        assert done.collected.pages > 0, "2 and 3 are gone"
        assert (await runtime.state("t")).book == states_of([[1]])[-1].book
        if moment == "marked":
            assert await runtime.state("new") == states_of([[1, 2]])[-1]
        assert (await verify(runtime)).findings == []


async def test_a_collection_that_was_ended_begins_again(url, monkeypatch):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        mark = _collect._Sweep._mark
        times = []

        async def meanwhile(sweep):
            await mark(sweep)
            times.append(sweep)
            if len(times) == 1:
                await sweep._store.begin_collection("default")

        monkeypatch.setattr(_collect._Sweep, "_mark", meanwhile)
        done = await prune(runtime, keep=1)
        assert (len(times), done.collected.pages > 0) == (2, True)

        async def always(sweep):
            await mark(sweep)
            await sweep._store.begin_collection("default")

        monkeypatch.setattr(_collect._Sweep, "_mark", always)
        await ran(runtime, [[7], [8], [9]])
        with pytest.raises(Conflict, match="all the time"):
            await prune(runtime, keep=1)
        assert (await verify(runtime)).findings == []


async def test_nothing_goes_where_a_journal_can_not_be_read(tmp_path):
    async with Runtime.open(f"sqlite:///{tmp_path}/s.db", [graph]) as runtime:
        await ran(runtime, LINE)
        await ran(runtime, [[1]], thread="other")
        store = runtime.engine.store
        await store._writer.call(
            "damage",
            lambda db: db.execute(
                "UPDATE perdure_frames SET body = x'0199' WHERE frame_no = "
                "(SELECT max(frame_no) FROM perdure_frames)"
            ).fetchall(),
        )
        before = await pages(runtime)
        with pytest.raises((DecodeFailed, StoreCorrupt)):
            await prune(runtime, keep=1)
        assert await pages(runtime) == before


async def test_a_dry_run_counts(url):
    async with Runtime.open(url, [graph]) as runtime:
        await ran(runtime, LINE)
        found = await collect(runtime, dry_run=True)
        assert (found.pages, found.is_dry, found.runs) == (0, True, 3)
        before = await runtime.engine.store.usage()
        done = await prune(runtime, keep=1, dry_run=True)
        assert done.threads[0].frames > 0
        assert done.collected.pages > 0
        assert await runtime.engine.store.usage() == before
        real = await prune(runtime, keep=1)
        counted = (done.collected.pages, done.collected.bytes, done.bytes)
        assert counted == (real.collected.pages, real.collected.bytes, real.bytes)
        assert not done.problem


async def test_a_dry_run_says_that_pages_can_not_be_counted(tmp_path):
    async with Runtime.open(f"sqlite:///{tmp_path}/s.db", [graph]) as runtime:
        await ran(runtime, LINE)
        await ran(runtime, [[1]], thread="other")
        await runtime.engine.store._writer.call(
            "damage",
            lambda db: db.execute(
                "UPDATE perdure_frames SET body = x'0199' WHERE frame_no = "
                "(SELECT max(frame_no) FROM perdure_frames)"
            ).fetchall(),
        )
        done = await prune(runtime, keep=1, dry_run=True)
        assert (done.collected, bool(done.problem)) == (None, True)
        assert [bool(each.note) for each in done.threads] == [True, False]


def test_marks_never_forget_and_seldom_mistake():
    names = [number.to_bytes(32, "big") for number in range(20_000)]
    marks = Marks(10_000, 1)
    for name in names[:10_000]:
        marks.add(name)
    assert all(name in marks for name in names[:10_000])
    assert sum(name in marks for name in names[10_000:]) < 60
