"""What every store decides the same way: pure functions over rows, no I/O.

A backend reads the rows that a rule needs, asks the rule, and writes what it says in one
transaction.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core.machines import ASK_TABLE, AskEvent, advance
from perdure.core.room import Closed, Room
from perdure.errors import (
    NotFound,
    RunFinal,
    SettingInvalid,
    StartKeyReused,
    StoreCorrupt,
    ThreadBusy,
)
from perdure.ids import RunId, TenantId
from perdure.model import (
    ALL_GRAPHS,
    ALL_TENANTS,
    Append,
    AskRow,
    AskState,
    EffectPut,
    EffectRow,
    EffectState,
    FrameRow,
    KeyRow,
    Mail,
    MailKind,
    MailPosted,
    NewRun,
    OnBusy,
    RunEnded,
    RunReleased,
    RunRow,
    RunSpawned,
    RunStatus,
    ScheduleRow,
    Started,
    Wait,
    WaitKind,
)
from perdure.store.api import AskQuery, EffectQuery, RunQuery

FIRST_HASH = bytes(32)
"""`prev_hash` of a run's first frame."""

_DECIDING = frozenset({MailKind.DECISION, MailKind.RETRY, MailKind.CANCEL})


def is_queued(status: RunStatus, waits: tuple[Wait, ...]) -> bool:
    """Return whether a run with these fields stands behind another run of its thread."""
    return status is RunStatus.PENDING and any(wait.kind is WaitKind.THREAD for wait in waits)


def mail_wakes(kind: MailKind, status: RunStatus, waits: tuple[Wait, ...]) -> bool:
    """Return whether a message of this kind makes a run with these fields claimable at once.

    A running run is not woken: its holder reads the mail. A pending one is due anyway, so that only
    a cancel hurries it, unless it is queued: then it keeps its turn.
    """
    if status is RunStatus.WAITING:
        return True
    if status is RunStatus.NEEDS_DECISION:
        return kind in _DECIDING
    if status is RunStatus.PENDING:
        return kind is MailKind.CANCEL and not is_queued(status, waits)
    return False


def unread_wakes(kinds: list[MailKind], status: RunStatus) -> bool:
    """Return whether unread mail of these kinds makes a run released as `status` due at once."""
    if status is RunStatus.NEEDS_DECISION:
        return any(kind in _DECIDING for kind in kinds)
    return bool(kinds)


def woken_at(ready_at_us: int | None, at_us: int) -> int:
    """Return when a run that is woken at `at_us` is claimable: never later than it already was."""
    return at_us if ready_at_us is None else min(ready_at_us, at_us)


def turn_at(waits: tuple[Wait, ...], at_us: int) -> int:
    """Return when a queued run is due whose turn comes at `at_us`: a delay is kept."""
    return max([at_us, *(wait.due_us for wait in waits if wait.due_us is not None)])


def is_refused(run: NewRun, *, is_busy: bool) -> bool:
    """Return whether a start is refused (`ThreadBusy`) rather than stored."""
    return is_busy and run.on_busy is OnBusy.REJECT


def may_take(run: NewRun, room: Room) -> bool:
    """Return whether a start may take the run at once: a run that a limit counts waits for a claim.

    Even where there is room: others may wait for it already.
    """
    return not room.applies(run.tenant, run.graph)


def first_row(
    run: NewRun, *, ordinal: int, is_busy: bool, base_checkpoint: int, may_take: bool = True
) -> RunRow:
    """Return the row of a new run: queued behind the thread, due, or taken by a worker."""
    row = RunRow(
        run_id=run.run_id,
        tenant=run.tenant,
        thread=run.thread,
        ordinal=ordinal,
        graph=run.graph,
        version=run.version,
        status=RunStatus.PENDING,
        ready_at_us=max(run.ready_at_us, run.created_at_us),
        priority=run.priority,
        last_seq=1,
        base_checkpoint=base_checkpoint,
        start_key=run.start_key,
        input_digest=run.input_digest,
        parent=run.parent,
        parent_call=run.parent_call,
        created_at_us=run.created_at_us,
    )
    is_due = run.ready_at_us <= run.created_at_us
    if is_busy:
        return replace(row, ready_at_us=None, waits=queue_waits(run, is_due=is_due))
    if is_due and run.take_for is not None and may_take:
        return claimed(row, run.take_for, run.lease_until_us)
    return row


