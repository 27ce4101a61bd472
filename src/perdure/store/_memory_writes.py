"""What each write does to the rows of a memory store, inside a transaction of `Tables`.

Size: one function for each write and each change, as every store has them.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from perdure.core.room import Room
from perdure.errors import InvariantBroken
from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    Appended,
    AppendOutcome,
    AskClosed,
    AskPut,
    AskRow,
    AskState,
    Change,
    EffectPut,
    Fenced,
    FrameRow,
    KeyTaken,
    Mail,
    MailKind,
    MailPosted,
    MailTaken,
    NewRun,
    OnBusy,
    Page,
    PagesPut,
    RunEnded,
    RunProgressed,
    RunReleased,
    RunRow,
    RunSpawned,
    RunStatus,
    Started,
    ThreadBased,
    ThreadRow,
)
from perdure.store import _memory_erasing as erasing
from perdure.store import _memory_orders as orders
from perdure.store import _rules as rules
from perdure.store._memory_retention import note_copy
from perdure.store._memory_tables import Tables
from perdure.store.api import Answered, Decided

_APPENDED = Appended()

# -- starting --------------------------------------------------------------------------------------


def start_one(tables: Tables, run: NewRun) -> Started | Exception:
    """Create the run, or say why not."""
    known = _known(tables, run)
    if known is not None:
        return known
    refused = erasing.refused_start(tables, run)
    if refused is not None:
        return refused
    unfinished = _unfinished(tables, run.tenant, run.thread)
    if rules.is_refused(run, is_busy=bool(unfinished)):
        return rules.thread_busy(run, unfinished[0])
    cancelled = _cancel_all(tables, run, unfinished)
    may_take = not tables.limits or rules.may_take(run, Room(orders.limit_state(tables), 0))
    row = _insert(tables, run, is_busy=bool(unfinished), may_take=may_take)
    return Started(
        row=row, created=True, taken=row.status is RunStatus.RUNNING, cancelled=cancelled
    )


def _known(tables: Tables, run: NewRun) -> Started | Exception | None:
    found = tables.runs.get(run.run_id)
    if found is None and run.start_key is not None:
        run_id = tables.start_keys.get((run.tenant, run.start_key))
        found = None if run_id is None else tables.runs[run_id]
    return None if found is None else rules.known_start(run, found)


def _unfinished(tables: Tables, tenant: TenantId, thread: ThreadId) -> list[RunRow]:
    rows = thread_runs(tables, tenant, thread, 1)
    return [row for row in rows if not row.status.is_final]


def thread_runs(
    tables: Tables, tenant: TenantId, thread: ThreadId, from_ordinal: int
) -> list[RunRow]:
    """Return the thread's runs with at least this ordinal, by ordinal."""
    row = tables.threads.get((tenant, thread))
    ordinals = range(max(from_ordinal, 1), (row.last_ordinal if row else 0) + 1)
    return [tables.runs[tables.run_at[tenant, thread, ordinal]] for ordinal in ordinals]


def _cancel_all(tables: Tables, run: NewRun, unfinished: list[RunRow]) -> tuple[RunId, ...]:
    if run.on_busy is not OnBusy.CANCEL:
        return ()
    for row in unfinished:
        deliver(tables, Mail(run_id=row.run_id, kind=MailKind.CANCEL, at_us=run.created_at_us))
    return tuple(row.run_id for row in unfinished)


def _insert(tables: Tables, run: NewRun, *, is_busy: bool, may_take: bool = False) -> RunRow:
    key = (run.tenant, run.thread)
    thread = tables.threads.get(key, ThreadRow(tenant=run.tenant, thread=run.thread))
    thread = replace(
        thread,
        last_ordinal=thread.last_ordinal + 1,
        subject=run.subject if thread.subject is None else thread.subject,
    )
    row = rules.first_row(
        run,
        ordinal=thread.last_ordinal,
        is_busy=is_busy,
        base_checkpoint=thread.checkpoint,
        may_take=may_take,
    )
    tables.put(tables.threads, key, thread)
    tables.put(tables.run_at, (*key, row.ordinal), row.run_id)
    if row.start_key is not None:
        tables.put(tables.start_keys, (row.tenant, row.start_key), row.run_id)
    tables.put(tables.frames, row.run_id, (rules.first_frame(run),))
    tables.put(tables.numbers, row.run_id, len(tables.numbers))
    put_pages(tables, run.tenant, run.pages)
    tables.put_run(row)
    return row


