"""A store whose users' data is sealed before it gets there: the engine does not see it.

Theory: every call that takes rows seals them, every call that returns rows unseals them; all others
are passed on. The data keys that a call needs are loaded (or made, for a new thread) before it: the
sealing itself is pure. Rows that name a run only need the run's thread: it never changes, and is
remembered.

Invariants: a thread's data key is durable before anything that it seals; nothing that is not sealed
is returned as if it were; no answer depends on how often something was sealed (what a store
compares is sealed into the same bytes each time).

Size: the protocol of a store once more, with what each of its calls seals.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from perdure.clock import Services
from perdure.codec import SEALED_BYTE
from perdure.errors import (
    Conflict,
    KeyMissing,
    NotFound,
    SealBroken,
    StartKeyReused,
    StoreCorrupt,
)
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    AppendOutcome,
    AskPut,
    AskRow,
    Change,
    EffectPut,
    EffectRow,
    ErasureBegun,
    ErasureRow,
    FrameRow,
    KeyTaken,
    Mail,
    MailPosted,
    NewRun,
    Page,
    PagesPut,
    RunEnded,
    RunReleased,
    RunRow,
    RunSpawned,
    ScheduleRow,
    Started,
)
from perdure.sealing import _rows as rows
from perdure.sealing._keyring import Keyring, Scope, tenant_scope, thread_scope
from perdure.sealing._providers import KeyProvider
from perdure.sealing._retention import SealedRetention
from perdure.sealing._seals import Seals
from perdure.sealing.limits import PLACES_MAX, RENEWALS_MAX, TOLD_MAX
from perdure.store.api import (
    Answered,
    AskQuery,
    Decided,
    EffectQuery,
    RunQuery,
    Store,
    Transaction,
)

BROKEN_BODY = bytes([SEALED_BYTE])
"""Stands for a frame that can't be unsealed: no frame has this format."""

_log = logging.getLogger("perdure.sealing")

Where = tuple[TenantId, ThreadId]
"""A thread, by tenant and name."""

SealsOf = Callable[[Where], Seals]
"""Gives the seals of a thread whose keys are loaded."""

Found = TypeVar("Found")
Place = TypeVar("Place", RunRow, EffectRow, AskRow, Append, NewRun)


def sealed(store: Store, provider: KeyProvider, services: Services) -> Store:
    """Return a store over the given one that stores nothing of users in plain."""
    return cast("Store", SealedStore(store, provider, services))


def stored_by(store: Store) -> Store:
    """Return the store that has what a store is given, as it is stored: sealed, if it seals."""
    return store.inner if isinstance(store, SealedStore) else store


