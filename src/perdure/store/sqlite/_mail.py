"""Messages, answers and decisions: functions over an open write transaction."""

from typing import Any

import apsw
import msgspec

from perdure.ids import AskId, EffectId
from perdure.model import AskRow, Mail, MailKind, RunRow, RunStatus
from perdure.store import _rules as rules
from perdure.store._rows import RUN_COLUMNS, Row, ask_row, effect_row, run_row, waits_of
from perdure.store.api import Answered, Decided
from perdure.store.sqlite._columns import ASK_COLUMNS, ASKS_FROM, EFFECT_COLUMNS, EFFECTS_FROM

_TARGET = "SELECT run_no, status, waits, ready_at_us FROM perdure_runs WHERE run_id = ?"
_INSERT_MAIL = (
    "INSERT INTO perdure_mail (run_no, kind, subject, body_wire, sender, at_us, post_id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_IS_POSTED = """
SELECT 1 FROM perdure_posts WHERE run_no = ?1 AND post_id = ?2
UNION ALL SELECT 1 FROM perdure_mail WHERE run_no = ?1 AND post_id = ?2 AND post_id != '' LIMIT 1
"""


def deliver(db: apsw.Connection, mail: Mail) -> None:
    """Store the message and wake its run; a run that is unknown or final gets nothing."""
    rows: list[Row] = db.execute(_TARGET, (mail.run_id,)).fetchall()
    if not rows:
        return
    run_no, status_text, waits_wire, ready_at_us = rows[0]
    status = RunStatus(status_text)
    if status.is_final or (mail.post_id and _has_post(db, run_no, mail.post_id)):
        return
    sent = (mail.kind.value, mail.subject, mail.body_wire, mail.sender, mail.at_us, mail.post_id)
    db.execute(_INSERT_MAIL, (run_no, *sent))
    if mail.post_id:
        _remember(db, run_no, mail)
    if rules.mail_wakes(mail.kind, status, waits_of(waits_wire)):
        ready = rules.woken_at(ready_at_us, mail.at_us)
        db.execute("UPDATE perdure_runs SET ready_at_us = ? WHERE run_no = ?", (ready, run_no))


def _has_post(db: apsw.Connection, run_no: int, post_id: str) -> bool:
    return bool(db.execute(_IS_POSTED, (run_no, post_id)).fetchall())


def _remember(db: apsw.Connection, run_no: int, mail: Mail) -> None:
    oldest = mail.at_us - rules.POST_KEPT_US
    db.execute("DELETE FROM perdure_posts WHERE at_us < ?", (oldest,))
    db.execute("INSERT INTO perdure_posts VALUES (?, ?, ?)", (run_no, mail.post_id, mail.at_us))


def is_posted(db: apsw.Connection, mail: Mail) -> bool:
    """Return whether this posting was stored before, also in a run that has ended."""
    if not mail.post_id:
        return False
    rows: list[Row] = db.execute(_TARGET, (mail.run_id,)).fetchall()
    return bool(rows) and _has_post(db, rows[0][0], mail.post_id)


def post(db: apsw.Connection, mail: Mail) -> RunRow:
    """Store a message for an unfinished run and wake it; return the run's row.

    Raises:
        NotFound: no such run.
        RunFinal: it has ended.
    """
    is_repeat = is_posted(db, mail)
    deliver(db, mail)
    sql = f"SELECT {RUN_COLUMNS} FROM perdure_runs WHERE run_id = ?"
    rows = db.execute(sql, (mail.run_id,)).fetchall()
    if is_repeat:
        return run_row(rows[0])
    return rules.checked_target(mail.run_id, run_row(rows[0]) if rows else None)


def _first(db: apsw.Connection, sql: str, name: str) -> tuple[Any, ...] | None:
    rows = db.execute(sql, (name,)).fetchall()
    return rows[0] if rows else None


def answer(
    db: apsw.Connection, ask_id: AskId, *, value_wire: bytes, by: str, at_us: int
) -> Answered:
    """Answer an open ask once, post the answer to its run, wake it."""
    sql = f"SELECT {ASK_COLUMNS} FROM {ASKS_FROM} WHERE a.ask_id = ?"
    row = ask_row(rules.found(_first(db, sql, ask_id), "ask", ask_id))
    if not rules.is_answerable(row, at_us):
        is_own = rules.is_own_answer(row, value_wire=value_wire, by=by, at_us=at_us)
        return Answered(row=row, accepted=is_own)
    db.execute(
        "UPDATE perdure_asks SET state = 'answered', value_wire = ?, answered_by = ?, "
        "answered_at_us = ? WHERE ask_id = ?",
        (value_wire, by, at_us, ask_id),
    )
    deliver(db, rules.answer_mail(row, value_wire=value_wire, by=by, at_us=at_us))
    answered = rules.answered(row, value_wire=value_wire, by=by, at_us=at_us)
    return Answered(row=answered, accepted=True)


def expire(db: apsw.Connection, ask_id: AskId, *, at_us: int) -> AskRow:
    """Close an open ask as expired; return it as it is then."""
    sql = f"SELECT {ASK_COLUMNS} FROM {ASKS_FROM} WHERE a.ask_id = ?"
    row = ask_row(rules.found(_first(db, sql, ask_id), "ask", ask_id))
    closed = rules.expired(row, at_us)
    if closed is not row:
        close = "UPDATE perdure_asks SET state = 'expired', answered_at_us = ? WHERE ask_id = ?"
        db.execute(close, (at_us, ask_id))
    return closed


def decide(
    db: apsw.Connection,
    effect_id: EffectId,
    *,
    happened: bool,
    result_wire: bytes | None,
    by: str,
    at_us: int,
) -> Decided:
    """Decide an uncertain effect once, post the decision to its run, wake it."""
    sql = f"SELECT {EFFECT_COLUMNS} FROM {EFFECTS_FROM} WHERE e.effect_id = ?"
    row = effect_row(rules.found(_first(db, sql, effect_id), "effect", effect_id))
    mail = rules.decision_mail(row, happened=happened, result_wire=result_wire, by=by, at_us=at_us)
    if is_posted(db, mail):  # before all else: the effect may be uncertain once more
        return Decided(row=row, accepted=True)
    if not rules.is_decidable(row):
        return Decided(row=row, accepted=False)
    decision = rules.decision_of(happened=happened)
    db.execute(
        "UPDATE perdure_effects SET decision = ?, decided_by = ?, changed_at_us = ? "
        "WHERE effect_id = ?",
        (decision, by, at_us, effect_id),
    )
    deliver(db, mail)
    decided = msgspec.structs.replace(row, decision=decision, decided_by=by, changed_at_us=at_us)
    return Decided(row=decided, accepted=True)


def unread_kinds(db: apsw.Connection, run_no: int, after: int) -> list[MailKind]:
    """Return the kinds of the run's unread messages with an id above `after`."""
    sql = "SELECT kind FROM perdure_mail WHERE run_no = ? AND mail_id > ?"
    rows: list[Row] = db.execute(sql, (run_no, after)).fetchall()
    return [MailKind(row[0]) for row in rows]
