"""Rows and views as `--json` shows them (docs/cli.md); within a schema fields are only added."""

import datetime as dt
from dataclasses import asdict
from typing import Any

from perdure.engine import Schedule, WorkLimit
from perdure.engine.doctor import Finding
from perdure.engine.outlook import Outlook
from perdure.engine.survey import Finding as Fated
from perdure.engine.timeline import InFlight, Lease, Takeover
from perdure.engine.views import Ask, Checkpoint, LedgerEntry
from perdure.engine.waits import as_datetime
from perdure.model import Failure, GraphShape, RunRow, Wait, WorkerRow


def time_json(at: dt.datetime | None) -> str | None:
    """Return a time in ISO 8601 (UTC)."""
    return None if at is None else at.isoformat()


def us_json(at_us: int | None) -> str | None:
    """Return microseconds since the epoch in ISO 8601 (UTC)."""
    return None if at_us is None else as_datetime(at_us).isoformat()


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """Return why something failed."""
    if failure is None:
        return None
    return {
        "type": failure.type,
        "message": failure.message,
        "node": failure.node,
        "trace": failure.trace,
    }


def wait_json(wait: Wait) -> dict[str, Any]:
    """Return one wait of a run."""
    return {
        "kind": wait.kind.value,
        "subject": wait.subject,
        "node": wait.node,
        "due_at": us_json(wait.due_us),
        "note": wait.note,
    }


def run_json(row: RunRow) -> dict[str, Any]:
    """Return a run's row."""
    return {
        "id": row.run_id,
        "status": row.status.value,
        "graph": row.graph,
        "version": row.version,
        "thread": row.thread,
        "ordinal": row.ordinal,
        "tenant": row.tenant,
        "key": row.start_key,
        "parent": row.parent,
        "priority": row.priority,
        "holder": row.holder,
        "token": row.token,
        "claims": row.claims,
        "ready_at": us_json(row.ready_at_us),
        "waits": [wait_json(wait) for wait in row.waits],
        "last_seq": row.last_seq,
        "checkpoint": row.checkpoint,
        "failure": failure_json(row.failure),
        "created_at": us_json(row.created_at_us),
        "ended_at": us_json(row.ended_at_us),
    }


def shape_json(shape: GraphShape) -> dict[str, Any]:
    """Return what a worker executes: a graph version with its nodes and fields."""
    return {
        "graph": shape.name,
        "version": shape.version,
        "nodes": list(shape.nodes),
        "fields": list(shape.fields),
        "migrates": list(shape.migrates),
    }


def worker_json(row: WorkerRow, *, held: int, state: str) -> dict[str, Any]:
    """Return a worker, with how many runs it holds and whether it lives."""
    return {
        "id": row.worker_id,
        "host": row.host,
        "pid": row.pid,
        "graphs": [{"graph": name, "version": version} for name, version in row.graphs],
        "started_at": us_json(row.started_at_us),
        "seen_at": us_json(row.seen_at_us),
        "is_draining": row.is_draining,
        "state": state,
        "held": held,
        "concurrency": row.concurrency,
    }


def limit_json(limit: WorkLimit) -> dict[str, Any]:
    """Return a limit over all workers."""
    return asdict(limit)


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule."""
    return {
        **asdict(schedule),
        "on_busy": schedule.on_busy.value,
        "missed": schedule.missed.value,
        "next_at": time_json(schedule.next_at),
        "fired_at": time_json(schedule.fired_at),
    }


def ask_json(ask: Ask) -> dict[str, Any]:
    """Return a question to a person."""
    return {
        "id": ask.id,
        "run": ask.run_id,
        "thread": ask.thread,
        "node": ask.node,
        "question": ask.question,
        "schema": ask.schema,
        "state": ask.state.value,
        "asked_at": time_json(ask.asked_at),
        "expires_at": time_json(ask.expires_at),
        "value": ask.value,
        "answered_by": ask.answered_by,
        "answered_at": time_json(ask.answered_at),
    }


def effect_json(entry: LedgerEntry) -> dict[str, Any]:
    """Return an effect of the ledger."""
    return {
        "id": entry.id,
        "run": entry.run_id,
        "thread": entry.thread,
        "node": entry.node,
        "name": entry.name,
        "kind": entry.kind.value,
        "state": entry.state.value,
        "args": entry.args,
        "kwargs": entry.kwargs,
        "key": entry.key,
        "business_key": entry.business_key,
        "attempt": entry.attempt,
        "result": entry.result,
        "failure": failure_json(entry.failure),
        "intended_at": time_json(entry.intended_at),
        "changed_at": time_json(entry.changed_at),
        "decision": entry.decision,
        "decided_by": entry.decided_by,
    }


def checkpoint_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint."""
    return {
        "id": checkpoint.id,
        "parent": checkpoint.parent,
        "parent_thread": checkpoint.parent_thread,
        "thread": checkpoint.thread,
        "run": checkpoint.run_id,
        "seq": checkpoint.seq,
        "step": checkpoint.step,
        "at": time_json(checkpoint.at),
        "next": list(checkpoint.next),
        "changed": list(checkpoint.changed),
        "graph": checkpoint.graph,
        "version": checkpoint.graph_version,
        "snapshot": checkpoint.snapshot,
    }


def in_flight_json(effect: InFlight) -> dict[str, Any]:
    """Return an effect that was intended and has no result."""
    return asdict(effect)


def lease_json(lease: Lease) -> dict[str, Any]:
    """Return one worker's time with the run."""
    return {
        "token": lease.token,
        "holder": lease.holder,
        "since": time_json(lease.since),
        "first_seq": lease.first_seq,
        "until": time_json(lease.until),
        "last_seq": lease.last_seq,
        "end": lease.end,
        "reason": lease.reason,
    }


def takeover_json(takeover: Takeover) -> dict[str, Any]:
    """Return a lease that was taken from a holder that had not let go."""
    return {
        "seq": takeover.seq,
        "at": time_json(takeover.at),
        "holder": takeover.holder,
        "token": takeover.token,
        "lost_holder": takeover.lost_holder,
        "lost_token": takeover.lost_token,
        "lost_seq": takeover.lost_seq,
        "lost_at": time_json(takeover.lost_at),
        "silent_claims": takeover.silent_claims,
        "nodes": list(takeover.nodes),
        "effects": [in_flight_json(effect) for effect in takeover.effects],
    }


def outlook_json(outlook: Outlook) -> dict[str, Any]:
    """Return what a run needs to get further."""
    return {
        "standing": outlook.standing.value,
        "until": time_json(outlook.until),
        "kept": outlook.kept,
        "blockers": [
            {
                "run": blocker.run_id,
                "wait": None if blocker.wait is None else wait_json(blocker.wait),
                "reason": blocker.reason,
            }
            for blocker in outlook.blockers
        ],
    }


def fate_json(finding: Fated) -> dict[str, Any]:
    """Return what becomes of a run or a thread under another version of its graph."""
    return {
        "run": finding.run_id,
        "tenant": finding.tenant,
        "thread": finding.thread,
        "version": finding.version,
        "fate": finding.fate.value,
        "path": [int(version) for version in finding.path.split("->") if version],
        "reason": finding.reason,
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding of the doctor."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "run": finding.run_id,
        "what": finding.what,
        "next": list(finding.following),
        "is_repaired": finding.is_repaired,
    }
