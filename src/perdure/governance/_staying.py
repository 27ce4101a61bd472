"""Why checkpoints of a thread stay that its rule does not keep. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perdure.governance._keeping import Copy, Point, copy_for


class Why(StrEnum):
    """Why a checkpoint stays."""

    NEWEST = "newest"
    TAG = "tag"
    FORK = "fork"
    RUN = "run"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True)
class Stay:
    """Neighbouring checkpoints that stay for one reason, although the rule does not keep them.

    Attributes:
        first: the oldest of them.
        last: the newest of them.
        why: NEWEST: it is the thread's state; TAG, FORK: it has a tag, was forked; RUN: of an
            unfinished run, or what one goes on from; NEEDED: its records are needed for another.
        of: name of the tag, id of the run, or the checkpoint that is read by its records; empty:
            they stand in one frame with what stays.
    """

    first: int
    last: int
    why: Why
    of: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        which = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        if self.why is Why.NEEDED and not self.of:
            return f"{which} (stored with what stays)"
        return f"{which} ({_WORDS[self.why].format(of=self.of)})"


_WORDS = {
    Why.NEWEST: "the newest",
    Why.TAG: "tag {of}",
    Why.FORK: "forked",
    Why.RUN: "unfinished run {of}",
    Why.NEEDED: "to read {of}",
}


def staying(
    points: Sequence[Point],
    copies: Sequence[Copy],
    *,
    left: set[int],
    kept: set[int],
    direct: Mapping[int, tuple[Why, str]],
) -> list[Stay]:
    """Return why checkpoints stay, oldest first; neighbours of one reason are one entry.

    Args:
        points: the thread's checkpoints, oldest first.
        copies: by `made_at`.
        left: those that stay, without those that the rule keeps.
        kept: all that are kept, for whatever reason.
        direct: reasons that lie in a checkpoint itself.
    """
    readers = [
        (point, copy_for(copies, point.checkpoint)) for point in points if point.checkpoint in kept
    ]
    places = [point.place for point, _copy in readers]
    found: list[Stay] = []
    before: Stay | None = None
    for point in points:
        if point.checkpoint not in left:
            before = None
            continue
        reader = readers[bisect_left(places, point.place) :][:1]
        why, of = direct.get(point.checkpoint) or (Why.NEEDED, _name(point, reader))
        if before is not None and (before.why, before.of) == (why, of):
            found.pop()
        else:
            before = None
        before = Stay(before.first if before else point.checkpoint, point.checkpoint, why, of)
        found.append(before)
    return found


def _name(point: Point, reader: Sequence[tuple[Point, Copy]]) -> str:
    """Return the next checkpoint that is kept, if it is read from this one's record on."""
    return "".join(str(next_.checkpoint) for next_, copy in reader if copy.since <= point.place)
