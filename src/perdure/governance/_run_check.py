"""One run's journal and rows: is everything what was written?

Theory: frames are taken in by seq. As long as every frame fits the one before it, and its hash fits
its records and columns, the records are *trusted*: nobody changed one of them without making all
hashes after it anew. After the first misfit nothing more is trusted, but what comes is looked at
all the same, each frame by itself, so that one look names all that is wrong.
"""

from msgspec import structs

from perdure.codec import (
    NO_HASH,
    decode_record,
    digests_of,
    is_erased,
    is_hash_right,
    is_time_hashed,
    split_frame,
)
from perdure.errors import DecodeFailed
from perdure.governance._ledger_check import LedgerCheck
from perdure.governance._page_check import PageNeeds
from perdure.governance._report import Finding, Report
from perdure.model import AskRow, EffectRow, FrameRow, RunRow
from perdure.model import records as rec

WRONG_COLUMNS = "has columns of a wrong type or range"


class RunCheck:
    """What is known of one run while its frames come in."""

    def __init__(
        self, report: Report, run_id: str, tenant: str, thread: str, pages: PageNeeds
    ) -> None:
        """Expect the frames of a run; what is found goes to the report.

        `pages`: what the thread's records need, to be given after each frame.
        """
        self.pages = pages
        self.report = report
        self.run_id = run_id
        self.tenant = tenant
        self.thread = thread
        self.next_seq = 1
        self.tip_hash = NO_HASH
        self.trusted_seq = 0
        self.started: rec.RunStarted | None = None
        self.ended: rec.RunEnded | None = None
        self.anchor: rec.LeaseTaken | None = None
        self.version = 0
        self.committed = 0
        self.is_taken = False
        self.copies: set[int] = set()
        self.is_whole = True
        self._erased_to = 0
        self._is_trusted = True
        self._token = 0
        self._ledger = LedgerCheck(pages)

    def find(self, code: str, what: str, first_seq: int = 0, last_seq: int = 0) -> None:
        """Report that something about this run is not as it was written."""
        if self.trusted_seq:
            what += f"; records 1 to {self.trusted_seq} are what was written"
        self.report.add(
            Finding(
                code=code,
                tenant=self.tenant,
                thread=self.thread,
                run_id=self.run_id,
                first_seq=first_seq,
                last_seq=last_seq or first_seq,
                what=what,
                trusted_seq=self.trusted_seq,
            )
        )

    def _distrust(
        self, code: str, what: str, first_seq: int, last_seq: int, *, is_whole: bool = True
    ) -> None:
        """Report what is wrong with the journal; nothing from here on is trusted."""
        self._is_trusted = False
        self.is_whole = self.is_whole and is_whole
        self.find(code, what, first_seq, last_seq)

    # -- frames ------------------------------------------------------------------------------------

    def frame(self, frame: FrameRow) -> None:
        """Take in the next frame, by first seq."""
        if not is_well_formed(frame):
            self.unreadable_frame(f"the frame after seq {self.next_seq - 1} {WRONG_COLUMNS}")
            return
        self.report.frames += 1
        last_seq = frame.first_seq + frame.count - 1
        try:
            digests = digests_of(frame.body)
        except DecodeFailed as error:
            self._distrust(
                "frame_unreadable", str(error), frame.first_seq, last_seq, is_whole=False
            )
        else:
            self.report.records += len(digests)
            if self._chain(frame, digests):  # then it holds what it says, whatever its count says
                last_seq = frame.first_seq + len(digests) - 1
            self._records(frame, len(digests))
        if self._is_trusted:
            self.trusted_seq = last_seq
        self.next_seq = max(self.next_seq, last_seq + 1)
        self.tip_hash = frame.hash
        self._token = max(self._token, frame.token)

    def unreadable_frame(self, what: str) -> None:
        """Take in that the next frame can't be read."""
        self._distrust("frame_unreadable", what, self.next_seq, self.next_seq, is_whole=False)

    def _chain(self, frame: FrameRow, digests: list[bytes]) -> bool:
        """Check a frame against its hash and against what came before it.

        Returns:
            Whether its hash is right.
        """
        first, last = frame.first_seq, frame.first_seq + frame.count - 1
        if len(digests) != frame.count:
            what = f"says that it holds {frame.count} records, and holds {len(digests)}"
            self._distrust("frame_count", f"the frame at seq {first} {what}", first, last)
        is_right = is_hash_right(frame, digests)
        if not is_right:
            self._distrust("frame_changed", self._how_changed(frame, digests), first, last)
        elif not is_time_hashed(frame, digests):
            self.report.untimed += 1
        if first > self.next_seq:
            what = f"records {self.next_seq} to {first - 1} are missing"
            self._distrust("records_missing", what, self.next_seq, first - 1, is_whole=False)
        elif first < self.next_seq:
            what = f"a frame begins at seq {first}, and the one before ends at {self.next_seq - 1}"
            self._distrust("records_repeated", what, first, last)
        elif frame.prev_hash != self.tip_hash:
            what = f"the frame at seq {first} does not follow the frame before it"
            self._distrust("chain_broken", what, first, last)
        if frame.token < self._token:
            what = f"token {frame.token} at seq {first} comes after token {self._token}"
            self._distrust("token_backwards", what, first, last)
        return is_right

    def _how_changed(self, frame: FrameRow, digests: list[bytes]) -> str:
        """Say what of a frame was changed, where putting one column right makes the hash right."""
        where = f"the frame at seq {frame.first_seq}"
        guesses = {
            "its first seq": {"first_seq": self.next_seq},
            "its token": {"token": self._token},
            "its previous hash": {"prev_hash": self.tip_hash},
        }
        for name, fields in guesses.items():
            if is_hash_right(structs.replace(frame, **fields), digests):  # type: ignore[arg-type]  # of the fields' types
                return f"{where}: {name} was changed; its records are what was written"
        return f"{where}: a record was changed, dropped or reordered, or its token, time or hash"

    def _records(self, frame: FrameRow, count: int) -> None:
        if is_erased(frame.body):
            self.report.erased += count
            self.is_whole = False
            self._erased_to = frame.first_seq + count - 1
            return
        for offset, encoded in enumerate(split_frame(frame.body)):
            seq = frame.first_seq + offset
            try:
                record = decode_record(encoded)
            except DecodeFailed as error:
                self._distrust("frame_unreadable", str(error), seq, seq, is_whole=False)
                continue
            self._take(seq, frame, record)

    def page(self, name: bytes, body: bytes) -> None:
        """Take in a page that the newest frames refer to."""
        self.report.pages += 1
        wrong = self.pages.take(name, body)
        if wrong is not None:
            what = f"a page of a value up to seq {self.next_seq - 1}: {wrong}"
            self.find("page_changed", what, self.next_seq - 1)

    def close_pages(self) -> None:
        """Take in that no more pages come for the frames so far."""
        for name in self.pages.drop():
            what = f"page {name.hex()[:16]} of a value up to seq {self.next_seq - 1} is missing"
            self.find("page_missing", what, self.next_seq - 1)

    def _take(self, seq: int, frame: FrameRow, record: rec.Record) -> None:
        try:
            self.pages.look_at(record)
        except DecodeFailed as error:
            self._distrust("frame_unreadable", str(error), seq, seq)
        self._ledger.apply(seq, record)
        if isinstance(record, rec.RunStarted):
            self._start(seq, record)
        elif seq == 1:
            self._distrust("start_wrong", "the journal does not begin with a start", 1, 1)
        if isinstance(record, rec.LeaseTaken):
            self._lease(seq, frame, record)
        elif isinstance(record, rec.StepCommitted):
            if record.scope == "":
                self.committed = record.checkpoint
        elif isinstance(record, rec.RunEnded):
            self.ended = record
        elif isinstance(record, rec.VersionMoved):
            self.version = record.to_version
        elif isinstance(record, rec.StateSnapshot | rec.StateCopied):
            self.copies.add(seq)

    def _start(self, seq: int, record: rec.RunStarted) -> None:
        if seq != 1 or record.run_id != self.run_id:
            what = f"seq {seq} is the start of run {record.run_id!r}"
            self._distrust("start_wrong", what, seq, seq)
            return
        self.started, self.version = record, record.version

    def _lease(self, seq: int, frame: FrameRow, record: rec.LeaseTaken) -> None:
        self.is_taken = True
        if record.token != frame.token:
            what = f"the lease at seq {seq} was taken under token {record.token}, the frame says "
            self._distrust("token_backwards", f"{what}{frame.token}", seq, seq)
        if record.ordinal and self.anchor is None:
            self.anchor = record

    # -- rows --------------------------------------------------------------------------------------

    def row(self, row: RunRow) -> None:
        """Compare the run's row, after the last frame."""
        self._row(row)

    def effect(self, row: EffectRow, *, is_readable: bool = True) -> None:
        """Compare an effect's row; one that can't be read is only counted."""
        self.report.effects += 1
        if not is_readable:
            self._ledger.forget(row.effect_id)
            return
        self._compare("effect", row.effect_id, self._ledger.effect(row, self._erased_to))

    def ask(self, row: AskRow, *, is_readable: bool = True) -> None:
        """Compare an ask's row; one that can't be read is only counted."""
        self.report.asks += 1
        if not is_readable:
            self._ledger.forget(row.ask_id)
            return
        self._compare("ask", row.ask_id, self._ledger.ask(row))

    def finish(self, *, is_settled: bool, has_all_rows: bool) -> None:
        """Take in that nothing more comes.

        Args:
            is_settled: whether rows were compared: all was read while nobody wrote to the run.
            has_all_rows: whether there can't be more effects or asks than were given.
        """
        self.report.runs += 1
        self.report.unsettled += not is_settled
        if is_settled and has_all_rows:
            for kind, identity, seq in self._ledger.lacking():
                self.find(f"{kind}_missing", f"{kind} {identity} of seq {seq} has no row", seq)

    def _compare(self, kind: str, identity: str, found: tuple[int, list[str]] | None) -> None:
        if found is None:
            if self.is_whole:  # else a record that was erased or lost may speak of it
                what = f"{kind} {identity} has a row, and the journal does not speak of it"
                self.find(f"{kind}_unknown", what)
            return
        seq, names = found
        if names:
            what = f"the row of {kind} {identity} differs from the journal in: {', '.join(names)}"
            self.find(f"{kind}_differs", what, seq)

    def _row(self, row: RunRow) -> None:
        last_seq = self.next_seq - 1
        if last_seq < row.last_seq:
            what = f"the journal ends at seq {last_seq}, the run's row says {row.last_seq}"
            self._is_trusted = self.is_whole = False
            self.find("journal_truncated", what, last_seq + 1, row.last_seq)
        elif last_seq > row.last_seq:
            what = f"the run's row says last_seq {row.last_seq}, the journal ends at {last_seq}"
            self.find("run_differs", what, last_seq)
        names = [name for name, (stored, told) in self._pairs(row).items() if stored != told]
        if names:
            self.find(
                "run_differs", f"the run's row differs from its journal in: {', '.join(names)}"
            )

    def _pairs(self, row: RunRow) -> dict[str, tuple[object, object]]:
        """Return what the row says and what the journal says, by column."""
        pairs: dict[str, tuple[object, object]] = {
            "token": (row.token >= self._token, True),
            "run_id": (row.run_id, self.run_id),
        }
        started, ended = self.started, self.ended
        if started is not None:
            pairs |= {
                "tenant": (row.tenant, started.tenant),
                "thread": (row.thread, started.thread),
                "graph": (row.graph, started.graph),
                "start_key": (row.start_key, started.start_key),
                "parent": (row.parent, started.parent),
                "parent_call": (row.parent_call, started.parent_call),
                "created_at_us": (row.created_at_us, started.at_us),
            }
            if self.is_whole:
                pairs["version"] = (row.version, self.version)
        if self.anchor is not None:
            pairs["ordinal"] = (row.ordinal, self.anchor.ordinal)
        if ended is not None:
            pairs |= {
                "status": (row.status.value, ended.status),
                "failure": (row.failure, ended.failure),
                "checkpoint": (row.checkpoint, ended.checkpoint),
                "ended_at_us": (row.ended_at_us, ended.at_us),
            }
        elif self.is_whole:
            pairs["status"] = (row.status.is_final, False)
        return pairs


def is_well_formed(frame: FrameRow) -> bool:
    """Return whether the columns have the types and ranges that a writer gives them."""
    numbers = (frame.first_seq, frame.count, frame.token, frame.at_us)
    blobs = (frame.body, frame.prev_hash, frame.hash)
    return (
        all(type(number) is int for number in numbers)
        and all(isinstance(blob, bytes) for blob in blobs)
        and frame.first_seq >= 1
        and frame.count >= 1
        and frame.token >= 0
    )
