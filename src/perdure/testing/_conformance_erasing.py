"""Conformance: erasures, subjects, and what is known of exports."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure.errors import Conflict, NotFound
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId
from perdure.model import (
    AskPut,
    EffectPut,
    EffectState,
    ErasedThread,
    ErasureBegun,
    ErasureRow,
    ExportRow,
    Failure,
    Fenced,
    RunRow,
    RunSpawned,
    RunStatus,
    Started,
    TagRow,
    ThreadBased,
    ThreadRow,
)
from perdure.store.api import AskQuery, EffectQuery, Store
from perdure.testing._conformance_keys import key
from perdure.testing._store_kit import (
    T0,
    TENANT,
    appended_to,
    ask_of,
    effect_of,
    ended,
    new_run,
    outcome_of,
    signal_to,
    started,
    taken,
    the_run,
    written,
)

ELSEWHERE = TenantId("somebody else")
SECRET = b"the-secret-of-a-customer"


def erasure(name: str, *threads: str, **fields: object) -> ErasureRow:
    """Return an erasure of threads."""
    given = {
        "erasure_id": f"x_{name}",
        "tenant": TENANT,
        "threads": tuple(ErasedThread(f"thread_{thread}") for thread in threads),
        "by": "ada",
        "begun_at_us": T0 + 40,
    }
    return ErasureRow(**(given | fields))  # type: ignore[arg-type]  # as the tests say


async def over(store: Store, name: str, **fields: object) -> RunRow:
    """Start a run that has everything, end it, and return its row."""
    row = await taken(store, name, **({"start_key": f"key-{name}"} | fields))
    secret = SECRET.decode()
    effect = effect_of(
        row,
        name,
        state=EffectState.CONFIRMED,
        business_key=f"business-{name}-{secret}",
        request_wire=SECRET,
        result_wire=SECRET,
    )
    ask = ask_of(row, name, question=secret)
    based = ThreadBased(seq=2, made_at=3)
    row = await written(store, row, EffectPut(row=effect), AskPut(row=ask), based, body=SECRET)
    await store.post(replace(signal_to(row.run_id), body_wire=SECRET))
    failure = Failure(type="ValueError", message=secret)
    return await written(store, row, ended(RunStatus.FAILED, failure=failure, checkpoint=3))


async def begun(store: Store, row: ErasureRow) -> ErasureRow:
    """Begin an erasure that must not be refused."""
    found = await store.begin_erasure(row)
    assert found.row is not None, found
    return found.row


async def thread_of(store: Store, name: str) -> ThreadRow:
    """Return the row of a test's thread."""
    row = await store.read_thread(TENANT, ThreadId(f"thread_{name}"))
    assert row is not None
    return row


async def found_bytes(store: Store) -> int:
    """Return how often the secret stands in the store, by itself."""
    [count] = await store.count_bytes([SECRET])
    return count


