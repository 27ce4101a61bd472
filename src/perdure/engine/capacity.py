"""Is there room for another run? Quotas of tenants and of the store, and the disk.

Theory: a start is refused beyond a quota, what is under way goes on. What a tenant takes is
measured by reading the length of every row, which costs too much to be done for each start, or in
an append: it is measured in the background, again at most so often that it takes a small share of
the time; where it is full, sooner. So a quota is exceeded by what is written between two
measurements, and by runs that go on.
"""

import asyncio

from msgspec import Struct

from perdure.clock import Services
from perdure.engine.limits import DISK_LOOK_S, MEASURE_S, MEASURE_SHARE, QUOTA_LOOK_S
from perdure.errors import QuotaExceeded, StoreFull
from perdure.ids import TenantId
from perdure.model import QuotaRow, Usage
from perdure.store.api import Store

EVERYBODY = TenantId("")
"""The quota of the whole store is that of this tenant."""


class _Measured(Struct):
    usage: Usage
    soon_s: float
    again_s: float


class Capacity:
    """What a runtime knows of the room that there is."""

    def __init__(self, store: Store, services: Services) -> None:
        """Know nothing yet."""
        self._store = store
        self._clock = services.clock
        self._quotas: dict[TenantId, QuotaRow] = {}
        self._quotas_at_s = float("-inf")
        self._disk_at_s = float("-inf")
        self._free: int | None = None
        self._measured: dict[TenantId, _Measured] = {}
        self._measuring: dict[TenantId, asyncio.Task[None]] = {}

    def forget(self) -> None:
        """Look again: a quota was changed here, or something was removed."""
        self._quotas_at_s = float("-inf")
        self._measured.clear()

    async def check(self, tenant: TenantId) -> None:
        """Refuse a start for which there is no room.

        Raises:
            QuotaExceeded: the tenant, or the store, takes what it may; nothing was started.
            StoreFull: the disk is all but full; nothing was started.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._disk_at_s >= DISK_LOOK_S:
            self._free, self._disk_at_s = await self._store.free_bytes(), now_s
        if self._free is not None and self._free <= 0:
            self._disk_at_s = float("-inf")
            raise _disk_full(self._store.place)
        if now_s - self._quotas_at_s >= QUOTA_LOOK_S:
            found = await self._store.find_quotas()
            self._quotas, self._quotas_at_s = {row.tenant: row for row in found}, now_s
        for whose in (tenant, EVERYBODY):
            quota = self._quotas.get(whose)
            if quota is not None:
                await self._check_quota(quota)

    async def _check_quota(self, quota: QuotaRow) -> None:
        whose = quota.tenant
        known = self._measured.get(whose)
        is_full = known is not None and known.usage.total >= quota.bytes_max
        again_s = 0.0 if known is None else known.soon_s if is_full else known.again_s
        if known is None or self._clock.monotonic_s() >= again_s:
            task = self._measuring.get(whose)
            if task is None or task.done():
                task = asyncio.create_task(self._measure(whose), name="perdure-measure")
                self._measuring[whose] = task
            # What was full may have been pruned: that is worth a wait.
            if known is None or is_full:
                await asyncio.shield(task)
        known = self._measured.get(whose)
        if known is not None and known.usage.total >= quota.bytes_max:
            raise _exceeded(quota, known.usage)

    async def _measure(self, whose: TenantId) -> None:
        began_s = self._clock.monotonic_s()
        usage = await self._store.usage(None if whose == EVERYBODY else whose)
        at_s = self._clock.monotonic_s()
        took_s = at_s - began_s
        soon_s, again_s = (max(least, took_s / MEASURE_SHARE) for least in (DISK_LOOK_S, MEASURE_S))
        self._measured[whose] = _Measured(usage, at_s + soon_s, at_s + again_s)

    async def close(self) -> None:
        """Stop measuring."""
        for task in self._measuring.values():
            task.cancel()
        await asyncio.gather(*self._measuring.values(), return_exceptions=True)


def _exceeded(quota: QuotaRow, usage: Usage) -> QuotaExceeded:
    who = f"tenant {quota.tenant!r}" if quota.tenant else "the store"
    option = f" --tenant {quota.tenant}" if quota.tenant else ""
    msg = (
        f"{who} takes {usage.total} bytes of {quota.bytes_max} (journals {usage.frames}, pages "
        f"{usage.pages}, ledger {usage.ledger}); nothing was started, what is under way goes on. "
        f"Make room: perdure prune{option} --older-than 30d; or raise it: perdure quota set{option}"
    )
    fields = {"taken": usage.total, "bytes_max": quota.bytes_max}
    return QuotaExceeded(msg, tenant=quota.tenant or None, **fields)


def _disk_full(place: str) -> StoreFull:
    msg = (
        f"{place}: the disk is full but for the reserve (reserve_mb in the store URL); nothing was "
        "started, what is under way goes on. Free space there, or: perdure prune --older-than 30d"
    )
    return StoreFull(msg, place=place)
