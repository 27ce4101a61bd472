"""Check an export: is the file what was exported, is what was exported what was written?

Theory, in two passes that both read block by block. The *seal*: every byte counts in a digest, and
the digest is signed. The *contents*: the same checks as over a store, and, against an earlier
export, that every journal only got longer. The first says who vouches for the file; the second says
what of it is wrong, and holds without any key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from perdure.errors import ExportInvalid, UsageError
from perdure.governance._file import (
    IS_END,
    AskOf,
    Block,
    EffectOf,
    End,
    FrameOf,
    Head,
    PageOf,
    Reader,
    RunBegins,
    RunEnds,
    RunOf,
    Signature,
    ThreadOf,
    UnreadableOf,
    Unsigned,
    kind_of,
    signed_bytes,
)
from perdure.governance._keys import fingerprint, is_signature_right
from perdure.governance._page_check import PageNeeds
from perdure.governance._report import Finding, Report
from perdure.governance._run_check import RunCheck
from perdure.governance._thread_check import ThreadCheck
from perdure.governance.limits import TIPS_MAX
from perdure.model import FrameRow

ALGORITHM = "ed25519"


class Tip(Struct, frozen=True):
    """Where a journal ended in an earlier export."""

    tenant: str
    thread: str
    last_seq: int
    last_hash: bytes


@dataclass(slots=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        head: what was exported, and when.
        signed_by: fingerprint of the key that the file says signed it; "": it is not signed.
        is_signer_known: whether that is the key that was given, and its signature is right.
        grown: runs whose journals go on from where the earlier export saw them.
        uncovered: runs of the earlier export that this file was not to hold.
        unseen: runs of this file that the earlier export was not to hold: of some runs, a thread,
            or a tenant only.
    """

    report: Report = field(default_factory=Report)
    head: Head | None = None
    signed_by: str = ""
    is_signer_known: bool = False
    grown: int = 0
    uncovered: int = 0
    unseen: int = 0


def check(
    path: Path,
    *,
    public_key: bytes | None = None,
    since: Path | None = None,
    on_progress: Callable[[Report], None] = lambda _report: None,
) -> Checked:
    """Return what a file proves, and what in it is wrong. Needs no store.

    Args:
        path: the file.
        public_key: who must have signed it; None: anybody, or nobody.
        since: an earlier export: its journals must be the beginnings of this one's.
        on_progress: called with the report so far after every run.

    Raises:
        ExportInvalid: it is no export, or can't be read to its end.
        KeyUnusable: its signature can't be checked, as the extra is not installed.
        UsageError: the file can't be opened.
    """
    checked = Checked()
    earlier, tips = (None, {}) if since is None else _tips_of(since, public_key)
    with _opened(path) as file:
        check_seal(Reader(file), checked, public_key)
        is_sealed = checked.report.is_sound
        contents = Contents(checked, tips, on_progress, earlier=earlier)
        try:
            contents.read(Reader(file))
        except ExportInvalid as error:
            if is_sealed:
                raise
            checked.report.add(Finding(code="file_changed", what=str(error)))
    return checked


def _opened(path: Path) -> BinaryIO:
    """Return the file, opened.

    Raises:
        UsageError: it can't be opened, or is no regular file.
    """
    try:
        if not path.is_file():
            msg = f"{str(path)!r} is no file"
            raise UsageError(msg, path=str(path))
        return path.open("rb")
    except OSError as error:
        msg = f"{str(path)!r} can't be opened: {error.strerror}"
        raise UsageError(msg, path=str(path)) from error


# -- the seal --------------------------------------------------------------------------------------


def check_seal(reader: Reader, checked: Checked, public_key: bytes | None) -> None:
    """Check the digest of a file's bytes, and its signature.

    Raises:
        ExportInvalid: it can't be read to its end, or something follows its end.
    """
    head = reader.decoded(reader.encoded())
    if not isinstance(head, Head):
        msg = "the first block does not say what was exported"
        raise reader.invalid(msg)
    checked.head = head
    while True:
        told = End(reader.blocks, reader.offset, reader.digest)
        encoded = reader.encoded()
        if kind_of(encoded) == IS_END:
            break
    if reader.exact(encoded) != told:
        what = "its bytes are not those that were exported: changed after it was made"
        checked.report.add(Finding(code="file_changed", what=what))
    message = signed_bytes(reader.digest)
    closing = reader.exact(reader.encoded())
    if not reader.is_at_end:
        msg = "something follows the end"
        raise reader.invalid(msg)
    _check_signature(reader, closing, message, checked, public_key)


