"""Conformance: copies, tags, erasure, collections of pages, quotas."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from perdure.ids import TenantId, ThreadId
from perdure.model import (
    Appended,
    CopyRow,
    EffectPut,
    Erased,
    Erasure,
    FrameErasure,
    NotErased,
    PagesPut,
    QuotaRow,
    RunRow,
    TagRow,
    ThreadBased,
)
from perdure.store.api import Store
from perdure.testing._conformance_pages import page
from perdure.testing._store_kit import (
    T0,
    TENANT,
    appended_to,
    effect_of,
    ended,
    new_run,
    outcome_of,
    started,
    taken,
    the_run,
    written,
)

ELSEWHERE = TenantId("somebody else")
GONE = b"\xeegone"


def erasure_of(row: RunRow, *seqs: int, **fields: Any) -> Erasure:
    """Return what erases frames of the run; every frame of the kit is of one record."""
    frames = tuple(
        FrameErasure(seq, b"1" * 32 if seq == 1 else b"2" * 32, GONE + b"%d" % seq) for seq in seqs
    )
    given: dict[str, Any] = {
        "run_id": row.run_id,
        "tenant": row.tenant,
        "thread": row.thread,
        "at_us": T0 + 500,
        "frames": frames,
    }
    return Erasure(**(given | fields))


def tag(row: RunRow, name: str, checkpoint: int, **fields: Any) -> TagRow:
    """Return a tag of the run's thread."""
    return TagRow(
        tenant=row.tenant, thread=row.thread, name=name, checkpoint=checkpoint, at_us=T0, **fields
    )


async def over(store: Store, name: str, *changes: Any) -> RunRow:
    """Return a run that has ended after three records, the second with the changes."""
    row = await written(store, await taken(store, name), *changes)
    return await written(store, row, ended())


class CopyRules:
    """Copies are found from the newest on."""

    async def test_copies_are_found(self, store: Store) -> None:
        """By the checkpoint that they must be able to load; the newest of one checkpoint counts."""
        row = await taken(store, "a")
        row = await written(store, row, ThreadBased(seq=2, made_at=4))
        row = await written(store, row, ThreadBased(seq=3))
        row = await written(store, row, ThreadBased(seq=4, made_at=9))
        row = await written(store, row, ThreadBased(seq=5, made_at=9))
        old, new = (CopyRow(made_at=4, ordinal=1, seq=2), CopyRow(made_at=9, ordinal=1, seq=5))
        place = (row.tenant, row.thread)
        assert await store.find_copies(*place) == [new, old]
        assert await store.find_copies(*place, upto=8) == [old]
        assert await store.find_copies(*place, upto=9, limit=1) == [new]
        assert await store.find_copies(*place, upto=3) == []
        assert await store.find_copies(ELSEWHERE, row.thread) == []
        thread = await store.read_thread(*place)
        assert thread is not None
        assert (thread.base_seq, thread.pruned_at_us) == (5, 0)


