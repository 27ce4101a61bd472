"""Rows and views as `--json` shows them (docs/cli.md); within a schema fields are only added.

Size: one function for each shape.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from perdure.cli._store import pasted
from perdure.engine import Schedule, WorkLimit
from perdure.engine.branches import ForkPreview, RollbackPreview, RolledBack
from perdure.engine.compare import (
    Comparison,
    DecisionsCompared,
    EffectsCompared,
    Moment,
    Place,
)
from perdure.engine.costs import CheckpointCost
from perdure.engine.divergence import Replay
from perdure.engine.doctor import Finding
from perdure.engine.outlook import Outlook
from perdure.engine.story import Decision, EffectSeen, NodeRun, StepRun, Story
from perdure.engine.survey import Finding as Fated
from perdure.engine.tagging import Tag
from perdure.engine.timeline import InFlight, Lease, Takeover
from perdure.engine.tree import ForkSeen, ThreadTree
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
        "rolled_back_to": checkpoint.rolled_back_to,
    }


def cost_json(cost: CheckpointCost) -> dict[str, Any]:
    """Return what a checkpoint costs."""
    return {
        "checkpoint": cost.checkpoint,
        "thread": cost.thread,
        "run": cost.run_id,
        "step": cost.step,
        "at": time_json(cost.at),
        "nodes": list(cost.nodes),
        "stored_bytes": cost.stored_bytes,
        "journal_bytes": cost.journal_bytes,
        "copy_bytes": cost.copy_bytes,
        "pages": cost.pages,
        "page_bytes": cost.page_bytes,
        "elapsed_ms": cost.elapsed_ms,
        "node_ms": cost.node_ms,
        "again": list(cost.again),
        "repeated": cost.repeated,
        "children": cost.children,
        "sandbox": cost.sandbox,
        "sandbox_bytes": cost.sandbox_bytes,
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
    }


def place_json(place: Place) -> dict[str, Any]:
    """Return a point of a thread."""
    return {"thread": place.thread, "checkpoint": place.checkpoint, "run": place.run_id}


def node_json(node: NodeRun) -> dict[str, Any]:
    """Return a node execution; of a subgraph with its steps."""
    return {
        "path": node.path,
        "node": node.node,
        "index": node.index,
        "attempts": node.attempts,
        "changed": list(node.changed),
        "failure": failure_json(node.failure),
        "is_finished": node.is_finished,
        "steps": [step_json(step) for step in node.steps],
    }


def step_json(step: StepRun) -> dict[str, Any]:
    """Return a step with its executions."""
    return {
        "checkpoint": step.checkpoint,
        "thread": step.thread,
        "run": step.run_id,
        "seq": step.seq,
        "step": step.step,
        "at": time_json(step.at),
        "nodes": [node_json(node) for node in step.nodes],
        "next": list(step.next),
        "changed": list(step.changed),
    }


def seen_json(effect: EffectSeen) -> dict[str, Any]:
    """Return an effect as the journal has it."""
    return {
        "id": effect.id,
        "run": effect.run_id,
        "node": effect.node,
        "name": effect.name,
        "kind": effect.kind,
        "state": effect.state,
        "args": effect.args,
        "kwargs": effect.kwargs,
        "key": effect.key,
        "business_key": effect.business_key,
        "result": effect.result,
        "failure": failure_json(effect.failure),
        "via": effect.via,
        "by": effect.by,
        "attempt": effect.attempt,
        "seq": effect.seq,
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    """Return what somebody decided, or did not."""
    return {
        "kind": decision.kind,
        "id": decision.id,
        "run": decision.run_id,
        "node": decision.node,
        "about": decision.about,
        "value": decision.value,
        "by": decision.by,
        "at": time_json(decision.at),
        "seq": decision.seq,
    }


def moment_json(moment: Moment) -> dict[str, Any]:
    """Return a point with its state and what led to it."""
    return {
        "at": place_json(moment.place),
        "state": moment.state,
        "next_nodes": list(moment.next),
        "snapshot": moment.snapshot,
        "steps": [step_json(step) for step in moment.steps],
        "effects": [seen_json(effect) for effect in moment.effects],
        "decisions": [decision_json(decision) for decision in moment.decisions],
    }


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return how two points differ."""
    return {
        "a": place_json(found.a),
        "b": place_json(found.b),
        "parted": None if found.parted is None else place_json(found.parted),
        "is_same": found.is_same,
        "patch": found.patch,
        "arrays": [
            {"path": edit.path, "differing": edit.differing, "elements": edit.new.count}
            for edit in found.edits
            if edit.differing is not None
        ],
        "steps": {
            "same": found.steps.same,
            "a": [step_json(step) for step in found.steps.a],
            "b": [step_json(step) for step in found.steps.b],
        },
        "effects": _pairs_json(found.effects, seen_json),
        "decisions": _pairs_json(found.decisions, decision_json),
    }


