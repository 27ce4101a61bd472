"""Rotation: data keys are wrapped anew with the provider's current key; no data is rewritten.

Each data key is one write, which replaces the wrapping only if it is still the one that was read:
a rotation that is killed anywhere leaves every key wrapped by the old or by the new one, goes on
when it is started again, and does not mind another one beside it.
"""

from collections.abc import AsyncIterator

from msgspec import Struct
from msgspec.structs import replace

from perdure.clock import Services
from perdure.errors import Conflict, StorePlain
from perdure.model import KeyRow
from perdure.sealing._keyring import context_of, is_sealed_store, unwrapped
from perdure.sealing._providers import KeyProvider
from perdure.sealing.limits import ROTATED_AT_ONCE, ROTATION_PASSES_MAX
from perdure.store.api import Store


class Wrapping(Struct, frozen=True):
    """A provider's key, as a store uses it.

    Attributes:
        key_id: its id.
        data_keys: how many data keys it wraps.
        oldest_us: when the oldest of them was made.
    """

    key_id: str
    data_keys: int
    oldest_us: int


class Rotation(Struct, frozen=True):
    """What a rotation did.

    Attributes:
        key_id: the key that wraps every data key now.
        wrapped: data keys that were wrapped anew.
        kept: data keys that it wrapped before.
    """

    key_id: str
    wrapped: int
    kept: int


async def wrappings(store: Store) -> list[Wrapping]:
    """Return the keys that an encrypted store needs, oldest first.

    Raises:
        StorePlain: it is not encrypted.
    """
    await _check_sealed(store)
    found: dict[str, Wrapping] = {}
    async for row in _all_keys(store):
        known = found.get(row.wrapped_by, Wrapping(row.wrapped_by, 0, row.created_at_us))
        found[row.wrapped_by] = replace(
            known,
            data_keys=known.data_keys + 1,
            oldest_us=min(known.oldest_us, row.created_at_us),
        )
    return sorted(found.values(), key=lambda each: (each.oldest_us, each.key_id))


async def rotate(store: Store, provider: KeyProvider, services: Services) -> Rotation:
    """Wrap every data key of an encrypted store with the provider's current key.

    Data keys that others make meanwhile are wrapped, too, if they come before its end.

    Raises:
        StorePlain: the store is not encrypted.
        KeyMissing, SealBroken: the provider can't unwrap a data key; those before it are wrapped
            anew, all others are as they were.
        Conflict: somebody else wraps them with another key meanwhile.

    Durability: what was wrapped anew, at any moment. Idempotent: yes. Cancel-safe: yes.
    """
    await _check_sealed(store)
    current = await provider.current()
    wrapped = kept = 0
    for _ in range(ROTATION_PASSES_MAX):
        moved = kept = 0
        async for row in _all_keys(store):
            if row.wrapped_by == current:
                kept += 1
            else:
                moved += await _rewrap(store, provider, services, row)
        wrapped += moved
        if not moved:
            return Rotation(current, wrapped, kept - wrapped)
    msg = (
        f"the data keys of {store.place!r} are wrapped by others meanwhile, with another key than "
        f"{current!r}; none is lost. End the other rotation, then repeat this one"
    )
    raise Conflict(msg, key_id=current)


async def _rewrap(store: Store, provider: KeyProvider, services: Services, row: KeyRow) -> int:
    current = await provider.current()
    data_key = await unwrapped(provider, row)
    new = replace(
        row,
        wrapped=await provider.wrap(data_key, key_id=current, context=context_of(row)),
        wrapped_by=current,
    )
    # crash-point: keys.rewrap.before
    services.probe("keys.rewrap.before")
    await store.rewrap_key(new, expected=row.wrapped)
    # crash-point: keys.rewrap.after
    services.probe("keys.rewrap.after")
    return 1


async def _all_keys(store: Store) -> AsyncIterator[KeyRow]:
    page = await store.read_keys(limit=ROTATED_AT_ONCE)
    while page:
        for row in page:
            yield row
        last = page[-1]
        after = (last.tenant, last.scope, last.number)
        page = await store.read_keys(after=after, limit=ROTATED_AT_ONCE)


async def _check_sealed(store: Store) -> None:
    if not await is_sealed_store(store):
        msg = f"the store {store.place!r} is not encrypted; nothing was changed"
        raise StorePlain(msg, place=store.place)
