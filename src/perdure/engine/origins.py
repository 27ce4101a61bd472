"""Which checkpoints of threads their forks need: whoever removes history has to keep them.

Theory: a fork that inherits has no state of its own at its beginning, so the journal of its origin
up to the checkpoint that it was forked at, from the newest whole copy before it on, belongs to the
fork too. It is needed for as long as the fork's own start record can be read: its oldest
checkpoints are loaded by it, also when newer ones are not any more.
"""

from collections.abc import AsyncIterator

from msgspec import Struct

from perdure.engine.branches import FORK_MARK
from perdure.engine.limits import SCAN_PAGE
from perdure.engine.loading import read_records
from perdure.errors import RecordErased
from perdure.ids import TenantId, ThreadId
from perdure.model import RunRow
from perdure.model import records as rec
from perdure.store.api import RunQuery, Store


class Inherits(Struct, frozen=True):
    """What a fork inherits.

    Attributes:
        thread: the fork.
        checkpoint: of its origin.
        place: where in the origin's journal; it is read by the whole copy that the place names,
            from where that one starts up to the place.
    """

    thread: ThreadId
    checkpoint: int
    place: rec.StatePlace


async def inherited_points(store: Store, tenant: TenantId, thread: ThreadId) -> set[int]:
    """Return the checkpoints of a thread that its forks inherit from.

    All rows of runs of the tenant are looked through; who asks about many threads asks
    `all_inherited` once.

    Raises:
        StoreCorrupt, DecodeFailed: a fork's start record can't be read (one that was erased needs
            nothing).
    """
    return {each.checkpoint for each in (await all_inherited(store, tenant)).get(thread, [])}


async def all_inherited(store: Store, tenant: TenantId) -> dict[ThreadId, list[Inherits]]:
    """Return what forks inherit, by the thread that has it.

    Raises:
        StoreCorrupt, DecodeFailed: as `inherited_points`.
    """
    found: dict[ThreadId, list[Inherits]] = {}
    async for origin, row in _forks(store, tenant):
        started = await inheriting_start(store, row)
        if started is None or started.origin_checkpoint is None or started.state_at is None:
            continue
        inherits = Inherits(row.thread, started.origin_checkpoint, started.state_at)
        found.setdefault(origin, []).append(inherits)
    return found


async def _forks(store: Store, tenant: TenantId) -> AsyncIterator[tuple[ThreadId, RunRow]]:
    """Yield (origin, first run) of all forks of a tenant that can inherit: their rows say so."""
    before = None
    while True:
        query = RunQuery(tenant=tenant, before=before, limit=SCAN_PAGE)
        rows = await store.find_runs(query)
        for row in rows:
            is_fork = row.ordinal == 1 and row.start_key is None
            if is_fork and row.input_digest.startswith(FORK_MARK):
                origin = row.input_digest.removeprefix(FORK_MARK).partition(":")[2]
                yield ThreadId(origin), row
        if len(rows) < SCAN_PAGE:
            return
        before = rows[-1].run_id


async def inheriting_start(store: Store, row: RunRow) -> rec.RunStarted | None:
    """Return the start record of a fork that inherits; None: it does not, or it was erased."""
    try:
        [(_seq, _frame, record), *_rest] = await read_records(store, row.run_id, limit=1)
    except RecordErased:
        return None
    return record if isinstance(record, rec.RunStarted) and record.inherits else None
