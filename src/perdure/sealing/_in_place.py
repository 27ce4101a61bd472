"""Sealing what a plain store has, in place.

Theory: one transaction seals every row that holds something of users and stores the data keys;
with its commit the store is an encrypted one, before it a plain one, and never half of each. What
was there in plain may lie in free space then: the store's files are written anew after it. Two keys
that seal nothing tell how far that is: one comes with the rows, the other after the files.

The hash chains are over plain records, and stay; so do audit exports of before.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.clock import Entropy, Services
from perdure.codec import is_erased
from perdure.errors import SettingInvalid, StoreLocked
from perdure.ids import TenantId, ThreadId
from perdure.model import FrameRow, Mail, MailKind, Page, RunRow
from perdure.sealing import _rows as rows
from perdure.sealing._keyring import (
    SEALED_FILES,
    SEALED_ROWS,
    STORE,
    Keyring,
    tenant_scope,
    thread_scope,
)
from perdure.sealing._providers import KeyProvider
from perdure.sealing._retention import sealed_tag
from perdure.sealing._seals import Seals
from perdure.sealing.limits import WORKER_SEEN_US
from perdure.store.api import Store
from perdure.store.rewriting import (
    ASKS,
    EFFECTS,
    FRAMES,
    KINDS,
    MAIL,
    PAGES,
    POSTS,
    RUNS,
    SCHEDULES,
    TAGS,
    Owner,
    RewritableStore,
    Rewriting,
    RowKind,
    Stored,
)

Progress = Callable[[str, int, int], None]
"""Is told of: a kind of row, how many of them are sealed, how many there are. At last "files"."""

_decode_decision = msgspec.msgpack.Decoder(tuple[bool, bytes | None]).decode
_encode = msgspec.msgpack.Encoder().encode
_NIL = b"\xc0"


class Sealing(Struct, frozen=True, kw_only=True):
    """What sealing a store in place did, or would do.

    Attributes:
        rows: how many rows of each kind are sealed; empty: the store was encrypted already.
        files_written: whether the store's files were written anew.
        left: where something in plain may still be, for people.
    """

    rows: dict[str, int]
    files_written: bool
    left: list[str]


async def preview_seal(store: Store) -> Sealing:
    """Return what `seal` would do with a store that is not open; changes nothing.

    Raises:
        StoreLocked: somebody works with the store: so it would be refused.
        SettingInvalid: a store of this kind can't be encrypted in place.
    """
    rewritable = _rewritable(store)
    await store.open()
    try:
        known = {(row.tenant, row.scope) for row in await store.read_keys([STORE, *_MARKS])}
        if STORE not in known:
            await _check_idle(store)
    finally:
        await store.close()
    if STORE in known:
        return Sealing(rows={}, files_written=_is_unscrubbed(known), left=[])
    async with rewritable.rewriting() as rewriting:
        counts = {kind.name: await rewriting.count(kind) for kind in KINDS}
    return Sealing(rows=counts, files_written=True, left=[])


async def seal(
    store: Store, provider: KeyProvider, services: Services, *, progress: Progress | None = None
) -> Sealing:
    """Encrypt a store that has data, in place; `store` is not open, and stays so.

    What is encrypted already is left as it is, but for files that an earlier call did not come to.

    Raises:
        StoreLocked: a worker is alive, or somebody else has the store open; nothing was written.
        StoreCorrupt: a row can't be read; nothing was written.
        KeyMissing, SealBroken: the store is encrypted, with other keys.
        SettingInvalid: a store of this kind can't be encrypted in place.

    Durability: when it returns. Atomicity: all rows. Idempotent: yes. Cancel-safe: yes.
    """
    rewritable = _rewritable(store)
    told = progress or _nobody
    if not await _is_needed(store, provider, services):
        return Sealing(rows={}, files_written=False, left=[])
    async with rewritable.rewriting() as rewriting:
        keyring = Keyring(rewriting, provider, services)
        counts = {}
        if not await rewriting.read_keys([STORE]):  # or somebody else was first
            await keyring.load([STORE, SEALED_ROWS], make=True)
            for kind in KINDS:
                counts[kind.name] = await _seal_kind(rewriting, keyring, services, kind, told)
        # crash-point: keys.seal.commit.before
        services.probe("keys.seal.commit.before")
        await rewriting.commit()
        # crash-point: keys.seal.commit.after
        services.probe("keys.seal.commit.after")
        told("files", 0, 1)
        left = await rewriting.scrub()
        # crash-point: keys.seal.files.after
        services.probe("keys.seal.files.after")
        await keyring.load([SEALED_FILES], make=True)
        told("files", 1, 1)
    return Sealing(rows=counts, files_written=True, left=left)


_MARKS = (SEALED_ROWS, SEALED_FILES)


def _nobody(_kind: str, _done: int, _of: int) -> None:
    return None


def _is_unscrubbed(known: set[tuple[TenantId, str]]) -> bool:
    return SEALED_ROWS in known and SEALED_FILES not in known


def _rewritable(store: Store) -> RewritableStore:
    if not isinstance(store, RewritableStore):
        msg = (
            f"the store {store.place!r} can't be encrypted in place; nothing was changed. SQLite "
            "and PostgreSQL can"
        )
        raise SettingInvalid(msg, place=store.place)
    return store


async def _is_needed(store: Store, provider: KeyProvider, services: Services) -> bool:
    """Return whether rows, or files, are to be written; prove the keys where it has some."""
    await store.open()
    try:
        known = {(row.tenant, row.scope) for row in await store.read_keys([STORE, *_MARKS])}
        if STORE not in known:
            await _check_idle(store)
            return True
        await Keyring(store, provider, services).load([STORE])
        return _is_unscrubbed(known)
    finally:
        await store.close()


async def _check_idle(store: Store) -> None:
    """Refuse a store that workers work on.

    Raises:
        StoreLocked: names them.
    """
    await store.release_dead()
    since = store.now_us() - WORKER_SEEN_US
    live = [each for each in await store.find_workers() if each.seen_at_us >= since]
    if live:
        named = ", ".join(f"{each.worker_id} (pid {each.pid} on {each.host})" for each in live[:5])
        msg = (
            f"workers are alive on {store.place!r}: {named}; nothing was written. Stop them, and "
            "all else that has the store open; those that start again need the keys"
        )
        raise StoreLocked(msg, place=store.place)


async def _seal_kind(
    rewriting: Rewriting, keyring: Keyring, services: Services, kind: RowKind, told: Progress
) -> int:
    """Seal all rows of a kind; return how many there are."""
    of = await rewriting.count(kind)
    done = 0
    told(kind.name, done, of)
    async for batch in rewriting.batches(kind):
        seals = await _seals_of(keyring, [each.owner for each in batch], services.entropy)
        sealed = _SEALED[kind.name]
        new = [(each, sealed(each, seals[each.owner.tenant, each.owner.thread])) for each in batch]
        await rewriting.replace(kind, new)
        done += len(batch)
        told(kind.name, done, of)
        # crash-point: keys.seal.rows
        services.probe("keys.seal.rows")
    return done


async def _seals_of(
    keyring: Keyring, owners: Iterable[Owner], entropy: Entropy
) -> dict[tuple[TenantId, ThreadId], Seals]:
    """Return the seals of threads; a row without a thread needs its tenant's key only."""
    wheres = dict.fromkeys((owner.tenant, owner.thread) for owner in owners)
    scopes = [tenant_scope(tenant) for tenant, _ in wheres]
    scopes += [thread_scope(*where) for where in wheres if where[1]]
    keys = await keyring.load(scopes, make=True)
    return {
        (tenant, thread): Seals(
            tenant,
            thread,
            own=keys.get(thread_scope(tenant, thread)),
            shared=keys.get(tenant_scope(tenant)),
            entropy=entropy,
        )
        for tenant, thread in wheres
    }