def queue_waits(run: NewRun, *, is_due: bool) -> tuple[Wait, ...]:
    """Return what a run waits for that stands behind another of its thread."""
    turn = Wait(kind=WaitKind.THREAD, subject=run.thread)
    return (turn,) if is_due else (turn, Wait(kind=WaitKind.TIMER, due_us=run.ready_at_us))


def claimed(row: RunRow, worker_id: str, lease_until_us: int) -> RunRow:
    """Return the row after a claim: running, one token and one claim more, no waits."""
    return replace(
        row,
        status=RunStatus.RUNNING,
        token=row.token + 1,
        claims=row.claims + 1,
        holder=worker_id,
        ready_at_us=lease_until_us,
        waits=(),
    )


def is_takeable(row: RunRow, *, token: int, now_us: int) -> bool:
    """Return whether `take` may have the run."""
    if row.status.is_final or row.token != token:
        return False
    if row.status is RunStatus.RUNNING:
        return row.ready_at_us is not None and row.ready_at_us <= now_us
    return row.status is not RunStatus.PENDING or row.ready_at_us is not None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A due run that is not running, as a claim under limits looks at it.

    Attributes:
        number: what the store knows it by.
    """

    number: Any
    tenant: TenantId
    graph: str
    is_first: bool


def claim_within(
    room: Room,
    find_due: Callable[[list[Closed], int], list[Candidate]],
    take: Callable[[Candidate], RunRow | None],
    limit: int,
) -> list[RunRow]:
    """Take up to `limit` runs for which there is room; rows after the claim, in order.

    Args:
        room: what the limits leave; counted down here.
        find_due: returns up to so many due runs outside the closed patterns that are not running,
            in the order of a claim.
        take: claims one, so that it is not found again; None: it could not be read.
        limit: at most so many.
    """
    taken: list[RunRow] = []
    has_moved = True
    while has_moved and len(taken) < limit:
        has_moved = False
        for each in find_due(room.closed(), limit - len(taken)):
            if room.keeps(each.tenant, each.graph, is_first=each.is_first) is not None:
                continue  # the room went to those before it: the next look leaves its like out
            has_moved = True
            row = take(each)
            if row is not None:
                room.take(each.tenant, each.graph, is_first=each.is_first)
                taken.append(row)
    return taken


def is_closed(candidate: Candidate, closed: list[Closed]) -> bool:
    """Return whether any of the patterns names the run."""
    return any(
        each.tenant in {ALL_TENANTS, candidate.tenant}
        and each.graph in {ALL_GRAPHS, candidate.graph}
        and (candidate.is_first or not each.only_first)
        for each in closed
    )


def schedule_order(row: ScheduleRow) -> tuple[bool, int, str, str]:
    """Return the key that schedules are sorted by."""
    return (row.next_at_us is None, row.next_at_us or 0, row.tenant, row.name)


def first_frame(run: NewRun) -> FrameRow:
    """Return the frame with the `RunStarted` record: seq 1, token 0."""
    return FrameRow(
        run_id=run.run_id,
        first_seq=1,
        count=1,
        token=0,
        at_us=run.created_at_us,
        body=run.first_body,
        prev_hash=FIRST_HASH,
        hash=run.first_hash,
    )


def is_answerable(ask: AskRow, at_us: int) -> bool:
    """Return whether the ask takes an answer at that time: open, and not expired."""
    expires = ask.expires_at_us
    return ask.state is AskState.OPEN and (expires is None or expires > at_us)


def is_own_answer(ask: AskRow, *, value_wire: bytes, by: str, at_us: int) -> bool:
    """Return whether the answer that stands is this one, come again."""
    stands = (ask.value_wire, ask.answered_by, ask.answered_at_us)
    return ask.state is AskState.ANSWERED and stands == (value_wire, by, at_us)


def answered(ask: AskRow, *, value_wire: bytes, by: str, at_us: int) -> AskRow:
    """Return the open ask with its answer."""
    state = advance(ASK_TABLE, ask.state, AskEvent.ANSWER, ask.ask_id)
    return replace(ask, state=state, value_wire=value_wire, answered_by=by, answered_at_us=at_us)


def answer_mail(ask: AskRow, *, value_wire: bytes, by: str, at_us: int) -> Mail:
    """Return the message that tells the run its answer."""
    return Mail(
        run_id=ask.run_id,
        kind=MailKind.ANSWER,
        subject=ask.ask_id,
        body_wire=value_wire,
        sender=by,
        at_us=at_us,
    )


def is_decidable(effect: EffectRow) -> bool:
    """Return whether the effect takes a decision: uncertain, and not decided yet."""
    return effect.state is EffectState.UNCERTAIN and effect.decision is None


def with_decision(change: EffectPut, known: EffectRow) -> EffectRow:
    """Return the row with the decision about it, unless that is void."""
    effect = change.row
    if effect.state is EffectState.INTENDED or change.reopens:
        return effect
    return replace(effect, decision=known.decision, decided_by=known.decided_by)


def decision_of(*, happened: bool) -> str:
    """Return the decision as the row spells it."""
    return "happened" if happened else "not_happened"


def decision_mail(
    effect: EffectRow, *, happened: bool, result_wire: bytes | None, by: str, at_us: int
) -> Mail:
    """Return the message with the decision: `[happened, result_wire or nil]` in MessagePack."""
    return Mail(
        run_id=effect.run_id,
        kind=MailKind.DECISION,
        subject=effect.effect_id,
        body_wire=msgspec.msgpack.encode((happened, result_wire)),
        sender=by,
        at_us=at_us,
        post_id=f"{effect.effect_id} {decision_of(happened=happened)} {at_us} {by}",
    )


POST_KEPT_US = 600_000_000
"""How long a posting is remembered: ten minutes, far longer than anybody repeats a call."""


def is_own_frame(item: Append, frame: FrameRow) -> bool:
    """Return whether the frame with the append's first seq is the append's own."""
    return (frame.count, frame.token, frame.hash) == (item.count, item.token, item.hash)


def gap_free(
    run_id: RunId, frames: list[FrameRow], *, from_seq: int, limit: int | None, last_seq: int
) -> list[FrameRow]:
    """Return the frames that hold records from `from_seq` on, at most `limit`.

    Args:
        run_id: whose frames, for the message.
        frames: by seq; may begin with one that ends before `from_seq`.
        from_seq: first record that is wanted.
        limit: at most so many frames; None: all.
        last_seq: newest record of the run: where the frames must lead to, unless the limit cuts
            them.

    Raises:
        StoreCorrupt: frames are missing.
    """
    wanted = [frame for frame in frames if frame.first_seq + frame.count > from_seq]
    expected = from_seq
    for frame in wanted:
        starts_early = frame is wanted[0] and frame.first_seq <= from_seq
        if frame.first_seq != expected and not starts_early:
            break
        expected = frame.first_seq + frame.count
    else:
        if expected > last_seq or (limit is not None and len(wanted) >= limit):
            return wanted if limit is None else wanted[:limit]
    msg = (
        f"run {run_id!r} lacks the record {expected} of {last_seq} in its journal; nothing was "
        "written. Run: perdure doctor"
    )
    raise StoreCorrupt(msg, run_id=run_id, seq=expected, last_seq=last_seq)


def key_order(row: KeyRow) -> tuple[TenantId, str, int]:
    """Return what a data key is stored by."""
    return row.tenant, row.scope, row.number


def spawned(run: NewRun) -> NewRun:
    """Return a child run as it is stored: no start key, not taken; a busy thread queues it."""
    return replace(run, start_key=None, take_for=None)


def known_start(run: NewRun, found: RunRow) -> Started | StartKeyReused:
    """Return what a start gets whose key or id belongs to `found`: that run, or a refusal."""
    if found.input_digest == run.input_digest:
        return Started(row=found, created=False, taken=_is_taken(run, found))
    what = "run id" if run.start_key is None else "start key"
    msg = (
        f"{what} {run.start_key or run.run_id!r} belongs to run {found.run_id!r} with another "
        f"graph or input; nothing was written. See: perdure show {found.run_id}"
    )
    return StartKeyReused(msg, start_key=run.start_key, run_id=found.run_id)


def _is_taken(run: NewRun, found: RunRow) -> bool:
    """Return whether a start that comes again holds its run since the first time."""
    is_own = found.run_id == run.run_id and run.take_for is not None
    is_held = found.status is RunStatus.RUNNING and found.holder == run.take_for
    return is_own and is_held and found.token == 1


def thread_busy(run: NewRun, unfinished: RunRow) -> ThreadBusy:
    """Return the refusal of a start on a busy thread."""
    msg = (
        f"thread {run.thread!r} is busy with run {unfinished.run_id!r} and on_busy='reject'; "
        "nothing was written. Wait for it, or start with on_busy='queue'"
    )
    return ThreadBusy(msg, thread=run.thread, run_id=unfinished.run_id)


Found = TypeVar("Found")


def found(row: Found | None, what: str, name: str) -> Found:
    """Return the row that a write names.

    Raises:
        NotFound: there is none.
    """
    if row is None:
        msg = f"no {what} {name!r}; nothing was written"
        raise NotFound(msg, **{f"{what}_id": name})
    return row


def checked_target(run_id: RunId, row: RunRow | None) -> RunRow:
    """Return the row of the run that a message is for.

    Raises:
        NotFound: no such run.
        RunFinal: it has ended.
    """
    row = found(row, "run", run_id)
    if row.status.is_final:
        msg = (
            f"run {run_id!r} has ended ({row.status.value}) and takes no more input; "
            f"nothing was written. See: perdure show {run_id}"
        )
        raise RunFinal(msg, run_id=run_id, status=row.status.value)
    return row


LISTING_MAX = 100_000
"""Rows of one listing: bounds memory and the time that a reader holds its snapshot."""


def limit_of(limit: int) -> int:
    """Return the limit of a listing.

    Raises:
        SettingInvalid: it is out of range.
    """
    if not 1 <= limit <= LISTING_MAX:
        msg = f"limit {limit!r} must be 1 to {LISTING_MAX}; ask for the next page with `before`"
        raise SettingInvalid(msg, limit=limit)
    return limit


def _is_due(row: RunRow, at_us: int) -> bool:
    return row.ready_at_us is not None and row.ready_at_us <= at_us


def run_matches(row: RunRow, query: RunQuery) -> bool:
    """Return whether a listing of runs has the row."""
    return (
        query.tenant in {None, row.tenant}
        and query.thread in {None, row.thread}
        and query.graph in {None, row.graph}
        and query.parent in {None, row.parent}
        and query.holder in {None, row.holder}
        and (row.graph, row.version) not in query.except_graphs
        and (not query.run_ids or row.run_id in query.run_ids)
        and (query.due_us is None or _is_due(row, query.due_us))
        and (not query.statuses or row.status in query.statuses)
        and (query.before is None or row.run_id < query.before)
    )


def ask_matches(row: AskRow, query: AskQuery) -> bool:
    """Return whether a listing of asks has the row."""
    return (
        query.tenant in {None, row.tenant}
        and query.run_id in {None, row.run_id}
        and (not query.states or row.state in query.states)
    )


def effect_matches(row: EffectRow, query: EffectQuery) -> bool:
    """Return whether a listing of effects has the row."""
    return (
        query.tenant in {None, row.tenant}
        and query.run_id in {None, row.run_id}
        and (not query.states or row.state in query.states)
    )


def wakes_others(batch: Sequence[Append]) -> bool:
    """Return whether an append of the batch can make another run claimable, or free its own."""
    return any(isinstance(change, _WAKING) for item in batch for change in item.changes)


_WAKING = (RunReleased, RunEnded, MailPosted, RunSpawned)


def expired(ask: AskRow, at_us: int) -> AskRow:
    """Return the ask as it is after an attempt to expire it: an answer stands."""
    if ask.state is not AskState.OPEN:
        return ask
    state = advance(ASK_TABLE, ask.state, AskEvent.EXPIRE, ask.ask_id)
    return replace(ask, state=state, answered_at_us=at_us)