def _pairs_json(
    found: EffectsCompared | DecisionsCompared, shape: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    pairs = [{"a": shape(one), "b": shape(other)} for one, other in found.differing]
    return {
        "same": found.same,
        "only_a": [shape(each) for each in found.only_a],
        "only_b": [shape(each) for each in found.only_b],
        "differing": pairs,
    }


def story_json(story: Story) -> dict[str, Any]:
    """Return a run with its steps."""
    rolled = story.rolled
    back = None
    if rolled is not None:
        back = {"checkpoint": rolled.checkpoint, "by": rolled.by, "reason": rolled.reason}
    return {
        "run": run_json(story.row),
        "rollback": back,
        "steps": [step_json(step) for step in story.steps],
        "under_way": [node_json(node) for node in story.under_way],
    }


def tree_json(tree: ThreadTree) -> dict[str, Any]:
    """Return a thread with its runs, its origin and its forks."""
    origin = tree.origin
    come = None if origin is None else {"thread": origin.thread, "checkpoint": origin.checkpoint}
    return {
        "thread": tree.thread,
        "origin": come,
        "runs": [story_json(story) for story in tree.runs],
        "forks": [fork_json(fork) for fork in tree.forks],
        "is_complete": tree.is_complete,
        "tags": [tag_json(tag) for tag in tree.tags],
    }


def tag_json(tag: Tag) -> dict[str, Any]:
    """Return a name of a checkpoint."""
    return {
        "name": tag.name,
        "checkpoint": tag.checkpoint,
        "by": tag.by,
        "at": time_json(tag.at),
    }


def fork_json(fork: ForkSeen) -> dict[str, Any]:
    """Return a fork with its own tree."""
    return {
        "checkpoint": fork.checkpoint,
        "run": fork.row.run_id,
        "tree": None if fork.tree is None else tree_json(fork.tree),
    }


def replay_json(found: Replay) -> dict[str, Any]:
    """Return what a replay found."""
    return {
        "run": found.run_id,
        "thread": found.thread,
        "graph": found.graph,
        "version": found.version,
        "recorded_version": found.recorded_version,
        "status": found.status,
        "part": found.part or None,
        "steps": found.steps,
        "nodes": found.nodes,
        "served": found.served,
        "standing": list(found.standing),
        "is_clean": found.is_clean,
        "divergences": [
            {
                "kind": each.kind.value,
                "node": each.node,
                "attempt": each.attempt,
                "subject": each.subject,
                "expected": each.expected,
                "got": each.got,
                "message": each.message,
            }
            for each in found.divergences
        ],
    }


def fork_preview_json(found: ForkPreview) -> dict[str, Any]:
    """Return what a fork starts with and does again."""
    return {
        "thread": found.thread,
        "checkpoint": found.checkpoint,
        "run": found.run_id,
        "graph": found.graph,
        "version": found.graph_version,
        "state": found.state,
        "next_nodes": list(found.next),
        "snapshot": found.snapshot,
        "again": [seen_json(effect) for effect in found.again],
        "reused": [seen_json(effect) for effect in found.reused],
        "children": [_child_json(*child) for child in found.children],
        "running": [
            {
                "run": each.run_id,
                "status": each.status,
                "nodes": [node_json(node) for node in each.nodes],
            }
            for each in found.running
        ],
        "is_rerun": found.is_rerun,
    }


def _child_json(run_id: str, graph: str) -> dict[str, Any]:
    return {"run": run_id, "graph": graph}


def rollback_json(found: RollbackPreview) -> dict[str, Any]:
    """Return what a rollback puts back and leaves; of one that was done also as what."""
    body = {
        "thread": found.thread,
        "checkpoint": found.checkpoint,
        "newest": found.newest,
        "state": found.state,
        "snapshot": found.snapshot,
        "not_undone": [
            {"effect": seen_json(each.effect), "next": [pasted(line) for line in each.commands]}
            for each in found.not_undone
        ],
        "children": [_child_json(*child) for child in found.children],
    }
    if isinstance(found, RolledBack):
        body |= {
            "run": found.run_id,
            "new_checkpoint": found.new_checkpoint,
            "by": found.by,
            "reason": found.reason,
        }
    return body


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
        "next": [pasted(line) for line in finding.following],
        "is_repaired": finding.is_repaired,
    }
