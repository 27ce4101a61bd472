"""What stands between snapshots and the place of their objects: names, and the sealed form.

Theory: each tenant has a data key of its own, which seals whatever of it is exported (AES-256-GCM,
see `perdure.codec`) and from which the names of pieces are derived (HMAC), so that equal pieces of
a tenant are one object, and nobody without the key can look for a piece that he knows. The key is
an object, too, wrapped by the provider's key; one copy for each provider's key that wrapped it.

The tag of a sealed manifest is its signature: no key is in any sandbox. The manifest has the
SHA-256 of every piece and of the manifest below it, so that the newest one vouches for all.
"""

import asyncio
import hmac
from hashlib import sha256
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from perdure.clock import Services
from perdure.codec import (
    KEY_BYTES,
    KEY_ID_BYTES,
    NONCE_BYTES,
    DataKey,
    compressed,
    expanded,
    is_sealed,
    key_id_of,
)
from perdure.errors import DecodeFailed, KeyMissing, NotFound, SealBroken, SnapshotBroken
from perdure.sandbox.export._objects import ObjectStore
from perdure.sandbox.limits import KEY_COPIES_MAX, PIECE_BYTES

FORMAT = 1
"""Version of the objects' form; part of every place that is sealed with."""

_AS_IS, _PACKED = b"\x00", b"\x01"
_WRAPPED_BYTES_MAX = 16 * 1024
_FOREIGN = "it was exported with another key, or is damaged; nothing was restored"

encode = msgspec.msgpack.Encoder().encode

Place = tuple[Any, ...]