class SealedStore(SealedRetention):
    """Delegates to a store, and seals what users put there."""

    def __init__(self, store: Store, provider: KeyProvider, services: Services) -> None:
        """Wrap the store, which is not open yet."""
        self.inner = store
        self.keyring = Keyring(store, provider, services)
        self._entropy = services.entropy
        self._places: OrderedDict[str, Where] = OrderedDict()
        self._told: set[str] = set()
        self.now_us = store.now_us  # asked for several times in a step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"SealedStore({self.inner.place})"

    async def open(self) -> None:
        """Open the store, and prove that the keys are its own.

        Raises:
            StorePlain: it is not encrypted, and has data.
            KeyMissing, SealBroken: these are not its keys.
        """
        await self.inner.open()
        try:
            await self.keyring.open()
        except BaseException:
            await self.inner.close()
            raise

    # -- keys and places ---------------------------------------------------------------------------

    async def _seals(
        self, wheres: Iterable[Where], *, make: bool = False, shared_only: bool = False
    ) -> "SealsOf":
        """Return the seals of threads, their keys loaded."""
        wheres = dict.fromkeys(wheres)
        scopes: list[Scope] = [tenant_scope(tenant) for tenant, _ in wheres]
        if not shared_only:
            scopes += [thread_scope(tenant, thread) for tenant, thread in wheres]
        keys = await self.keyring.load(scopes, make=make)

        def seals_of(where: Where) -> Seals:
            tenant, thread = where
            return Seals(
                tenant,
                thread,
                own=keys.get(thread_scope(tenant, thread)),
                shared=keys.get(tenant_scope(tenant)),
                entropy=self._entropy,
            )

        return seals_of

    async def _reading(self, wheres: Iterable[Where], read: Callable[[SealsOf], Found]) -> Found:
        """Return what is read with the seals of threads; with their keys of now, if it must be.

        Raises:
            SealBroken: it can't be read with those either.
        """
        places = list(wheres)
        try:
            return read(await self._seals(places))
        except SealBroken:
            if not self.keyring.forget(thread_scope(*where) for where in places):
                raise
        return read(await self._seals(places))

    async def _current_seals(self, where: Where) -> Seals:
        """Return a thread's seals for a write that no journal was read before."""
        self.keyring.forget([thread_scope(*where)])
        return (await self._seals([where]))(where)

    async def _tenant_seals(self, tenant: TenantId, *, make: bool = False) -> Seals:
        where = (tenant, ThreadId(""))
        return (await self._seals([where], make=make, shared_only=True))(where)

    async def _has_keys(self, tenant: TenantId) -> bool:
        """Return whether the tenant has anything here."""
        return bool(await self.keyring.load([tenant_scope(tenant)]))

    def _remember(self, run_id: str, where: Where) -> None:
        self._places[run_id] = where
        self._places.move_to_end(run_id)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)

    async def _place(self, run_id: str) -> Where | None:
        """Return the thread of a run, or None: there is no such run."""
        found = self._places.get(run_id)
        if found is None:
            row = await self.inner.read_run(RunId(run_id))
            if row is None:
                return None
            found = row.tenant, row.thread
            self._remember(run_id, found)
        return found

    # -- runs --------------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started | Exception]:
        """Create runs, after the keys of their threads; see `Store.start`."""
        stored, outcomes = await self._start(runs)
        for _try in range(RENEWALS_MAX):
            late = [n for n, each in enumerate(outcomes) if _is_late(each)]
            if not late:
                break
            self.keyring.forget(thread_scope(*_where(runs[n])) for n in late)
            for n, new, each in zip(late, *await self._start([runs[n] for n in late]), strict=True):
                stored[n], outcomes[n] = new, each
        found = [each.row for each in outcomes if isinstance(each, Started)]
        plain = iter(await self._plain_runs(found))
        return [
            replace(outcome, row=next(plain))
            if isinstance(outcome, Started)
            else _renamed(outcome, new, old)
            for outcome, new, old in zip(outcomes, stored, runs, strict=True)
        ]

    async def _start(
        self, runs: Sequence[NewRun]
    ) -> tuple[list[NewRun], list[Started | Exception]]:
        """Return runs as they are stored, and what became of their starts."""
        seals = await self._seals(map(_where, runs), make=True)
        stored = [rows.sealed_run(run, seals(_where(run))) for run in runs]
        return stored, await self.inner.start(stored)

    async def _plain_runs(self, found: Sequence[RunRow]) -> list[RunRow]:
        for row in found:
            self._remember(row.run_id, _where(row))
        own = [_where(row) for row in found if rows.needs_own_key(row)]
        others = [_where(row) for row in found if not rows.needs_own_key(row)]
        of_others = await self._seals(others, shared_only=True)

        def read(of_own: SealsOf) -> list[RunRow]:
            plain = []
            for row in found:
                seals = (of_own if rows.needs_own_key(row) else of_others)(_where(row))
                try:
                    plain.append(rows.unsealed_run(row, seals))
                except SealBroken as error:
                    error.fields["run_id"] = row.run_id  # so that an audit goes on behind it
                    raise
            return plain

        return await self._reading(own, read)

    async def _claimed(self, found: Sequence[RunRow]) -> list[RunRow]:
        """Return rows that are taken already: one that can't be unsealed holds up no other.

        It says so in its failure; whoever loads the run then meets the error itself.
        """
        plain = []
        for row in found:
            try:
                plain += await self._plain_runs([row])
            except (SealBroken, KeyMissing) as error:
                self._tell(f"run {row.run_id}", error)
                plain.append(rows.marked_run(row, error))
        return plain

    def _tell(self, what: str, error: Exception) -> None:
        """Log what is passed over, once: it is met again with every look."""
        if what not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(what)
            _log.error("%s: %s", what, error)

    async def claim(
        self,
        worker_id: WorkerId,
        graphs: Sequence[tuple[str, int]],
        *,
        now_us: int,
        lease_until_us: int,
        limit: int,
    ) -> list[RunRow]:
        """Take claimable runs; see `Store.claim`."""
        found = await self.inner.claim(
            worker_id, graphs, now_us=now_us, lease_until_us=lease_until_us, limit=limit
        )
        return await self._claimed(found)

    async def take(
        self, run_id: RunId, worker_id: WorkerId, *, token: int, now_us: int, lease_until_us: int
    ) -> RunRow | None:
        """Claim this one run; see `Store.take`."""
        found = await self.inner.take(
            run_id, worker_id, token=token, now_us=now_us, lease_until_us=lease_until_us
        )
        return None if found is None else (await self._claimed([found]))[0]

    async def read_run(self, run_id: RunId) -> RunRow | None:
        """Return the run's row, or None."""
        found = await self.inner.read_run(run_id)
        return None if found is None else (await self._plain_runs([found]))[0]

    async def find_runs(self, query: RunQuery) -> list[RunRow]:
        """Return rows, newest first."""
        try:
            found = await self.inner.find_runs(query)
        except StoreCorrupt as error:
            # Whose journal it is can't be read there any more, and may be asked for next.
            run_id = error.fields.get("run_id")
            if isinstance(run_id, str) and query.tenant is not None and query.thread is not None:
                self._remember(run_id, (query.tenant, query.thread))
            raise
        return await self._plain_runs(found)

    async def read_thread_runs(
        self, tenant: TenantId, thread: ThreadId, *, from_ordinal: int
    ) -> list[RunRow]:
        """Return the thread's runs with at least this ordinal, by ordinal."""
        return await self._plain_runs(
            await self.inner.read_thread_runs(tenant, thread, from_ordinal=from_ordinal)
        )

    async def read_frames(
        self, run_id: RunId, *, from_seq: int = 1, limit: int | None = None
    ) -> list[FrameRow]:
        """Return the frames with the records from `from_seq` on; see `Store.read_frames`."""
        found = await self.inner.read_frames(run_id, from_seq=from_seq, limit=limit)
        where = await self._place(run_id) if found else None
        if where is None:
            return found
        place = where
        return await self._reading(
            [place], lambda of: [rows.unsealed_frame(frame, of(place)) for frame in found]
        )

    async def scan_frames(self, run_id: RunId, *, from_seq: int, limit: int) -> list[FrameRow]:
        """Return frames as they are; see `Store.scan_frames`.

        One that can't be unsealed has a body that no reader takes for a frame, so that an audit
        finds it damaged and goes on behind it.
        """
        found = await self.inner.scan_frames(run_id, from_seq=from_seq, limit=limit)
        where = await self._place(run_id) if found else None
        if where is None:
            return found
        seals = await self._current_seals(where)
        plain = []
        for frame in found:
            try:
                plain.append(rows.unsealed_frame(frame, seals))
            except SealBroken as error:
                self._tell(f"frame {frame.first_seq} of run {run_id}", error)
                plain.append(replace(frame, body=BROKEN_BODY))
        return plain

    # -- appends -----------------------------------------------------------------------------------

    async def append(self, batch: Sequence[Append]) -> list[AppendOutcome]:
        """Write the frames and changes of many runs in one commit; see `Store.append`."""
        stored = await self._sealed_batch(batch)
        outcomes = await self.inner.append(stored)
        if any(type(outcome) is KeyTaken for outcome in outcomes):
            seals = await self._seals(map(_where, batch), shared_only=True)
            outcomes = [
                _renamed_taken(outcome, seals(_where(item)))
                for outcome, item in zip(outcomes, batch, strict=True)
            ]
        return outcomes

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[Append]],
        *,
        run_id: RunId,
        token: int,
    ) -> AppendOutcome:
        """Run `body` in a transaction and commit it with its append; see `Store.transact`."""
        where = await self._place(run_id)
        if where is not None:  # before the transaction, which keeps other writers out
            await self._seals([where])

        async def sealing(transaction: Transaction) -> Append:
            """Run the body, and seal what it appends."""
            [item] = await self._sealed_batch([await body(transaction)])
            return item

        outcome = await self.inner.transact(sealing, run_id=run_id, token=token)
        if type(outcome) is KeyTaken and where is not None:
            return _renamed_taken(outcome, await self._tenant_seals(where[0]))
        return outcome

    async def _sealed_batch(self, batch: Sequence[Append]) -> list[Append]:
        wheres = [_where(item) for item in batch]
        spawned: list[Where] = []
        of_mail: dict[str, Where] = {}
        for item in batch:
            self._remember(item.run_id, _where(item))
            for change in item.changes:
                if type(change) is RunSpawned:
                    spawned.append(_where(change.run))
                    self._remember(change.run.run_id, _where(change.run))
                elif (mail := _mail_in(change)) is not None:
                    # A run that is not there gets nothing.
                    of_mail[mail.run_id] = await self._place(mail.run_id) or _where(item)
        if spawned:
            await self._seals(spawned, make=True)
        seals = await self._seals([*wheres, *spawned, *of_mail.values()])
        return [self._sealed_item(item, seals(_where(item)), seals, of_mail) for item in batch]

    @staticmethod
    def _sealed_item(
        item: Append, own: Seals, seals: Callable[[Where], Seals], of_mail: Mapping[str, Where]
    ) -> Append:
        def sealed_mail(mail: Mail) -> Mail:
            return rows.sealed_mail(mail, seals(of_mail[mail.run_id]))

        def sealed_run(run: NewRun) -> NewRun:
            # A child is stored without a start key, which would seal its digest otherwise.
            return rows.sealed_run(replace(run, start_key=None), seals(_where(run)))

        return replace(
            item,
            body=own.seal(item.body, "journal frame", (item.run_id, item.first_seq)),
            changes=tuple(
                _sealed_change(change, item.run_id, own, sealed_mail, sealed_run)
                for change in item.changes
            ),
        )

    # -- pages -------------------------------------------------------------------------------------

    async def put_pages(self, tenant: TenantId, pages: Sequence[Page]) -> None:
        """Store pages; see `Store.put_pages`."""
        seals = await self._tenant_seals(tenant, make=True)
        await self.inner.put_pages(tenant, rows.sealed_pages(tuple(pages), seals))

    # -- erasures ----------------------------------------------------------------------------------

    async def begin_erasure(self, erasure: ErasureRow) -> ErasureBegun:
        """Begin an erasure, after a new key for each thread; see `ErasingStore.begin_erasure`.

        Whoever starts a run on one of them afterwards seals it with that key, or is refused: so the
        keys before it seal nothing but what is erased.
        """
        scopes = [thread_scope(erasure.tenant, ThreadId(each.thread)) for each in erasure.threads]
        await self.keyring.renew(scopes)
        return await self.inner.begin_erasure(erasure)

    async def drop_keys(self, tenant: TenantId, threads: Sequence[ThreadId]) -> int:
        """Remove all data keys of threads but the newest; see `ErasingStore.drop_keys`."""
        self.keyring.forget(thread_scope(tenant, thread) for thread in threads)
        return await self.inner.drop_keys(tenant, threads)

    async def read_pages(self, tenant: TenantId, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the tenant's pages by hash; see `Store.read_pages`."""
        if not hashes:
            return {}
        where = (tenant, ThreadId(""))
        if not await self._has_keys(tenant):
            return {}
        seals = (await self._seals([where], shared_only=True))(where)
        names = {seals.page_name(named): named for named in hashes}
        found = await self.inner.read_pages(tenant, list(names))
        return {names[name]: rows.unsealed_page(name, body, seals) for name, body in found.items()}

    # -- messages ----------------------------------------------------------------------------------

    async def post(self, mail: Mail) -> RunRow:
        """Store a message for an unfinished run and wake it; see `Store.post`."""
        where = _found(await self._place(mail.run_id), "run", mail.run_id)
        seals = await self._current_seals(where)
        row = await self.inner.post(rows.sealed_mail(mail, seals))
        return (await self._plain_runs([row]))[0]

    async def read_mail(self, run_id: RunId, *, after: int = 0) -> list[Mail]:
        """Return the run's unread messages with an id above `after`, in order of arrival."""
        return await self._plain_mail(await self.inner.read_mail(run_id, after=after))

    async def read_held_mail(self, worker_id: WorkerId, *, seen: Mapping[RunId, int]) -> list[Mail]:
        """Return unread messages to runs that the worker holds; see `Store.read_held_mail`.

        Those of a run whose mail can't be unsealed are passed over, and logged: they stay unread,
        and reading the mail of that run alone (`read_mail`) says what is wrong.
        """
        found = await self.inner.read_held_mail(worker_id, seen=seen)
        try:
            return await self._plain_mail(found)
        except (SealBroken, KeyMissing):
            plain = []
            for run_id in dict.fromkeys(mail.run_id for mail in found):
                try:
                    plain += await self._plain_mail([m for m in found if m.run_id == run_id])
                except (SealBroken, KeyMissing) as error:
                    self._tell(f"mail of run {run_id}", error)
            return sorted(plain, key=lambda mail: mail.mail_id)

    async def _plain_mail(self, found: list[Mail]) -> list[Mail]:
        if not found:
            return found
        wheres: dict[str, Where] = {}
        for mail in found:
            where = await self._place(mail.run_id)
            wheres[mail.run_id] = _found(where, "run", mail.run_id)
        return await self._reading(
            wheres.values(),
            lambda of: [rows.unsealed_mail(mail, of(wheres[mail.run_id])) for mail in found],
        )

    # -- asks --------------------------------------------------------------------------------------

    async def answer(self, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
        """Answer an open ask once; see `Store.answer`."""
        row = _found(await self.inner.read_ask(ask_id), "ask", ask_id)
        seals = await self._current_seals(_where(row))
        answered = await self.inner.answer(
            ask_id,
            value_wire=rows.sealed_answer(row, value_wire, seals),
            by=rows.sealed_answerer(row, by, seals),
            at_us=at_us,
        )
        return replace(answered, row=rows.unsealed_ask(answered.row, seals))

    async def expire(self, ask_id: AskId, *, at_us: int) -> AskRow:
        """Close an open ask as expired, unless it was answered; see `Store.expire`."""
        return (await self._plain_asks([await self.inner.expire(ask_id, at_us=at_us)]))[0]

    async def read_ask(self, ask_id: AskId) -> AskRow | None:
        """Return the ask, or None."""
        found = await self.inner.read_ask(ask_id)
        return None if found is None else (await self._plain_asks([found]))[0]

    async def find_asks(self, query: AskQuery) -> list[AskRow]:
        """Return asks, oldest first."""
        return await self._plain_asks(await self.inner.find_asks(query))

    async def _plain_asks(self, found: list[AskRow]) -> list[AskRow]:
        return await self._reading(
            map(_where, found), lambda of: [rows.unsealed_ask(r, of(_where(r))) for r in found]
        )

    # -- effects -----------------------------------------------------------------------------------

    async def decide(
        self, effect_id: EffectId, *, happened: bool, result_wire: bytes | None, by: str, at_us: int
    ) -> Decided:
        """Decide an uncertain effect once; see `Store.decide`."""
        row = _found(await self.inner.read_effect(effect_id), "effect", effect_id)
        seals = await self._current_seals(_where(row))
        decided = await self.inner.decide(
            effect_id,
            happened=happened,
            result_wire=rows.sealed_decision(effect_id, result_wire, seals),
            by=rows.sealed_decider(effect_id, by, seals),
            at_us=at_us,
        )
        return replace(decided, row=rows.unsealed_effect(decided.row, seals))

    async def read_effect(self, effect_id: EffectId) -> EffectRow | None:
        """Return the effect, or None."""
        found = await self.inner.read_effect(effect_id)
        return None if found is None else (await self._plain_effects([found]))[0]

    async def read_effect_by_key(self, tenant: TenantId, business_key: str) -> EffectRow | None:
        """Return the effect that holds the business key, or None."""
        if not await self._has_keys(tenant):
            return None
        name = (await self._tenant_seals(tenant)).seal_name(business_key, "business key")
        found = await self.inner.read_effect_by_key(tenant, name)
        return None if found is None else (await self._plain_effects([found]))[0]

    async def find_effects(self, query: EffectQuery) -> list[EffectRow]:
        """Return effects, newest change first."""
        return await self._plain_effects(await self.inner.find_effects(query))

    async def _plain_effects(self, found: list[EffectRow]) -> list[EffectRow]:
        return await self._reading(
            map(_where, found), lambda of: [rows.unsealed_effect(r, of(_where(r))) for r in found]
        )

    # -- schedules ---------------------------------------------------------------------------------

    async def put_schedule(self, row: ScheduleRow, *, expected: int) -> bool:
        """Write the schedule if the stored one has this revision; see `Store.put_schedule`."""
        seals = await self._tenant_seals(row.tenant, make=True)
        return await self.inner.put_schedule(rows.sealed_schedule(row, seals), expected=expected)

    async def find_schedules(
        self, *, tenant: TenantId | None = None, due_us: int | None = None, limit: int = 100_000
    ) -> list[ScheduleRow]:
        """Return schedules by `next_at_us`; see `Store.find_schedules`.

        Of those that are due, one that can't be unsealed is passed over and logged: it must not
        keep the others from being fired. A list of all says what is wrong.
        """
        found = await self.inner.find_schedules(tenant=tenant, due_us=due_us, limit=limit)
        plain = []
        for row in found:
            try:
                plain.append(rows.unsealed_schedule(row, await self._tenant_seals(row.tenant)))
            except (SealBroken, KeyMissing) as error:
                if due_us is None:
                    raise
                self._tell(f"schedule {row.name} of tenant {row.tenant}", error)
        return plain


def _is_late(outcome: Started | Exception) -> bool:
    """Return whether a start was sealed with a key that is not the newest any more."""
    return isinstance(outcome, Conflict) and "sealed_by" in outcome.fields


def _where(row: Place) -> Where:
    return row.tenant, row.thread


def _found(row: Found | None, what: str, name: str) -> Found:
    if row is None:
        msg = f"no {what} {name!r}; nothing was written"
        raise NotFound(msg, **{f"{what}_id": name})
    return row


def _mail_in(change: Change) -> Mail | None:
    if type(change) is MailPosted:
        return change.mail
    return change.mail_to_parent if type(change) is RunEnded else None


def _sealed_change(
    change: Change,
    run_id: RunId,
    own: Seals,
    sealed_mail: Callable[[Mail], Mail],
    sealed_run: Callable[[NewRun], NewRun],
) -> Change:
    """Return a change as it is stored; those that hold nothing of users are as they were."""
    if type(change) is EffectPut:
        return replace(change, row=rows.sealed_effect(change.row, own))
    if type(change) is RunReleased:
        waits = tuple(rows.sealed_wait(wait, run_id, own) for wait in change.waits)
        failure = rows.sealed_failure(change.failure, run_id, own)
        return replace(change, waits=waits, failure=failure)
    if type(change) is RunEnded:
        mail = change.mail_to_parent
        failure = rows.sealed_failure(change.failure, run_id, own)
        mail = None if mail is None else sealed_mail(mail)
        return replace(change, failure=failure, mail_to_parent=mail)
    if type(change) is AskPut:
        return replace(change, row=rows.sealed_ask(change.row, own))
    if type(change) is MailPosted:
        return replace(change, mail=sealed_mail(change.mail))
    if type(change) is RunSpawned:
        return replace(change, run=sealed_run(change.run))
    if type(change) is PagesPut:
        return replace(change, pages=rows.sealed_pages(change.pages, own))
    return change


def _renamed(error: Exception, stored: NewRun, given: NewRun) -> Exception:
    """Return the refusal of a start with the key that was given instead of the stored one."""
    if type(error) is not StartKeyReused or stored.start_key is None:
        return error
    message = str(error).replace(stored.start_key, given.start_key or "")
    return StartKeyReused(message, **{**error.fields, "start_key": given.start_key})


def _renamed_taken(outcome: AppendOutcome, seals: Seals) -> AppendOutcome:
    if type(outcome) is not KeyTaken:
        return outcome
    name = seals.unseal_name(outcome.business_key, "business key")
    return replace(outcome, business_key=name)