def _spawn(tables: Tables, row: RunRow, _item: Append, change: RunSpawned) -> None:
    run = rules.spawned(erasing.inherited(tables, row, change))
    if run.run_id not in tables.runs:
        unfinished = _unfinished(tables, run.tenant, run.thread)
        _cancel_all(tables, run, unfinished)
        _insert(tables, run, is_busy=bool(unfinished))


# -- claiming --------------------------------------------------------------------------------------


def claim(
    tables: Tables,
    worker_id: WorkerId,
    graphs: Sequence[tuple[str, int]],
    *,
    now_us: int,
    lease_until_us: int,
    limit: int,
) -> list[RunRow]:
    """Take up to `limit` due runs of these graphs: by priority, and tenants in turn."""
    wanted = set(graphs)
    due = [tables.runs[run_id] for run_id, ready in tables.due.items() if ready <= now_us]
    due = [row for row in due if (row.graph, row.version) in wanted]
    due.sort(key=lambda row: (row.ready_at_us or 0, tables.numbers[row.run_id]))

    def take(row: RunRow) -> RunRow:
        claimed = rules.claimed(row, worker_id, lease_until_us)
        tables.put_run(claimed)
        return claimed

    if tables.limits:
        return orders.claim_within(tables, due, _in_turn, take, now_us=now_us, limit=limit)
    return [take(row) for row in _in_turn(due)[:limit]]


# -- leases ----------------------------------------------------------------------------------------


def _in_turn(due: list[RunRow]) -> list[RunRow]:
    turns: dict[tuple[int, TenantId], int] = {}
    keyed: list[tuple[int, int, RunRow]] = []
    for row in due:
        turn = turns[row.priority, row.tenant] = turns.get((row.priority, row.tenant), 0) + 1
        keyed.append((-row.priority, turn, row))
    return [row for _, _, row in sorted(keyed, key=lambda item: item[:2])]


def renew(
    tables: Tables,
    worker_id: WorkerId,
    held: Sequence[tuple[RunId, int]],
    *,
    now_us: int,
    lease_until_us: int,
) -> set[RunId]:
    """Extend the leases and the worker's heartbeat; return the runs that are lost."""
    worker = tables.workers.get(worker_id)
    if worker is not None:
        seen = replace(worker, seen_at_us=max(worker.seen_at_us, now_us))
        tables.put(tables.workers, worker_id, seen)
    lost: set[RunId] = set()
    for run_id, token in held:
        row = tables.runs.get(run_id)
        if row is None or not _holds(row, worker_id, token):
            lost.add(run_id)
        else:
            until = max(row.ready_at_us or 0, lease_until_us)
            tables.put_run(replace(row, ready_at_us=until))
    return lost


def _holds(row: RunRow, worker_id: WorkerId, token: int) -> bool:
    return row.status is RunStatus.RUNNING and row.holder == worker_id and row.token == token


def forget_worker(tables: Tables, worker_id: WorkerId, now_us: int) -> None:
    """Remove the worker; runs that it still holds become claimable at once."""
    tables.drop(tables.workers, worker_id)
    for run_id in list(tables.due):
        row = tables.runs[run_id]
        if row.holder == worker_id and row.status is RunStatus.RUNNING:
            tables.put_run(replace(row, ready_at_us=rules.woken_at(row.ready_at_us, now_us)))


# -- messages --------------------------------------------------------------------------------------


def deliver(tables: Tables, mail: Mail) -> RunRow | None:
    """Store the message and wake its run; a run that is unknown (None) or final gets nothing."""
    row = tables.runs.get(mail.run_id)
    if row is None or row.status.is_final or is_posted(tables, mail):
        return row
    if mail.post_id:
        _remember(tables, mail)
    stored = replace(mail, mail_id=tables.next_mail_id())
    tables.put(tables.mail, row.run_id, (*tables.mail.get(row.run_id, ()), stored))
    if rules.mail_wakes(mail.kind, row.status, row.waits):
        row = replace(row, ready_at_us=rules.woken_at(row.ready_at_us, mail.at_us))
        tables.put_run(row)
    return row