class KeyProvider(Protocol):
    """What this needs of `perdure.sealing.KeyProvider`."""

    async def current(self) -> str:
        """Return the id of the key that wraps."""
        ...

    async def wrap(self, data_key: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return a data key as it may be stored."""
        ...

    async def unwrap(self, wrapped: bytes, *, key_id: str, context: bytes) -> bytes:
        """Return what `wrap` was given."""
        ...


class Sealer(Protocol):
    """Seals what a tenant exports. `folder`: of the tenant, in the place of the objects."""

    folder: str

    def name_of(self, what: bytes) -> str:
        """Return the name that stands for something: 64 hexadecimal digits."""
        ...

    def seal(self, plain: bytes, place: Place, *, free: int = PIECE_BYTES) -> bytes:
        """Return bytes as an object has them; `free`: see `perdure.codec.compressed`."""
        ...

    def unseal(self, stored: bytes, place: Place, *, bytes_max: int) -> bytes:
        """Return what `seal` was given.

        Raises:
            SnapshotBroken: it is not what was sealed for that place, or holds more than bytes_max.
        """
        ...


class KeySealer:
    """Seals with the data key of a tenant."""

    def __init__(self, folder: str, key: DataKey, services: Services) -> None:
        """Seal and unseal with a key."""
        self.folder = folder
        self._key = key
        self._services = services

    def name_of(self, what: bytes) -> str:
        """Return an HMAC under the tenant's key."""
        return self._key.name_of(what).hex()

    def seal(self, plain: bytes, place: Place, *, free: int = PIECE_BYTES) -> bytes:
        """Return bytes compressed and sealed."""
        return self._key.seal(
            _packed(plain, free), (FORMAT, self.folder, *place), self._services.entropy(NONCE_BYTES)
        )

    def unseal(self, stored: bytes, place: Place, *, bytes_max: int) -> bytes:
        """Return what was sealed; see `Sealer.unseal`."""
        try:
            is_own = key_id_of(stored) == self._key.id
            packed = self._key.unseal(stored, (FORMAT, self.folder, *place)) if is_own else b""
        except SealBroken as error:
            msg = f"{error}; nothing was restored"
            raise SnapshotBroken(msg) from error
        if not is_own:
            raise SnapshotBroken(_FOREIGN)
        return _expanded(packed, bytes_max)


class PlainSealer:
    """Seals nothing: who can write there can forge, and who can read there sees everything."""

    def __init__(self, folder: str) -> None:
        """Belong to a tenant."""
        self.folder = folder

    def name_of(self, what: bytes) -> str:
        """Return a digest, which tells who knows the content that it is there."""
        return sha256(b"perdure plain" + what).hexdigest()

    def seal(self, plain: bytes, place: Place, *, free: int = PIECE_BYTES) -> bytes:
        """Return bytes compressed, with a digest of them and of their place."""
        packed = _packed(plain, free)
        return self._digest(packed, place) + packed

    def unseal(self, stored: bytes, place: Place, *, bytes_max: int) -> bytes:
        """Return what was put there; see `Sealer.unseal`."""
        if is_sealed(stored):
            msg = "it is encrypted, and no keys were given (keys=); nothing was restored"
            raise KeyMissing(msg)
        packed = stored[32:]
        if not hmac.compare_digest(stored[:32], self._digest(packed, place)):
            raise SnapshotBroken(_FOREIGN)
        return _expanded(packed, bytes_max)

    def _digest(self, packed: bytes, place: Place) -> bytes:
        where = encode((FORMAT, self.folder, *place))
        head = b"\x00perdure" + len(where).to_bytes(8, "big")
        return b"\x00" + sha256(head + where + packed).digest()[1:]


def _packed(plain: bytes, free: int) -> bytes:
    shorter = compressed(plain, free=free)
    return _AS_IS + plain if shorter is None else _PACKED + shorter


def _expanded(packed: bytes, bytes_max: int) -> bytes:
    if packed[:1] == _AS_IS and len(packed) <= bytes_max + 1:
        return packed[1:]
    if packed[:1] == _PACKED:
        try:
            return expanded(memoryview(packed)[1:], bytes_max=bytes_max, free=bytes_max)
        except DecodeFailed as error:
            msg = f"{error}; nothing was restored"
            raise SnapshotBroken(msg) from error
    msg = f"it is longer than {bytes_max} bytes, or of a form that is unknown here"
    raise SnapshotBroken(msg)


# -- keys ------------------------------------------------------------------------------------------


class _Wrapped(Struct, frozen=True, array_like=True):
    """A copy of the tenant's data key, wrapped by a key of the provider."""

    format: int
    data_key: bytes
    key_id: str
    wrapped: bytes


async def load_sealer(
    objects: ObjectStore,
    folder: str,
    provider: KeyProvider,
    services: Services,
    *,
    makes: bool = True,
    adds: bool = True,
) -> KeySealer:
    """Return what seals for a tenant, with a new data key where it has none yet.

    Where the provider's newest key wraps no copy of the data key, one is added: so older keys of
    the provider are needed no more once each tenant was used.

    Args:
        objects: the place of the exports.
        folder: of the tenant, there.
        provider: of the keys that wrap.
        services: for the new key.
        makes: make a key where there is none.
        adds: add a copy by the newest key where there is none.

    Raises:
        KeyMissing, SealBroken: no copy can be unwrapped by the provider; nothing was made.
        NotFound: there is no key, and none is to be made.
    """
    context = encode(("perdure sandbox export", FORMAT, folder))
    current = await provider.current()
    chosen = await asyncio.to_thread(_chosen, objects, folder)
    if chosen is None and not makes:
        msg = f"nothing of this tenant that is encrypted is in {objects.place}"
        raise NotFound(msg, place=objects.place)
    if chosen is None:
        key, key_id = services.entropy(KEY_BYTES), services.entropy(KEY_ID_BYTES)
        wrapped = await provider.wrap(key, key_id=current, context=context)
        made = _Wrapped(FORMAT, key_id, current, wrapped)
        chosen = await asyncio.to_thread(_choose, objects, folder, made)
    copies = await asyncio.to_thread(_copies, objects, folder, chosen)
    key = await _unwrapped(copies, provider, context)
    if adds and all(copy.key_id != current for copy in copies):
        wrapped = await provider.wrap(key, key_id=current, context=context)
        added = _Wrapped(FORMAT, chosen, current, wrapped)
        await asyncio.to_thread(_put_copy, objects, folder, added)
    return KeySealer(folder, DataKey(chosen, key), services)


async def _unwrapped(copies: list[_Wrapped], provider: KeyProvider, context: bytes) -> bytes:
    failed: KeyMissing | SealBroken | None = None
    for copy in copies:
        try:
            return await provider.unwrap(copy.wrapped, key_id=copy.key_id, context=context)
        except (KeyMissing, SealBroken) as error:
            failed = error
    raise failed or KeyMissing("no copy of the data key of these exports is there")


def _chosen(objects: ObjectStore, folder: str) -> bytes | None:
    """Return the id of the tenant's data key; None: none was chosen yet."""
    try:
        found = objects.get(f"{folder}/key", bytes_max=KEY_ID_BYTES)
    except NotFound:
        return None
    if len(found) != KEY_ID_BYTES:
        msg = f"the object {folder}/key of {objects.place} is damaged; nothing was changed"
        raise SnapshotBroken(msg, place=objects.place)
    return found


def _choose(objects: ObjectStore, folder: str, made: _Wrapped) -> bytes:
    """Make this the tenant's data key unless another host was first; return the id of the one.

    The copy comes first: a key that was chosen and can't be unwrapped would be the end of all.
    """
    copy = _put_copy(objects, folder, made)
    objects.put(f"{folder}/key", made.data_key)
    chosen = _chosen(objects, folder)
    if chosen != made.data_key:
        objects.delete(copy)
    return chosen or made.data_key


def _copies(objects: ObjectStore, folder: str, chosen: bytes) -> list[_Wrapped]:
    found = []
    for name in objects.list(f"{folder}/keys/{chosen.hex()}.", limit=KEY_COPIES_MAX):
        try:
            content = objects.get(name, bytes_max=_WRAPPED_BYTES_MAX)
            copy = msgspec.msgpack.decode(content, type=_Wrapped)
        except msgspec.MsgspecError as error:
            msg = f"the key {name!r} of {objects.place} can't be read; nothing was changed"
            raise SnapshotBroken(msg, object=name) from error
        if copy.format != FORMAT or copy.data_key != chosen:
            msg = f"the key {name!r} of {objects.place} is of a form that is unknown here"
            raise SnapshotBroken(msg, object=name)
        found.append(copy)
    return found


def _put_copy(objects: ObjectStore, folder: str, copy: _Wrapped) -> str:
    by = sha256(copy.key_id.encode()).hexdigest()[:16]
    name = f"{folder}/keys/{copy.data_key.hex()}.{by}"
    objects.put(name, encode(copy))
    return name