def _check_signature(
    reader: Reader, closing: Block, message: bytes, checked: Checked, public_key: bytes | None
) -> None:
    if isinstance(closing, Unsigned):
        if public_key is not None:
            what = "it is not signed, and a public key was given"
            checked.report.add(Finding(code="signature_wrong", what=what))
        return
    if not isinstance(closing, Signature) or closing.algorithm != ALGORITHM:
        msg = f"the last block is no {ALGORITHM} signature"
        raise reader.invalid(msg)
    checked.signed_by = fingerprint(closing.public_key)
    if not is_signature_right(closing.public_key, closing.signature, message):
        what = f"the signature is not that of these bytes by key {checked.signed_by}"
        checked.report.add(Finding(code="signature_wrong", what=what))
    elif public_key is not None and closing.public_key != public_key:
        what = (
            f"it is signed by key {checked.signed_by}, the key given is {fingerprint(public_key)}"
        )
        checked.report.add(Finding(code="signature_wrong", what=what))
    else:
        checked.is_signer_known = public_key is not None


def _tips_of(path: Path, public_key: bytes | None) -> tuple[Head | None, dict[str, Tip]]:
    """Return what an earlier export was to hold, and where every journal in it ended.

    Raises:
        ExportInvalid: it can't be read, or is damaged itself: nothing can be compared with it.
    """
    earlier = Checked()
    tips: dict[str, Tip] = {}
    with _opened(path) as file:
        check_seal(Reader(file), earlier, public_key)
        for finding in earlier.report.findings:
            msg = f"the earlier export {str(path)!r} proves nothing: {finding.what}"
            raise ExportInvalid(msg, path=str(path), code=finding.code)
        thread = ThreadOf("", "", False)  # noqa: FBT003  # is_whole
        for block in Reader(file):
            if isinstance(block, ThreadOf):
                thread = block
            elif isinstance(block, RunEnds):
                tips[block.run_id] = Tip(
                    thread.tenant, thread.thread, block.last_seq, block.last_hash
                )
                if len(tips) > TIPS_MAX:
                    msg = f"the earlier export has more than {TIPS_MAX} runs: compare by tenant"
                    raise ExportInvalid(msg, path=str(path))
    return earlier.head, tips


# -- the contents ----------------------------------------------------------------------------------


