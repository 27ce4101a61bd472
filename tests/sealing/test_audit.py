"""An audit of an encrypted store names what is wrong, and tells damage from erasure."""

import pytest

from perdure import Runtime
from perdure.codec import erase_frame
from perdure.governance import erase, verify
from tests.beside import beside
from tests.governance.canaries import graphs
from tests.sealing.conftest import local_keys


class Sealed:
    """An encrypted store with two threads, and a way around it."""

    def __init__(self, path):
        self.path = path
        self.url = f"sqlite:///{path}"

    def open(self, *, worker=False):
        return Runtime.open(self.url, graphs(), worker=worker, keys=local_keys(1))

    def run(self, sql, *params):
        db = beside(self.path)
        try:
            return db.execute(sql, params).fetchall()
        finally:
            db.close()

    def frames(self, thread="t"):
        """Return (frame_no, first_seq, body) of a thread's first run."""
        return self.run(
            "SELECT frame_no, first_seq, body FROM perdure_frames WHERE run_no = (SELECT run_no "
            "FROM perdure_runs WHERE thread = ? AND ordinal = 1) ORDER BY first_seq",
            thread,
        )

    def put(self, frame_no, body):
        self.run("UPDATE perdure_frames SET body = ? WHERE frame_no = ?", body, frame_no)

    async def found(self):
        async with self.open() as runtime:
            report = await verify(runtime)
        return {(each.thread, each.code) for each in report.findings}, report.erased


@pytest.fixture
async def store(tmp_path):
    store = Sealed(tmp_path / "store.db")
    async with store.open(worker=True) as runtime:
        for thread in ("t", "u"):
            for text in ("one", "two"):
                run = await runtime.start("child", {"text": text}, thread=thread)
                await run.result(timeout=20)
    assert await store.found() == (set(), 0)
    assert len(store.frames()) >= 2
    return store


async def test_an_edited_frame(store):
    frame_no, _seq, body = store.frames()[0]
    store.put(frame_no, body[:-1] + bytes([body[-1] ^ 1]))
    found, _erased = await store.found()
    assert ("t", "frame_unreadable") in found
    assert {thread for thread, _code in found} == {"t"}


async def test_a_frame_that_is_gone(store):
    frame_no, _seq, _body = store.frames()[0]
    store.run("DELETE FROM perdure_frames WHERE frame_no = ?", frame_no)
    found, _erased = await store.found()
    assert ("t", "records_missing") in found


async def test_frames_in_another_order(store):
    (first, _a, one), (second, _b, two), *_rest = store.frames()
    store.put(first, two)
    store.put(second, one)
    found, _erased = await store.found()
    assert ("t", "frame_unreadable") in found


async def test_a_frame_of_another_thread(store):
    (mine, *_a), *_b = store.frames("t")
    (_no, _seq, theirs), *_c = store.frames("u")
    store.put(mine, theirs)
    found, _erased = await store.found()
    assert ("t", "frame_unreadable") in found
    assert not any(thread == "u" for thread, _code in found)


async def test_a_key_that_is_gone_is_damage(store):
    store.run("DELETE FROM perdure_keys WHERE scope = 'thread:t'")
    found, erased = await store.found()
    assert ("t", "frame_unreadable") in found
    assert (erased, {thread for thread, _code in found}) == (0, {"t"})


async def test_an_erased_thread_is_no_damage(store):
    async with store.open() as runtime:
        await erase(runtime, thread="t", by="ada")
    found, erased = await store.found()
    assert (found, erased > 4) == (set(), True)


async def test_what_only_looks_erased_is_damage(store):
    """Digests of other records, in the place of a frame."""
    async with Runtime.open(f"{store.url}.plain", graphs()) as plain:
        run = await plain.start("child", {"text": "three"})
        await run.result(timeout=20)
        [frame, *_rest] = await plain.engine.store.read_frames(run.id)
    frame_no, _seq, _body = store.frames()[0]
    store.put(frame_no, erase_frame(frame.body))
    found, _erased = await store.found()
    assert ("t", "frame_changed") in found or ("t", "frame_count") in found
