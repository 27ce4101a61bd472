"""Appends: the fenced write of a frame, and the changes that go with it.

Invariant: an append writes nothing before its fence has held. The fence is the one `UPDATE` that
moves `last_seq`; what could still refuse the append (a taken business key) is looked up before it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import apsw

from perdure.errors import InvariantBroken
from perdure.ids import EffectId, RunId
from perdure.model import (
    Append,
    Appended,
    AppendOutcome,
    AskClosed,
    AskPut,
    Change,
    EffectPut,
    Fenced,
    KeyTaken,
    MailPosted,
    MailTaken,
    PagesPut,
    RunEnded,
    RunProgressed,
    RunReleased,
    RunSpawned,
    RunStatus,
    ThreadBased,
)
from perdure.store import _rules as rules
from perdure.store._rows import Row, frame_row, waits_of, wire_of, wire_of_waits
from perdure.store.sqlite import _kept, _mail, _pages, _runs

_FENCE = (
    "UPDATE perdure_runs SET last_seq = ? WHERE run_id = ? AND token = ? AND last_seq = ? "
    "AND status = 'running' RETURNING run_no"
)
_FRAME_AT = """
SELECT first_seq, count, token, at_us, body, prev_hash, hash FROM perdure_frames
WHERE run_no = (SELECT run_no FROM perdure_runs WHERE run_id = ?) AND first_seq = ?
"""
_INSERT_FRAME = _runs.INSERT_FRAME
_APPENDED = Appended()


def append(db: apsw.Connection, batch: Sequence[Append]) -> list[AppendOutcome]:
    """Write the frames and changes of many runs; outcomes in the order of the batch."""
    outcomes: list[AppendOutcome] = []
    refused: set[tuple[RunId, int]] = set()
    for item in batch:
        held = (item.run_id, item.token)
        outcome = _fence_state(db, item) if held in refused else append_one(db, item)
        if outcome is not _APPENDED:
            refused.add(held)
        outcomes.append(outcome)
    return outcomes


def append_one(db: apsw.Connection, item: Append) -> AppendOutcome:
    """Write one append, or nothing of it."""
    changes = item.changes
    if changes:
        taken = _taken_key(db, changes)
        if taken is not None:
            fenced = fence(db, item.run_id, item.token, item.first_seq)
            return _refusal(db, item) if fenced is not None else taken
    first_seq = item.first_seq
    fence_params = (first_seq + item.count - 1, item.run_id, item.token, first_seq - 1)
    run_no = db.execute(_FENCE, fence_params).get
    if run_no is None:
        return _refusal(db, item)
    frame = (
        run_no, first_seq, item.count, item.token, item.at_us, item.body, item.prev_hash, item.hash,
    )  # fmt: skip  # one line per row reads best
    db.execute(_INSERT_FRAME, frame)
    for change in changes:
        _APPLY[type(change)](db, run_no, item, change)
    return _APPENDED


def _refusal(db: apsw.Connection, item: Append) -> AppendOutcome:
    """Return what an append gets whose fence did not hold: it may be in the journal already."""
    rows: list[Row] = db.execute(_FRAME_AT, (item.run_id, item.first_seq)).fetchall()
    if rows and rules.is_own_frame(item, frame_row(item.run_id, rows[0])):
        return _APPENDED
    return _fence_state(db, item)


def _fence_state(db: apsw.Connection, item: Append) -> Fenced:
    sql = "SELECT token, holder, last_seq FROM perdure_runs WHERE run_id = ?"
    rows: list[Row] = db.execute(sql, (item.run_id,)).fetchall()
    token, holder, last_seq = rows[0] if rows else (0, None, 0)
    return Fenced(token=token, holder=holder, last_seq=last_seq)


def fence(
    db: apsw.Connection, run_id: RunId, token: int, first_seq: int | None = None
) -> Fenced | None:
    """Return None while the run is running under this token (and seq), else what is true."""
    sql = "SELECT token, holder, last_seq, status FROM perdure_runs WHERE run_id = ?"
    rows: list[Row] = db.execute(sql, (run_id,)).fetchall()
    found, holder, last_seq, status = rows[0] if rows else (0, None, 0, "")
    holds_seq = first_seq is None or first_seq == last_seq + 1
    if found == token and status == RunStatus.RUNNING.value and holds_seq:
        return None
    return Fenced(token=found, holder=holder, last_seq=last_seq)


def _taken_key(db: apsw.Connection, changes: tuple[Change, ...]) -> KeyTaken | None:
    own: dict[tuple[str, str], str] = {}
    for change in changes:
        if type(change) is not EffectPut or change.row.business_key is None:
            continue
        row = change.row
        key = (row.tenant, change.row.business_key)
        sql = "SELECT effect_id FROM perdure_effects WHERE tenant = ? AND business_key = ?"
        holder = own.setdefault(key, db.execute(sql, key).get or row.effect_id)
        if holder != row.effect_id:
            return KeyTaken(effect_id=EffectId(holder), business_key=change.row.business_key)
    return None


# -- changes ---------------------------------------------------------------------------------------

_RELEASE = """
UPDATE perdure_runs
SET status = ?, waits = ?, ready_at_us = ?, failure = ?, checkpoint = max(checkpoint, ?), holder =
NULL,
    claims = iif(?, claims, 0), version = coalesce(?, version)