class Contents:
    """Checks the blocks of a file in their order."""

    def __init__(
        self,
        checked: Checked,
        tips: dict[str, Tip],
        on_progress: Callable[[Report], None],
        *,
        earlier: Head | None = None,
    ) -> None:
        """Expect the first block."""
        self._checked = checked
        self._earlier = earlier
        self._report = checked.report
        self._tips = tips
        self._on_progress = on_progress
        self._head: Head | None = None
        self._thread: ThreadOf | None = None
        self._lines: ThreadCheck | None = None
        self._begun: RunBegins | None = None
        self._run: RunCheck | None = None
        self._row: RunOf | None = None
        self._is_grown = False
        self._has_row = True
        self._lost = ""
        self._pages = PageNeeds()

    def read(self, reader: Reader) -> None:
        """Check every block.

        Raises:
            ExportInvalid: they are not in the order in which they are written.
        """
        take = {
            Head: self._take_head,
            ThreadOf: self._take_thread,
            RunBegins: self._take_begin,
            FrameOf: self._take_frame,
            PageOf: self._take_page,
            RunOf: self._take_row,
            EffectOf: self._take_effect,
            AskOf: self._take_ask,
            RunEnds: self._take_end,
            UnreadableOf: self._take_unreadable,
        }
        for block in reader:
            known = take.get(type(block))
            if known is None or not known(block):  # type: ignore[operator]  # each takes its kind
                msg = f"a block of kind {type(block).__name__!r} may not stand there"
                raise reader.invalid(msg)
        if self._begun is not None or self._head is None:
            msg = "the contents end in the middle of a run"
            raise reader.invalid(msg)
        self._close_thread()
        self._compare_missing(self._head)

    def _take_head(self, block: Head) -> bool:
        is_first = self._head is None
        self._head = block
        return is_first

    def _take_thread(self, block: ThreadOf) -> bool:
        if self._head is None or self._begun is not None:
            return False
        self._close_thread()
        self._thread, self._pages, self._has_row = block, PageNeeds(), True
        self._report.threads += 1
        self._lines = ThreadCheck(self._report, block.tenant, block.thread)
        return True

    def _close_thread(self) -> None:
        whole = self._thread is not None and self._thread.is_whole and self._has_row
        if self._thread is not None and self._lines is not None and whole:
            self._lines.finish(self._thread.row, None)

    def _take_begin(self, block: RunBegins) -> bool:
        if self._thread is None or self._begun is not None:
            return False
        tenant, thread = self._thread.tenant, self._thread.thread
        if not self._thread.is_whole:
            self._lines = ThreadCheck(self._report, tenant, thread, first_ordinal=block.ordinal)
        self._begun, self._row, self._lost = block, None, ""
        self._run = RunCheck(self._report, block.run_id, tenant, thread, self._pages)
        self._is_grown = False
        return True

    def _take_frame(self, block: FrameOf) -> bool:
        if self._run is None or self._begun is None or self._row is not None:
            return False
        frame = FrameRow(
            run_id=self._begun.run_id,  # type: ignore[arg-type]  # a RunId as it was written
            first_seq=block.first_seq,
            count=block.count,
            token=block.token,
            at_us=block.at_us,
            body=block.body,
            prev_hash=block.prev_hash,
            hash=block.hash,
        )
        self._close_pages(self._run, self._begun)
        self._run.frame(frame)
        tip = self._tips.get(frame.run_id)
        if tip is not None and self._run.trusted_seq == tip.last_seq:
            self._is_grown = frame.hash == tip.last_hash
        return True

    def _take_page(self, block: PageOf) -> bool:
        if self._run is None or self._row is not None or block.name not in self._pages.wanted:
            return False
        self._run.page(block.name, block.body)
        return True

    def _close_pages(self, run: RunCheck, begun: RunBegins) -> None:
        row = None if self._thread is None else self._thread.row
        if row is not None and begun.ordinal <= row.erased:
            self._pages.drop()  # an erasure was under way: what it erases lacks its pages first
        run.close_pages()

    def _take_row(self, block: RunOf) -> bool:
        if self._run is None or self._begun is None or self._row is not None:
            return False
        self._close_pages(self._run, self._begun)
        self._row = block
        if block.is_settled:
            self._run.row(block.row)
        return True

    def _take_effect(self, block: EffectOf) -> bool:
        if self._run is None or self._row is None:
            return False
        if self._row.is_settled:
            self._run.effect(block.row)
        return True

    def _take_ask(self, block: AskOf) -> bool:
        if self._run is None or self._row is None:
            return False
        if self._row.is_settled:
            self._run.ask(block.row)
        return True

    def _take_unreadable(self, block: UnreadableOf) -> bool:
        """Take in what the store could not read when it was exported."""
        run, thread = self._run, self._thread
        if block.of == "thread" and thread is not None and self._begun is None:
            self._has_row = False
            tenant, name = thread.tenant, thread.thread
            found = Finding(code="row_unreadable", tenant=tenant, thread=name, what=block.what)
            self._report.add(found)
            return True
        if run is None or (block.of == "row") != (self._row is not None):
            return False
        if block.of == "frame":
            run.unreadable_frame(block.what)
        elif block.of == "run":
            self._lost = block.what
        else:
            run.find("row_unreadable", block.what)
        return block.of in {"frame", "run", "row"}

    def _take_lost(self, run: RunCheck, begun: RunBegins) -> None:
        """Take in that a run whose row can't be read has ended."""
        self._close_pages(run, begun)
        if run.started is not None and not run.tenant:
            run.tenant, run.thread = run.started.tenant, run.started.thread
        run.find("row_unreadable", self._lost)
        run.finish(is_settled=False, has_all_rows=False)
        if self._lines is not None and self._thread is not None and self._thread.thread:
            anchor = run.anchor
            self._lines.unreadable(begun.ordinal if anchor is None else anchor.ordinal, run)

    def _take_end(self, block: RunEnds) -> bool:
        run, begun, row = self._run, self._begun, self._row
        if run is None or begun is None or self._lines is None:
            return False
        if row is None and not self._lost:
            return False
        if row is None:
            self._take_lost(run, begun)
        else:
            run.finish(is_settled=row.is_settled, has_all_rows=row.has_all_rows)
        told = (block.run_id, block.last_seq, block.last_hash)
        if told != (run.run_id, run.next_seq - 1, run.tip_hash):
            what = (
                f"the file says that the journal ended at seq {block.last_seq}, and holds another"
            )
            run.find("file_changed", what, block.last_seq)
        if row is not None:
            self._lines.run(row.row, run)
            if self._thread is not None:
                self._lines.base(self._thread.row, row.row, run)
        self._compare(run)
        self._begun = self._run = self._row = None
        self._on_progress(self._report)
        return True

    # -- against an earlier export -----------------------------------------------------------------

    def _compare(self, run: RunCheck) -> None:
        tip = self._tips.pop(run.run_id, None)
        if tip is None:
            earlier = self._earlier
            is_seen = earlier is None or _covers(earlier, run.run_id, run.tenant, run.thread)
            self._checked.unseen += not is_seen
            return
        if self._is_grown:
            self._checked.grown += 1
            return
        what = (
            f"an earlier export saw this journal end at seq {tip.last_seq}; the journal in this "
            "file does not go on from there: it was shortened, or its records were made anew"
        )
        run.find("history_changed", what, 1, tip.last_seq)

    def _compare_missing(self, head: Head) -> None:
        for run_id, tip in self._tips.items():
            if not _covers(head, run_id, tip.tenant, tip.thread):
                self._checked.uncovered += 1
                continue
            self._report.add(
                Finding(
                    code="history_missing",
                    tenant=tip.tenant,
                    thread=tip.thread,
                    run_id=run_id,
                    first_seq=1,
                    last_seq=tip.last_seq,
                    what=f"an earlier export saw this run, up to seq {tip.last_seq}; it is missing",
                )
            )


def _covers(head: Head, run_id: str, tenant: str, thread: str) -> bool:
    """Return whether an export of this scope must hold a run."""
    if head.run_id:
        return head.run_id == run_id
    if head.thread:
        return (head.thread, head.tenant or "default") == (thread, tenant)
    return head.tenant in {"", tenant}
