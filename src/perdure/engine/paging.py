"""Large values on their way into the journal and back.

Writing: a field whose encoding is large goes into its record as a reference, and its pages go with
the record, in one commit. The pager of each field remembers what the store has of the version
before. So do requests and results of effects, answers, signals, results of children and emitted
chunks; in memory their records hold the value, and so do the rows of the ledger, of asks and mail.

Reading: what a fold has gathered may hold references. They are replaced by the values once, after
the fold, all pages with a few queries.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from perdure.codec import (
    HASH_BYTES,
    Paged,
    Pager,
    PageRef,
    is_large,
    joined,
    names_in,
    opened,
    ref_of,
)
from perdure.codec.limits import PAGED_MIN
from perdure.core import fold
from perdure.engine.limits import PAGES_READ_MAX
from perdure.errors import DecodeFailed, StoreCorrupt
from perdure.ids import TenantId
from perdure.model import Change, Page, PagesPut, WriteOp
from perdure.model import records as rec
from perdure.store.api import Store

Field = tuple[str, str]
"""Path of the scope, and name of the field."""

Writes = dict[str, tuple[str, Raw]]


VALUES: dict[type, str] = {
    rec.EffectIntended: "request",
    rec.EffectConfirmed: "result",
    rec.AskAnswered: "value",
    rec.SignalConsumed: "value",
    rec.ChildEnded: "result",
    rec.Emitted: "chunk",
}
"""Kinds of records that hold one value which is no field of a state, and where."""


class Whole(Struct, frozen=True):
    """A value that was in pages: its encoding, and the hashes of the pages that it came from."""

    raw: Raw
    stored: frozenset[bytes]


# -- writing ---------------------------------------------------------------------------------------


class Pagers:
    """The pagers of a held run's fields."""

    def __init__(self, stored: Mapping[Field, tuple[bytes, frozenset[bytes]]]) -> None:
        """Begin with the values that were loaded: their encoding, and their pages' hashes."""
        self._loaded = dict(stored)
        self._pagers: dict[Field, Pager] = {}

    def of(self, field: Field) -> Pager:
        """Return the pager of a field."""
        pager = self._pagers.get(field)
        if pager is None:
            pager = self._pagers[field] = Pager()
            if field in self._loaded:
                pager.learn(*self._loaded.pop(field))
        return pager


class Filed:
    """The fields of one record, encoded: large ones as references."""

    def __init__(self, pagers: Pagers, scope: str) -> None:
        """Begin with no field. `size`: bytes of all; `sizes`: of those that went into pages."""
        self._pagers = pagers
        self._scope = scope
        self.size = 0
        self.sizes: dict[str, int] = {}
        self._pages: list[Page] = []
        self._kept: list[tuple[Pager, Paged]] = []

    def put(self, name: str, encoded: bytes, *, is_whole: bool) -> Raw:
        """Return what the record holds; `is_whole`: the field's value, not something to add."""
        self.size += len(encoded)
        if not is_large(encoded):
            return Raw(encoded)
        pager = self._pagers.of((self._scope, name)) if is_whole else Pager()
        paged = pager.cut(encoded)
        self.sizes[name] = len(encoded)
        self._pages += paged.pages
        if is_whole:
            self._kept.append((pager, paged))
        return Raw(paged.ref)

    def changes(self) -> tuple[Change, ...]:
        """Return what goes with the record, and count on it from now on."""
        for pager, paged in self._kept:
            pager.keep(paged)
        return (PagesPut(pages=tuple(self._pages)),) if self._pages else ()


class ValuePagers:
    """The pagers of a held run's values that are no fields: one for each kind of act and name.

    So that a conversation that is sent with every call writes what it got, and no more.
    """

    def __init__(self) -> None:
        """Know of nothing yet."""
        self._pagers: dict[tuple[type, str], Pager] = {}
        self._cut: tuple[Pager, Paged] | None = None

    def filed(self, record: rec.Record) -> tuple[rec.Record, tuple[Change, ...]]:
        """Return the record as the journal holds it, and what goes with it."""
        field = VALUES.get(type(record))
        if field is None or len(memoryview(raw := getattr(record, field))) < PAGED_MIN:
            return record, ()
        key = type(record), getattr(record, "name", getattr(record, "topic", ""))
        pager = self._pagers.setdefault(key, Pager())
        paged = pager.cut(bytes(raw))
        self._cut = pager, paged
        pages = (PagesPut(pages=paged.pages),) if paged.pages else ()
        return replace(record, **{field: Raw(paged.ref)}), pages

    def keep(self) -> None:
        """Count on the pages of the record that was filed last: they are handed over."""
        if self._cut is not None:
            pager, paged = self._cut
            pager.keep(paged)
            self._cut = None


