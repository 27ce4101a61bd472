"""What users say for all runs to come: limits over all workers, quotas, schedules, versions.

A part of `Runtime`, in a module of its own.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from perdure.core.room import Room
from perdure.engine import moving
from perdure.engine.cron import check_cron
from perdure.engine.edge import checked
from perdure.engine.environment import Environment
from perdure.engine.limits import SETTING_S_MAX
from perdure.engine.schedules import new_schedule
from perdure.engine.starting import DEFAULT_TENANT, checked_name
from perdure.engine.waits import as_datetime, seconds
from perdure.errors import Conflict, NotFound, SettingInvalid, UsageError
from perdure.ids import TenantId
from perdure.model import (
    ALL_GRAPHS,
    ALL_TENANTS,
    EACH_TENANT,
    LimitRow,
    Missed,
    OnBusy,
    QuotaRow,
    ScheduleRow,
    Usage,
)

_BYTES_MAX = 1 << 62

COUNT_MAX = 1_000_000_000
"""Largest concurrency or rate: far from what a store's integers can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimit:
    """A limit that all workers of the store obey together, and how full it is.

    Attributes:
        tenant: whose runs it counts; "*": each tenant's by itself; None: all together.
        graph: of which graph, in any version; None: of all graphs together.
        concurrency: most runs that are running at once; None: any number.
        rate: most runs that begin per `period_s`; None: any number.
        period_s: seconds; counts with `rate` only.
        running: runs in its scope that are running now, of all tenants for "*".
    """

    tenant: str | None
    graph: str | None
    concurrency: int | None
    rate: int | None
    period_s: float
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule: it starts a run of a graph at each due time.

    Attributes:
        cron: the expression.
        timezone: IANA name that it is read in.
        thread: the line of state that its runs go on with; None: a new one each.
        missed: what becomes of due times that nobody was there to fire.
        next_at: the next due time (UTC); None: paused.
        fired_at: the newest due time that became a run; None: none yet.
        fired_run: the run's id.
        problem: why the last due time did not become a run; empty: it did.
    """

    name: str
    tenant: str
    graph: str
    version: int
    cron: str
    timezone: str
    thread: str | None
    priority: int
    on_busy: OnBusy
    missed: Missed
    is_paused: bool
    next_at: dt.datetime | None
    fired_at: dt.datetime | None
    fired_run: str | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much room a tenant may take, and takes.

    Attributes:
        tenant: None: all of them together.
        usage: measured when it was asked for.
    """

    tenant: str | None
    bytes_max: int
    usage: Usage
    set_at: dt.datetime


