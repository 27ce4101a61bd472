"""A remote store whose lost answers and outages the engine does not see.

Theory: every write of a store but `transact` and `claim` may be called again with the same
arguments (rule "Repeatable" of `perdure.store.api`), so that a call whose answer was lost
(`CommitUncertain`) is simply repeated, and one that an outage refused (`StoreUnavailable`,
`StoreLocked`) too, with backoff, until `OUTAGE_S_MAX`. The fence makes it safe for appends: a run
that was lost meanwhile is `Fenced` as ever, and a worker that comes back in time goes on with its
runs without redoing anything.

Not repeated: `renew`, as a lease is counted from its sending (the heartbeat sends a new one);
`claim`, whose answer is found again by the holder; `transact`, whose body is the user's. A call
that gives up says `CommitUncertain` if any of its tries may have been written.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from perdure.clock import Services
from perdure.core.retry import Retry, backoff_s
from perdure.engine.limits import OUTAGE_BASE_S, OUTAGE_CAP_S, OUTAGE_S_MAX
from perdure.errors import CommitUncertain, StoreError, StoreLocked, StoreUnavailable
from perdure.ids import WorkerId
from perdure.model import RunRow, RunStatus
from perdure.store.api import REMOTE, RunQuery, Store

REPEATED = (
    "start",
    "append",
    "put_pages",
    "put_keys",
    "rewrap_key",
    "begin_erasure",
    "erase_run",
    "drop_keys",
    "end_erasure",
    "find_erasures",
    "find_threads",
    "note_export",
    "find_exports",
    "read_keys",
    "post",
    "answer",
    "decide",
    "expire",
    "register_worker",
    "forget_worker",
    "release_dead",
    "find_workers",
    "next_ready_at",
    "read_run",
    "find_runs",
    "read_thread",
    "read_thread_runs",
    "read_frames",
    "read_pages",
    "scan_frames",
    "read_mail",
    "read_held_mail",
    "read_ask",
    "find_asks",
    "read_effect",
    "read_effect_by_key",
    "find_effects",
    "set_limit",
    "read_limits",
    "put_schedule",
    "find_schedules",
    "find_copies",
    "erase",
    "put_tag",
    "find_tags",
    "page_tenants",
    "begin_collection",
    "find_pages",
    "page_names",
    "drop_pages",
    "end_collection",
    "compact",
    "usage",
    "free_bytes",
    "set_quota",
    "find_quotas",
)
"""Calls that are made again."""

PASSED_ON = (
    "is_there",
    "open",
    "close",
    "now_us",
    "transact",
    "take",
    "renew",
    "change_mark",
    "drop_limit",
    "drop_schedule",
    "drop_tag",
    "drop_quota",
    "scrub",
    "count_bytes",
)
"""Calls that are made once."""

_PASSING = (CommitUncertain, StoreUnavailable, StoreLocked)
_BACKOFF = Retry(max_attempts=1_000_000, base_s=OUTAGE_BASE_S, cap_s=OUTAGE_CAP_S)


def patient(store: Store, services: Services) -> Store:
    """Return a store that outlasts outages: the given one, wrapped where it is remote."""
    if REMOTE not in store.capabilities:
        return store
    return cast("Store", PatientStore(store, services))


class PatientStore:
    """Delegates to a remote store, and repeats what may be repeated."""

    def __init__(self, store: Store, services: Services) -> None:
        """Wrap the store."""
        self._store = store
        self._services = services
        self.patience_s = OUTAGE_S_MAX
        self.now_us = store.now_us  # asked for several times in a step
        for name in REPEATED:
            setattr(self, name, self._repeating(getattr(store, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _repeating(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def repeated(*args: Any, **kwargs: Any) -> Any:
            """Make the call; nothing more is done where it succeeds at once."""
            try:
                return await call(*args, **kwargs)
            except _PASSING as error:
                return await self._repeat(lambda: call(*args, **kwargs), error)

        return repeated

    async def _repeat(self, call: Callable[[], Awaitable[Any]], error: StoreError) -> Any:
        """Make a call again until it succeeds, fails for good, or the patience has ended."""
        clock = self._services.clock
        began_s = clock.monotonic_s()
        tries = 0
        uncertain = error if isinstance(error, CommitUncertain) else None
        while clock.monotonic_s() - began_s < self.patience_s:
            tries += 1
            await clock.sleep(backoff_s(_BACKOFF, tries, self._services.rng, None) or OUTAGE_CAP_S)
            try:
                return await call()
            except _PASSING as again:
                error = again
                uncertain = again if isinstance(again, CommitUncertain) else uncertain
        if uncertain is not None:
            raise uncertain
        raise error

    async def claim(
        self,
        worker_id: WorkerId,
        graphs: Sequence[tuple[str, int]],
        *,
        now_us: int,
        lease_until_us: int,
        limit: int,
    ) -> list[RunRow]:
        """Claim; where the answer is lost, return what the store says that this claim took.

        Those are the worker's runs whose lease ends when this very call said. A run that it took in
        a start of the same microsecond may be among them.
        """
        try:
            return await self._store.claim(
                worker_id, graphs, now_us=now_us, lease_until_us=lease_until_us, limit=limit
            )
        except CommitUncertain:
            held = RunQuery(statuses=(RunStatus.RUNNING,), holder=worker_id, limit=100_000)
            rows: list[RunRow] = await self.find_runs(held)
            return [row for row in rows if row.ready_at_us == lease_until_us]

    async def wait_for_change(self, timeout_s: float, *, since: int | None = None) -> bool:
        """Wait; while the store can't be heard, anything may have changed."""
        try:
            return await self._store.wait_for_change(timeout_s, since=since)
        except _PASSING:
            await self._services.clock.sleep(min(timeout_s, OUTAGE_CAP_S))
            return True
