"""Starting, claiming and renewing runs: functions over an open write transaction."""

import logging
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from perdure.core.room import Room
from perdure.errors import StoreCorrupt
from perdure.ids import RunId, TenantId, ThreadId, WorkerId
from perdure.model import Mail, MailKind, NewRun, OnBusy, RunRow, RunStatus, Started, WorkerRow
from perdure.store import _rules as rules
from perdure.store._rows import RUN_COLUMNS, WORKER_COLUMNS, run_params, run_row, worker_params
from perdure.store.sqlite import _erasing, _mail, _orders, _pages
from perdure.store.sqlite._due import DueWithin, find_due, find_lost
from perdure.store.sqlite.limits import UNREADABLE_PAUSE_US, WORKER_FORGOTTEN_US

log = logging.getLogger("perdure")

_INSERT_RUN = (
    f"INSERT INTO perdure_runs ({RUN_COLUMNS}) "
    f"VALUES ({', '.join('?' * len(RUN_COLUMNS.split(',')))}) RETURNING run_no"
)
INSERT_FRAME = (
    "INSERT INTO perdure_frames (run_no, first_seq, count, token, at_us, body, prev_hash, hash) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_CLAIM = f"""
UPDATE perdure_runs
SET status = 'running', token = token + 1, claims = claims + 1, holder = ?, ready_at_us = ?, waits =
NULL WHERE run_no = ? RETURNING {RUN_COLUMNS}
"""
_POSTPONE = "UPDATE perdure_runs SET ready_at_us = ? WHERE run_no = ?"
_RENEW = """
UPDATE perdure_runs SET ready_at_us = max(ready_at_us, :until)
WHERE holder = :worker AND status = 'running' AND (run_id, token) IN
    (SELECT value ->> 0, value ->> 1 FROM json_each(:held))
RETURNING run_id, token
"""
_THREAD_NEXT = """
INSERT INTO perdure_threads (tenant, thread, last_ordinal) VALUES (?, ?, 1)
ON CONFLICT (tenant, thread) DO UPDATE SET last_ordinal = last_ordinal + 1
RETURNING last_ordinal, checkpoint
"""


def graphs_json(graphs: Sequence[tuple[str, int]]) -> str:
    """Return the graphs as the JSON parameter that statements take."""
    return msgspec.json.encode(list(graphs)).decode()


def start(db: apsw.Connection, runs: Sequence[NewRun]) -> list[Started | Exception]:
    """Create the runs; an element is an exception where that one was refused."""
    return [_start_one(db, run) for run in runs]


def _start_one(db: apsw.Connection, run: NewRun) -> Started | Exception:
    known = _known(db, run)
    if known is not None:
        return known
    refused = _erasing.refused_start(db, run)
    if refused is not None:
        return refused
    unfinished = _unfinished(db, run.tenant, run.thread)
    if rules.is_refused(run, is_busy=bool(unfinished)):
        return rules.thread_busy(run, unfinished[0])
    cancelled = _cancel_all(db, run, unfinished)
    may_take = run.take_for is None or _may_take(db, run)
    row = insert_run(db, run, is_busy=bool(unfinished), may_take=may_take)
    return Started(
        row=row, created=True, taken=row.status is RunStatus.RUNNING, cancelled=cancelled
    )


def _may_take(db: apsw.Connection, run: NewRun) -> bool:
    return not _orders.has_limits(db) or rules.may_take(run, Room(_orders.read_limits(db), 0))


def _known(db: apsw.Connection, run: NewRun) -> Started | Exception | None:
    found = read_run(db, run.run_id)
    if found is None and run.start_key is not None:
        sql = f"SELECT {RUN_COLUMNS} FROM perdure_runs WHERE tenant = ? AND start_key = ?"
        rows = db.execute(sql, (run.tenant, run.start_key)).fetchall()
        found = run_row(rows[0]) if rows else None
    return None if found is None else rules.known_start(run, found)


def _unfinished(db: apsw.Connection, tenant: TenantId, thread: ThreadId) -> list[RunRow]:
    # Runs of a thread end in the order of their ordinals, so the unfinished ones are the newest.
    sql = (
        f"SELECT {RUN_COLUMNS} FROM perdure_runs WHERE tenant = ? AND thread = ? "
        "ORDER BY ordinal DESC"
    )
    found: list[RunRow] = []
    for values in db.execute(sql, (tenant, thread)):
        row = run_row(values)
        if row.status.is_final:
            break
        found.append(row)
    return found[::-1]


def _cancel_all(db: apsw.Connection, run: NewRun, unfinished: list[RunRow]) -> tuple[RunId, ...]:
    if run.on_busy is not OnBusy.CANCEL:
        return ()
    for row in unfinished:
        mail = Mail(run_id=row.run_id, kind=MailKind.CANCEL, at_us=run.created_at_us)
        _mail.deliver(db, mail)
    return tuple(row.run_id for row in unfinished)


def insert_run(
    db: apsw.Connection, run: NewRun, *, is_busy: bool, may_take: bool = False
) -> RunRow:
    """Insert the run with its first frame as the thread's newest; return its row."""
    ordinal, checkpoint = _one(db, _THREAD_NEXT, (run.tenant, run.thread))
    row = rules.first_row(
        run, ordinal=ordinal, is_busy=is_busy, base_checkpoint=checkpoint, may_take=may_take
    )
    (run_no,) = _one(db, _INSERT_RUN, run_params(row))
    frame = rules.first_frame(run)
    params = (run_no, 1, 1, 0, frame.at_us, frame.body, frame.prev_hash, frame.hash)
    db.execute(INSERT_FRAME, params)
    _pages.put_pages(db, run.tenant, run.pages, run.created_at_us)
    _erasing.name_subject(db, run)
    return row


def spawn(db: apsw.Connection, run: NewRun) -> None:
    """Create a child run, queued if its thread is busy; one with the same id stays as it is."""
    if read_run(db, run.run_id) is not None:
        return
    unfinished = _unfinished(db, run.tenant, run.thread)
    _cancel_all(db, run, unfinished)
    insert_run(db, rules.spawned(run), is_busy=bool(unfinished))


def _one(db: apsw.Connection, sql: str, params: tuple[Any, ...]) -> tuple[Any, ...]:
    return db.execute(sql, params).fetchall()[0]


def read_run(db: apsw.Connection, run_id: RunId) -> RunRow | None:
    """Return the run's row, or None."""
    sql = f"SELECT {RUN_COLUMNS} FROM perdure_runs WHERE run_id = ?"
    rows = db.execute(sql, (run_id,)).fetchall()
    return run_row(rows[0]) if rows else None


def claim(
    db: apsw.Connection,
    worker_id: WorkerId,
    graphs: str,
    *,
    now_us: int,
    lease_until_us: int,
    limit: int,
) -> list[RunRow]:
    """Take up to `limit` due runs of these graphs (JSON).

    A run whose row is damaged is passed over for a while, unchanged but for the time it is due:
    it would hold up every other run.
    """
    lease = (worker_id, lease_until_us, now_us)
    if _orders.has_limits(db):
        return _claim_within(db, graphs, lease, limit=limit)
    numbers = find_due(db, graphs, now_us=now_us, limit=limit)
    return [row for run_no in numbers if (row := _take_number(db, run_no, lease)) is not None]


Lease = tuple[WorkerId, int, int]
"""Who takes a lease, until when, and the time now."""


def _take_number(db: apsw.Connection, run_no: int, lease: Lease) -> RunRow | None:
    worker_id, until_us, now_us = lease
    try:
        with db:  # a savepoint
            return run_row(_one(db, _CLAIM, (worker_id, until_us, run_no)))
    except StoreCorrupt as error:
        log.error("a run is passed over for a minute: %s", error)  # noqa: TRY400  # a state of the data, no fault of the code
        db.execute(_POSTPONE, (now_us + UNREADABLE_PAUSE_US, run_no))
    return None


def _claim_within(db: apsw.Connection, graphs: str, lease: Lease, *, limit: int) -> list[RunRow]:
    """Claim under limits: what is running goes on, the rest as far as there is room."""
    now_us = lease[2]
    lost = find_lost(db, graphs, now_us=now_us, limit=limit)
    taken = [row for run_no in lost if (row := _take_number(db, run_no, lease)) is not None]
    if len(taken) < limit:
        room = Room(_orders.read_limits(db), now_us)
        due = DueWithin(db, graphs, now_us=now_us)

        def take(candidate: rules.Candidate) -> RunRow | None:
            due.is_taken(candidate.number)
            return _take_number(db, candidate.number, lease)

        taken += rules.claim_within(room, due.find, take, limit - len(taken))
        _orders.put_buckets(db, room.moved_buckets(), now_us)
    return taken


def take(
    db: apsw.Connection,
    run_id: RunId,
    worker_id: WorkerId,
    *,
    token: int,
    now_us: int,
    lease_until_us: int,
) -> RunRow | None:
    """Claim this one run, if it is to be had."""
    row = read_run(db, run_id)
    if row is None or not rules.is_takeable(row, token=token, now_us=now_us):
        return None
    run_no = db.execute("SELECT run_no FROM perdure_runs WHERE run_id = ?", (run_id,)).get
    return run_row(_one(db, _CLAIM, (worker_id, lease_until_us, run_no)))


def renew(
    db: apsw.Connection,
    worker_id: WorkerId,
    held: Sequence[tuple[RunId, int]],
    *,
    now_us: int,
    lease_until_us: int,
) -> set[RunId]:
    """Extend the leases and the worker's heartbeat; return the runs that are lost."""
    db.execute(
        "UPDATE perdure_workers SET seen_at_us = max(seen_at_us, ?) WHERE worker_id = ?",
        (now_us, worker_id),
    )
    if not held:
        return set()
    params = {
        "until": lease_until_us,
        "worker": worker_id,
        "held": msgspec.json.encode(list(held)).decode(),
    }
    kept = set(db.execute(_RENEW, params).fetchall())
    return {run_id for run_id, token in held if (run_id, token) not in kept}


def put_worker(db: apsw.Connection, row: WorkerRow) -> None:
    """Insert or replace the worker; drop rows of workers that have been silent for a day."""
    marks = ", ".join("?" * len(WORKER_COLUMNS.split(",")))
    sql = f"INSERT OR REPLACE INTO perdure_workers ({WORKER_COLUMNS}) VALUES ({marks})"
    db.execute(sql, worker_params(row))
    oldest = row.seen_at_us - WORKER_FORGOTTEN_US
    db.execute("DELETE FROM perdure_workers WHERE seen_at_us < ?", (oldest,))


def drop_worker(db: apsw.Connection, worker_id: WorkerId, now_us: int) -> None:
    """Remove the worker; runs that it still holds become claimable at once."""
    db.execute(
        "UPDATE perdure_runs SET ready_at_us = min(ready_at_us, ?) "
        "WHERE holder = ? AND status = 'running'",
        (now_us, worker_id),
    )
    db.execute("DELETE FROM perdure_workers WHERE worker_id = ?", (worker_id,))
