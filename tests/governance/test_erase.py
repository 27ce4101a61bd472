"""Everything of a person is erased: no byte is left, nothing else goes, nothing comes back."""

import asyncio
import json

import pytest

from perdure import RunCancelled, Runtime
from perdure.codec import erase_frame
from perdure.engine.doctor import examine
from perdure.errors import Conflict, NotFound, RecordErased, SealBroken, ThreadBusy, UsageError
from perdure.governance import (
    check_receipt,
    erase,
    export,
    preview_erasure,
    receipt_json,
    verify,
    write_receipt,
)
from perdure.governance._erase_search import Search
from perdure.ids import TenantId, ThreadId
from perdure.model import ErasedThread, ErasureRow
from perdure.testing.postgres import PostgresServer
from tests.beside import beside
from tests.governance.canaries import (
    OTHERS,
    SUBJECT,
    all_canaries,
    asked,
    blobs_of,
    canary,
    found_in,
    go_through,
    graphs,
    large,
    release,
    release_others,
)
from tests.sealing.conftest import local_keys

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def url(folder):
    return f"sqlite:///{folder}/store.db"


async def everything_of(url, thread="other", keys=None):
    async with Runtime.open(url, graphs(), worker=False, keys=keys) as runtime:
        state = await runtime.state(thread)
        events = [str(event) for event in await runtime.events((await runs_on(runtime, thread))[0])]
    return state, events


async def test_an_encrypted_store_is_searched_for_what_is_stored(url):
    """Nothing in plain is there to be found: pieces of sealed rows are."""
    keys = local_keys(1)
    async with Runtime.open(url, graphs(), keys=keys) as runtime:
        await release(runtime)
    async with Runtime.open(url, graphs(), worker=False, keys=keys) as runtime:
        receipt = await erase(runtime, subject=SUBJECT, by="ada", force=True)
    verification = receipt.verification
    assert verification.found_before == verification.searched > 30
    assert (verification.found, verification.elsewhere) == (0, 0)


@pytest.mark.parametrize("is_over", [True, False])
async def test_two_erasures_at_once_do_not_take_each_others_for_what_is_left(
    url, monkeypatch, is_over
):
    """The other one erases the same texts between the search and the look at who has them."""
    async with Runtime.open(url, graphs()) as runtime:
        for thread in ("first", "second"):
            run = await runtime.start("quiet", {"text": canary("state")}, thread=thread)
            await run.result(timeout=30)
    held = Search._held_by_others
    looks = []
    async with (
        Runtime.open(url, graphs(), worker=False) as one,
        Runtime.open(url, graphs(), worker=False) as two,
    ):

        async def meanwhile(search, pieces):
            looks.append(len(pieces))
            if len(looks) == 1:
                if is_over:
                    await erase(two, thread="second", by="bob")
                else:
                    await begin_alone(two, "second", await runs_on(two, "second"))
            return await held(search, pieces)

        monkeypatch.setattr(Search, "_held_by_others", meanwhile)
        receipt = await erase(one, thread="first", by="ada")
        assert looks[0] > 0
        assert receipt.verification.found == 0
        monkeypatch.undo()
        if not is_over:
            assert (await erase(two, thread="second", by="bob")).is_resumed
        assert await one.engine.store.find_erasures(open_only=True) == []


async def begin_alone(runtime, thread, run_ids):
    """Begin an erasure, and erase the journals alone: so far it has come."""
    store = runtime.engine.store
    row = ErasureRow(
        erasure_id="x_of_another",
        tenant=TenantId("default"),
        threads=(ErasedThread(ThreadId(thread)),),
        subject="",
        by="bob",
        begun_at_us=runtime.engine.now_us(),
    )
    assert (await store.begin_erasure(row)).row is not None
    for run_id in run_ids:
        frames = await store.read_frames(run_id)
        bodies = [(frame.first_seq, erase_frame(frame.body)) for frame in frames]
        await store.erase_run(run_id, bodies, is_last=False)


async def runs_on(runtime, thread):
    return [row.run_id for row in await runtime.runs(thread=thread)]


# -- no byte is left -------------------------------------------------------------------------------


