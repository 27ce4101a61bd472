"""The data keys of a store: made once for each thread and tenant, wrapped there, unwrapped here.

A scope is what one data key seals: ("", "store") nothing but itself, which marks the store as
encrypted and proves a provider's keys; (tenant, "tenant") pages, names and schedules; (tenant,
"thread:...") all that belongs to a thread, so that throwing away one key erases one thread.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import msgspec
from msgspec import Struct

from perdure.clock import Services
from perdure.codec import KEY_BYTES, KEY_ID_BYTES, DataKey
from perdure.errors import PerdureError, SealBroken, StorePlain
from perdure.ids import TenantId, ThreadId
from perdure.model import KeyRow
from perdure.sealing._providers import KeyProvider
from perdure.sealing.limits import SCOPES_MAX, WRAPPED_BYTES_MAX
from perdure.store.api import KEYS_MAX, RunQuery, Store

Scope = tuple[TenantId, str]

STORE = (TenantId(""), "store")
"""The scope that marks a store as encrypted."""

SEALED_ROWS = (TenantId(""), "sealed:rows")
SEALED_FILES = (TenantId(""), "sealed:files")
"""Scopes that seal nothing: the store had data when it was encrypted; its files were rewritten."""

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger("perdure.sealing")


def tenant_scope(tenant: TenantId) -> Scope:
    """Return the scope of what all threads of a tenant share."""
    return tenant, "tenant"


def thread_scope(tenant: TenantId, thread: ThreadId) -> Scope:
    """Return the scope of a thread."""
    return tenant, f"thread:{thread}"


class ScopeKeys(Struct, frozen=True):
    """The data keys of one scope.

    Attributes:
        first: number 1, which names are derived from for ever.
        newest: the one that seals.
        by_id: all of them.
    """

    first: DataKey
    newest: DataKey
    by_id: dict[bytes, DataKey]


class KeyStore(Protocol):
    """Where data keys are stored."""

    place: str

    def now_us(self) -> int:
        """Return the store's time."""
        ...

    async def read_keys(self, scopes: Sequence[Scope]) -> list[KeyRow]:
        """Return the data keys of scopes."""
        ...

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys where there are none; return those that stand."""
        ...


class Keyring:
    """Data keys, by scope."""

    def __init__(self, store: KeyStore, provider: KeyProvider, services: Services) -> None:
        """Know no key yet; `open` needs a whole store."""
        self._store = store
        self._provider = provider
        self._services = services
        self._known: OrderedDict[Scope, ScopeKeys] = OrderedDict()

    def __repr__(self) -> str:
        return f"Keyring({self._store.place})"

    async def open(self) -> None:
        """Prove the provider's keys by the store's own; make that one where the store is empty.

        Raises:
            StorePlain: the store has runs or schedules, and no keys.
            KeyMissing, SealBroken: the provider's keys are not the store's.
        """
        store = cast("Store", self._store)
        found = await store.read_keys([STORE, SEALED_ROWS, SEALED_FILES])
        known = {(row.tenant, row.scope) for row in found}
        if STORE not in known:
            await self._check_empty(store)
        await self.load([STORE], make=True)
        if SEALED_ROWS in known and SEALED_FILES not in known:
            _log.warning(
                "%s was encrypted in place, and its files may hold what was there in plain: run "
                "'perdure keys seal' once more, when nobody else has it open",
                store.place,
            )

    async def _check_empty(self, store: Store) -> None:
        if await store.find_runs(RunQuery(limit=1)) or await store.find_schedules(limit=1):
            msg = (
                f"the store {store.place!r} is not encrypted and has data already; nothing was "
                "written. Encrypt it with 'perdure keys seal', while nobody works on it, or open "
                "it without keys"
            )
            raise StorePlain(msg, place=store.place)

    def known(self, scope: Scope) -> ScopeKeys | None:
        """Return the keys of a scope that are remembered."""
        found = self._known.get(scope)
        if found is not None:
            self._known.move_to_end(scope)
        return found

    def forget(self, scopes: Iterable[Scope]) -> bool:
        """Forget the keys of scopes, which others may have replaced; return whether any was known.

        An erasure gives a thread another key. Who holds a run of the thread that came after it has
        read a frame of that run, or has written the first: so it knows that key, or does not know
        the one that a frame names, and loads the thread's keys again.
        """
        gone = [self._known.pop(scope, None) for scope in scopes]
        return any(keys is not None for keys in gone)

    async def renew(self, scopes: Iterable[Scope]) -> None:
        """Make one more key for each scope that has one: it seals from now on, the others read."""
        wanted = list(dict.fromkeys(scopes))
        for at in range(0, len(wanted), KEYS_MAX):
            rows = await self._store.read_keys(wanted[at : at + KEYS_MAX])
            newest = {(row.tenant, row.scope): row.number for row in rows}
            new = [await self._new(scope, number + 1) for scope, number in newest.items()]
            if new:
                await self._store.put_keys(new)
        self.forget(wanted)

    async def load(self, scopes: Iterable[Scope], *, make: bool = False) -> dict[Scope, ScopeKeys]:
        """Return the keys of scopes; `make`: with new ones where there are none.

        Those that are made are durable when it returns; where several make one, all get the same.

        Raises:
            KeyMissing, SealBroken: the provider can't unwrap one; names the scope.
        """
        found: dict[Scope, ScopeKeys] = {}
        missing: list[Scope] = []
        for scope in dict.fromkeys(scopes):
            keys = self.known(scope)
            if keys is None:
                missing.append(scope)
            else:
                found[scope] = keys
        for at in range(0, len(missing), KEYS_MAX):
            part = missing[at : at + KEYS_MAX]
            rows = await self._store.read_keys(part)
            if make:
                there = {(row.tenant, row.scope) for row in rows}
                new = [await self._new(scope) for scope in part if scope not in there]
                rows += await self._store.put_keys(new) if new else []
            found |= await self._opened(rows)
        return found

    async def _opened(self, rows: list[KeyRow]) -> dict[Scope, ScopeKeys]:
        """Return the keys of rows, and remember them."""
        by_scope: dict[Scope, list[DataKey]] = {}
        for row in rows:
            by_scope.setdefault((row.tenant, row.scope), []).append(await self._unwrapped(row))
        found = {}
        for scope, keys in by_scope.items():
            found[scope] = ScopeKeys(keys[0], keys[-1], {key.id: key for key in keys})
            self._known[scope] = found[scope]
            if len(self._known) > SCOPES_MAX:
                self._known.popitem(last=False)
        return found

    async def _new(self, scope: Scope, number: int = 1) -> KeyRow:
        entropy, provider = self._services.entropy, self._provider
        wrapped_by = await provider.current()
        key_id = entropy(KEY_ID_BYTES).hex()
        tenant, name = scope
        row = KeyRow(
            tenant=tenant,
            scope=name,
            number=number,
            key_id=key_id,
            wrapped=b"",
            wrapped_by=wrapped_by,
            created_at_us=self._store.now_us(),
        )
        wrapped = await provider.wrap(
            entropy(KEY_BYTES), key_id=wrapped_by, context=context_of(row)
        )
        return msgspec.structs.replace(row, wrapped=wrapped)

    async def _unwrapped(self, row: KeyRow) -> DataKey:
        # Proven by the wrapping, which is bound to it.
        key = await unwrapped(self._provider, row)
        return DataKey(bytes.fromhex(row.key_id), key)


def context_of(row: KeyRow) -> bytes:
    """Return what binds a wrapped data key to its row."""
    return _encode((row.tenant, row.scope, row.number, row.key_id))


async def unwrapped(provider: KeyProvider, row: KeyRow) -> bytes:
    """Return the data key of a row.

    Raises:
        KeyMissing, SealBroken: the provider can't unwrap it; names the scope.
    """
    place = f"the data key of {shown_scope((row.tenant, row.scope))}"
    try:
        _check_size(row)
        return await provider.unwrap(row.wrapped, key_id=row.wrapped_by, context=context_of(row))
    except SealBroken as error:
        msg = (
            f"{place}, wrapped by {row.wrapped_by!r}: {error}; nothing was changed. Are these the "
            "keys of this store? 'perdure keys list' shows which it needs"
        )
        raise SealBroken(msg, tenant=row.tenant, scope=row.scope) from error
    except PerdureError as error:
        error.note(f"It is needed for {place}.")
        raise


def _check_size(row: KeyRow) -> None:
    if len(row.wrapped) > WRAPPED_BYTES_MAX:
        msg = f"it has {len(row.wrapped)} bytes (possible: {WRAPPED_BYTES_MAX})"
        raise SealBroken(msg)


def shown_scope(scope: Scope) -> str:
    """Return a scope as errors name it."""
    tenant, name = scope
    if scope in {STORE, SEALED_ROWS, SEALED_FILES}:
        return "the store itself"
    kind, _colon, rest = name.partition(":")
    return f"thread {rest!r} of tenant {tenant!r}" if kind == "thread" else f"tenant {tenant!r}"


async def is_sealed_store(store: Store) -> bool:
    """Return whether an open store is encrypted."""
    return bool(await store.read_keys([STORE]))
