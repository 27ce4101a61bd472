"""What a prune did, or would do."""

from dataclasses import dataclass, field

from perdure.governance._collect import Collected
from perdure.governance._staying import Stay
from perdure.ids import TenantId, ThreadId
from perdure.model import Compacted


@dataclass(slots=True, kw_only=True)
class ThreadPruned:
    """What became, or would become, of a thread.

    Attributes:
        checkpoints: that could be read before.
        kept: of them, those that were to be kept.
        lost: of them, those that can't be read afterwards.
        frames: that were erased.
        records: in them.
        bytes: that they took, beyond what is left of them.
        effects: whose request and result were emptied.
        stays: those of what is left that were not to be kept, and why.
        note: why less went than was wanted; empty: it did not.
    """

    tenant: TenantId
    thread: ThreadId
    checkpoints: int = 0
    kept: int = 0
    lost: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    effects: int = 0
    stays: list[Stay] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Pruned:
    """What `prune` did, or would do (`is_dry`).

    Attributes:
        collected: pages that went, or would go; None: they can't be counted (`problem`).
        problem: why a dry run can't count pages: a prune would end there, its threads pruned.
    """

    is_dry: bool
    threads: list[ThreadPruned] = field(default_factory=list)
    collected: Collected | None = None
    problem: str = ""
    compacted: Compacted | None = None

    @property
    def bytes(self) -> int:
        """Bytes of journals and pages that went."""
        pages = self.collected.bytes if self.collected is not None else 0
        return sum(thread.bytes for thread in self.threads) + pages