class ErasingRules:
    """What is erased is gone, cannot come back, and nothing else goes."""

    async def test_an_erasure_empties_its_threads(self, store: Store) -> None:
        """They begin anew: no state, no base, no subject; ordinals and checkpoint ids go on."""
        await over(store, "a", subject="ada")
        await over(store, "b")
        row = await begun(store, erasure("1", "a", "none"))
        assert row.threads == (ErasedThread("thread_a", 1),)
        found = await thread_of(store, "a")
        assert (found.erased, found.last_ordinal, found.checkpoint) == (1, 1, 3)
        assert (found.base_ordinal, found.base_seq, found.graph) == (0, 0, "")
        assert found.subject is None
        assert (await thread_of(store, "b")).erased == 0
        assert await store.find_erasures(TENANT, open_only=True) == [row]

    async def test_an_erasure_is_begun_once(self, store: Store) -> None:
        """Its answer may have been lost; another of the same thread waits until it was ended."""
        await over(store, "a")
        row = await begun(store, erasure("1", "a"))
        await started(store, "later", thread=ThreadId("thread_a"))
        assert await store.begin_erasure(erasure("1", "a")) == ErasureBegun(row=row)
        assert await store.begin_erasure(erasure("2", "b", "a")) == ErasureBegun(other=row)
        await store.end_erasure(row.erasure_id, at_us=T0 + 50)
        await store.end_erasure(row.erasure_id, at_us=T0 + 60)
        assert await store.find_erasures(open_only=True) == []
        assert await store.find_erasures(TENANT) == [replace(row, ended_at_us=T0 + 50)]
        assert await store.find_erasures(ELSEWHERE) == []
        with pytest.raises(NotFound):
            await store.end_erasure("x_none", at_us=T0)

    async def test_nothing_that_runs_is_erased(self, store: Store) -> None:
        """A run that has not ended refuses the whole erasure."""
        await over(store, "a")
        row = await taken(store, "b")
        refused = await store.begin_erasure(erasure("1", "a", "b"))
        assert refused == ErasureBegun(unfinished=(row.run_id,))
        assert (await thread_of(store, "a")).erased == 0
        assert await store.find_erasures() == []

    async def test_a_run_is_erased(self, store: Store) -> None:
        """Frames keep hashes, the row its names and states; all else is gone."""
        row = await over(store, "a")
        other = await over(store, "b")
        before = await store.scan_frames(row.run_id, from_seq=1, limit=10)
        await begun(store, erasure("1", "a"))
        bodies = [(frame.first_seq, b"\xeedigests") for frame in before]
        await store.erase_run(row.run_id, bodies[:1], is_last=False)
        assert await store.find_effects(EffectQuery(run_id=row.run_id)) != []
        for _time in range(2):
            await store.erase_run(row.run_id, bodies, is_last=True)
        after = await store.scan_frames(row.run_id, from_seq=1, limit=10)
        assert after == [replace(frame, body=b"\xeedigests") for frame in before]
        assert await store.find_effects(EffectQuery(run_id=row.run_id)) == []
        assert await store.find_asks(AskQuery(run_id=row.run_id)) == []
        assert await store.read_effect(EffectId("e_a")) is None
        assert await store.read_mail(row.run_id) == []
        assert await the_run(store, row.run_id) == replace(
            row, start_key=None, input_digest="", waits=(), failure=None
        )
        await self._check_others(store, other)

    @staticmethod
    async def _check_others(store: Store, other: RunRow) -> None:
        assert await the_run(store, other.run_id) == other
        assert len(await store.find_effects(EffectQuery(run_id=other.run_id))) == 1
        assert len(await store.find_asks(AskQuery(run_id=other.run_id))) == 1
        frames = await store.scan_frames(other.run_id, from_seq=2, limit=1)
        assert [frame.body for frame in frames] == [SECRET]

    async def test_only_what_is_in_an_erasure_is_erased(self, store: Store) -> None:
        """A run that was started since, of another thread, or that is not there, is left alone."""
        await over(store, "a")
        other = await over(store, "b")
        await begun(store, erasure("1", "a"))
        later = await started(store, "later", thread=ThreadId("thread_a"))
        for run_id in (other.run_id, later.run_id):
            with pytest.raises(Conflict):
                await store.erase_run(run_id, [(1, b"\xeex")], is_last=True)
        with pytest.raises(NotFound):
            await store.erase_run(RunId("r_none"), [], is_last=True)
        await self._check_others(store, other)

    async def test_late_writers_change_nothing(self, store: Store) -> None:
        """Whoever held the run, wants to answer, to decide or to tell it something, is refused."""
        row = await over(store, "a")
        await begun(store, erasure("1", "a"))
        await store.erase_run(row.run_id, [(1, b"\xeex"), (2, b"\xeex")], is_last=True)
        late = appended_to(row, first_seq=row.last_seq + 1, body=SECRET)
        assert isinstance(await outcome_of(store, late), Fenced)
        with pytest.raises(NotFound):
            await store.answer(AskId("a_a"), value_wire=SECRET, by="ada", at_us=T0 + 50)
        with pytest.raises(NotFound):
            await store.decide(
                EffectId("e_a"), happened=True, result_wire=SECRET, by="ada", at_us=T0 + 50
            )
        with pytest.raises(Exception, match="ended"):
            await store.post(replace(signal_to(row.run_id), body_wire=SECRET))
        assert await store.read_mail(row.run_id) == []

    async def test_the_thread_can_be_used_again(self, store: Store) -> None:
        """With the same start key and the same business key as before."""
        row = await over(store, "a")
        await begun(store, erasure("1", "a"))
        await store.erase_run(row.run_id, [], is_last=True)
        again = await over(store, "a2", thread=row.thread, start_key="key-a")
        assert (again.ordinal, again.base_checkpoint, again.start_key) == (2, 3, "key-a")
        erased = await store.find_erasures(TENANT)
        await store.end_erasure(erased[0].erasure_id, at_us=T0 + 50)
        assert (await begun(store, erasure("2", "a"))).threads == (ErasedThread("thread_a", 2),)

    async def test_state_of_before_cannot_be_carried_over(self, store: Store) -> None:
        """A fork or a rollback whose state was read before an erasure is refused."""
        row = await over(store, "a")
        await begun(store, erasure("1", "a"))
        for name, thread in (("fork", None), ("back", row.thread)):
            fields = {} if thread is None else {"thread": thread}
            new = new_run(name, origin=row.thread, origin_erased=0, **fields)
            [refused] = await store.start([new])
            assert isinstance(refused, Conflict), refused
            assert await store.read_run(new.run_id) is None
        [fork] = await store.start([new_run("fork", origin=row.thread, origin_erased=1)])
        assert isinstance(fork, Started)
        [other] = await store.start([new_run("new", origin=ThreadId("unknown"))])
        assert isinstance(other, Started)

    async def test_beginning_and_starting_take_turns(self, store: Store) -> None:
        """Whichever is first: a run is in the erasure, or it keeps the erasure from beginning."""
        for number in range(4):
            row = await over(store, f"a{number}")
            new = new_run(f"n{number}", thread=row.thread, origin=row.thread, origin_erased=0)
            found, [outcome] = await asyncio.gather(
                store.begin_erasure(erasure(f"{number}", f"a{number}")), store.start([new])
            )
            assert (found.row is None) == isinstance(outcome, Started)

    async def test_a_start_is_sealed_by_the_newest_key(self, store: Store) -> None:
        """Else it is refused; old keys go, the newest and those of others stay."""
        await over(store, "a")
        old, new = key("thread_a"), key("thread_a", number=2, key_id="new")
        await store.put_keys([old, new, key("thread_b")])
        again = new_run("again", thread=ThreadId("thread_a"), sealed_by=old.key_id)
        [refused] = await store.start([again])
        assert isinstance(refused, Conflict)
        assert refused.fields["sealed_by"] == old.key_id
        [outcome] = await store.start([replace(again, sealed_by="new")])
        assert isinstance(outcome, Started)
        threads = [ThreadId("thread_a"), ThreadId("thread_b"), ThreadId("none")]
        assert await store.drop_keys(TENANT, threads) == 1
        assert await store.drop_keys(TENANT, threads) == 0
        left = [row for row in await store.read_keys() if row.scope.startswith("thread:")]
        assert left == [new, key("thread_b")]

    async def test_tags_and_copies_go(self, store: Store) -> None:
        """Those of the thread, and no others."""
        for name in "ab":
            await over(store, name)
            tag = TagRow(tenant=TENANT, thread=ThreadId(f"thread_{name}"), name="x", checkpoint=3)
            await store.put_tag(tag)
        await begun(store, erasure("1", "a"))
        left: list[str] = []
        for name in "ab":
            thread = ThreadId(f"thread_{name}")
            left += [str(tag.thread) for tag in await store.find_tags(TENANT, thread)]
            left += [str(copy.seq) for copy in await store.find_copies(TENANT, thread)]
        assert left == ["thread_b", "2"]

    async def test_the_store_forgets(self, store: Store) -> None:
        """Bytes are found before, and after scrubbing not any more."""
        row = await over(store, "a")
        await over(store, "b")
        count = await found_bytes(store)
        assert count > 0
        await begun(store, erasure("1", "a"))
        frames = await store.scan_frames(row.run_id, from_seq=1, limit=10)
        bodies = [(frame.first_seq, b"\xeex") for frame in frames]
        await store.erase_run(row.run_id, bodies, is_last=True)
        await store.scrub()
        left = await found_bytes(store)
        assert 0 < left < count
        assert await store.count_bytes([b"never written anywhere", SECRET]) == [0, left]
        assert await store.count_bytes([]) == []