def is_posted(tables: Tables, mail: Mail) -> bool:
    """Return whether this posting was stored before."""
    if not mail.post_id:
        return False
    unread = tables.mail.get(mail.run_id, ())
    is_remembered = (mail.run_id, mail.post_id) in tables.posts
    return is_remembered or any(each.post_id == mail.post_id for each in unread)


def _remember(tables: Tables, mail: Mail) -> None:
    oldest = mail.at_us - rules.POST_KEPT_US
    by_age = tables.posts.items()  # in the order of their arrival, near enough
    for key, _at_us in list(takewhile(lambda item: item[1] < oldest, by_age)):
        tables.drop(tables.posts, key)
    tables.put(tables.posts, (mail.run_id, mail.post_id), mail.at_us)


def post(tables: Tables, mail: Mail) -> RunRow:
    """Store a message for an unfinished run and wake it; return the run's row."""
    if is_posted(tables, mail):
        return tables.runs[mail.run_id]
    row = deliver(tables, mail)
    return rules.checked_target(mail.run_id, row)


def answer(tables: Tables, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int) -> Answered:
    """Answer an open ask once, post the answer to its run, wake it."""
    row = rules.found(tables.asks.get(ask_id), "ask", ask_id)
    if not rules.is_answerable(row, at_us):
        is_own = rules.is_own_answer(row, value_wire=value_wire, by=by, at_us=at_us)
        return Answered(row=row, accepted=is_own)
    answered = rules.answered(row, value_wire=value_wire, by=by, at_us=at_us)
    tables.put(tables.asks, ask_id, answered)
    deliver(tables, rules.answer_mail(row, value_wire=value_wire, by=by, at_us=at_us))
    return Answered(row=answered, accepted=True)


def expire(tables: Tables, ask_id: AskId, *, at_us: int) -> AskRow:
    """Close an open ask as expired; return it as it is then."""
    row = rules.found(tables.asks.get(ask_id), "ask", ask_id)
    closed = rules.expired(row, at_us)
    if closed is not row:
        tables.put(tables.asks, ask_id, closed)
    return closed


def decide(
    tables: Tables,
    effect_id: EffectId,
    *,
    happened: bool,
    result_wire: bytes | None,
    by: str,
    at_us: int,
) -> Decided:
    """Decide an uncertain effect once, post the decision to its run, wake it."""
    row = rules.found(tables.effects.get(effect_id), "effect", effect_id)
    mail = rules.decision_mail(row, happened=happened, result_wire=result_wire, by=by, at_us=at_us)
    if is_posted(tables, mail):  # before all else: the effect may be uncertain once more
        return Decided(row=row, accepted=True)
    if not rules.is_decidable(row):
        return Decided(row=row, accepted=False)
    decision = rules.decision_of(happened=happened)
    decided = replace(row, decision=decision, decided_by=by, changed_at_us=at_us)
    tables.put(tables.effects, effect_id, decided)
    deliver(tables, mail)
    return Decided(row=decided, accepted=True)


# -- appends ---------------------------------------------------------------------------------------


def append(tables: Tables, batch: Sequence[Append]) -> list[AppendOutcome]:
    """Write the frames and changes of many runs; outcomes in the order of the batch."""
    outcomes: list[AppendOutcome] = []
    refused: set[tuple[RunId, int]] = set()
    for item in batch:
        held = (item.run_id, item.token)
        outcome = _fenced(tables, item) if held in refused else _append_one(tables, item)
        if outcome is not _APPENDED:
            refused.add(held)
        outcomes.append(outcome)
    return outcomes


