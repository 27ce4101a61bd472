"""Conformance: data keys of encryption."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from perdure.ids import TenantId
from perdure.model import KeyRow
from perdure.store.api import Store
from perdure.testing._store_kit import T0, TENANT

ELSEWHERE = TenantId("somebody else")


def key(name: str, **fields: object) -> KeyRow:
    """Return a data key for a thread, which nothing could be unwrapped of."""
    given = {
        "tenant": TENANT,
        "scope": f"thread:{name}",
        "number": 1,
        "key_id": f"id of {name}",
        "wrapped": f"\0wrapped {name}".encode(),
        "wrapped_by": "k_1",
        "created_at_us": T0,
    }
    return KeyRow(**(given | fields))  # type: ignore[arg-type]  # as the tests say


class KeyRules:
    """One key stands for each number of a scope, and only its wrapping ever changes."""

    async def test_keys_come_back(self, store: Store) -> None:
        """In order, and those of the scopes that are asked for."""
        keys = [key("b"), key("a"), key("a", number=2), key("a", tenant=ELSEWHERE)]
        assert await store.put_keys(keys) == keys
        everything = [keys[1], keys[2], keys[0], keys[3]]
        assert [row for row in await store.read_keys() if row.scope != "store"] == everything
        scopes = [(TENANT, "thread:a"), (TENANT, "thread:none"), (TENANT, "thread:a")]
        assert await store.read_keys(scopes) == [keys[1], keys[2]]
        assert await store.read_keys([(TENANT, "thread:a")], limit=1) == [keys[1]]
        assert await store.read_keys([]) == []
        assert await store.put_keys([]) == []

    async def test_keys_come_in_pages(self, store: Store) -> None:
        """Each page after the last row of the one before."""
        keys = [key(name) for name in "abcde"]
        await store.put_keys(keys)
        found: list[KeyRow] = []
        after = (TENANT, "", 0)
        while page := await store.read_keys(after=after, limit=2):
            found += page
            after = (page[-1].tenant, page[-1].scope, page[-1].number)
        assert found == keys

    async def test_the_first_key_of_a_scope_stands(self, store: Store) -> None:
        """Whoever comes later gets the first one, also within one call."""
        first, later, new = key("a"), key("a", key_id="later"), key("b")
        await store.put_keys([first])
        assert await store.put_keys([new, later]) == [new, first]
        assert await store.put_keys([key("c"), key("c", key_id="twice")]) == [key("c")] * 2

    async def test_of_many_at_once_one_stands(self, make_store: Callable[[], Store]) -> None:
        """From several objects, in whatever order each of them has the keys."""
        stores = [make_store() for _ in range(4)]
        for store in stores:
            await store.open()
        names = [f"{number:02}" for number in range(20)]

        async def put(number: int) -> dict[str, str]:
            """Return which keys stand."""
            own = names[number * 5 :] + names[: number * 5]
            keys = [key(name, key_id=f"{name} by {number}") for name in own]
            return {row.scope: row.key_id for row in await stores[number].put_keys(keys)}

        first, *others = await asyncio.gather(*(put(number) for number in range(4)))
        assert len(first) == len(names)
        assert all(other == first for other in others)
        for store in stores:
            await store.close()

    async def test_a_key_is_wrapped_anew(self, store: Store) -> None:
        """Only if it is wrapped as expected; nothing else of it changes. It may come again."""
        old = key("a")
        await store.put_keys([old])
        new = replace(old, wrapped=b"new", wrapped_by="k_2")
        assert not await store.rewrap_key(new, expected=b"something else")
        assert await store.read_keys([(TENANT, old.scope)]) == [old]
        assert await store.rewrap_key(replace(new, created_at_us=1), expected=old.wrapped)
        assert await store.read_keys([(TENANT, old.scope)]) == [new]
        assert await store.rewrap_key(new, expected=old.wrapped)  # its answer was lost
        assert not await store.rewrap_key(key("none"), expected=b"")
        assert not await store.rewrap_key(replace(new, key_id="other"), expected=b"new")
