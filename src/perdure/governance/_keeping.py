"""What of a thread has to stay, so that what is to be kept can be read. Pure.

Theory: a checkpoint is read from the newest whole copy that it can use: from the place that the
copy lets folding start at, up to the record that is the checkpoint. Such stretches are laid over
each other; what is in none of them is not needed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

Place = tuple[int, int]
"""Ordinal of a run in its thread, and seq of a record in it."""

END: Place = (1 << 62, 0)
"""After everything that there is, and will be."""


class Point(Struct, frozen=True):
    """A checkpoint of a thread, and where its (last) record is."""

    checkpoint: int
    at_us: int
    place: Place


class Copy(Struct, frozen=True):
    """A whole copy: the oldest checkpoint that it can be used for, where it is, and from where on.

    The beginning of a thread is one that holds nothing.
    """

    made_at: int
    place: Place
    since: Place


BEGINNING = Copy(0, (1, 1), (1, 1))


class Stretches:
    """The places that stay, as stretches that do not touch."""

    def __init__(self, stretches: Iterable[tuple[Place, Place]]) -> None:
        """Lay them over each other; both ends are part of each."""
        merged: list[tuple[Place, Place]] = []
        for first, last in sorted(stretches):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        self._first = [first for first, _last in merged]
        self._last = [last for _first, last in merged]

    def touch(self, first: Place, last: Place) -> bool:
        """Return whether any place from one to another stays."""
        at = bisect_right(self._first, last) - 1
        return at >= 0 and self._last[at] >= first


class Present:
    """The records of a thread that are there, told in their order."""

    def __init__(self) -> None:
        """Begin with none."""
        self._stretches: list[tuple[Place, Place]] = []

    def add(self, ordinal: int, first_seq: int, last_seq: int, *, is_last: bool) -> None:
        """Take in records of a run; `is_last`: the run has no later ones."""
        first = (ordinal, first_seq)
        after = (ordinal + 1, 1) if is_last else (ordinal, last_seq + 1)
        if self._stretches and first <= self._stretches[-1][1]:
            self._stretches[-1] = (self._stretches[-1][0], after)
        else:
            self._stretches.append((first, after))

    def hold(self, first: Place, last: Place) -> bool:
        """Return whether all records from one to another are there."""
        at = bisect_right(self._stretches, (first, END)) - 1
        return at >= 0 and last < self._stretches[at][1]

    def readable(self, points: Sequence[Point], copies: Sequence[Copy]) -> set[int]:
        """Return the checkpoints that can be read."""
        left = [copy for copy in copies if self.hold(copy.place, copy.place)]
        return {
            point.checkpoint
            for point in points
            if self.hold(*_stretch(copy_for(left, point.checkpoint), point))
        }


def _stretch(copy: Copy, point: Point) -> tuple[Place, Place]:
    """Return from where to where a checkpoint is read by a copy."""
    return copy.since, max(copy.since, point.place)  # the first copy may stand behind it


def copy_for(copies: Sequence[Copy], checkpoint: int) -> Copy:
    """Return the copy that a checkpoint is read by; `copies`: by `made_at`."""
    at = bisect_right([copy.made_at for copy in copies], checkpoint)
    return copies[at - 1] if at else BEGINNING


def needed(
    points: Sequence[Point],
    copies: Sequence[Copy],
    line: Copy,
    kept: Iterable[int],
    inherited: Iterable[tuple[Place, Place]] = (),
) -> Stretches:
    """Return what has to stay of a thread.

    Args:
        points: its checkpoints, oldest first, one for each id.
        copies: by `made_at`.
        line: the copy that its newest state is read by.
        kept: checkpoints that are to be kept; those that are not there are left out.
        inherited: what others read of it, from where to where.
    """
    at = {point.checkpoint: point for point in points}
    stretches = [(line.since, END), (line.place, line.place), *inherited]
    for checkpoint in set(kept) & at.keys():
        copy = copy_for(copies, checkpoint)
        stretches += [_stretch(copy, at[checkpoint]), (copy.place, copy.place)]
    return Stretches(stretches)