def _append_one(tables: Tables, item: Append) -> AppendOutcome:
    row = tables.runs.get(item.run_id)
    if row is None or not _fence_holds(row, item):
        return _APPENDED if _is_written(tables, item) else _fenced(tables, item)
    taken = _taken_key(tables, item.changes)
    if taken is not None:
        return taken
    frame = FrameRow(
        run_id=item.run_id,
        first_seq=item.first_seq,
        count=item.count,
        token=item.token,
        at_us=item.at_us,
        body=item.body,
        prev_hash=item.prev_hash,
        hash=item.hash,
    )
    tables.put(tables.frames, item.run_id, (*tables.frames[item.run_id], frame))
    tables.put_run(replace(row, last_seq=row.last_seq + item.count))
    for change in item.changes:
        _APPLY[type(change)](tables, tables.runs[item.run_id], item, change)
    return _APPENDED


def _fence_holds(row: RunRow, item: Append) -> bool:
    holds_seq = item.first_seq == row.last_seq + 1
    return row.status is RunStatus.RUNNING and row.token == item.token and holds_seq


def _is_written(tables: Tables, item: Append) -> bool:
    """Return whether a refused append is in the journal: its answer was lost."""
    frames = reversed(tables.frames.get(item.run_id, ()))
    found = next((frame for frame in frames if frame.first_seq <= item.first_seq), None)
    return (
        found is not None and found.first_seq == item.first_seq and rules.is_own_frame(item, found)
    )


def _fenced(tables: Tables, item: Append) -> Fenced:
    row = tables.runs.get(item.run_id)
    if row is None:
        return Fenced(token=0, holder=None, last_seq=0)
    return Fenced(token=row.token, holder=row.holder, last_seq=row.last_seq)


def _taken_key(tables: Tables, changes: tuple[Change, ...]) -> KeyTaken | None:
    own: dict[tuple[TenantId, str], EffectId] = {}
    for change in changes:
        if not isinstance(change, EffectPut) or change.row.business_key is None:
            continue
        row, business_key = change.row, change.row.business_key
        key = (row.tenant, business_key)
        holder = own.setdefault(key, tables.effect_keys.get(key, row.effect_id))
        if holder != row.effect_id:
            return KeyTaken(effect_id=holder, business_key=business_key)
    return None


def _released(tables: Tables, row: RunRow, item: Append, change: RunReleased) -> None:
    mail = tables.mail.get(row.run_id, ())
    unread = [message.kind for message in mail if message.mail_id > change.mail_seen]
    wakes = rules.unread_wakes(unread, change.status)
    released = replace(
        row,
        status=change.status,
        waits=change.waits,
        ready_at_us=item.at_us if wakes else change.ready_at_us,
        failure=change.failure,
        checkpoint=max(row.checkpoint, change.checkpoint),
        holder=None,
        claims=row.claims if change.keep_claims else 0,
        version=row.version if change.version is None else change.version,
    )
    tables.put_run(released)
    _move_thread(tables, row, change.checkpoint)


def _move_thread(tables: Tables, row: RunRow, checkpoint: int) -> None:
    key = (row.tenant, row.thread)
    thread = tables.threads[key]
    if checkpoint and thread.checkpoint <= checkpoint:
        tables.put(tables.threads, key, replace(thread, checkpoint=checkpoint, graph=row.graph))


def _progressed(tables: Tables, row: RunRow, _item: Append, change: RunProgressed) -> None:
    until_us = max(row.ready_at_us or 0, change.lease_until_us)
    tables.put_run(replace(row, claims=1, ready_at_us=until_us))


def _ended(tables: Tables, row: RunRow, _item: Append, change: RunEnded) -> None:
    ended = replace(
        row,
        status=change.status,
        failure=change.failure,
        checkpoint=max(row.checkpoint, change.checkpoint),
        ended_at_us=change.at_us,
        holder=None,
        waits=(),
        ready_at_us=None,
    )
    tables.put_run(ended)
    tables.drop(tables.mail, row.run_id)
    for ask_id in tables.asks_of.get(row.run_id, ()):
        _close_ask_row(tables, ask_id, AskState.WITHDRAWN, change.at_us)
    _move_thread(tables, row, change.checkpoint)
    _give_turn(tables, row, change.at_us)
    if change.mail_to_parent is not None:
        parent = tables.runs.get(change.mail_to_parent.run_id)
        if parent is not None and parent.tenant == row.tenant:
            deliver(tables, change.mail_to_parent)


