"""Conformance: pages of large values."""

import asyncio

from perdure.ids import TenantId
from perdure.model import Appended, Fenced, Page, PagesPut
from perdure.store.api import Store
from perdure.testing._store_kit import TENANT, appended_to, outcome_of, started, taken, written

ELSEWHERE = TenantId("somebody else")


def page(number: int, body: bytes = b"") -> Page:
    """Return a page with a name of its own."""
    return Page(number.to_bytes(32, "big"), body or b"\x00page %d" % number)


class PageRules:
    """Pages are found by name, and are there whenever what refers to them is."""

    async def test_pages_come_back(self, store: Store) -> None:
        """By name, in whatever order; what is missing is left out."""
        pages = [page(3), page(1, b"\x00" * 40_000), page(2, b"\x01")]
        await store.put_pages(TENANT, pages)
        hashes = [each.hash for each in pages]
        expected = {each.hash: each.body for each in pages}
        assert await store.read_pages(TENANT, [page(9).hash, *hashes, hashes[0]]) == expected
        assert await store.read_pages(TENANT, []) == {}
        await store.put_pages(TENANT, [])

    async def test_a_page_stays_as_it_is(self, store: Store) -> None:
        """Written again under the same name, alone or beside new ones."""
        await store.put_pages(TENANT, [page(1)])
        await store.put_pages(TENANT, [page(2), page(1, b"another"), page(1, b"a third")])
        found = await store.read_pages(TENANT, [page(1).hash, page(2).hash])
        assert found == {page(1).hash: page(1).body, page(2).hash: page(2).body}

    async def test_tenants_have_their_own(self, store: Store) -> None:
        """The same name may hold something else, and nobody sees another's."""
        await store.put_pages(TENANT, [page(1)])
        assert await store.read_pages(ELSEWHERE, [page(1).hash]) == {}
        await store.put_pages(ELSEWHERE, [page(1, b"theirs")])
        assert await store.read_pages(TENANT, [page(1).hash]) == {page(1).hash: page(1).body}

    async def test_pages_are_written_with_their_append(self, store: Store) -> None:
        """Those of a refused append are not there, those of an accepted one are."""
        row = await taken(store, "a")
        stale = appended_to(row, PagesPut(pages=(page(1),)), token=row.token + 1)
        assert isinstance(await outcome_of(store, stale), Fenced)
        assert await store.read_pages(TENANT, [page(1).hash]) == {}
        row = await written(store, row, PagesPut(pages=(page(1), page(2))), PagesPut(pages=()))
        item = appended_to(row, PagesPut(pages=(page(2), page(3))))
        assert await outcome_of(store, item) == Appended()
        assert await outcome_of(store, item) == Appended()  # its answer was lost
        found = await store.read_pages(TENANT, [page(n).hash for n in (1, 2, 3)])
        assert found == {page(n).hash: page(n).body for n in (1, 2, 3)}

    async def test_writers_of_the_same_pages_do_not_hinder_each_other(self, store: Store) -> None:
        """In whatever order each of them has the pages."""
        rows = [await taken(store, name) for name in "abcd"]
        pages = tuple(page(number) for number in range(40))

        async def write(number: int) -> None:
            """Append all of them, beginning with another one each time."""
            own = pages[number * 10 :] + pages[: number * 10]
            put = PagesPut(pages=own)
            assert await outcome_of(store, appended_to(rows[number], put)) == Appended()

        others = [store.put_pages(TENANT, pages[::-1]) for _ in range(4)]
        await asyncio.gather(*(write(number) for number in range(4)), *others)
        found = await store.read_pages(TENANT, [each.hash for each in pages])
        assert found == {each.hash: each.body for each in pages}

    async def test_a_run_that_is_only_started_has_no_pages(self, store: Store) -> None:
        """A start writes no page by itself."""
        await started(store, "a")
        assert await store.read_pages(TENANT, [page(1).hash]) == {}
