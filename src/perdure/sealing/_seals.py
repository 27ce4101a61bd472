"""Single columns, sealed and unsealed: bytes and texts, each bound to its row."""

import base64
import binascii
from typing import Any

from perdure.clock import Entropy
from perdure.codec import NONCE_BYTES, Batch, DataKey, key_id_of
from perdure.errors import SealBroken
from perdure.ids import TenantId, ThreadId
from perdure.sealing._keyring import ScopeKeys, shown_scope, tenant_scope, thread_scope
from perdure.sealing.limits import BATCH_SEALS

TEXT_MARK = "sealed:"
"""What a sealed text begins with, before base64."""

_PLACE_FORMAT = 1

Record = str | tuple[Any, ...]


class Seals:
    """The columns of one thread's rows."""

    __slots__ = ("_batches", "_entropy", "_own", "_shared", "tenant", "thread")

    def __init__(
        self,
        tenant: TenantId,
        thread: ThreadId,
        *,
        own: ScopeKeys | None,
        shared: ScopeKeys | None,
        entropy: Entropy,
    ) -> None:
        """Use the keys of the thread (`own`) and those of its tenant (`shared`)."""
        self.tenant = tenant
        self.thread = thread
        self._own = own
        self._shared = shared
        self._entropy = entropy
        self._batches: dict[bytes, tuple[Batch, list[bytes]]] = {}

    # -- what belongs to the thread ----------------------------------------------------------------

    def seal(self, plain: bytes, column: str, record: Record, *, exact: bool = False) -> bytes:
        """Return bytes sealed for a column (such as "frame body") of a record.

        `exact`: the same bytes are sealed into the same bytes, for what a store compares.
        """
        place = (_PLACE_FORMAT, self.tenant, self.thread, column, record)
        return self._sealed(self._keys(self._own, self._scope).newest, plain, place, exact=exact)

    def unseal(self, stored: bytes, column: str, record: Record) -> bytes:
        """Return the bytes of a column.

        Raises:
            SealBroken: they are not what was sealed for it; names it.
        """
        place = (_PLACE_FORMAT, self.tenant, self.thread, column, record)
        return self._unsealed(self._own, stored, place, self._scope)

    def seal_text(self, plain: str, column: str, record: Record, *, exact: bool = False) -> str:
        """Return a text sealed as a text; an empty one stays empty."""
        if not plain:
            return plain
        return text_of(self.seal(_bytes_of_text(plain), column, record, exact=exact))

    def unseal_text(self, stored: str, column: str, record: Record) -> str:
        """Return a text that `seal_text` sealed.

        Raises:
            SealBroken: it is not what was sealed for that column; names it.
        """
        if not stored:
            return stored
        return _text_of_bytes(self.unseal(sealed_of(stored), column, record))

    # -- what belongs to the tenant ----------------------------------------------------------------

    def seal_shared(self, plain: bytes, column: str, record: Record, *, exact: bool) -> bytes:
        """Return bytes sealed for a column that belongs to the tenant."""
        place = (_PLACE_FORMAT, self.tenant, column, record)
        return self._sealed(self._tenant_keys().newest, plain, place, exact=exact)

    def unseal_shared(self, stored: bytes, column: str, record: Record) -> bytes:
        """Return the bytes of such a column.

        Raises:
            SealBroken: they are not what was sealed for it; names it.
        """
        place = (_PLACE_FORMAT, self.tenant, column, record)
        return self._unsealed(self._shared, stored, place, tenant_scope(self.tenant))

    def seal_name(self, plain: str, column: str, record: Record = "") -> str:
        """Return a text by which rows are found: always the same for the same text and place.

        It is sealed by the tenant's first key, for ever.
        """
        if not plain:
            return plain
        place = (_PLACE_FORMAT, self.tenant, column, record)
        key = self._tenant_keys().first
        return text_of(self._sealed(key, _bytes_of_text(plain), place, exact=True))

    def unseal_name(self, stored: str, column: str, record: Record = "") -> str:
        """Return a text that `seal_name` sealed.

        Raises:
            SealBroken: it is not what was sealed for that column; names it.
        """
        if not stored:
            return stored
        return _text_of_bytes(self.unseal_shared(sealed_of(stored), column, record))

    def page_name(self, named: bytes) -> bytes:
        """Return the name under which a page is stored."""
        return self._tenant_keys().first.name_of(named)

    # -- both --------------------------------------------------------------------------------------

    @property
    def key_id(self) -> str:
        """Identity of the key that seals the thread's rows now, as its row has it."""
        return self._keys(self._own, self._scope).newest.id.hex()

    @property
    def _scope(self) -> tuple[TenantId, str]:
        return thread_scope(self.tenant, self.thread)

    def _tenant_keys(self) -> ScopeKeys:
        return self._keys(self._shared, tenant_scope(self.tenant))

    def _keys(self, keys: ScopeKeys | None, scope: tuple[TenantId, str]) -> ScopeKeys:
        if keys is None:
            msg = (
                f"the store has no data key for {shown_scope(scope)}; nothing was changed. Was its "
                "data erased, or written without encryption?"
            )
            raise SealBroken(msg, tenant=scope[0], scope=scope[1])
        return keys

    def _sealed(self, key: DataKey, plain: bytes, place: tuple[Any, ...], *, exact: bool) -> bytes:
        if exact:
            return key.seal(plain, place, key.nonce_of(plain, place))
        batch, halves = self._batches.get(key.id) or self._drawn(key)
        rest = halves.pop()
        if not halves:
            del self._batches[key.id]
        return batch.seal(plain, place, rest)

    def _drawn(self, key: DataKey) -> tuple[Batch, list[bytes]]:
        """Return a batch of the key and the other halves of its nonces, drawn at once."""
        half = NONCE_BYTES // 2
        chance = self._entropy(half * (1 + BATCH_SEALS))
        cut = [chance[at : at + half] for at in range(0, len(chance), half)]
        drawn = self._batches[key.id] = key.batch(cut.pop()), cut
        return drawn

    def _unsealed(
        self,
        keys: ScopeKeys | None,
        stored: bytes,
        place: tuple[Any, ...],
        scope: tuple[TenantId, str],
    ) -> bytes:
        keys = self._keys(keys, scope)
        try:
            key = keys.by_id.get(key_id_of(stored))
            if key is None:
                raise SealBroken(_OF_ANOTHER_KEY)  # noqa: TRY301  # one place names the row
            return key.unseal(stored, place)
        except SealBroken as error:
            column, record = place[-2:]
            shown = ", ".join(str(part) for part in record) if type(record) is tuple else record
            msg = (
                f"{column} of {shown or '?'} ({shown_scope(scope)}): {error}; nothing was changed. "
                "Restore the store from a backup; docs/encryption.md says what this can mean"
            )
            raise SealBroken(msg, column=column, record=shown, tenant=self.tenant) from error


_OF_ANOTHER_KEY = "it is sealed with a data key that does not belong there"


def text_of(sealed: bytes) -> str:
    """Return a sealed form as a text."""
    return TEXT_MARK + base64.urlsafe_b64encode(sealed).decode()


def sealed_of(stored: str) -> bytes:
    """Return the sealed form in a text; of a text that has none: nothing, which is refused."""
    if not stored.startswith(TEXT_MARK):
        return b""
    try:
        return base64.b64decode(stored[len(TEXT_MARK) :], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _bytes_of_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a text that was stored before may have any


def _text_of_bytes(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
