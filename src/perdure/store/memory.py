"""Runs in this process's memory, by the same transactional rules as any other store.

Rows are frozen values in dictionaries (`_memory_tables`); what each write does to them is in
`_memory_writes`. One lock makes each operation atomic, also between objects that share a store from
several event loops; an operation that raises leaves nothing behind.

`memory://` is private to the object; `memory://name` is shared by all objects of the process that
name it and lives as long as the process. Nothing here survives the process, and `transact` is not
offered.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from perdure.clock import Services
from perdure.core.room import Room
from perdure.errors import SettingInvalid, StoreUnavailable, UsageError
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    AppendOutcome,
    AskRow,
    EffectRow,
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
from perdure.store import _memory_orders as orders
from perdure.store import _memory_writes as writes
from perdure.store import _rules as rules
from perdure.store._memory_erasing import MemoryErasing
from perdure.store._memory_retention import MemoryRetention
from perdure.store._memory_tables import Tables
from perdure.store._watch import ChangeWatch
from perdure.store.api import (
    Answered,
    AskQuery,
    Capability,
    Decided,
    EffectQuery,
    RunQuery,
    Transaction,
)

_shared: dict[str, Tables] = {}

Key = TypeVar("Key")
Row = TypeVar("Row")


class MemoryStore(MemoryRetention, MemoryErasing):
    """A store in memory: `memory://` for this object alone, `memory://name` shared."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, url: str, services: Services) -> None:
        """Read the URL.

        Raises:
            SettingInvalid: the URL says more than a name.
        """
        parts = urlsplit(url)
        if parts.path or parts.query:
            msg = f"{url!r} says more than a name; write 'memory://' or 'memory://name'"
            raise SettingInvalid(msg, url=url)
        self.url = url
        self.place = url
        self._services = services
        self._tables = _shared.setdefault(parts.netloc, Tables()) if parts.netloc else Tables()
        self._watch = ChangeWatch(services.clock)
        self._is_open = False

    # -- life --------------------------------------------------------------------------------------

    async def is_there(self) -> bool:
        """Return True: a memory store is there as soon as it is named."""
        return True

    async def open(self) -> None:
        """Begin to hear of writes. Idempotent."""
        if not self._is_open:
            self._is_open = True
            loop = asyncio.get_running_loop()
            self._tables.listeners[self] = (loop, self._watch.bump)

    async def close(self) -> None:
        """Stop hearing of writes; the rows stay as long as the object or the name. Idempotent."""
        self._is_open = False
        self._tables.listeners.pop(self, None)
        self._watch.bump()

    async def check(self) -> list[str]:
        """Return what is wrong with the store: nothing ever."""
        return []

    def _check_open(self) -> None:
        if not self._is_open:
            msg = f"the store {self.url!r} is not open; nothing was written. Call open() first"
            raise StoreUnavailable(msg, url=self.url)

    @asynccontextmanager
    async def _write(self, name: str) -> AsyncIterator[Tables]:
        """Give the tables for one transaction, with its crash points; tell all afterwards."""
        await self._services.clock.sleep(0)  # others get a turn, as with a store that has a disk
        self._check_open()
        tables, probe = self._tables, self._services.probe
        probe(f"store.{name}.before")
        before = tables.writes
        with tables.transaction():
            yield tables
            probe(f"store.{name}.during")
        if tables.writes != before and name != "renew":
            if name != "append":  # which says so itself, if it concerns others
                self._watch.bump()
            tables.tell_others(self)
        probe(f"store.{name}.after")

    def now_us(self) -> int:
        """Return the time by this host's clock; see `Store.now_us`."""
        return self._services.clock.now_us()

    # -- writing -----------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started | Exception]:
        """Create runs, each with its first journal record; see `Store.start`."""
        async with self._write("start") as tables:
            return [writes.start_one(tables, run) for run in runs]

    async def append(self, batch: Sequence[Append]) -> list[AppendOutcome]:
        """Write the frames and changes of many runs at once; see `Store.append`."""
        async with self._write("append") as tables:
            outcomes = writes.append(tables, batch)
        if rules.wakes_others(batch):
            self._watch.bump()
        return outcomes

    async def put_pages(self, tenant: TenantId, pages: Sequence[Page]) -> None:
        """Store pages; see `Store.put_pages`."""
        async with self._write("put_pages") as tables:
            writes.put_pages(tables, tenant, pages)

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys; see `Store.put_keys`."""
        async with self._write("put_keys") as tables:
            for key in keys:
                if rules.key_order(key) not in tables.keys:
                    tables.put(tables.keys, rules.key_order(key), key)
            return [tables.keys[rules.key_order(key)] for key in keys]

    async def rewrap_key(self, key: KeyRow, *, expected: bytes) -> bool:
        """Wrap a data key anew; see `Store.rewrap_key`."""
        async with self._write("rewrap_key") as tables:
            found = tables.keys.get(rules.key_order(key))
            if found is None or found.key_id != key.key_id:
                return False
            if found.wrapped == expected:
                new = replace(found, wrapped=key.wrapped, wrapped_by=key.wrapped_by)
                tables.put(tables.keys, rules.key_order(key), new)
            return tables.keys[rules.key_order(key)].wrapped == key.wrapped

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[Append]],  # noqa: ARG002  # the protocol's
        *,
        run_id: RunId,
        token: int,  # noqa: ARG002  # the protocol's
    ) -> AppendOutcome:
        """Refuse: there is no database to write to beside the journal."""
        msg = (
            f"run {run_id!r}: the memory store has no transactions (capability 'transaction'); "
            "nothing was written. Use a sqlite:// store for effects of kind 'transaction'"
        )
        raise UsageError(msg, run_id=run_id)

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
        async with self._write("claim") as tables:
            return writes.claim(
                tables,
                worker_id,
                graphs,
                now_us=now_us,
                lease_until_us=lease_until_us,
                limit=limit,
            )

    async def take(
        self, run_id: RunId, worker_id: WorkerId, *, token: int, now_us: int, lease_until_us: int
    ) -> RunRow | None:
        """Claim this one run; see `Store.take`."""
        async with self._write("claim") as tables:
            return orders.take(
                tables, run_id, worker_id, token=token, now_us=now_us, lease_until_us=lease_until_us
            )

    async def renew(
        self,
        worker_id: WorkerId,
        held: Sequence[tuple[RunId, int]],
        *,
        now_us: int,
        lease_until_us: int,
    ) -> set[RunId]:
        """Extend the leases and the heartbeat; return the runs that are lost."""
        async with self._write("renew") as tables:
            return writes.renew(
                tables, worker_id, held, now_us=now_us, lease_until_us=lease_until_us
            )

    async def post(self, mail: Mail) -> RunRow:
        """Store a message for an unfinished run and wake it; see `Store.post`."""
        async with self._write("post") as tables:
            return writes.post(tables, mail)

    async def answer(self, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
        """Answer an open ask once; see `Store.answer`."""
        async with self._write("answer") as tables:
            return writes.answer(tables, ask_id, value_wire=value_wire, by=by, at_us=at_us)

    async def expire(self, ask_id: AskId, *, at_us: int) -> AskRow:
        """Close an open ask as expired, unless it was answered; see `Store.expire`."""
        async with self._write("expire") as tables:
            return writes.expire(tables, ask_id, at_us=at_us)

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
        async with self._write("decide") as tables:
            return writes.decide(
                tables, effect_id, happened=happened, result_wire=result_wire, by=by, at_us=at_us
            )

    # -- workers -----------------------------------------------------------------------------------

    async def register_worker(self, row: WorkerRow) -> None:
        """Make the worker known."""
        async with self._write("register") as tables:
            tables.put(tables.workers, row.worker_id, row)

    async def forget_worker(self, worker_id: WorkerId) -> None:
        """Remove the worker; runs that it still holds become claimable at once."""
        async with self._write("forget") as tables:
            writes.forget_worker(tables, worker_id, self._services.clock.now_us())

    async def release_dead(self) -> list[WorkerId]:
        """Return nothing: a worker in memory dies with the store."""
        return []

    async def find_workers(self) -> list[WorkerRow]:
        """Return all known workers, oldest first."""
        rows = self._rows(self._tables.workers)
        return sorted(rows, key=lambda row: (row.started_at_us, row.worker_id))

    # -- waiting for others ------------------------------------------------------------------------

    def change_mark(self) -> int:
        """Return how many writes this object knows of; see `Store.change_mark`."""
        return self._watch.mark

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Return True soon after anybody wrote; see `Store.wait_for_change`."""
        self._check_open()
        return await self._watch.wait(timeout_s, since)

    async def next_ready_at(
        self, graphs: Sequence[tuple[str, int]], *, after_us: int = 0
    ) -> int | None:
        """Return when a claim of these graphs may find more; see `Store.next_ready_at`."""
        wanted = set(graphs)
        self._check_open()
        with self._tables.lock:
            runs = self._tables.runs
            times = [
                ready
                for run_id, ready in self._tables.due.items()
                if ready > after_us and (runs[run_id].graph, runs[run_id].version) in wanted
            ]
            room = Room(orders.limit_state(self._tables), after_us)
        token_at = room.next_token_at(after_us)
        return min([*times, *([] if token_at is None else [token_at])], default=None)

    # -- limits and schedules ----------------------------------------------------------------------

    async def set_limit(self, limit: LimitRow) -> None:
        """Insert or replace the limit; see `Store.set_limit`."""
        async with self._write("limit") as tables:
            tables.put(tables.limits, (limit.tenant, limit.graph), limit)

    async def drop_limit(self, tenant: TenantId, graph: str) -> bool:
        """Remove the limit; return whether there was one."""
        async with self._write("limit") as tables:
            was_there = (tenant, graph) in tables.limits
            tables.drop(tables.limits, (tenant, graph))
            return was_there

    async def read_limits(self) -> LimitState:
        """Return the limits, and what they count, as of one moment."""
        self._check_open()
        with self._tables.lock:
            return orders.limit_state(self._tables)

    async def put_schedule(self, row: ScheduleRow, *, expected: int) -> bool:
        """Write the schedule if the stored one has this revision; see `Store.put_schedule`."""
        async with self._write("schedule") as tables:
            return orders.put_schedule(tables, row, expected=expected)

    async def drop_schedule(self, tenant: TenantId, name: str) -> bool:
        """Remove a schedule; return whether there was one."""
        async with self._write("schedule") as tables:
            was_there = (tenant, name) in tables.schedules
            tables.drop(tables.schedules, (tenant, name))
            return was_there

    async def find_schedules(
        self, *, tenant: TenantId | None = None, due_us: int | None = None, limit: int = 100_000
    ) -> list[ScheduleRow]:
        """Return schedules by `next_at_us`; see `Store.find_schedules`."""
        rows = [
            row
            for row in self._rows(self._tables.schedules)
            if tenant in {None, row.tenant}
            and (due_us is None or (row.next_at_us is not None and row.next_at_us <= due_us))
        ]
        return sorted(rows, key=rules.schedule_order)[: rules.limit_of(limit)]

    # -- reading -----------------------------------------------------------------------------------

    def _rows(self, table: dict[Key, Row]) -> list[Row]:
        self._check_open()
        with self._tables.lock:
            return list(table.values())

    async def read_run(self, run_id: RunId) -> RunRow | None:
        """Return the run's row, or None."""
        self._check_open()
        return self._tables.runs.get(run_id)

    async def find_runs(self, query: RunQuery) -> list[RunRow]:
        """Return rows, newest first."""
        limit = rules.limit_of(query.limit)
        rows = [row for row in self._rows(self._tables.runs) if rules.run_matches(row, query)]
        return sorted(rows, key=lambda row: row.run_id, reverse=True)[:limit]

    async def read_thread(self, tenant: TenantId, thread: ThreadId) -> ThreadRow | None:
        """Return the thread's row, or None."""
        self._check_open()
        return self._tables.threads.get((tenant, thread))

    async def read_thread_runs(
        self, tenant: TenantId, thread: ThreadId, *, from_ordinal: int
    ) -> list[RunRow]:
        """Return the thread's runs with at least this ordinal, by ordinal."""
        self._check_open()
        with self._tables.lock:
            return writes.thread_runs(self._tables, tenant, thread, from_ordinal)

    async def read_frames(
        self, run_id: RunId, *, from_seq: int = 1, limit: int | None = None
    ) -> list[FrameRow]:
        """Return the frames with the records from `from_seq` on; see `Store.read_frames`."""
        self._check_open()
        with self._tables.lock:
            frames = list(self._tables.frames.get(run_id, ()))
            row = self._tables.runs.get(run_id)
        last_seq = row.last_seq if row else 0
        return rules.gap_free(run_id, frames, from_seq=from_seq, limit=limit, last_seq=last_seq)

    async def scan_frames(self, run_id: RunId, *, from_seq: int, limit: int) -> list[FrameRow]:
        """Return stored frames as they are; see `Store.scan_frames`."""
        self._check_open()
        with self._tables.lock:
            frames = self._tables.frames.get(run_id, ())
        return [frame for frame in frames if frame.first_seq >= from_seq][:limit]

    async def read_mail(self, run_id: RunId, *, after: int = 0) -> list[Mail]:
        """Return the run's unread messages with an id above `after`, in order of arrival."""
        self._check_open()
        return [mail for mail in self._tables.mail.get(run_id, ()) if mail.mail_id > after]

    async def read_held_mail(self, worker_id: WorkerId, *, seen: Mapping[RunId, int]) -> list[Mail]:
        """Return unread messages to runs that the worker holds; see `Store.read_held_mail`."""
        self._check_open()
        runs = self._tables.runs
        held = [
            mail
            for run_id, after in seen.items()
            if run_id in runs
            and runs[run_id].holder == worker_id
            and runs[run_id].status is RunStatus.RUNNING
            for mail in self._tables.mail.get(run_id, ())
            if mail.mail_id > after
        ]
        return sorted(held, key=lambda mail: mail.mail_id)

    async def read_pages(self, tenant: TenantId, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the bodies of the tenant's pages by hash; see `Store.read_pages`."""
        self._check_open()
        pages = self._tables.pages
        return {name: pages[tenant, name] for name in hashes if (tenant, name) in pages}

    async def read_keys(
        self,
        scopes: Sequence[tuple[TenantId, str]] | None = None,
        *,
        after: tuple[TenantId, str, int] | None = None,
        limit: int = 100_000,
    ) -> list[KeyRow]:
        """Return data keys by (tenant, scope, number); see `Store.read_keys`."""
        wanted = None if scopes is None else set(scopes)
        found = [
            row
            for row in self._rows(self._tables.keys)
            if (wanted is None or (row.tenant, row.scope) in wanted)
            and (after is None or rules.key_order(row) > after)
        ]
        return sorted(found, key=rules.key_order)[: rules.limit_of(limit)]

    async def read_ask(self, ask_id: AskId) -> AskRow | None:
        """Return the ask, or None."""
        self._check_open()
        return self._tables.asks.get(ask_id)

    async def find_asks(self, query: AskQuery) -> list[AskRow]:
        """Return asks, oldest first."""
        limit = rules.limit_of(query.limit)
        rows = [row for row in self._rows(self._tables.asks) if rules.ask_matches(row, query)]
        return sorted(rows, key=lambda row: row.asked_at_us)[:limit]

    async def read_effect(self, effect_id: EffectId) -> EffectRow | None:
        """Return the effect, or None."""
        self._check_open()
        return self._tables.effects.get(effect_id)

    async def read_effect_by_key(self, tenant: TenantId, business_key: str) -> EffectRow | None:
        """Return the effect that holds the business key, or None."""
        self._check_open()
        effect_id = self._tables.effect_keys.get((tenant, business_key))
        return None if effect_id is None else self._tables.effects[effect_id]

    async def find_effects(self, query: EffectQuery) -> list[EffectRow]:
        """Return effects, newest change first."""
        limit = rules.limit_of(query.limit)
        newest = self._rows(self._tables.effects)[::-1]
        rows = [row for row in newest if rules.effect_matches(row, query)]
        return sorted(rows, key=lambda row: row.changed_at_us, reverse=True)[:limit]