WHERE run_no = ? RETURNING graph
"""


def _released(db: apsw.Connection, run_no: int, item: Append, change: RunReleased) -> None:
    unread = _mail.unread_kinds(db, run_no, change.mail_seen)
    ready = item.at_us if rules.unread_wakes(unread, change.status) else change.ready_at_us
    params = (
        change.status.value,
        wire_of_waits(change.waits),
        ready,
        wire_of(change.failure),
        change.checkpoint,
        change.keep_claims,
        change.version,
        run_no,
    )
    graph = db.execute(_RELEASE, params).get
    _move_thread(db, item, change.checkpoint, graph)


def _move_thread(db: apsw.Connection, item: Append, checkpoint: int, graph: str) -> None:
    if checkpoint:
        db.execute(
            "UPDATE perdure_threads SET checkpoint = ?1, graph = ?2 "
            "WHERE tenant = ?3 AND thread = ?4 AND checkpoint <= ?1",
            (checkpoint, graph, item.tenant, item.thread),
        )


def _progressed(db: apsw.Connection, run_no: int, _item: Append, change: RunProgressed) -> None:
    sql = "UPDATE perdure_runs SET claims = 1, ready_at_us = max(ready_at_us, ?) WHERE run_no = ?"
    db.execute(sql, (change.lease_until_us, run_no))


_END = """
UPDATE perdure_runs
SET status = ?, failure = ?, checkpoint = max(checkpoint, ?), ended_at_us = ?, holder = NULL, waits
= NULL,
    ready_at_us = NULL
WHERE run_no = ? RETURNING graph, ordinal
"""


def _ended(db: apsw.Connection, run_no: int, item: Append, change: RunEnded) -> None:
    params = (change.status.value, wire_of(change.failure), change.checkpoint, change.at_us, run_no)
    rows: list[Row] = db.execute(_END, params).fetchall()
    graph, ordinal = rows[0]
    db.execute("DELETE FROM perdure_mail WHERE run_no = ?", (run_no,))
    db.execute(
        "UPDATE perdure_asks SET state = 'withdrawn', answered_at_us = ? "
        "WHERE run_no = ? AND state = 'open'",
        (change.at_us, run_no),
    )
    _move_thread(db, item, change.checkpoint, graph)
    _give_turn(db, item, ordinal, change.at_us)
    if change.mail_to_parent is not None:
        sql = "SELECT 1 FROM perdure_runs WHERE run_id = ? AND tenant = ?"
        if db.execute(sql, (change.mail_to_parent.run_id, item.tenant)).get:
            _mail.deliver(db, change.mail_to_parent)


_NEXT_OF_THREAD = """
SELECT run_no, status, waits FROM perdure_runs WHERE tenant = ? AND thread = ? AND ordinal > ?
ORDER BY ordinal
"""
_GIVE_TURN = """
UPDATE perdure_runs SET waits = NULL, ready_at_us = ?,
    base_checkpoint = (SELECT checkpoint FROM perdure_threads WHERE tenant = ? AND thread = ?)