def paged_writes(writes: Mapping[str, tuple[str, Raw]]) -> tuple[Writes, tuple[Page, ...]]:
    """Return the fields of a start record as it holds them, and the pages that go with it."""
    held: Writes = {}
    pages: tuple[Page, ...] = ()
    for name, (op, raw) in writes.items():
        encoded = bytes(raw)
        if is_large(encoded):
            paged = Pager().cut(encoded)
            held[name] = op, Raw(paged.ref)
            pages += paged.pages
        else:
            held[name] = op, raw
    return held, pages


# -- reading ---------------------------------------------------------------------------------------


async def read_wholes(
    store: Store, tenant: TenantId, raws: Iterable[tuple[str, Raw]]
) -> dict[bytes, Whole]:
    """Return those of the values that are in pages, by their reference.

    Args:
        store: where the pages are.
        tenant: whose.
        raws: (where it was found, stored value); where: for the error.

    Raises:
        StoreCorrupt: a page is missing, or does not hold what its name says; names where.
    """
    refs: dict[bytes, tuple[str, PageRef]] = {}
    for place, raw in raws:
        ref = ref_of(raw)
        if ref is not None:
            refs.setdefault(bytes(raw), (place, ref))
    if not refs:
        return {}
    hashes = {key: ref.hashes for key, (_place, ref) in refs.items()}
    stored: dict[bytes, list[bytes]] = {key: [] for key in refs}
    for level in range(max(ref.depth for _place, ref in refs.values()), 0, -1):
        deep = [key for key, (_place, ref) in refs.items() if ref.depth >= level]
        for key in deep:
            pieces = await _read(store, tenant, refs[key][0], names_in(hashes[key]))
            stored[key] += names_in(hashes[key])
            hashes[key] = _list_of(refs[key], names_in(hashes[key]), pieces)
    found = {}
    for key, (place, ref) in refs.items():
        pieces = await _read(store, tenant, place, names_in(hashes[key]))
        try:
            encoded = joined(ref, hashes[key], pieces)
        except DecodeFailed as error:
            raise _damaged(place, str(error)) from error
        found[key] = Whole(Raw(encoded), frozenset([*stored[key], *pieces]))
    return found


def _list_of(
    of: tuple[str, PageRef], names: Sequence[bytes], pieces: Mapping[bytes, bytes]
) -> bytes:
    """Return the list of hashes that pages hold: never longer than the value, whatever they say."""
    place, ref = of
    size = sum(len(pieces[name]) for name in names)
    if size > ref.length or size % HASH_BYTES:
        raise _damaged(place, f"its pages are listed by {size} bytes, for {ref.length} of it")
    return b"".join([pieces[name] for name in names])