async def test_no_byte_of_sqlite_files_is_left(url, folder):
    async with Runtime.open(url, graphs()) as runtime:
        other = await release_others(runtime)
        await release(runtime)
        # What the scan is worth: before, it finds every one of them.
        before = found_in(blobs_of(folder), all_canaries())
        assert before == set(all_canaries())
    others = await everything_of(url)
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        receipt = await erase(runtime, subject=SUBJECT, by="ada", force=True)
        assert found_in(blobs_of(folder), all_canaries()) == set()
        report = await verify(runtime)
        assert report.findings == []
        assert report.erased > 20
        assert await runtime.schedules() == []
        assert other in await runs_on(runtime, "other")
    check(receipt)
    assert found_in(blobs_of(folder), [*all_canaries(), OTHERS]) == {OTHERS}
    assert await everything_of(url) == others
    assert others[0].large == large("shared")


async def test_no_byte_of_postgresql_files_is_left():
    """But in the server's log (`pg_wal`), which the receipt names; on a server of its own."""
    with PostgresServer() as server:
        url = server.url("erased")
        async with Runtime.open(url, graphs()) as runtime:
            await release_others(runtime)
            await release(runtime)
        server.query("CHECKPOINT")
        # A page of 8 KB may cut what is packed: nearly all is found, by the same scan.
        before = found_in(blobs_of(server.data, leaving_out="pg_wal"), all_canaries())
        assert len(before) > len(all_canaries()) * 0.9, set(all_canaries()) - before
        others = await everything_of(url)
        async with Runtime.open(url, graphs(), worker=False) as runtime:
            receipt = await erase(runtime, subject=SUBJECT, by="ada", force=True)
            assert (await verify(runtime)).findings == []
        check(receipt)
        assert any("write-ahead log" in each.why for each in receipt.remains)
        left = found_in(blobs_of(server.data, leaving_out="pg_wal"), [*all_canaries(), OTHERS])
        assert left == {OTHERS}
        assert await everything_of(url) == others


async def test_a_sealed_store_forgets_the_keys(url, folder):
    """What was copied before can't be read with the keys of afterwards."""
    keys = local_keys(1)
    async with Runtime.open(url, graphs(), keys=keys) as runtime:
        await release_others(runtime)
        await release(runtime)
        old = {name: await frames_on(runtime, name) for name in ("t-1", "t-2")}
        scopes = [(row.scope, row.number) for row in await runtime.engine.store.read_keys()]
        assert ("thread:t-1", 1) in scopes
    others = await everything_of(url, keys=keys)
    async with Runtime.open(url, graphs(), worker=False, keys=keys) as runtime:
        receipt = await erase(runtime, subject=SUBJECT, by="ada", force=True)
        assert receipt.counts["data_keys"] == receipt.counts["threads"] == 8
        assert (await verify(runtime)).findings == []
        left = {row.scope: row.number for row in await runtime.engine.store.read_keys()}
        assert left["thread:t-1"] == 2
        for frames in old.values():
            for stored in frames:
                with pytest.raises(SealBroken):
                    await unsealed(runtime, stored)
    async with Runtime.open(url, graphs(), keys=keys) as runtime:
        again = await runtime.start("quiet", {"text": "anew"}, thread="t-1")
        assert (await again.result(timeout=10)).text == "anew"
    assert await everything_of(url, keys=keys) == others
    assert found_in(blobs_of(folder), [*all_canaries(), OTHERS]) == set()


async def frames_on(runtime, thread):
    """Return the frames of a thread as they are stored."""
    store = runtime.engine.store
    return [
        frame
        for row in await runtime.runs(thread=thread)
        for frame in await store.inner.scan_frames(row.run_id, from_seq=1, limit=100)
    ]


async def unsealed(runtime, frame):
    """Read a frame of before as if somebody had put it back."""
    store = runtime.engine.store
    row = await store.inner.read_run(frame.run_id)
    where = (row.tenant, row.thread)
    seals = (await store._seals([where]))(where)
    return seals.unseal(frame.body, "journal frame", (frame.run_id, frame.first_seq))


def check(receipt):
    """See that a receipt says what was done, and holds nothing of the person."""
    assert set(receipt.threads) >= {"t-1", "t-1-fork", "t-2", "t-3", "t-4"}
    assert receipt.counts["threads"] == len(receipt.threads) == 8  # three children
    assert receipt.counts["runs"] == 9
    assert receipt.counts["pages"] > 5
    assert receipt.counts["schedules"] == 1
    verification = receipt.verification
    assert (verification.found, verification.searched > 30) == (0, True)
    assert verification.found_before > 10
    assert {each.name for each in receipt.not_undone} == {"charge", "lost"}
    shown = json.dumps(receipt_json(receipt))
    assert "CANARY" not in shown
    assert {"ids", "copies"} <= {each.kind for each in receipt.remains}