class Orders:
    """The part of a runtime that speaks of runs to come."""

    engine: Environment

    # -- limits ------------------------------------------------------------------------------------

    @checked
    async def set_limit(
        self,
        *,
        graph: str | None = None,
        tenant: str | None = None,
        concurrency: int | None = None,
        rate: int | None = None,
        period: dt.timedelta | float = 1.0,
    ) -> None:
        """Set a limit that every worker of the store obeys, together; durable when this returns.

        It replaces the limit of the same graph and tenant. It is obeyed by every claim from now on:
        never exceeded, also by many workers at once. Runs over it wait, without holding up others;
        runs that are running go on. A run must have room in every limit that counts it.

        Args:
            graph: counts runs of this graph, in any version; None: of all graphs together.
            tenant: counts this tenant's runs; "*": each tenant's by itself, unless it has a limit
                of its own for the same graph; None: all tenants' together.
            concurrency: most runs that are running at once, from 1. Runs that wait do not count.
            rate: most runs that begin per `period`, from 1: so many at once, then one each time
                that a share of the period has passed. Runs that go on do not count.
            period: timedelta or seconds, above 0.

        Raises:
            SettingInvalid: neither concurrency nor rate, or one out of range; nothing was written.

        Idempotent: yes.
        """
        period_us = round(seconds(period, "period") * 1_000_000)
        _check_counts(concurrency, rate, period_us)
        limit = LimitRow(
            tenant=_tenant_of(tenant),
            graph=ALL_GRAPHS if graph is None else checked_name(graph, "graph"),
            concurrency=concurrency,
            rate=rate,
            period_us=period_us if rate is not None else 0,
            set_at_us=self.engine.now_us(),
        )
        await self.engine.store.set_limit(limit)
        self.engine.poke()

    @checked
    async def remove_limit(self, *, graph: str | None = None, tenant: str | None = None) -> None:
        """Remove the limit of exactly this graph and tenant; what it kept back may begin.

        Raises:
            NotFound: there is no such limit.
        """
        if not await self.engine.store.drop_limit(_tenant_of(tenant), graph or ALL_GRAPHS):
            msg = f"no limit of graph {graph!r} and tenant {tenant!r}; see: perdure limit list"
            raise NotFound(msg, graph=graph, tenant=tenant)
        self.engine.poke()

    async def limits(self) -> list[WorkLimit]:
        """Return the limits over all workers, and how many runs each of them counts now."""
        state = await self.engine.store.read_limits()
        room = Room(state, self.engine.now_us())
        return [
            WorkLimit(
                tenant=limit.tenant or None,
                graph=limit.graph or None,
                concurrency=limit.concurrency,
                rate=limit.rate,
                period_s=limit.period_us / 1_000_000,
                running=room.running(limit),
            )
            for limit in state.limits
        ]

    # -- quotas ------------------------------------------------------------------------------------

    @checked
    async def set_quota(self, bytes_max: int, *, tenant: str | None = None) -> None:
        """Set how many bytes a tenant may take in the store; starts beyond it are refused.

        What is under way goes on. It is measured now and then, not at each write.

        Args:
            bytes_max: journals, pages and ledger together, from 1.
            tenant: whose; None: all tenants together.

        Raises:
            SettingInvalid: out of range; nothing was written.

        Durability: when it returns. Idempotent: yes.
        """
        if not 1 <= bytes_max < _BYTES_MAX:
            msg = f"bytes_max={bytes_max!r}: must be 1 to {_BYTES_MAX - 1}; nothing was written"
            raise SettingInvalid(msg, bytes_max=bytes_max)
        whose = TenantId(checked_name(tenant, "tenant") if tenant is not None else "")
        row = QuotaRow(tenant=whose, bytes_max=bytes_max, set_at_us=self.engine.now_us())
        await self.engine.store.set_quota(row)
        self.engine.capacity.forget()

    @checked
    async def remove_quota(self, *, tenant: str | None = None) -> None:
        """Remove a quota.

        Raises:
            NotFound: there is none of exactly this tenant.
        """
        if not await self.engine.store.drop_quota(TenantId(tenant or "")):
            who = f"tenant {tenant!r}" if tenant else "the whole store"
            msg = f"no quota of {who}; 'perdure quota list' lists them"
            raise NotFound(msg, tenant=tenant)
        self.engine.capacity.forget()

    @checked
    async def quotas(self) -> list[Quota]:
        """Return the quotas, by tenant, with what is taken now: reads the length of every row."""
        store = self.engine.store
        return [
            Quota(
                tenant=row.tenant or None,
                bytes_max=row.bytes_max,
                usage=await store.usage(row.tenant or None),
                set_at=as_datetime(row.set_at_us),
            )
            for row in await store.find_quotas()
        ]

    # -- schedules ---------------------------------------------------------------------------------

    @checked
    async def schedule(
        self,
        name: str,
        graph: Any,
        input: Any = None,  # noqa: A002  # of the public API
        *,
        cron: str,
        timezone: str = "UTC",
        tenant: str = DEFAULT_TENANT,
        thread: str | None = None,
        priority: int = 0,
        on_busy: OnBusy | str = OnBusy.QUEUE,
        missed: Missed | str = Missed.ONE,
    ) -> Schedule:
        """Start a run of a graph at each due time, once, whichever workers live then.

        Durable when this returns. A schedule of the same name is replaced: it stays paused if it
        was, and keeps its next due time where expression and zone are the same, so that a program
        may add its schedules whenever it starts. Each run has the start key `schedule:<name>:<due
        time>`, so that it is started once however many workers fire it.
        A run is of the newest version of the graph that a live worker executes then.

        Args:
            name: of the schedule, unique per tenant.
            graph: a Graph, a plain async function, or the name of a known graph.
            input: as for `start`; the same for every run.
            cron: `minute hour day month weekday`, as in crontab(5); with six fields the first is
                seconds.
            timezone: IANA name that the fields are read in. A time that a change of clocks skips is
                due right after it, one that comes twice is due once.
            tenant: whose runs they are.
            thread: the line of state that every run goes on with; None: a new one each.
            priority: higher is claimed first.
            on_busy: what a run does on a busy thread; see `start`. A refused one is not started.
            missed: "one" run for all due times that nobody fired, "skip" them, or "all" (the newest
                100). A due time that is fired within a minute was not missed.

        Raises:
            SettingInvalid: the name, the expression, the time zone or a choice is none.
            UpdateInvalid, ValueUnserializable: the input does not fit; nothing was written.
        """
        row = new_schedule(
            self.engine,
            self.engine.plan_of(graph),
            input,
            name=name,
            cron=cron,
            timezone=timezone,
            tenant=tenant,
            thread=thread,
            priority=priority,
            on_busy=_chosen(OnBusy, on_busy, "on_busy"),
            missed=_chosen(Missed, missed, "missed"),
        )
        for _try in range(_TRIES):
            known = await self._find_schedule(name, tenant)
            before = known.revision if known is not None else 0
            written = replace(_gone_on(row, known), revision=max(row.revision, before + 1))
            if await self.engine.store.put_schedule(written, expected=before):
                self.engine.replan()
                return _shown(written)
        raise _contended(name)

    @checked
    async def schedules(self, *, tenant: str | None = None) -> list[Schedule]:
        """Return the schedules, the next due one first, paused ones last."""
        chosen = TenantId(tenant) if tenant is not None else None
        return [_shown(row) for row in await self.engine.store.find_schedules(tenant=chosen)]

    @checked
    async def unschedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a schedule; runs that it has started go on.

        Raises:
            NotFound: there is no such schedule.
        """
        if not await self.engine.store.drop_schedule(TenantId(tenant), name):
            raise _no_schedule(name, tenant)

    @checked
    async def pause_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Let a schedule rest until it is resumed; due times meanwhile are nobody's. Idempotent.

        Raises:
            NotFound: there is no such schedule.
        """
        return await self._change_schedule(name, tenant, is_paused=True)

    @checked
    async def resume_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Let a paused schedule go on with the next due time from now. Idempotent.

        Raises:
            NotFound: there is no such schedule.
        """
        return await self._change_schedule(name, tenant, is_paused=False)

    async def _change_schedule(self, name: str, tenant: str, *, is_paused: bool) -> Schedule:
        for _try in range(_TRIES):
            row = await self._find_schedule(name, tenant)
            if row is None:
                raise _no_schedule(name, tenant)
            if row.is_paused is is_paused:
                return _shown(row)
            now_us = self.engine.now_us()
            next_at_us = None if is_paused else check_cron(row.cron, row.timezone, now_us)
            changed = replace(
                row,
                revision=max(now_us, row.revision + 1),
                is_paused=is_paused,
                next_at_us=next_at_us,
            )
            if await self.engine.store.put_schedule(changed, expected=row.revision):
                self.engine.replan()
                return _shown(changed)
        raise _contended(name)

    async def _find_schedule(self, name: str, tenant: str) -> ScheduleRow | None:
        rows = await self.engine.store.find_schedules(tenant=TenantId(tenant))
        return next((row for row in rows if row.name == name), None)

    # -- versions ----------------------------------------------------------------------------------

    @checked
    async def resolve_version(self, run_id: str, version: int, *, by: str) -> None:
        """Let a run that nobody executes go on with another version of its graph; durable.

        The decision is recorded in the run's journal. The other version must have every node that
        is under way and every field that has a value; nodes that go on match their recorded effects
        by identity, and park where those do not fit (`ReplayDiverged`). Where a migration leads to
        the version the run is moved by that, which needs its code: give the graph here.

        Args:
            run_id: the run: parked as `VersionMismatch`, or waiting, pending, or parked otherwise.
            version: of the graph to go on with; known here, or executed by a live worker.
            by: who decides; recorded.

        Raises:
            NotFound, RunFinal: no such run, or it has ended.
            UsageError: it is executed now, has that version already, or nobody knows that version.
            VersionMismatch: the version lacks what the run stands in; names it. Nothing was
                written.
            MigrationFailed: a migration leads there, and failed; says how. Nothing was written.
        """
        if not by:
            msg = "resolve_version(by=...): say who decides; it is recorded"
            raise UsageError(msg)
        await moving.move_run(self.engine, run_id, version, by)


_TRIES = 10
"""Tries to write a schedule that workers move on meanwhile; each try loses to a due time only."""


def _check_counts(concurrency: int | None, rate: int | None, period_us: int) -> None:
    counts = [count for count in (concurrency, rate) if count is not None]
    is_whole = all(type(count) is int and 1 <= count <= COUNT_MAX for count in counts)
    if not counts or not is_whole or not 0 < period_us <= SETTING_S_MAX * 1_000_000:
        msg = (
            f"concurrency={concurrency!r}, rate={rate!r}: give one of them or both, whole numbers "
            f"from 1, and a period above 0 of a year at most; nothing was written"
        )
        raise SettingInvalid(msg)


def _tenant_of(tenant: str | None) -> TenantId:
    if tenant is None:
        return ALL_TENANTS
    return EACH_TENANT if tenant == EACH_TENANT else TenantId(checked_name(tenant, "tenant"))


def _chosen(kind: Any, value: Any, what: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        msg = f"{what}={value!r}: must be one of {', '.join(kind)}"
        raise SettingInvalid(msg) from error


def _gone_on(row: ScheduleRow, known: ScheduleRow | None) -> ScheduleRow:
    """Return a schedule with what is true of the one that it replaces.

    A program that adds its schedules whenever it starts must neither lose the due time that came
    while it was away, nor resume what a person has paused.
    """
    if known is None:
        return row
    row = replace(
        row,
        created_at_us=known.created_at_us,
        fired_at_us=known.fired_at_us,
        fired_run=known.fired_run,
        is_paused=known.is_paused,
    )
    if known.is_paused:
        return replace(row, next_at_us=None)
    is_same = (row.cron, row.timezone) == (known.cron, known.timezone)
    return replace(row, next_at_us=known.next_at_us) if is_same else row


def _no_schedule(name: str, tenant: str) -> NotFound:
    msg = f"no schedule {name!r} for tenant {tenant!r}; see: perdure schedule list"
    return NotFound(msg, name=name, tenant=tenant)


def _contended(name: str) -> Conflict:
    msg = f"schedule {name!r} was changed by others all the time; nothing was written. Try again"
    return Conflict(msg, name=name)


def _shown(row: ScheduleRow) -> Schedule:
    return Schedule(
        name=row.name,
        tenant=row.tenant,
        graph=row.graph,
        version=row.version,
        cron=row.cron,
        timezone=row.timezone,
        thread=row.thread,
        priority=row.priority,
        on_busy=row.on_busy,
        missed=row.missed,
        is_paused=row.is_paused,
        next_at=None if row.next_at_us is None else as_datetime(row.next_at_us),
        fired_at=None if row.fired_at_us is None else as_datetime(row.fired_at_us),
        fired_run=row.fired_run,
        problem=row.problem,
    )