class SubjectRules:
    """A thread is about one subject."""

    async def test_threads_are_found_by_their_subject(self, store: Store) -> None:
        """By name, in pages; the first that a thread is told of stays."""
        for name in "cab":
            await started(store, name, subject="ada")
        await started(store, "other", subject="bob")
        await started(store, "none")
        names = ["thread_a", "thread_b", "thread_c"]
        assert await self._about(store, "ada") == names
        assert await self._about(store, "ada", after="thread_a", limit=1) == names[1:2]
        assert await store.find_threads(ELSEWHERE, "ada") == []

    @staticmethod
    async def _about(store: Store, subject: str, **page: object) -> Sequence[str]:
        found = await store.find_threads(TENANT, subject, **page)  # type: ignore[arg-type]  # a page
        return [row.thread for row in found]

    async def test_another_subject_is_refused(self, store: Store) -> None:
        """On a thread that has one; one that has none may be told it later."""
        await started(store, "a", subject="ada")
        [refused] = await store.start([new_run("a2", thread="thread_a", subject="bob")])
        assert isinstance(refused, Conflict)
        assert "'ada'" in str(refused)
        again = [new_run("a3", thread="thread_a"), new_run("a4", thread="thread_a", subject="ada")]
        assert all(isinstance(each, Started) for each in await store.start(again))
        await started(store, "b")
        await started(store, "b2", thread=ThreadId("thread_b"), subject="bob")
        assert await self._about(store, "bob") == ["thread_b"]

    async def test_children_are_about_whom_their_parent_is_about(self, store: Store) -> None:
        """Whether or not the parent's run said so itself."""
        await started(store, "a", subject="ada")
        row = await taken(store, "p", subject="ada")
        child = new_run("child", parent=row.run_id, parent_call="1")
        await written(store, row, RunSpawned(run=child))
        assert await self._about(store, "ada") == ["thread_a", "thread_child", "thread_p"]


class ExportRules:
    """Exports that were made are known."""

    async def test_exports_are_found_by_what_they_hold(self, store: Store) -> None:
        """Those of a thread, of its tenant, and of everything; once each."""
        rows = [
            ExportRow(export_id="1", tenant=TENANT, thread="thread_a", made_at_us=4),
            ExportRow(export_id="2", tenant=TENANT, thread="thread_b", made_at_us=3),
            ExportRow(export_id="3", tenant=TENANT, made_at_us=2, signed_by="somebody"),
            ExportRow(export_id="4", made_at_us=1),
            ExportRow(export_id="5", tenant=ELSEWHERE, made_at_us=1),
        ]
        for row in [*rows, replace(rows[0], made_at_us=9)]:
            await store.note_export(row)
        found = await store.find_exports(TENANT, ThreadId("thread_a"))
        assert found == [rows[3], rows[2], rows[0]]