async def test_what_a_damaged_run_may_need_stays(url, folder):
    """Nobody knows what a journal that can't be read refers to: its pages stay, which is said."""
    async with Runtime.open(url, graphs()) as runtime:
        other = await release_others(runtime)
        run = await runtime.start("quiet", {"large": large("shared")}, thread="t")
        await run.result(timeout=20)
    db = beside(f"{folder}/store.db")
    db.execute(
        "UPDATE perdure_frames SET body = ? WHERE first_seq > 1 AND run_no = "
        "(SELECT run_no FROM perdure_runs WHERE run_id = ?)",
        (b"\x01damaged", other),
    )
    pages = db.execute("SELECT count(*) FROM perdure_pages").get
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        receipt = await erase(runtime, thread="t", by="ada")
    assert any(other in each.why for each in receipt.remains)
    assert db.execute("SELECT count(*) FROM perdure_pages").get == pages
    db.close()


# -- preview and refusals --------------------------------------------------------------------------


async def test_a_preview_names_all_that_hangs_on_a_thread(url):
    async with Runtime.open(url, graphs()) as runtime:
        await release(runtime)
        found = await preview_erasure(runtime, thread="t-1")
        assert (found.threads, found.forks) == (["t-1"], ["t-1-fork"])
        assert len(found.children) == 2
        assert (found.runs, found.start_keys, found.business_keys) == (5, 1, 2)
        assert found.schedules == ["of-person"]
        assert found.unfinished == []
        assert {each.name for each in found.not_undone} == {"charge"}
        of_child = await preview_erasure(runtime, thread=found.children[0])
        assert [each.kind for each in of_child.remains] == ["parent"]
        of_fork = await preview_erasure(runtime, thread="t-1-fork")
        assert [(each.kind, each.name) for each in of_fork.remains] == [("origin", "t-1")]
        about = await preview_erasure(runtime, subject=SUBJECT)
        assert [each.thread for each in about.unfinished] == ["t-2"]
        assert set(about.all_threads) > {"t-1", "t-1-fork", "t-2", "t-3", "t-4"}


async def test_what_runs_is_not_erased(url):
    async with Runtime.open(url, graphs()) as runtime:
        run = await runtime.start("asking", {"text": canary("state")}, thread="t")
        await asked(runtime, run.id)
        with pytest.raises(ThreadBusy, match=run.id) as caught:
            await erase(runtime, thread="t", by="ada")
        assert caught.value.fields["next"] == [f"perdure cancel {run.id}"]
        assert (await runtime.state("t")).text == canary("state")
        await erase(runtime, thread="t", by="ada", force=True)
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
        with pytest.raises(NotFound, match="was erased"):
            await runtime.state("t")


async def test_nobody_and_nothing_is_refused(url):
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        for arguments in ({}, {"thread": "t", "subject": "s"}):
            with pytest.raises(UsageError):
                await erase(runtime, by="ada", **arguments)
        with pytest.raises(UsageError, match="who wants it"):
            await erase(runtime, thread="t", by="")
        with pytest.raises(NotFound, match="no thread 't'"):
            await erase(runtime, thread="t", by="ada")
        with pytest.raises(NotFound, match="subject 's'"):
            await erase(runtime, subject="s", by="ada")


# -- afterwards ------------------------------------------------------------------------------------


async def test_an_erased_thread_begins_anew(url):
    async with Runtime.open(url, graphs()) as runtime:
        first = await runtime.start("child", {"text": "old"}, thread="t", key="k", subject="ada")
        await first.result(timeout=10)
        await erase(runtime, thread="t", by="ada")
        with pytest.raises(NotFound, match="was erased"):
            await runtime.history("t")
        with pytest.raises(NotFound, match="was erased"):
            await erase(runtime, thread="t", by="ada")
        with pytest.raises(RecordErased):
            await runtime.events(first.id)
        again = await runtime.start("child", thread="t", key="k", subject="bob")
        assert again.id != first.id
        state = await again.result(timeout=10)
        assert (state.text, state.notes) == ("", [canary("child-result"), ""])
        third = await runtime.start("child", {"text": "new"}, thread="t")
        assert (await third.result(timeout=10)).notes[-1] == "new"
        assert [each.run_id for each in await runtime.history("t")][-1] == again.id
        assert (await runtime.tree("t")).runs[0].row.run_id == again.id
        report = await verify(runtime)
        assert (report.findings, report.unanchored) == ([], 0)


