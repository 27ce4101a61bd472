"""What is wanted of a prune, and what it did."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from perdure.engine import Runtime
from perdure.governance._collect import Collected
from perdure.governance._keeping import Point
from perdure.governance._snapshots import FrameId, collect_snapshots
from perdure.governance._staying import Stay
from perdure.ids import TenantId, ThreadId
from perdure.model import Compacted
from perdure.sandbox import Kept, LayersCollected


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which checkpoints of each thread are kept beside those that must be.

    Attributes:
        keep: the newest so many; None: by age only.
        since_us: those since then; None: by number only. With both: what either keeps.
    """

    keep: int | None
    since_us: int | None

    def of(self, points: Sequence[Point]) -> set[int]:
        """Return them, without the newest where only its age would keep it."""
        newest = points[-self.keep :] if self.keep else ()
        young = [p for p in points if self.since_us is not None and p.at_us >= self.since_us]
        return {point.checkpoint for point in (*newest, *young)}


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
        snapshots: of sandboxes, that journals named before; without a sandbox their files stayed.
        layers: what became of them; None: no sandbox was given.
    """

    is_dry: bool
    threads: list[ThreadPruned] = field(default_factory=list)
    collected: Collected | None = None
    problem: str = ""
    compacted: Compacted | None = None
    snapshots: int = 0
    layers: LayersCollected | None = None

    @property
    def bytes(self) -> int:
        """Bytes of journals and pages that went."""
        pages = self.collected.bytes if self.collected is not None else 0
        return sum(thread.bytes for thread in self.threads) + pages


async def prune_layers(
    runtime: Runtime,
    sandbox: Kept | None,
    owners: Iterable[TenantId],
    done: Pruned,
    *,
    lost: Mapping[TenantId, AbstractSet[FrameId]] = MappingProxyType({}),
) -> None:
    """Collect the snapshots of tenants; `lost`: frames that would be gone, by tenant."""
    if sandbox is None:
        return
    done.layers = LayersCollected(is_dry=done.is_dry)
    for owner in owners:
        gone = lost.get(owner, set())
        done.layers.add(
            await collect_snapshots(runtime, sandbox, tenant=owner, dry_run=done.is_dry, gone=gone)
        )
