"""What is kept of the past, and how much room it may take. Times are microseconds since the epoch.

All are frozen.
"""

import msgspec

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model.rows import EffectRow


class CopyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a whole copy of a thread's state is: a place that older checkpoints load from.

    Attributes:
        made_at: the oldest checkpoint that can be read by it; one copy for each.
        ordinal: of the run that holds it.
        seq: of its record.
    """

    made_at: int
    ordinal: int
    seq: int


class TagRow(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a checkpoint, which keeps it from being pruned.

    Keyed by (tenant, thread, name).

    Attributes:
        by: who wanted it; empty: not said.
    """

    tenant: TenantId
    thread: ThreadId
    name: str
    checkpoint: int
    by: str = ""
    at_us: int = 0


class FrameErasure(msgspec.Struct, frozen=True):
    """A frame whose records go, and whose digests stay.

    Attributes:
        hash: of the frame, as it was read: another one is not touched.
        body: what it holds from now on (`codec.erase_frame`).
    """

    first_seq: int
    hash: bytes
    body: bytes


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What goes of one run that has ended, in one transaction.

    Attributes:
        frames: of the run.
        effects: of its ledger, with what is left of their request and result.
        tags: (name, checkpoint) of the thread's tags, as they were when it was decided what goes.
        copies: that what is kept will be read by, and that may not be in the index yet.
    """

    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    at_us: int
    frames: tuple[FrameErasure, ...]
    effects: tuple[EffectRow, ...] = ()
    tags: frozenset[tuple[str, int]] = frozenset()
    copies: tuple[CopyRow, ...] = ()


class Erased(msgspec.Struct, frozen=True):
    """The erasure is durable. `count`: frames that this call erased; others were before."""

    count: int


class NotErased(msgspec.Struct, frozen=True):
    """Nothing of the erasure was written. `reason`: run, tags or frames are not as it says."""

    reason: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of pages that is under way.

    Attributes:
        number: what it is known by; each one of a tenant has a higher one than the one before.
        pages: stored ones of the tenant when it began.
    """

    tenant: TenantId
    number: int
    pages: int


class StoredPage(msgspec.Struct, frozen=True):
    """A page as the store has it: the name that it is stored under, and the bytes that it takes."""

    name: bytes
    size: int


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """How much room a tenant may take.

    Attributes:
        tenant: whose; empty: that of the whole store.
        bytes_max: starts beyond it are refused.
    """

    tenant: TenantId
    bytes_max: int
    set_at_us: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How much room something takes.

    Attributes:
        frames: bytes of journals.
        pages: bytes of parts of large values.
        ledger: bytes of requests and results of effects.
    """

    frames: int = 0
    pages: int = 0
    ledger: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.frames + self.pages + self.ledger


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What giving back free room did.

    Attributes:
        before, after: bytes of the store's files.
        free: bytes in them that are free, and will be used again.
        is_rewritten: whether the file was rewritten without them.
    """

    before: int = 0
    after: int = 0
    free: int = 0
    is_rewritten: bool = False