async def test_a_fork_that_comes_late_is_refused(url):
    """It read the state before the erasure, and starts after it."""
    async with Runtime.open(url, graphs()) as runtime:
        await release_others(runtime)
        store, start = runtime.engine.store, runtime.engine.store.start
        erased = asyncio.Event()

        async def late(runs):
            if runs[0].origin is not None:
                await erase(runtime, thread="other", by="ada")
                erased.set()
            return await start(runs)

        store.start = late
        with pytest.raises(Conflict, match="erased meanwhile"):
            await runtime.fork("other", at=1, to="copy")
        assert erased.is_set()
        assert await store.read_thread("default", "copy") is None


async def test_subjects(url):
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        await runtime.start("child", thread="t", subject="ada")
        await runtime.start("child", thread="t")
        with pytest.raises(Conflict, match="about subject 'ada'"):
            await runtime.start("child", thread="t", subject="bob")
        await runtime.start("child", thread="u")
        await runtime.start("child", thread="u", subject="bob")
        found = await preview_erasure(runtime, subject="bob")
        assert (found.threads, found.runs) == (["u"], 2)


# -- receipts and exports --------------------------------------------------------------------------


async def test_receipts_are_signed(url, tmp_path, key):
    async with Runtime.open(url, graphs()) as runtime:
        await release_others(runtime)
        await export(runtime, tmp_path / "export", thread="other", key=key)
        receipt = await erase(runtime, thread="other", by="ada", key=key)
    assert len(receipt.exports) == 1
    assert "export" in {each.kind for each in receipt.remains}
    path = tmp_path / "receipt.json"
    write_receipt(receipt, path)
    checked = check_receipt(path, key.public_key)
    assert (checked.is_right, checked.receipt) == (True, receipt)
    assert not check_receipt(path, bytes(32)).is_right
    path.write_text(path.read_text().replace('"runs": 1', '"runs": 2'))
    assert not check_receipt(path).is_right
    with pytest.raises(UsageError, match="all is erased"):
        write_receipt(receipt, path)


async def test_what_others_hold_as_well_is_told(url):
    async with Runtime.open(url, graphs()) as runtime:
        for thread in ("a", "b"):
            run = await runtime.start(
                "child", {"text": "exactly the same words of two"}, thread=thread
            )
            await run.result(timeout=10)
        receipt = await erase(runtime, thread="a", by="ada")
        assert (await runtime.state("b")).text == "exactly the same words of two"
    assert receipt.verification.elsewhere > 0
    assert receipt.is_clean


async def test_a_run_of_a_worker_that_lives_is_asked_to_cancel(url):
    async with Runtime.open(url, graphs()) as runtime:
        run = await runtime.start("asking", {}, thread="t")
        await asked(runtime, run.id)
        await go_through(runtime, run)
        assert (await erase(runtime, thread="t", by="ada")).counts["runs"] == 2


async def test_what_somebody_still_reads_keeps_an_erasure_open(url, folder):
    """A reader of the file keeps its log: the erasure is not done, and the same call does it."""
    async with Runtime.open(url, graphs()) as runtime:
        await release(runtime)
    reader = beside(folder / "store.db")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM perdure_runs").fetchall()
    async with Runtime.open(url, graphs(), worker=False) as runtime:
        done = await erase(runtime, subject=SUBJECT, by="ada", force=True)
        assert any("the same command finishes it" in str(each) for each in done.remains)
        assert [each.code for each in (await examine(runtime.engine)).findings] == [
            "erasure_unfinished"
        ]
        reader.close()
        done = await erase(runtime, subject=SUBJECT, by="ada", force=True)
        assert done.verification.found == 0
        assert not [each for each in done.remains if "under way" in str(each)]
        assert (await examine(runtime.engine)).findings == []
    assert found_in(blobs_of(folder), all_canaries()) == set()