async def _read(
    store: Store, tenant: TenantId, place: str, names: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Return the bytes of pages by hash."""
    pieces: dict[bytes, bytes] = {}
    wanted = list(dict.fromkeys(names))
    for at in range(0, len(wanted), PAGES_READ_MAX):
        part = wanted[at : at + PAGES_READ_MAX]
        bodies = await store.read_pages(tenant, part)
        for name in part:
            if name not in bodies:
                raise _damaged(place, f"page {name.hex()[:16]} is missing")
            try:
                pieces[name] = opened(bodies[name], name)
            except DecodeFailed as error:
                raise _damaged(place, str(error)) from error
    return pieces


def _damaged(place: str, what: str) -> StoreCorrupt:
    msg = (
        f"{place}: {what}; nothing was changed. Restore the store from a backup; 'perdure audit "
        "verify' lists the damage."
    )
    return StoreCorrupt(msg, place=place)


def values_in(held: Any) -> Iterator[Raw]:
    """Yield every stored value in a record, however deep: also of kinds of records to come."""
    if isinstance(held, Raw):
        yield held
    elif isinstance(held, dict):
        for item in held.values():
            yield from values_in(item)
    elif isinstance(held, list | tuple):
        for item in held:
            yield from values_in(item)
    elif isinstance(held, Struct):
        for name in held.__struct_fields__:
            yield from values_in(getattr(held, name))


async def inline_cells(
    store: Store, tenant: TenantId, place: str, cells: dict[str, fold.Cell]
) -> None:
    """Replace references in cells by the values."""
    raws = [
        (f"{place}, field {name!r}", raw) for name, cell in cells.items() for raw in cell.pieces
    ]
    wholes = await read_wholes(store, tenant, raws)
    if wholes:
        _replace_in(cells, wholes)


def _replace_in(cells: dict[str, fold.Cell], wholes: Mapping[bytes, Whole]) -> None:
    for cell in cells.values():
        cell.pieces = [_whole(raw, wholes) for raw in cell.pieces]


def _whole(raw: Raw, wholes: Mapping[bytes, Whole]) -> Raw:
    return raw if ref_of(raw) is None else wholes[bytes(raw)].raw


async def inline_state(
    store: Store, tenant: TenantId, state: fold.RunState
) -> dict[Field, tuple[bytes, frozenset[bytes]]]:
    """Replace all references in a loaded state by the values.

    Returns:
        Of each field whose (first) piece is in pages: its encoding, and its pages' hashes.
    """
    place = f"run {state.run_id!r}"
    wholes = await read_wholes(
        store, tenant, ((f"{place}, field {name!r}", raw) for name, raw in _raws_of(state))
    )
    if not wholes:
        return {}
    loaded: dict[Field, tuple[bytes, frozenset[bytes]]] = {}
    for scope in state.scopes.values():
        for name, cell in scope.cells.items():
            whole = wholes.get(bytes(cell.pieces[0]))
            if whole is not None:
                loaded[scope.path, name] = bytes(whole.raw), whole.stored
        _inline_scope(scope, wholes)
    if state.started is not None and not state.root.is_started:
        for name, (op, raw) in state.started.input.items():
            whole = wholes.get(bytes(raw))
            if whole is not None and is_whole(op):
                loaded["", name] = bytes(whole.raw), whole.stored
        state.started = replace(state.started, input=_inlined(state.started.input, wholes))
    return loaded


def _inline_scope(scope: fold.Scope, wholes: Mapping[bytes, Whole]) -> None:
    _replace_in(scope.cells, wholes)
    scope.writes = [(name, op, _whole(raw, wholes)) for name, op, raw in scope.writes]
    for task in scope.all_tasks:
        if task.outcome is not None:
            held = _inlined(task.outcome.writes, wholes)
            task.outcome = replace(task.outcome, writes=held)
        for call in task.calls.values():
            call.result = None if call.result is None else _whole(call.result, wholes)
            call.started = _with_value(call.started, wholes)
            call.ended = _with_value(call.ended, wholes)


def _with_value(record: Any, wholes: Mapping[bytes, Whole]) -> Any:
    """Return a record with its value in place of a reference."""
    field = VALUES.get(type(record))
    raw = None if field is None else getattr(record, field)
    if raw is None or field is None or ref_of(raw) is None:
        return record
    return replace(record, **{field: _whole(raw, wholes)})


def _inlined(writes: Mapping[str, tuple[str, Raw]], wholes: Mapping[bytes, Whole]) -> Writes:
    return {name: (op, _whole(raw, wholes)) for name, (op, raw) in writes.items()}


def _raws_of(state: fold.RunState) -> Iterable[tuple[str, Raw]]:
    """Yield (field, stored value) of everything that a holder will decode."""
    for scope in state.scopes.values():
        for name, cell in scope.cells.items():
            yield from ((name, raw) for raw in cell.pieces)
        yield from ((name, raw) for name, _op, raw in scope.writes)
        for task in scope.all_tasks:
            if task.outcome is not None:
                yield from ((name, raw) for name, (_op, raw) in task.outcome.writes.items())
            for call in task.calls.values():
                yield from ((f"{task.path}, {call.name}", raw) for raw in _values_of(call))
    if state.started is not None and not state.root.is_started:
        yield from ((name, raw) for name, (_op, raw) in state.started.input.items())


def _values_of(call: fold.Call) -> Iterable[Raw]:
    """Yield the stored values of an act."""
    if call.result is not None:
        yield call.result
    for record in (call.started, call.ended):
        field = VALUES.get(type(record))
        if field is not None:
            yield getattr(record, field)


async def inline_record(store: Store, tenant: TenantId, place: str, record: Any) -> Any:
    """Return a record with the values instead of references."""
    field = VALUES.get(type(record))
    if field is not None:
        raw = getattr(record, field)
        return _with_value(record, await read_wholes(store, tenant, [(f"{place}, {field}", raw)]))
    fields = {
        name: value
        for name in ("input", "writes", "folded", "values", "merged")
        if (value := getattr(record, name, None))
    }
    raws = [
        (f"{place}, field {key!r}", item if isinstance(item, Raw) else item[1])
        for value in fields.values()
        for key, item in value.items()
    ]
    wholes = await read_wholes(store, tenant, raws)
    if not wholes:
        return record
    held = {
        name: {
            key: _whole(item, wholes)
            if isinstance(item, Raw)
            else (item[0], _whole(item[1], wholes))
            for key, item in value.items()
        }
        for name, value in fields.items()
    }
    return replace(record, **held)


def is_whole(op: str) -> bool:
    """Return whether a write of this kind is the field's value."""
    return op == WriteOp.REPLACE
