"""The PostgreSQL store: the protocol's coroutines, each one statement on a connection.

Appends, small calls and heartbeats have connections of their own (`_lanes`), news another
(`_news`), and each transaction of a user one more (`_transaction`). What a write does is in SQL
functions (`sql/0003_writes.sql`): one round trip each.

Size: one method for each of the protocol.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import psycopg
from msgspec.structs import astuple, replace

from perdure.clock import Services
from perdure.core.room import Room
from perdure.errors import PerdureError, StoreCorrupt, StoreUnavailable
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    Appended,
    AppendOutcome,
    AskRow,
    EffectRow,
    Fenced,
    FrameRow,
    KeyRow,
    LimitRow,
    LimitState,
    Mail,
    NewRun,
    Page,
    RunRow,
    RunStatus,
    ScheduleRow,
    Started,
    ThreadRow,
    WorkerRow,
)
from perdure.store import _rows as rows
from perdure.store import _rules as rules
from perdure.store._watch import ChangeWatch
from perdure.store.api import (
    CROSS_PROCESS,
    DURABLE,
    LIVENESS,
    REMOTE,
    TRANSACTION,
    Answered,
    AskQuery,
    Decided,
    EffectQuery,
    RunQuery,
    Transaction,
)
from perdure.store.postgres import _orders as orders
from perdure.store.postgres import _queries as queries
from perdure.store.postgres import _transaction
from perdure.store.postgres._death import is_gone
from perdure.store.postgres._erasing import PostgresErasing, refusal
from perdure.store.postgres._errors import map_error
from perdure.store.postgres._lanes import Lanes, connect, run
from perdure.store.postgres._news import LOCK_KEY, News, channel_of
from perdure.store.postgres._orders import ClaimOrder, LimitedClaim
from perdure.store.postgres._prepared import Prepared
from perdure.store.postgres._retention import PostgresRetention
from perdure.store.postgres._rewriting import rewriting
from perdure.store.postgres._schema import migrate, version_of
from perdure.store.postgres._time import SERVER_TIME, ServerTime
from perdure.store.postgres._url import parse_url
from perdure.store.postgres._wire import (
    AppendWire,
    Blob,
    as_json,
    mail_wire,
    pages_wire,
    run_wire,
    text_in,
)
from perdure.store.postgres.limits import (
    CLAIM_WINDOW,
    LANES_MAX,
    LOOK_S_MAX,
    LOOK_SHARE_S,
    LOOKERS_FREE,
    NOTIFY_LATER_S,
    NOTIFY_SOON_S,
    RENEW_AGAIN_S,
    SESSIONS_MAX,
    STRIKE_S,
    UNREADABLE_PAUSE_US,
    WORKER_FORGOTTEN_US,
)
from perdure.store.rewriting import Rewriting

log = logging.getLogger("perdure")

_APPENDED = Appended()


class _Open:
    """What an open store holds."""

    def __init__(self, writes: Lanes, calls: Lanes, urgent: Lanes, news: News) -> None:
        self.writes = writes
        self.calls = calls
        self.urgent = urgent
        self.news = news

    async def close(self) -> None:
        await self.news.close()
        for lanes in (self.writes, self.calls, self.urgent):
            await lanes.close()


class PostgresStore(PostgresRetention, PostgresErasing):
    """A store in one schema of a PostgreSQL database (15 or newer).

    URL: `postgresql://user:password@host:port/database`; own options in the query: `schema`
        (`perdure`), `liveness` (`on`; `off` behind a pooler that shares connections between
        transactions), `flush_delay_ms` (stands for a slow disk in benchmarks). All other options
        are libpq's.

    One object serves one event loop; any number of objects, processes and hosts may use the schema.
    """

    def __init__(self, url: str, services: Services) -> None:
        """Read the URL; `open` connects.

        Raises:
            SettingInvalid: the URL can't be read, or has an option out of range.
        """
        self._options = parse_url(url)
        self.place = self._options.place
        capabilities = {TRANSACTION, CROSS_PROCESS, DURABLE, REMOTE}
        self.capabilities = frozenset(
            capabilities | ({LIVENESS} if self._options.has_liveness else set())
        )
        self._services = services
        self._watch = ChangeWatch(services.clock)
        self._time = ServerTime(services.clock)
        self._append = Prepared(
            "perdure_append",
            queries.APPEND_TYPES,
            queries.of(queries.APPEND_PREPARED, self._options),
        )
        self._name = ""
        self._open: _Open | None = None
        self._notice: asyncio.Task[None] | None = None
        self._notice_at_s = 0.0
        self._sessions = asyncio.Semaphore(SESSIONS_MAX)
        self._next_look_s = 0.0
        self._workers: dict[WorkerId, WorkerRow] = {}

    # -- life --------------------------------------------------------------------------------------

    async def is_there(self) -> bool:
        """Return whether the database has the schema; creates nothing.

        Raises:
            StoreForeign, StoreSchemaNewer: it holds something else, or is of a newer Perdure.
            StoreUnavailable: the server can't be reached.
        """
        connection = await connect(self._options, plain=True)
        try:
            return await version_of(connection, self._options) is not None
        except psycopg.Error as error:
            raise map_error(error, self._options.place) from error
        finally:
            await connection.close()

    async def open(self) -> None:
        """Connect, make the schema, or migrate an older one. Idempotent.

        Raises:
            StoreForeign: the schema holds other tables than Perdure's.
            StoreSchemaNewer: written by a newer Perdure.
            StoreReadOnly: the role may not create the schema, or the server is a replica.
            StoreUnavailable: the server can't be reached.
        """
        if self._open is not None:
            return
        options, services = self._options, self._services
        connection = await connect(options, plain=True)
        try:
            await migrate(connection, options)
            await self._time.ask(lambda: run(connection, SERVER_TIME))
        except psycopg.Error as error:
            raise map_error(error, options.place) from error
        finally:
            await connection.close()
        self._name = services.ids.new("s", services.clock.now_us())
        news = News(
            options, services, own_name=self._name, heard=self._watch.bump, proven=self._prove
        )
        await news.start()
        self._open = _Open(
            writes=Lanes(options, services, most=1),
            calls=Lanes(options, services, most=LANES_MAX),
            urgent=Lanes(options, services, most=1),
            news=news,
        )

    async def close(self) -> None:
        """Finish what was handed in, close the connections, let go of the locks. Idempotent."""
        if self._open is None:
            return
        open_, self._open = self._open, None
        self._watch.bump()  # nobody waits for a closed store
        if self._notice is not None:
            self._notice.cancel()
            await asyncio.gather(self._notice, return_exceptions=True)
            with suppress(PerdureError):
                await self._notify(open_)
        await open_.close()

    async def check(self) -> list[str]:
        """Return what is wrong with the store; empty: nothing that is seen from here."""
        await self._call("check", "SELECT 1 FROM @.runs LIMIT 1")
        return []

    def _now_open(self) -> _Open:
        if self._open is None:
            msg = f"the store {self.place} is not open; nothing was written. Call open() first"
            raise StoreUnavailable(msg)
        return self._open

    def _call(self, name: str, sql: str, params: Any = (), *, is_write: bool = False) -> Any:
        return self._now_open().calls.call(
            name, queries.of(sql, self._options), params, is_write=is_write
        )

    def _calls(self) -> Lanes:
        return self._now_open().calls

    async def _write(self, name: str, sql: str, params: Any) -> list[tuple[Any, ...]]:
        """Call a write that others may want to know of."""
        found: list[tuple[Any, ...]] = await self._call(name, sql, params, is_write=True)
        self._tell(NOTIFY_SOON_S)
        return found

    def now_us(self) -> int:
        """Return the server's time, by this host's monotonic clock since it was asked last."""
        return self._time.now_us()

    def rewriting(self) -> AbstractAsyncContextManager[Rewriting]:
        """Begin a transaction over the whole schema; see `RewritableStore.rewriting`."""
        return rewriting(self._options, self.now_us, self.scrub)

    # -- telling others ----------------------------------------------------------------------------

    def _tell(self, within_s: float, *, here: bool = True) -> None:
        """Wake waiters of this object, and soon those of others: off the path of the write."""
        if here:
            self._watch.bump()
        now_s = self._services.clock.monotonic_s()
        if self._notice is not None and not self._notice.done():
            if self._notice_at_s <= now_s + within_s:
                return
            self._notice.cancel()
        self._notice_at_s = now_s + within_s
        self._notice = asyncio.create_task(self._notify_later(within_s), name="perdure-notify")

    async def _notify_later(self, within_s: float) -> None:
        await self._services.clock.sleep(within_s)
        with suppress(PerdureError):  # others look for themselves, later
            await self._notify(self._now_open())

    async def _notify(self, open_: _Open) -> None:
        await open_.urgent.call(
            "notify", "SELECT pg_notify(%s, %s)", (channel_of(self._options.schema), self._name)
        )

    # -- writing -----------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started | Exception]:
        """Create runs, each with its first journal record; see `Store.start`."""
        blob = Blob()
        wire = as_json([run_wire(run, blob) for run in runs])
        paged = [(run.tenant, pages_wire(run.pages, blob)) for run in runs if run.pages]
        if paged:
            params = (wire, blob.bytes(), as_json(paged), self.now_us())
            found = await self._write("start", queries.START_PAGED, params)
        else:
            found = await self._write("start", queries.START, (wire, blob.bytes()))
        return [self._started(run, row) for run, row in zip(runs, found, strict=True)]

    @staticmethod
    def _started(run: NewRun, found: tuple[Any, ...]) -> Started | Exception:
        outcome, cancelled, *values = found
        refused = refusal(run, outcome)
        if refused is not None:
            return refused
        row = rows.run_row(values)
        if outcome == "known":
            return rules.known_start(run, row)
        if outcome == "busy":
            return rules.thread_busy(run, row)
        return Started(
            row=row,
            created=True,
            taken=row.status is RunStatus.RUNNING,
            cancelled=tuple(cancelled),
        )

    async def append(self, batch: Sequence[Append]) -> list[AppendOutcome]:
        """Write the frames and changes of many runs in one commit; see `Store.append`."""
        writes = self._now_open().writes
        outcomes: list[AppendOutcome] = []
        refused: set[tuple[RunId, int]] = set()
        # A run is once in a batch, which is one commit; where a worker took it over from itself it
        # is there twice, and the second goes after the first.
        for part in _without_repeats(batch):
            sent = [item for item in part if (item.run_id, item.token) not in refused]
            found = await writes.send("append", self._append, AppendWire(sent).encoded())
            fates = {sent[row[0]].run_id: queries.refusal(row) for row in found}
            for item in part:
                if (item.run_id, item.token) in refused:
                    outcomes.append(await self._fenced(item.run_id))
                else:
                    outcomes.append(fates.get(item.run_id, _APPENDED))
            refused |= {(item.run_id, item.token) for item in part if item.run_id in fates}
        is_waking = rules.wakes_others(batch)
        self._tell(NOTIFY_SOON_S if is_waking else NOTIFY_LATER_S, here=is_waking)
        return outcomes

    async def _fenced(self, run_id: RunId) -> Fenced:
        row = await self.read_run(run_id)
        if row is None:
            return Fenced(token=0, holder=None, last_seq=0)
        return Fenced(token=row.token, holder=row.holder, last_seq=row.last_seq)

    async def put_pages(self, tenant: TenantId, pages: Sequence[Page]) -> None:
        """Store pages; see `Store.put_pages`."""
        blob = Blob()
        wire = as_json(pages_wire(pages, blob))
        params = (tenant, wire, blob.bytes(), self.now_us())
        await self._call("put_pages", queries.PUT_PAGES, params, is_write=True)

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys; see `Store.put_keys`."""
        if not keys:
            return []
        columns = [list(column) for column in zip(*map(astuple, keys), strict=True)]
        await self._call("put_keys", queries.PUT_KEYS, columns, is_write=True)
        # A statement of its own, which sees what another writer committed meanwhile.
        found = await self.read_keys([(key.tenant, key.scope) for key in keys])
        standing = {rules.key_order(key): key for key in found}
        return [standing[rules.key_order(key)] for key in keys]

    async def rewrap_key(self, key: KeyRow, *, expected: bytes) -> bool:
        """Wrap a data key anew; see `Store.rewrap_key`."""
        new = (key.wrapped, key.wrapped_by)
        params = (*new, *rules.key_order(key), key.key_id, expected)
        await self._call("rewrap_key", queries.REWRAP_KEY, params, is_write=True)
        found = await self.read_keys([(key.tenant, key.scope)])
        return any(
            (each.number, each.key_id, each.wrapped) == (key.number, key.key_id, key.wrapped)
            for each in found
        )

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[Append]],
        *,
        run_id: RunId,
        token: int,
    ) -> AppendOutcome:
        """Run `body` in a transaction and commit it with its append; see `Store.transact`."""
        self._now_open()
        async with self._sessions:
            outcome = await _transaction.transact(
                self._options, body, run_id=run_id, token=token, probe=self._services.probe
            )
        self._tell(NOTIFY_LATER_S)
        return outcome

    async def claim(
        self,
        worker_id: WorkerId,
        graphs: Sequence[tuple[str, int]],
        *,
        now_us: int,
        lease_until_us: int,
        limit: int,
    ) -> list[RunRow]:
        """Take up to `limit` claimable runs of these graphs; see `Store.claim`."""
        served = as_json(list(graphs))
        params = (worker_id, served, now_us, lease_until_us, limit, CLAIM_WINDOW)
        found = await self._call("claim", queries.CLAIM, params, is_write=True)
        if found and found[0][0] is None:
            order = ClaimOrder(
                worker_id=worker_id,
                graphs=served,
                now_us=now_us,
                lease_until_us=lease_until_us,
                limit=limit,
            )
            by_limits = LimitedClaim(self._options, order)
            found = await self._now_open().calls.work("claim", by_limits)
        taken = await self._readable(found, now_us)
        if taken:
            self._tell(NOTIFY_LATER_S)
        return taken

    async def _readable(self, found: list[tuple[Any, ...]], now_us: int) -> list[RunRow]:
        """Return the rows of a claim; one that is damaged is let go, and not due for a while."""
        taken: list[RunRow] = []
        for row in found:
            try:
                taken.append(rows.run_row(row))
            except StoreCorrupt as error:
                log.error("a run is passed over for a minute: %s", error)  # noqa: TRY400  # a state of the data, no fault of the code
                until_us = now_us + UNREADABLE_PAUSE_US
                await self._call("claim", queries.POSTPONE, (until_us, row[0]), is_write=True)
        return taken

    async def take(
        self, run_id: RunId, worker_id: WorkerId, *, token: int, now_us: int, lease_until_us: int
    ) -> RunRow | None:
        """Claim this one run; see `Store.take`."""
        params = (run_id, worker_id, token, now_us, lease_until_us)
        found = await self._write("claim", queries.TAKE, params)
        return rows.run_row(found[0]) if found else None

    async def renew(
        self,
        worker_id: WorkerId,
        held: Sequence[tuple[RunId, int]],
        *,
        now_us: int,
        lease_until_us: int,
    ) -> set[RunId]:
        """Extend the leases and the heartbeat; return the runs that are lost."""
        sql = queries.of(queries.RENEW, self._options)
        urgent = self._now_open().urgent
        asked, lost = list(held), set[RunId]()
        for pause_s in (*RENEW_AGAIN_S, 0.0):
            params = (worker_id, as_json(asked), now_us, lease_until_us)
            found = await urgent.call("renew", sql, params, is_write=True)
            kept = {(RunId(run_id), token): is_renewed for run_id, token, is_renewed in found}
            lost |= {run_id for run_id, token in asked if (run_id, token) not in kept}
            asked = [pair for pair, is_renewed in kept.items() if not is_renewed]
            if not asked:
                break
            await self._services.clock.sleep(pause_s)
        await self._time.ask(lambda: urgent.call("time", SERVER_TIME))
        return lost

    async def post(self, mail: Mail) -> RunRow:
        """Store a message for an unfinished run and wake it; see `Store.post`."""
        blob = Blob()
        wire = as_json(mail_wire(mail, blob))
        found = await self._write("post", queries.POST, (wire, blob.bytes()))
        is_repeat, *values = found[0] if found else (False,)
        row = rows.run_row(values) if values else None
        return row if row is not None and is_repeat else rules.checked_target(mail.run_id, row)

    async def answer(self, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
        """Answer an open ask once; see `Store.answer`."""
        sql = "SELECT @.answer(%s::text, %s::bytea, %s::text, %s::bigint)"
        params = (ask_id, value_wire, text_in(by), at_us)
        [(accepted,)] = await self._write("answer", sql, params)
        row = rules.found(await self.read_ask(ask_id), "ask", ask_id)
        return Answered(row=row, accepted=bool(accepted))

    async def decide(
        self,
        effect_id: EffectId,
        *,
        happened: bool,
        result_wire: bytes | None,
        by: str,
        at_us: int,
    ) -> Decided:
        """Decide an uncertain effect once; see `Store.decide`."""
        known = rules.found(await self.read_effect(effect_id), "effect", effect_id)
        mail = rules.decision_mail(
            known, happened=happened, result_wire=result_wire, by=by, at_us=at_us
        )
        sql = "SELECT @.decide(%s::text, %s::text, %s::text, %s::bigint, %s::bytea, %s::text)"
        params = (
            effect_id,
            rules.decision_of(happened=happened),
            text_in(by),
            at_us,
            mail.body_wire,
            text_in(mail.post_id),
        )
        [(accepted,)] = await self._write("decide", sql, params)
        row = rules.found(await self.read_effect(effect_id), "effect", effect_id)
        return Decided(row=row, accepted=bool(accepted))

    async def expire(self, ask_id: AskId, *, at_us: int) -> AskRow:
        """Close an open ask as expired, unless it was answered; see `Store.expire`."""
        await self._write("expire", "SELECT @.expire(%s::text, %s::bigint)", (ask_id, at_us))
        return rules.found(await self.read_ask(ask_id), "ask", ask_id)

    # -- workers -----------------------------------------------------------------------------------

    async def register_worker(self, row: WorkerRow) -> None:
        """Take the worker's lock, then make it known."""
        liveness = await self._now_open().news.hold(row.worker_id)
        self._workers[row.worker_id] = row
        await self._put_worker(replace(row, liveness=liveness))

    async def _prove(self, worker_id: WorkerId, liveness: str) -> None:
        """Make a worker known by its new lock; it may have been taken for dead meanwhile."""
        known = self._workers.get(worker_id)
        if known is not None:
            await self._put_worker(replace(known, liveness=liveness, seen_at_us=self.now_us()))

    async def _put_worker(self, row: WorkerRow) -> None:
        params = queries.worker_params(row) | {"oldest": row.seen_at_us - WORKER_FORGOTTEN_US}
        await self._write("register", queries.PUT_WORKER, params)

    async def forget_worker(self, worker_id: WorkerId) -> None:
        """Remove the worker and its lock; runs that it still holds become claimable at once."""
        self._workers.pop(worker_id, None)
        await self._drop_workers([worker_id])
        await self._now_open().news.let_go(worker_id)

    async def release_dead(self) -> list[WorkerId]:
        """Make the runs of workers that died claimable at once, on whichever host; return who.

        All workers share the looking: the more there are, the less often each of them asks.
        """
        now_s = self._services.clock.monotonic_s()
        if not self._options.has_liveness or now_s < self._next_look_s:
            return []
        suspects = await self._find_dead()
        if not suspects:
            return []
        gone = [worker_id for worker_id, machine, pid in suspects if is_gone(machine, pid)]
        if gone:
            return await self._drop_dead(gone, is_proven=True)
        await self._services.clock.sleep(STRIKE_S)
        still = [worker_id for worker_id, _machine, _pid in await self._find_dead()]
        return await self._drop_dead(still, is_proven=False) if still else []

    def _by_lock(self, sql: str) -> str:
        key = LOCK_KEY.format(schema=f"'{self._options.schema}'", worker="w.worker_id")
        return sql.format(key=key)

    async def _find_dead(self) -> list[tuple[WorkerId, str, int]]:
        """Return workers whose lock is gone: id, machine and process id."""
        sql = queries.of(self._by_lock(queries.FIND_DEAD), self._options)
        found = await self._now_open().urgent.call("find_dead", sql)
        if len(found) > LOOKERS_FREE:
            pause_s = LOOK_SHARE_S * len(found) * self._services.rng.uniform(0.5, 1.5)
            self._next_look_s = self._services.clock.monotonic_s() + min(pause_s, LOOK_S_MAX)
        return [(WorkerId(row[0]), row[2], row[3]) for row in found if row[1]]

    async def _drop_dead(self, suspects: list[WorkerId], *, is_proven: bool) -> list[WorkerId]:
        """Drop those of the suspects that still have no lock."""
        params = (suspects, self.now_us(), is_proven)
        found = await self._write("forget", self._by_lock(queries.DROP_DEAD), params)
        return [WorkerId(row[0]) for row in found]

    async def _drop_workers(
        self, worker_ids: list[WorkerId], *, is_proven: bool = True
    ) -> list[WorkerId]:
        params = (worker_ids, self.now_us(), is_proven)
        found = await self._write("forget", queries.DROP_WORKERS, params)
        return [WorkerId(row[0]) for row in found]

    async def find_workers(self) -> list[WorkerRow]:
        """Return all known workers, oldest first."""
        found = await self._call("find_workers", queries.FIND_WORKERS)
        return [rows.worker_row(row) for row in found]

    # -- waiting for others ------------------------------------------------------------------------

    def change_mark(self) -> int:
        """Return how many writes this object knows of; see `Store.change_mark`."""
        return self._watch.mark

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Return True soon after anybody wrote; see `Store.wait_for_change`."""
        self._now_open()
        return await self._watch.wait(timeout_s, since)

    async def next_ready_at(
        self, graphs: Sequence[tuple[str, int]], *, after_us: int = 0
    ) -> int | None:
        """Return when a claim of these graphs may find more; see `Store.next_ready_at`."""
        params = {"graphs": as_json(list(graphs)), "after": after_us}
        [(ready_at, has_buckets)] = await self._call("next_ready", queries.NEXT_READY, params)
        token_at = None
        if has_buckets:
            token_at = Room(await self.read_limits(), after_us).next_token_at(after_us)
        return min((at for at in (ready_at, token_at) if at is not None), default=None)

    # -- limits and schedules ----------------------------------------------------------------------

    async def set_limit(self, limit: LimitRow) -> None:
        """Insert or replace the limit; see `Store.set_limit`."""
        await self._write("limit", orders.SET_LIMIT, astuple(limit))

    async def drop_limit(self, tenant: TenantId, graph: str) -> bool:
        """Remove the limit; return whether there was one."""
        return bool(await self._write("limit", orders.DROP_LIMIT, (tenant, graph)))

    async def read_limits(self) -> LimitState:
        """Return the limits, and what they count, as of one moment."""
        return orders.limit_state(await self._call("limits", orders.READ_LIMITS))

    async def put_schedule(self, row: ScheduleRow, *, expected: int) -> bool:
        """Write the schedule if the stored one has this revision; see `Store.put_schedule`."""
        params = orders.schedule_params(row, expected=expected)
        if await self._write("schedule", orders.PUT_SCHEDULE, params):
            return True
        known = await self._one("schedule", orders.READ_SCHEDULE, row.tenant, row.name)
        return known is not None and orders.schedule_of(known) == row

    async def drop_schedule(self, tenant: TenantId, name: str) -> bool:
        """Remove a schedule; return whether there was one."""
        return bool(await self._write("schedule", orders.DROP_SCHEDULE, (tenant, name)))

    async def find_schedules(
        self, *, tenant: TenantId | None = None, due_us: int | None = None, limit: int = 100_000
    ) -> list[ScheduleRow]:
        """Return schedules by `next_at_us`; see `Store.find_schedules`."""
        params = {"tenant": tenant, "due": due_us, "limit": rules.limit_of(limit)}
        found = await self._call("schedules", orders.FIND_SCHEDULES, params)
        return [orders.schedule_of(row) for row in found]

    # -- reading -----------------------------------------------------------------------------------

    async def _one(self, name: str, sql: str, *params: Any) -> tuple[Any, ...] | None:
        found = await self._call(name, sql, params)
        return found[0] if found else None

    async def read_run(self, run_id: RunId) -> RunRow | None:
        """Return the run's row, or None."""
        found = await self._one("read_run", queries.READ_RUN, run_id)
        return None if found is None else rows.run_row(found)

    async def find_runs(self, query: RunQuery) -> list[RunRow]:
        """Return rows, newest first."""
        found = await self._call("find_runs", *queries.find_runs(query))
        return [rows.run_row(row) for row in found]

    async def read_thread(self, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
        """Return the thread's row, or None."""
        found = await self._one("thread", queries.READ_THREAD, tenant, thread)
        return None if found is None else rows.thread_row(found)

    async def read_thread_runs(
        self, tenant: TenantId, thread: ThreadId, *, from_ordinal: int
    ) -> list[RunRow]:
        """Return the thread's runs with at least this ordinal, by ordinal."""
        params = (tenant, thread, from_ordinal)
        found = await self._call("thread_runs", queries.READ_THREAD_RUNS, params)
        return [rows.run_row(row) for row in found]

    async def read_frames(
        self, run_id: RunId, *, from_seq: int = 1, limit: int | None = None
    ) -> list[FrameRow]:
        """Return the frames with the records from `from_seq` on; see `Store.read_frames`."""
        params = {"run": run_id, "seq": from_seq, "limit": limit}
        found = await self._call("frames", queries.READ_FRAMES, params)
        return queries.frames_of(run_id, found, from_seq=from_seq, limit=limit)

    async def scan_frames(self, run_id: RunId, *, from_seq: int, limit: int) -> list[FrameRow]:
        """Return stored frames as they are; see `Store.scan_frames`."""
        found = await self._call("scan", queries.SCAN_FRAMES, (run_id, from_seq, limit))
        return [rows.frame_row(run_id, row) for row in found]

    async def read_mail(self, run_id: RunId, *, after: int = 0) -> list[Mail]:
        """Return the run's unread messages with an id above `after`, in order of arrival."""
        found = await self._call("mail", queries.READ_MAIL, (run_id, after))
        return [queries.mail_of(row) for row in found]

    async def read_held_mail(self, worker_id: WorkerId, *, seen: Mapping[RunId, int]) -> list[Mail]:
        """Return unread messages to runs that the worker holds; see `Store.read_held_mail`."""
        params = (as_json(dict(seen)), worker_id)
        found = await self._call("held_mail", queries.READ_HELD_MAIL, params)
        return [queries.mail_of(row) for row in found]

    async def read_pages(self, tenant: TenantId, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the tenant's pages by hash; see `Store.read_pages`."""
        return dict(await self._call("pages", queries.READ_PAGES, (tenant, list(set(hashes)))))

    async def read_keys(
        self,
        scopes: Sequence[tuple[TenantId, str]] | None = None,
        *,
        after: tuple[TenantId, str, int] | None = None,
        limit: int = 100_000,
    ) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number); see `Store.read_keys`."""
        most = rules.limit_of(limit)
        if scopes is None:
            start = after or (None, None, None)
            params = dict(zip(("tenant", "scope", "number"), start, strict=True)) | {"limit": most}
            found = await self._call("keys", queries.FIND_KEYS, params)
        else:
            lists = [tenant for tenant, _ in scopes], [scope for _, scope in scopes]
            found = await self._call("keys", queries.READ_KEYS, lists)
        keys = [rows.key_row(row) for row in found]
        return [key for key in keys if after is None or rules.key_order(key) > after][:most]

    async def read_ask(self, ask_id: AskId) -> AskRow | None:
        """Return the ask, or None."""
        found = await self._one("ask", queries.READ_ASK, ask_id)
        return None if found is None else queries.ask_of(found)

    async def find_asks(self, query: AskQuery) -> list[AskRow]:
        """Return asks, oldest first."""
        found = await self._call("asks", *queries.find_asks(query))
        return [queries.ask_of(row) for row in found]

    async def read_effect(self, effect_id: EffectId) -> EffectRow | None:
        """Return the effect, or None."""
        found = await self._one("effect", queries.READ_EFFECT, effect_id)
        return None if found is None else queries.effect_of(found)

    async def read_effect_by_key(self, tenant: TenantId, business_key: str) -> EffectRow | None:
        """Return the effect that holds the business key, or None."""
        found = await self._one("effect_by_key", queries.READ_EFFECT_BY_KEY, tenant, business_key)
        return None if found is None else queries.effect_of(found)

    async def find_effects(self, query: EffectQuery) -> list[EffectRow]:
        """Return effects, newest change first."""
        found = await self._call("effects", *queries.find_effects(query))
        return [queries.effect_of(row) for row in found]


def _without_repeats(batch: Sequence[Append]) -> Iterator[list[Append]]:
    """Yield consecutive parts of the batch with each run at most once."""
    part: list[Append] = []
    seen: set[RunId] = set()
    for item in batch:
        if item.run_id in seen:
            yield part
            part, seen = [], set()
        part.append(item)
        seen.add(item.run_id)
    if part:
        yield part
