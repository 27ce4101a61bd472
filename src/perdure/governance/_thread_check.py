"""A thread's runs: none is missing, and each stands on the one before it as it pinned it.

Theory: a chain of hashes proves a journal up to its end, but not where the end is. The first lease
of a run pins the end of the thread's run before it (its last seq and last hash), so that nobody can
shorten or replace that one without changing this one as well. Only the newest run of a thread is
pinned by nothing inside the store: an export is what pins it.
"""

from perdure.governance._report import Finding, Report
from perdure.governance._run_check import RunCheck
from perdure.model import RunRow, ThreadRow


class ThreadCheck:
    """The runs of one thread, by ordinal."""

    def __init__(self, report: Report, tenant: str, thread: str, *, first_ordinal: int = 1) -> None:
        """Expect the thread's runs from an ordinal on."""
        self._report = report
        self._tenant = tenant
        self._thread = thread
        self._next = first_ordinal
        self._before: RunCheck | None = None
        self._is_whole = True
        self._committed = 0
        self._ended: tuple[int, str] = (0, "")

    def run(self, row: RunRow, check: RunCheck) -> None:
        """Take in the next run, after its frames and rows."""
        if row.ordinal > self._next:
            self._missing(self._next, row.ordinal - 1)
        elif row.ordinal < self._next:
            what = f"two runs of the thread have the ordinal {row.ordinal}"
            check.find("run_differs", what)
        self._anchor(row.ordinal, check)
        self._take(row.ordinal, check)

    def unreadable(self, ordinal: int, check: RunCheck) -> None:
        """Take in the next run, whose row can't be read, after its frames."""
        if ordinal > self._next:
            self._missing(self._next, ordinal - 1)
        self._anchor(ordinal, check)
        self._take(ordinal, check)

    def _take(self, ordinal: int, check: RunCheck) -> None:
        self._next = max(self._next, ordinal + 1)
        self._before = check
        self._is_whole = self._is_whole and check.is_whole
        self._committed = max(self._committed, check.committed)
        if check.ended is not None:
            self._ended = max(self._ended, (check.ended.checkpoint, check.run_id))

    def finish(
        self, row: ThreadRow | None, newest: int | None, late: ThreadRow | None = None
    ) -> None:
        """Compare the thread's own row, after its last run.

        Args:
            row: as it was before the runs were listed; None: there was none.
            newest: greatest ordinal that a run listed can have; None: not known.
            late: the row as it was after all journals were read; None: not known.
        """
        if row is None:
            self._find("thread_differs", "the thread has runs and no row")
        elif row.last_ordinal >= self._next:
            self._missing(self._next, row.last_ordinal)
        elif newest is not None and newest < self._next - 1:
            what = f"the row says last_ordinal {newest}, there are {self._next - 1} runs"
            self._find("thread_differs", what)
        self._checkpoint(row, late)

    def _checkpoint(self, row: ThreadRow | None, late: ThreadRow | None) -> None:
        """Compare the newest checkpoint: what is written meanwhile makes it greater only."""
        if row is not None and self._is_whole and row.checkpoint > self._committed:
            what = (
                f"the thread's row says checkpoint {row.checkpoint}, its runs committed none after "
                f"{self._committed}"
            )
            self._find("thread_differs", what)
        ended, run_id = self._ended
        if late is not None and late.checkpoint < ended:
            what = f"the row says checkpoint {late.checkpoint}, run {run_id!r} came to {ended}"
            self._find("thread_differs", what)

    def base(self, row: ThreadRow | None, run: RunRow, check: RunCheck) -> None:
        """Check the record that the thread's row names as a copy of its whole state."""
        if row is None or not row.base_seq or row.base_ordinal != run.ordinal:
            return
        if check.is_whole and row.base_seq not in check.copies:
            what = (
                f"the thread's row says that seq {row.base_seq} of this run is a copy of the whole "
                "state; it is not"
            )
            check.find("thread_differs", what, row.base_seq)

    def _anchor(self, ordinal: int, check: RunCheck) -> None:
        anchor = check.anchor
        if anchor is None:
            self._report.unanchored += check.is_taken and ordinal > 1
            return
        before = self._before
        if before is None or anchor.after_run == "":
            return
        pinned = f"run {anchor.after_run!r} ended at seq {anchor.after_seq}"
        if before.run_id != anchor.after_run:
            what = f"when this run was first taken, {pinned} before it; now run {before.run_id!r}"
            check.find("anchor_wrong", f"{what} stands there")
        elif before.next_seq - 1 != anchor.after_seq:
            what = f"{pinned} when the next run of the thread was first taken; now its journal ends"
            before.find("anchor_wrong", f"{what} at seq {before.next_seq - 1}", before.next_seq - 1)
        elif before.tip_hash.hex() != anchor.after_hash:
            what = (
                "the hash of its last frame is not the one that the next run of the thread pinned: "
                "all its records may have been made anew"
            )
            before.find("anchor_wrong", what, 1, anchor.after_seq)
        else:
            self._report.anchored += 1

    def _missing(self, first: int, last: int) -> None:
        self._is_whole = False
        which = f"run {first} is" if first == last else f"runs {first} to {last} are"
        what = f"{which} missing in the thread, with the rows and the journal"
        self._find("run_missing", what)

    def _find(self, code: str, what: str) -> None:
        self._report.add(Finding(code=code, tenant=self._tenant, thread=self._thread, what=what))
