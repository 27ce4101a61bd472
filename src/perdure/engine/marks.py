"""Whole copies of a state: where they were made, and where they let loading start."""

from msgspec import Struct

from perdure.codec import encode_record
from perdure.core import fold
from perdure.model import records as rec


class Mark(Struct, frozen=True):
    """The place that a whole copy was made at: where the copy after it lets loading start.

    Attributes:
        ordinal: of the run that holds the copy.
        seq: of the copy; the state is that right after it.
        step, checkpoint, next, snapshot: of the state.
        lengths: items in each field that is appended to.
    """

    ordinal: int
    seq: int
    step: int
    checkpoint: int
    next: list[rec.TaskSpec]
    snapshot: str | None
    lengths: dict[str, int]


class Start(Struct, frozen=True):
    """Where folding a thread starts: after record `seq` of its run `ordinal`, with a copy's state.

    `made_ordinal`, `made_seq`: where the copy itself is.
    """

    ordinal: int
    seq: int
    record: rec.StateCopied | rec.StateSnapshot | None = None
    made_ordinal: int = 0
    made_seq: int = 0

    @property
    def made_at(self) -> int:
        """The oldest checkpoint that can be read from here."""
        if isinstance(self.record, rec.StateCopied):
            return self.record.made_at
        return self.record.checkpoint if self.record is not None else 0


class Counted(Struct):
    """What was read since the newest whole copy, and the place that the copy was made at."""

    size: int
    whole: int
    mark: Mark | None

    def begin(self, start: Start, state: fold.RunState) -> None:
        """Begin at a copy; one that was made at the very place that folding starts at counts."""
        record = start.record
        if record is None or (start.ordinal, start.seq) != (start.made_ordinal, start.made_seq):
            return
        size = len(encode_record(record))
        if isinstance(record, rec.StateCopied):
            self.passed(record, state, start.ordinal, start.seq, size)
        else:
            self.size, self.whole, self.mark = 0, size, None

    def passed(
        self, record: rec.StateCopied, state: fold.RunState, ordinal: int, seq: int, size: int
    ) -> None:
        """Note a copy on the way."""
        self.size = 0
        self.whole = size
        self.mark = Mark(
            ordinal,
            seq,
            state.root.step - 1,
            state.checkpoint,
            [task.spec for task in state.root.tasks.values()],
            state.snapshot,
            record.lengths,
        )
