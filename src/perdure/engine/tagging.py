"""Names of checkpoints: what has one is not pruned."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from perdure.engine.environment import Environment
from perdure.engine.loading import At, load_checkpoint, read_place
from perdure.engine.starting import checked_name
from perdure.engine.waits import as_datetime
from perdure.errors import (
    Conflict,
    HistoryPruned,
    QuotaExceeded,
    RecordErased,
    StoreCorrupt,
    UsageError,
)
from perdure.ids import TenantId, ThreadId
from perdure.model import TagRow

PIN_MARK = "fork:"
"""The name of a tag that a fork puts on its origin begins with it; the run of the fork follows."""


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
        if not row.name.startswith(PIN_MARK)
    ]


@asynccontextmanager
async def pinned(
    engine: Environment, found: At, run_id: str, *, is_needed: bool
) -> AsyncIterator[None]:
    """Keep a checkpoint for a fork that is about to be started, and for as long as it refers to it.

    A rollback, or a fork that refers to nothing of its origin, needs it until it is started: from
    then on its own first record names the snapshot of its files.

    A tag is set and the checkpoint looked for again: whoever prunes and did not see the tag is
    refused by the store, and who was quicker is noticed here. Killed before the fork is started, a
    tag stays that keeps more than is needed.

    Raises:
        HistoryPruned: the checkpoint was pruned meanwhile; nothing was started.
    """
    if not is_needed:
        yield
        return
    tenant, thread, name = found.run.tenant, found.run.thread, f"{PIN_MARK}{run_id}"
    now_us = engine.now_us()
    row = TagRow(
        tenant=tenant,
        thread=thread,
        name=name,
        checkpoint=found.checkpoint,
        by="",
        at_us=now_us,
    )
    await engine.store.put_tag(row)
    # crash-point: fork.pinned
    engine.services.probe("fork.pinned")
    try:
        # Not by the checkpoint: that may be readable by another copy than the fork will read.
        if found.place is not None:
            await read_place(engine.store, found)
        else:
            await load_checkpoint(engine.store, tenant, thread, found.checkpoint)
        yield
    except (RecordErased, StoreCorrupt, Conflict, QuotaExceeded):
        await engine.store.drop_tag(tenant, thread, name)
        raise


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
    if name.startswith(PIN_MARK):
        msg = f"names of tags that begin with {PIN_MARK!r} are Perdure's; nothing was changed"
        raise UsageError(msg, name=name)
    if name.isascii() and name.isdecimal():
        msg = f"{name!r} is the id of a checkpoint; a tag needs another name; nothing was changed"
        raise UsageError(msg, name=name)
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