class ErasureRules:
    """Bodies go, everything else of a frame stays; only what is over goes."""

    async def test_frames_are_erased(self, store: Store) -> None:
        """Their other columns stay; copies in them are forgotten; it may come again."""
        row = await over(store, "a", ThreadBased(seq=2, made_at=4))
        before = await store.read_frames(row.run_id)
        assert await store.erase(erasure_of(row, 2)) == Erased(1)
        bodies = {2: GONE + b"2"}
        expected = [replace(f, body=bodies.get(f.first_seq, f.body)) for f in before]
        assert await store.read_frames(row.run_id) == expected
        assert await store.find_copies(row.tenant, row.thread) == []
        thread = await store.read_thread(row.tenant, row.thread)
        assert thread is not None
        assert thread.pruned_at_us == T0 + 500
        noted = CopyRow(made_at=7, ordinal=1, seq=3)
        assert await store.erase(erasure_of(row, 2, copies=(noted,))) == Erased(0)
        other = replace(noted, seq=1)
        assert await store.erase(erasure_of(row, 2, copies=(other,))) == Erased(0)
        assert await store.find_copies(row.tenant, row.thread) == [noted]
        assert await store.erase(erasure_of(row, 1, 2, 3)) == Erased(2)
        assert await the_run(store, row.run_id) == row

    async def test_a_run_that_goes_on_is_left_alone(self, store: Store) -> None:
        """And one that is not there."""
        row = await written(store, await taken(store, "a"))
        before = await store.read_frames(row.run_id)
        assert isinstance(await store.erase(erasure_of(row, 1)), NotErased)
        assert isinstance(
            await store.erase(erasure_of(replace(row, run_id="r_none"), 1)), NotErased
        )
        assert await store.read_frames(row.run_id) == before

    async def test_another_frame_is_left_alone(self, store: Store) -> None:
        """All frames of the erasure are, where one has another hash."""
        row = await over(store, "a")
        before = await store.read_frames(row.run_id)
        wrong = FrameErasure(2, b"x" * 32, GONE)
        right = erasure_of(row, 1)
        refused = await store.erase(replace(right, frames=(*right.frames, wrong)))
        assert isinstance(refused, NotErased)
        assert await store.read_frames(row.run_id) == before

    async def test_tags_are_part_of_the_decision(self, store: Store) -> None:
        """One that was set or removed since then refuses it."""
        row = await over(store, "a")
        await store.put_tag(tag(row, "release", 1))
        seen = frozenset({("release", 1)})
        assert isinstance(await store.erase(erasure_of(row, 2)), NotErased)
        assert await store.erase(erasure_of(row, 2, tags=seen)) == Erased(1)
        await store.drop_tag(row.tenant, row.thread, "release")
        assert isinstance(await store.erase(erasure_of(row, 3, tags=seen)), NotErased)

    async def test_effects_are_emptied(self, store: Store) -> None:
        """Request and result go, of those that are named and of that run only."""
        row = await taken(store, "a")
        full = {"request_wire": b"asked", "result_wire": b"got"}
        effects = [effect_of(row, name, **full) for name in "xy"]
        row = await written(store, row, *(EffectPut(row=effect) for effect in effects))
        row = await written(store, row, ended())
        other = effect_of(row, "z", **full)
        other_row = await taken(store, "b")
        other = replace(other, run_id=other_row.run_id, thread=other_row.thread)
        await written(store, other_row, EffectPut(row=other))
        emptied = [replace(e, request_wire=b"", result_wire=None) for e in (effects[0], other)]
        assert await store.erase(erasure_of(row, 2, effects=tuple(emptied))) == Erased(1)
        assert await store.read_effect(effects[0].effect_id) == emptied[0]
        assert await store.read_effect(effects[1].effect_id) == effects[1]
        assert await store.read_effect(other.effect_id) == other


class TagRules:
    """A name in a thread names one checkpoint."""

    async def test_tags_come_back(self, store: Store) -> None:
        """By checkpoint, then name; one of the same name is replaced."""
        row = await started(store, "a")
        first, second = tag(row, "b", 3, by="ada"), tag(row, "a", 3)
        other = replace(first, thread=ThreadId("another"))
        for each in (tag(row, "b", 9), first, second, other, tag(row, "c", 1)):
            await store.put_tag(each)
        expected = [tag(row, "c", 1), second, first]
        assert await store.find_tags(row.tenant, row.thread) == expected
        assert await store.find_tags(row.tenant, ThreadId("another")) == [other]
        assert await store.find_tags(ELSEWHERE, row.thread) == []
        assert await store.drop_tag(row.tenant, row.thread, "b")
        assert not await store.drop_tag(row.tenant, row.thread, "b")
        assert not await store.drop_tag(ELSEWHERE, row.thread, "a")
        assert await store.find_tags(row.tenant, row.thread) == [expected[0], second]


