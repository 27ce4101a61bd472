"""What every store decides the same way about the past: pure functions over rows, no I/O."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from perdure.model import Erasure, RunStatus, TagRow


def tag_order(row: TagRow) -> tuple[int, str]:
    """Return what the tags of a thread are sorted by."""
    return row.checkpoint, row.name


def not_erased(
    erasure: Erasure,
    *,
    status: RunStatus | None,
    hashes: Mapping[int, bytes],
    tags: AbstractSet[tuple[str, int]],
) -> str | None:
    """Return why nothing of an erasure may be written; None: all of it may.

    Args:
        erasure: what is to go.
        status: of its run; None: there is no such run.
        hashes: of the run's frames by their first seq, at least those that are to go.
        tags: of its thread, as they are.
    """
    if status is None or not status.is_final:
        return "the run has not ended" if status is not None else "there is no such run"
    if tags != erasure.tags:
        return "the thread's tags have changed"
    if any(hashes.get(each.first_seq) != each.hash for each in erasure.frames):
        return "the journal is not what was read"
    return None