def _give_turn(tables: Tables, ended: RunRow, at_us: int) -> None:
    thread = tables.threads[ended.tenant, ended.thread]
    for row in thread_runs(tables, ended.tenant, ended.thread, ended.ordinal + 1):
        if rules.is_queued(row.status, row.waits):
            ready = rules.turn_at(row.waits, at_us)
            base = thread.checkpoint
            tables.put_run(replace(row, waits=(), ready_at_us=ready, base_checkpoint=base))
            return


def _put_effect(tables: Tables, _row: RunRow, _item: Append, change: EffectPut) -> None:
    effect = change.row
    known = tables.effects.get(effect.effect_id)
    if known is not None:
        effect = rules.with_decision(change, known)
        if known.business_key is not None:
            tables.drop(tables.effect_keys, (known.tenant, known.business_key))
    tables.put(tables.effects, effect.effect_id, effect)
    if effect.business_key is not None:
        key = (effect.tenant, effect.business_key)
        tables.put(tables.effect_keys, key, effect.effect_id)


def _put_ask(tables: Tables, row: RunRow, _item: Append, change: AskPut) -> None:
    ask_id = change.row.ask_id
    if ask_id not in tables.asks:
        tables.put(tables.asks, ask_id, change.row)
        tables.put(tables.asks_of, row.run_id, (*tables.asks_of.get(row.run_id, ()), ask_id))


def _close_ask(tables: Tables, _row: RunRow, _item: Append, change: AskClosed) -> None:
    _close_ask_row(tables, AskId(change.ask_id), change.state, change.at_us)


def _close_ask_row(tables: Tables, ask_id: AskId, state: AskState, at_us: int) -> None:
    ask = tables.asks.get(ask_id)
    if ask is not None and ask.state is AskState.OPEN:
        tables.put(tables.asks, ask_id, replace(ask, state=state, answered_at_us=at_us))


def _take_mail(tables: Tables, row: RunRow, _item: Append, change: MailTaken) -> None:
    taken = set(change.mail_ids)
    left = tuple(mail for mail in tables.mail.get(row.run_id, ()) if mail.mail_id not in taken)
    tables.put(tables.mail, row.run_id, left)


def _post_mail(tables: Tables, _row: RunRow, _item: Append, change: MailPosted) -> None:
    deliver(tables, change.mail)


def _base_thread(tables: Tables, row: RunRow, _item: Append, change: ThreadBased) -> None:
    key = (row.tenant, row.thread)
    based = replace(tables.threads[key], base_ordinal=row.ordinal, base_seq=change.seq)
    tables.put(tables.threads, key, based)
    note_copy(tables, row, change.made_at, change.seq)


def put_pages(tables: Tables, tenant: TenantId, pages: Sequence[Page]) -> None:
    """Store the pages that are not there, and mark all of them for a collection under way."""
    _number, is_under_way = tables.collections.get(tenant, (0, False))
    for page in pages:
        key = (tenant, page.hash)
        if key not in tables.pages:
            tables.put(tables.pages, key, page.body)
        if is_under_way:
            tables.put(tables.marked, key, True)  # noqa: FBT003  # a row of the table


def _put_pages(tables: Tables, row: RunRow, _item: Append, change: PagesPut) -> None:
    put_pages(tables, row.tenant, change.pages)


_APPLY: dict[type, Callable[[Tables, RunRow, Append, Any], None]] = {
    RunReleased: _released,
    RunProgressed: _progressed,
    RunEnded: _ended,
    EffectPut: _put_effect,
    AskPut: _put_ask,
    AskClosed: _close_ask,
    MailTaken: _take_mail,
    MailPosted: _post_mail,
    RunSpawned: _spawn,
    ThreadBased: _base_thread,
    PagesPut: _put_pages,
}

if set(_APPLY) != set(Change.__args__):
    msg = "the memory store does not apply every change of the model"
    raise InvariantBroken(msg)
