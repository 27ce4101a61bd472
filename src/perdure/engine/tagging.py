"""Names of checkpoints: what has one is not pruned."""

import datetime as dt

from msgspec import Struct

from perdure.engine.environment import Environment
from perdure.engine.loading import load_checkpoint
from perdure.engine.starting import checked_name
from perdure.engine.waits import as_datetime
from perdure.errors import HistoryPruned
from perdure.ids import TenantId, ThreadId
from perdure.model import TagRow


class Tag(Struct, frozen=True, kw_only=True):
    """A name of a checkpoint of a thread."""

    name: str
    checkpoint: int
    by: str
    at: dt.datetime


async def tags_of(engine: Environment, tenant: TenantId, thread: ThreadId) -> list[Tag]:
    """Return the thread's tags, by checkpoint, then name."""
    return [
        Tag(name=row.name, checkpoint=row.checkpoint, by=row.by, at=as_datetime(row.at_us))
        for row in await engine.store.find_tags(tenant, thread)
    ]


async def tag(
    engine: Environment,
    tenant: TenantId,
    thread: ThreadId,
    checkpoint: int,
    *,
    name: str,
    by: str,
) -> None:
    """Name a checkpoint; see `Runtime.tag`.

    It is read before and after: a prune that did not see the tag may have come between, one that
    comes later sees it.
    """
    checked_name(name, "name")
    if by:
        checked_name(by, "by")
    row = TagRow(
        tenant=tenant,
        thread=thread,
        name=name,
        checkpoint=checkpoint,
        by=by,
        at_us=engine.now_us(),
    )
    await load_checkpoint(engine.store, tenant, thread, checkpoint)
    known = [each for each in await engine.store.find_tags(tenant, thread) if each.name == name]
    await engine.store.put_tag(row)
    try:
        await load_checkpoint(engine.store, tenant, thread, checkpoint)
    except HistoryPruned:
        if known:
            await engine.store.put_tag(known[0])
        else:
            await engine.store.drop_tag(tenant, thread, name)
        raise