class CollectionRules:
    """A collection removes what nobody has put since it began, and nothing else."""

    async def test_pages_are_listed_and_dropped(self, store: Store) -> None:
        """In pages, by name; what is gone is not counted again; others' pages stay."""
        pages = [page(number) for number in range(1, 6)]
        await store.put_pages(TENANT, pages)
        await store.put_pages(ELSEWHERE, [page(1)])
        assert await store.page_tenants() == sorted([TENANT, ELSEWHERE])
        begun = await store.begin_collection(TENANT)
        assert (begun.tenant, begun.pages) == (TENANT, 5)
        names = await store.page_names(TENANT, [each.hash for each in pages])
        found = await store.find_pages(begun, limit=2)
        found += await store.find_pages(begun, after=found[-1].name, limit=10)
        assert [each.name for each in found] == sorted(names)
        assert all(each.size > 0 for each in found)
        assert await store.drop_pages(begun, [names[0], names[1], b"none"]) == 2
        assert await store.drop_pages(begun, [names[0], names[2]]) == 1
        left = await store.read_pages(TENANT, [each.hash for each in pages])
        assert set(left) == {page(4).hash, page(5).hash}
        assert await store.read_pages(ELSEWHERE, [page(1).hash])
        await store.end_collection(begun)
        assert await store.drop_pages(begun, names) is None
        assert len(await store.read_pages(TENANT, [each.hash for each in pages])) == 2

    async def test_a_page_that_is_put_stays(self, store: Store) -> None:
        """However it is put, and whether it is there already."""
        row = await taken(store, "a")
        await store.put_pages(TENANT, [page(number) for number in range(1, 6)])
        begun = await store.begin_collection(TENANT)
        await store.put_pages(TENANT, [page(1), page(7)])
        await written(store, row, PagesPut(pages=(page(2), page(8))))
        await store.start([new_run("b", pages=(page(3), page(9)))])
        wanted = [page(number).hash for number in (1, 2, 3, 7, 8, 9)]
        names = await store.page_names(TENANT, [page(n).hash for n in range(1, 10)])
        assert len(await store.find_pages(begun)) == 2
        assert await store.drop_pages(begun, names) == 2
        assert set(await store.read_pages(TENANT, wanted)) == set(wanted)
        again = await store.begin_collection(TENANT)
        assert again.number > begun.number
        assert len(await store.find_pages(again)) == 6
        assert await store.drop_pages(begun, names) is None

    async def test_an_erasure_ends_a_collection(self, store: Store) -> None:
        """What the collection saw may be what was erased."""
        row = await over(store, "a")
        await store.put_pages(TENANT, [page(1)])
        begun = await store.begin_collection(TENANT)
        assert await store.erase(erasure_of(row, 2)) == Erased(1)
        names = await store.page_names(TENANT, [page(1).hash])
        assert await store.drop_pages(begun, names) is None

    async def test_writers_and_a_collection_do_not_hinder_each_other(
        self, make_store: Callable[[], Store]
    ) -> None:
        """Whoever puts a page finds it afterwards, whatever is dropped meanwhile."""
        stores = [make_store() for _ in range(3)]
        for store in stores:
            await store.open()
        pages = tuple(page(number) for number in range(1, 30))
        rows = [await taken(store, name) for store, name in zip(stores, "abc", strict=True)]
        names = await stores[0].page_names(TENANT, [each.hash for each in pages])

        async def write(number: int) -> None:
            """Put all of them, many times; they must be there each time a moment later."""
            row = rows[number]
            for _ in range(8):
                begun = (
                    await stores[2].begin_collection(TENANT) if number == 2 else None
                )  # the third one
                item = appended_to(row, PagesPut(pages=pages))
                assert await outcome_of(stores[number], item) == Appended()
                row = await the_run(stores[number], row.run_id)
                if begun is not None:
                    await stores[2].drop_pages(begun, names)
                    found = await stores[2].read_pages(TENANT, [each.hash for each in pages])
                    assert len(found) == len(pages)

        await asyncio.gather(*(write(number) for number in range(3)))
        for store in stores:
            await store.close()


class RoomRules:
    """What there is can be measured, and limited."""

    async def test_usage_grows_with_what_is_stored(self, store: Store) -> None:
        """Of each tenant, and of all."""
        before = await store.usage()
        row = await taken(store, "a")
        effect = effect_of(row, "x", request_wire=b"r" * 1000, result_wire=b"s" * 1000)
        await written(store, row, EffectPut(row=effect), body=b"b" * 5000)
        await store.put_pages(TENANT, [page(1, b"p" * 3000)])
        await store.put_pages(ELSEWHERE, [page(1, b"p" * 7000)])
        own, others, everything = (
            await store.usage(TENANT),
            await store.usage(ELSEWHERE),
            await store.usage(),
        )
        assert own.frames >= 5000
        assert own.ledger >= 2000
        assert 3000 <= own.pages < 7000
        assert others.pages >= 7000
        assert others.frames == 0
        assert everything.total == before.total + own.total + others.total

    async def test_quotas_come_back(self, store: Store) -> None:
        """By tenant; one of the same tenant is replaced."""
        first = QuotaRow(tenant=TENANT, bytes_max=10, set_at_us=T0)
        store_wide = QuotaRow(tenant=TenantId(""), bytes_max=1 << 40)
        await store.set_quota(replace(first, bytes_max=7))
        await store.set_quota(store_wide)
        await store.set_quota(first)
        assert await store.find_quotas() == [store_wide, first]
        assert await store.drop_quota(TENANT)
        assert not await store.drop_quota(TENANT)
        assert await store.find_quotas() == [store_wide]

    async def test_compacting_changes_nothing(self, store: Store) -> None:
        """Whether files are rewritten or not."""
        row = await over(store, "a")
        await store.put_pages(TENANT, [page(n, b"x" * 20_000) for n in range(1, 50)])
        begun = await store.begin_collection(TENANT)
        names = [each.name for each in await store.find_pages(begun)]
        await store.drop_pages(begun, names[1:])
        await store.end_collection(begun)
        before = await store.read_frames(row.run_id)
        for rewrite in (False, None, True):
            done = await store.compact(rewrite=rewrite)
            assert done.after <= done.before
        assert await store.read_frames(row.run_id) == before
        assert await store.free_bytes() is None or (await store.free_bytes() or 0) > 0