# -- rows ------------------------------------------------------------------------------------------


def _run(stored: Stored, seals: Seals) -> RunRow:
    row: RunRow = stored.row
    named_by = row.start_key or row.run_id
    return replace(
        row,
        start_key=None if row.start_key is None else seals.seal_name(row.start_key, "start key"),
        input_digest=seals.seal_name(row.input_digest, "input digest", named_by),
        waits=tuple(rows.sealed_wait(wait, row.run_id, seals) for wait in row.waits),
        failure=rows.sealed_failure(row.failure, row.run_id, seals),
    )


def _frame(stored: Stored, seals: Seals) -> FrameRow:
    row: FrameRow = stored.row
    if is_erased(row.body):
        return row  # digests of what was erased
    return replace(row, body=seals.seal(row.body, "journal frame", (row.run_id, row.first_seq)))


def _mail(stored: Stored, seals: Seals) -> Mail:
    """Return a message as it is read again: of answers and decisions the store made them."""
    mail: Mail = stored.row
    if mail.kind is MailKind.ANSWER:
        body = seals.seal(mail.body_wire, "answer", mail.subject, exact=True)
        sender = seals.seal_text(mail.sender, "answered by", mail.subject, exact=True)
    elif mail.kind is MailKind.DECISION:
        happened, result = _decode_decision(mail.body_wire)
        body = _encode((happened, rows.sealed_decision(mail.subject, result, seals)))
        sender = rows.sealed_decider(mail.subject, mail.sender, seals)
        mail = replace(mail, post_id=_post_id(mail.post_id, seals))
    elif mail.kind is MailKind.CANCEL and (mail.body_wire, mail.sender) == (_NIL, ""):
        return mail
    else:
        return rows.sealed_mail(mail, seals)
    return replace(mail, body_wire=body, sender=sender)


def _post_id(post_id: str, seals: Seals) -> str:
    """Return what a posting is known by: of a decision it says who decided (`_rules.decided`)."""
    effect_id, *rest = post_id.split(" ", 3)
    if len(rest) < len(("happened", "at", "by")):
        return post_id
    return " ".join((effect_id, *rest[:-1], rows.sealed_decider(effect_id, rest[-1], seals)))


def _page(stored: Stored, seals: Seals) -> Page:
    return rows.sealed_pages((stored.row,), seals)[0]


_SEALED: dict[str, Callable[[Stored, Seals], Any]] = {
    RUNS.name: _run,
    FRAMES.name: _frame,
    MAIL.name: _mail,
    POSTS.name: lambda stored, seals: _post_id(stored.row, seals),
    EFFECTS.name: lambda stored, seals: rows.sealed_effect(stored.row, seals),
    ASKS.name: lambda stored, seals: rows.sealed_ask(stored.row, seals),
    PAGES.name: _page,
    SCHEDULES.name: lambda stored, seals: rows.sealed_schedule(stored.row, seals),
    TAGS.name: lambda stored, seals: sealed_tag(stored.row, seals),
}
