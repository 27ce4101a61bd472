"""What an audit found."""

from dataclasses import dataclass, field

from perdure.governance.limits import FINDINGS_MAX

FINDING_CODES = {
    "frame_changed": "a frame's hash is not that of its records and columns: edited, or reordered",
    "frame_count": "a frame's count of records is not the number of records that it holds",
    "frame_unreadable": "a frame, or a record in it, can't be read",
    "chain_broken": "a frame does not follow the one before it: one of them was replaced",
    "records_missing": "records are missing inside a journal",
    "records_repeated": "a frame begins before the one before it ends",
    "journal_truncated": "a journal ends before the seq that its run's row says",
    "token_backwards": "a fencing token is smaller than the one before it",
    "start_wrong": "a journal does not begin with the start of its own run",
    "run_missing": "a run of a thread, or its row, is missing",
    "anchor_wrong": "the run before on the thread is not as the run after it pinned it",
    "run_differs": "the run's row says something else than its journal",
    "thread_differs": "the thread's row says something else than its runs",
    "effect_differs": "an effect's row says something else than the journal",
    "effect_missing": "the journal speaks of an effect that has no row",
    "effect_unknown": "an effect's row of which the journal does not speak",
    "ask_differs": "an ask's row says something else than the journal",
    "ask_missing": "the journal speaks of an ask that has no row",
    "ask_unknown": "an ask's row of which the journal does not speak",
    "origin_missing": "the state that a fork inherits is not in its origin's journal any more",
    "page_changed": "a page of a large value does not hold what its name says",
    "page_missing": "a page of a large value is missing",
    "row_unreadable": "a row can't be read",
    "file_changed": "a file's bytes are not those that were exported",
    "signature_wrong": "a file's signature is not that of its bytes, or not of the key given",
    "history_changed": "a journal does not go on from where an earlier export saw it",
    "history_missing": "a run of an earlier export is not there any more",
}
"""Every code of a finding, with what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it was written.

    Attributes:
        code: one of FINDING_CODES.
        run_id: whose; "": of the thread or the file.
        first_seq: first record that it is about; 0: none.
        last_seq: last one.
        what: what is wrong, and what may be trusted all the same.
        trusted_seq: records 1 to this one of the run are proven to be what was written.
    """

    code: str
    tenant: str = ""
    thread: str = ""
    run_id: str = ""
    first_seq: int = 0
    last_seq: int = 0
    what: str
    trusted_seq: int | None = None


@dataclass(slots=True)
class Report:
    """What an audit looked at and found, in the order in which it found it.

    Attributes:
        records: journal records whose hashes were recomputed.
        pages: parts of large values whose hashes were recomputed, each once for a thread.
        erased: those of them whose content was erased, and whose digests were kept.
        anchored: runs before which the run stands that they pinned, as they pinned it.
        unanchored: runs that should, and do not: begun before runs did.
        untimed: frames whose time no hash covers: written before it did.
        unsettled: runs that were written to all the time, so that their rows were not compared.
        dropped: findings beyond those that are kept.
    """

    threads: int = 0
    runs: int = 0
    frames: int = 0
    records: int = 0
    effects: int = 0
    asks: int = 0
    pages: int = 0
    erased: int = 0
    anchored: int = 0
    unanchored: int = 0
    untimed: int = 0
    unsettled: int = 0
    dropped: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def add(self, finding: Finding) -> None:
        """Keep a finding, or count it."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.dropped += 1
