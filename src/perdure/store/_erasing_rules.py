"""What every store decides the same way about erasures: pure functions over rows."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perdure.errors import Conflict, NotFound
from perdure.ids import RunId
from perdure.model import ErasedThread, ErasureBegun, ErasureRow, ExportRow, NewRun, ThreadRow


def thread_scope(thread: str) -> str:
    """Return the scope of a thread's data keys."""
    return f"thread:{thread}"


def refused_start(
    run: NewRun, thread: ThreadRow | None, *, origin: ThreadRow | None, newest_key: str | None
) -> Conflict | None:
    """Return why a start is refused that the rows of its threads speak against; None: it is not.

    Args:
        run: what is started.
        thread: its thread's row.
        origin: row of the thread that its state is from; asked for where `run.origin` is set.
        newest_key: key id of the thread's newest data key; asked for where `run.sealed_by` is set.
    """
    if run.origin is not None and (origin.erased if origin else 0) != run.origin_erased:
        return origin_erased(run)
    if run.sealed_by and newest_key != run.sealed_by:
        return key_retired(run)
    known = thread.subject if thread else None
    if run.subject is not None and known not in {None, run.subject}:
        return other_subject(run, known or "")
    return None


def origin_erased(run: NewRun) -> Conflict:
    """Return the refusal of a start whose state was erased since it was read."""
    msg = f"thread {run.origin!r} was erased meanwhile; nothing was written"
    return Conflict(msg, thread=run.origin)


def key_retired(run: NewRun) -> Conflict:
    """Return the refusal of a start that was sealed with a data key of before an erasure."""
    msg = (
        f"the data key of thread {run.thread!r} was replaced meanwhile, as the thread was erased; "
        "nothing was written. Start again"
    )
    return Conflict(msg, thread=run.thread, sealed_by=run.sealed_by)


def other_subject(run: NewRun, known: str) -> Conflict:
    """Return the refusal of a start that says that its thread is about somebody else."""
    msg = (
        f"thread {run.thread!r} is about subject {known!r}, not {run.subject!r}; nothing was "
        "written. A thread has one subject for good: use another thread"
    )
    return Conflict(msg, thread=run.thread, subject=known)


def begun(
    erasure: ErasureRow,
    threads: Sequence[ThreadRow],
    unfinished: Iterable[RunId],
    open_erasures: Iterable[ErasureRow],
) -> ErasureBegun:
    """Return what becomes of beginning an erasure; its `row` is to be written if there is one."""
    wanted = {each.thread for each in erasure.threads}
    for other in open_erasures:
        if wanted & {each.thread for each in other.threads}:
            return ErasureBegun(other=other)
    busy = tuple(unfinished)
    if busy:
        return ErasureBegun(unfinished=busy)
    reached = tuple(ErasedThread(row.thread, row.last_ordinal) for row in threads)
    return ErasureBegun(row=replace(erasure, threads=reached))


def emptied(row: ThreadRow) -> ThreadRow:
    """Return a thread's row as an erasure leaves it."""
    return replace(
        row,
        erased=row.last_ordinal,
        base_ordinal=0,
        base_seq=0,
        graph="",
        subject=None,
        pruned_at_us=0,
    )


def check_erasable(run_id: RunId, found: tuple[int, int] | None) -> None:
    """Refuse to erase a run that is in no erasure.

    Args:
        run_id: which.
        found: its ordinal, and up to which ordinal its thread is erased; None: no such run.

    Raises:
        NotFound, Conflict: nothing was written.
    """
    if found is None:
        msg = f"no run {run_id!r}; nothing was written"
        raise NotFound(msg, run_id=run_id)
    ordinal, erased = found
    if ordinal > erased:
        msg = f"run {run_id!r} is in no erasure; nothing was written. 'perdure erase' begins one"
        raise Conflict(msg, run_id=run_id)


def no_erasure(erasure_id: str) -> NotFound:
    """Return the refusal to end an erasure that is not there."""
    msg = f"no erasure {erasure_id!r}; nothing was written"
    return NotFound(msg, erasure_id=erasure_id)


def holds(export: ExportRow, tenant: str, thread: str) -> bool:
    """Return whether an export may hold a thread."""
    return export.tenant in {"", tenant} and export.thread in {"", thread}