WHERE run_no = ?
"""


def _give_turn(db: apsw.Connection, item: Append, ordinal: int, at_us: int) -> None:
    thread = (item.tenant, item.thread)
    for run_no, status, waits_wire in db.execute(_NEXT_OF_THREAD, (*thread, ordinal)):
        waits = waits_of(waits_wire)
        if rules.is_queued(RunStatus(status), waits):
            db.execute(_GIVE_TURN, (rules.turn_at(waits, at_us), *thread, run_no))
            return


_PUT_EFFECT = """
INSERT INTO perdure_effects (effect_id, run_no, tenant, node, name, kind, state, key, business_key,
args_digest,
    request_wire, result_wire, attempt, failure, intended_at_us, changed_at_us, decision,
    decided_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (effect_id) DO UPDATE SET node = excluded.node, name = excluded.name, kind =
excluded.kind,
    state = excluded.state, key = excluded.key, business_key = excluded.business_key,
    args_digest = excluded.args_digest, request_wire = excluded.request_wire,
    result_wire = excluded.result_wire, attempt = excluded.attempt, failure = excluded.failure,
    intended_at_us = excluded.intended_at_us, changed_at_us = excluded.changed_at_us,
    decision = iif(excluded.state = 'intended' OR ?, NULL, decision),
    decided_by = iif(excluded.state = 'intended' OR ?, NULL, decided_by)
"""


def _put_effect(db: apsw.Connection, run_no: int, _item: Append, change: EffectPut) -> None:
    row = change.row
    params = (
        row.effect_id,
        run_no,
        row.tenant,
        row.node,
        row.name,
        row.kind.value,
        row.state.value,
        row.key,
        row.business_key,
        row.args_digest,
        row.request_wire,
        row.result_wire,
        row.attempt,
        wire_of(row.failure),
        row.intended_at_us,
        row.changed_at_us,
        row.decision,
        row.decided_by,
        change.reopens,
        change.reopens,
    )
    db.execute(_PUT_EFFECT, params)


_PUT_ASK = """
INSERT INTO perdure_asks (ask_id, run_no, tenant, node, question, schema, state, asked_at_us,
expires_at_us,
    value_wire, answered_by, answered_at_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ask_id) DO NOTHING
"""


def _put_ask(db: apsw.Connection, run_no: int, _item: Append, change: AskPut) -> None:
    row = change.row
    params = (
        row.ask_id,
        run_no,
        row.tenant,
        row.node,
        row.question,
        wire_of(row.schema),
        row.state.value,
        row.asked_at_us,
        row.expires_at_us,
        row.value_wire,
        row.answered_by,
        row.answered_at_us,
    )
    db.execute(_PUT_ASK, params)


def _close_ask(db: apsw.Connection, _run_no: int, _item: Append, change: AskClosed) -> None:
    db.execute(
        "UPDATE perdure_asks SET state = ?, answered_at_us = ? WHERE ask_id = ? AND state = 'open'",
        (change.state.value, change.at_us, change.ask_id),
    )


def _take_mail(db: apsw.Connection, run_no: int, _item: Append, change: MailTaken) -> None:
    for mail_id in change.mail_ids:
        db.execute("DELETE FROM perdure_mail WHERE mail_id = ? AND run_no = ?", (mail_id, run_no))


def _post_mail(db: apsw.Connection, _run_no: int, _item: Append, change: MailPosted) -> None:
    _mail.deliver(db, change.mail)


def _spawn(db: apsw.Connection, _run_no: int, _item: Append, change: RunSpawned) -> None:
    _runs.spawn(db, change.run)


def _base_thread(db: apsw.Connection, run_no: int, item: Append, change: ThreadBased) -> None:
    db.execute(
        "UPDATE perdure_threads SET base_seq = ?, "
        "base_ordinal = (SELECT ordinal FROM perdure_runs WHERE run_no = ?) "
        "WHERE tenant = ? AND thread = ?",
        (change.seq, run_no, item.tenant, item.thread),
    )
    if change.made_at:
        _kept.note_copy(db, run_no, item, change)


def _put_pages(db: apsw.Connection, _run_no: int, item: Append, change: PagesPut) -> None:
    _pages.put_pages(db, item.tenant, change.pages, item.at_us)


_APPLY: dict[type, Callable[[apsw.Connection, int, Append, Any], None]] = {
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
    msg = "the SQLite store does not apply every change of the model"
    raise InvariantBroken(msg)
