"""Events in words: one line for each fact of a run."""

import datetime as dt
from collections.abc import Callable
from typing import Any

from perdure.cli._text import clean, clock_time, compact, duration, full_time, plural
from perdure.cli.limits import STATUS_CHARS_MAX
from perdure.engine.events import Event
from perdure.engine.outlook import Outlook
from perdure.engine.timeline import InFlight, Takeover
from perdure.engine.waits import as_datetime
from perdure.model import RunRow, RunStatus, Wait, WaitKind

QUIET = frozenset({"state_snapshot", "noted", "sandbox_taken"})
"""Kinds of events that people are not shown: bookkeeping."""


def describe_event(event: Event) -> str:
    """Return one line that says what happened."""
    return clean(_SAYS[event.kind](event, event.body))


def _at(at_us: int | None) -> str:
    return full_time(as_datetime(at_us)) + " UTC" if at_us is not None else ""


def _node(event: Event) -> str:
    return event.node or "graph"


def _failure(body: dict[str, Any]) -> str:
    failure = body.get("failure") or {}
    return f"{failure.get('type')}: {failure.get('message')}" if failure else ""


def _attempt(body: dict[str, Any]) -> str:
    number = body.get("attempt", 1)
    return f" (attempt {number})" if number > 1 else ""


def _retry(body: dict[str, Any]) -> str:
    retry_at_us = body.get("retry_at_us")
    return "" if retry_at_us is None else f"; tried again at {clock_time(as_datetime(retry_at_us))}"


def _node_finished(event: Event, body: dict[str, Any]) -> str:
    took_s = (event.at - as_datetime(body["started_us"])) / dt.timedelta(seconds=1)
    wrote = ", ".join(body["writes"]) or "nothing"
    return f"node {event.node} finished in {duration(took_s)}{_attempt(body)}, wrote {wrote}"


def _step(event: Event, body: dict[str, Any]) -> str:
    following = ", ".join(spec["node"] for spec in body["next"]) or "the end"
    what = f"checkpoint {body['checkpoint']}" if not event.node else f"step of {event.node}"
    return f"{what} (step {body['step']}), next: {following}"


def _effect(verb: str) -> Callable[[Event, dict[str, Any]], str]:
    def says(_event: Event, body: dict[str, Any]) -> str:
        via = body.get("via", "call")
        how = "" if via == "call" else f" by {via}"
        by = f" of {body['by']}" if body.get("by") else ""
        why = f": {_failure(body)}" if body.get("failure") else ""
        result = f" -> {compact(body['result'], 80)}" if "result" in body else ""
        return (
            f"effect {body['name']} {verb}{how}{by}{_attempt(body)}{result}{why}{_retry(body)}"
            f" [{body['effect_id']}]"
        )

    return says


def _intended(_event: Event, body: dict[str, Any]) -> str:
    args, kwargs = body["request"]
    given = ", ".join(
        [compact(a, 60) for a in args] + [f"{k}={compact(v, 60)}" for k, v in kwargs.items()]
    )
    call = f"effect {body['name']}({given}) intended, kind {body['kind']}{_attempt(body)}"
    return f"{call} [{body['effect_id']}]"


def _asked(_event: Event, body: dict[str, Any]) -> str:
    until = f", until {_at(body['expires_at_us'])}" if body["expires_at_us"] else ""
    return f"asked: {body['question']}{until} [{body['ask_id']}]"


def _released(_event: Event, body: dict[str, Any]) -> str:
    if body["reason"] == "needs_decision":
        effects = [wait["subject"] for wait in body["waits"] if wait["kind"] == "decision"]
        why = (body.get("failure") or {}).get("type", "")
        return f"parked, needs a decision: {' '.join([why, *(f'[{e}]' for e in effects)]).strip()}"
    if body["reason"] == "waiting":
        return f"let go, waits for: {'; '.join(_wait_words(wait) for wait in body['waits'])}"
    if body["reason"] == "store_fault":
        failure = body.get("failure") or {}
        return f"let go, the store failed: {failure.get('type', '')}: {failure.get('message', '')}"
    return _LET_GO.get(body["reason"], "let go")


_LET_GO = {
    "drained": "let go, its worker drains",
    "back": "let go, back to its last checkpoint: a node failed on files that no snapshot holds",
    "version_moved": "let go, goes on with that version",
}


def _wait_words(wait: dict[str, Any]) -> str:
    return describe_wait(
        Wait(
            kind=WaitKind(wait["kind"]),
            subject=wait["subject"],
            due_us=wait["due_us"],
            note=wait["note"],
        )
    )


def describe_wait(wait: Wait) -> str:
    """Return what a wait waits for."""
    until = f" until {_at(wait.due_us)}" if wait.due_us is not None else ""
    if wait.kind is WaitKind.TIMER:
        return clean(f"timer{until}" + (f" ({wait.note})" if wait.note else ""))
    if wait.kind is WaitKind.ASK:
        return clean(f"approval{until}: {wait.note}")
    if wait.kind is WaitKind.SIGNAL:
        return clean(f"signal {wait.subject}{until}")
    if wait.kind is WaitKind.CHILD:
        return clean(f"child run {wait.subject}")
    if wait.kind is WaitKind.THREAD:
        return clean(f"its turn on thread {wait.subject}")
    return clean(f"decision: {wait.note or wait.subject}")


def _ended(_event: Event, body: dict[str, Any]) -> str:
    why = f": {_failure(body)}" if body["failure"] else ""
    return f"run {body['status']}{why}"


def _cancel(_event: Event, body: dict[str, Any]) -> str:
    by = f" by {body['by']}" if body["by"] else ""
    return f"cancel asked for{by}" + (", with compensation" if body["compensate"] else "")


def _compensated(_event: Event, body: dict[str, Any]) -> str:
    why = f" failed: {_failure(body)}" if body["failure"] else " done"
    return f"compensation {body['name']}{why} [{body['effect_id']}]"


def _answered(_event: Event, body: dict[str, Any]) -> str:
    who = "nobody in time, the default stands" if body["via"] == "default" else f"by {body['by']}"
    return f"answered {who}: {compact(body['value'], 120)} [{body['ask_id']}]"


def _comes_from(body: dict[str, Any]) -> str:
    """Return where the state of a fork or a rollback comes from."""
    back = body["rollback"]
    if back is not None:
        why = f": {back['reason']}" if back["reason"] else ""
        return f", rolled back to checkpoint {back['checkpoint']} by {back['by']}{why}"
    origin = body["origin_thread"]
    return f", forked from {origin}@{body['origin_checkpoint']}" if origin is not None else ""


_SAYS: dict[str, Callable[[Event, dict[str, Any]], str]] = {
    "run_started": lambda _e, b: (
        f"run started: graph {b['graph']} v{b['version']}, thread {b['thread']}{_comes_from(b)}"
    ),
    "lease_taken": lambda _e, b: f"lease taken by {b['holder']} (token {b['token']})",
    "node_started": lambda e, b: f"node {_node(e)} executed again{_attempt(b)}",
    "node_finished": _node_finished,
    "node_failed": lambda e, b: f"node {e.node} failed{_attempt(b)}: {_failure(b)}{_retry(b)}",
    "step_committed": _step,
    "effect_intended": _intended,
    "effect_confirmed": _effect("confirmed"),
    "effect_failed": _effect("failed"),
    "effect_uncertain": _effect("uncertain"),
    "compensation_started": lambda _e, b: f"compensation {b['name']} started [{b['effect_id']}]",
    "compensation_ended": _compensated,
    "timer_set": lambda e, b: f"node {e.node} sleeps until {_at(b['due_us'])}",
    "timer_fired": lambda e, _b: f"node {e.node} slept",
    "asked": _asked,
    "answered": _answered,
    "ask_expired": lambda _e, b: f"nobody answered in time [{b['ask_id']}]",
    "receive_started": lambda e, b: f"node {e.node} listens for signal {b['topic']}",
    "signal_consumed": lambda _e, b: f"signal {b['topic']} received: {compact(b['value'], 120)}",
    "receive_timed_out": lambda e, _b: f"node {e.node}: no signal in time",
    "child_spawned": lambda _e, b: f"child run {b['child']} started (graph {b['graph']})",
    "child_ended": lambda _e, b: f"child run {b['child']} {b['status']}",
    "noted": lambda e, b: f"node {e.node} noted {compact(b['value'], 80)}",
    "emitted": lambda e, b: f"node {e.node}: {compact(b['chunk'])}",
    "released": _released,
    "cancel_requested": _cancel,
    "run_ended": _ended,
    "state_snapshot": lambda _e, b: f"whole state written (checkpoint {b['checkpoint']})",
    "sandbox_taken": lambda e, b: f"node {e.node}: sandbox snapshot {b['snapshot']}",
    "retry_requested": lambda _e, b: f"retry asked for by {b['by']}",
    "version_moved": lambda _e, b: (
        f"moved from v{b['from_version']} to v{b['to_version']} by {b['by']}"
    ),
}


def describe_takeover(takeover: Takeover) -> list[str]:
    """Return in words that a holder was lost, and what was under way."""
    gap_s = (takeover.at - takeover.lost_at) / dt.timedelta(seconds=1)
    lost = (
        f"holder {takeover.lost_holder} (token {takeover.lost_token}) died or lost its lease here"
    )
    taken = f"taken over {duration(gap_s)} later by {takeover.holder} (token {takeover.token})"
    lines = [f"{lost}: it wrote nothing after seq {takeover.lost_seq}; {taken}"]
    if takeover.silent_claims:
        lines.append(f"{plural(takeover.silent_claims, 'claim')} in between left no record")
    lines += in_flight_lines(takeover.nodes, takeover.effects)
    return [clean(line) for line in lines]


def in_flight_lines(nodes: tuple[str, ...], effects: tuple[InFlight, ...]) -> list[str]:
    """Return in words what had no outcome."""
    lines = [f"without an outcome then: node {', '.join(nodes)}"] if nodes else []
    lines += [
        f"intended without a result then: effect {effect.name}, kind {effect.kind} [{effect.id}]"
        for effect in effects
    ]
    return lines


def describe_status(row: RunRow, now_us: int, *, is_served: bool = True, kept: str = "") -> str:
    """Return a run's status with what it waits for; why it is parked or failed is its reason.

    Args:
        row: the run.
        now_us: the time now.
        is_served: False: it could go on, and no live worker executes its graph version.
        kept: which limit keeps it back, in words; empty: none.
    """
    lacking = "" if is_served else f", no live worker executes {row.graph} v{row.version}"
    lacking += f", {clean(kept)}" if kept else ""
    is_due = row.ready_at_us is not None and row.ready_at_us <= now_us
    if row.status is RunStatus.RUNNING and is_due:
        return f"pending: its holder {row.holder} died or lost its lease{lacking}"
    if row.status in {RunStatus.WAITING, RunStatus.NEEDS_DECISION, RunStatus.PENDING} and is_due:
        woken = ": woken" if row.status is not RunStatus.PENDING else ""
        return f"{row.status.value}{woken}{lacking}"
    if row.status is RunStatus.PENDING and row.ready_at_us is not None:
        return f"pending until {_at(row.ready_at_us)}"
    waits = [wait for wait in row.waits if wait.kind is not WaitKind.DECISION]
    if waits:
        return f"{row.status.value}: " + "; ".join(describe_wait(wait) for wait in waits)
    return row.status.value


def describe_shortly(row: RunRow, now_us: int, *, is_served: bool = True, kept: str = "") -> str:
    """Return the same for one column of a list."""
    is_due = row.ready_at_us is not None and row.ready_at_us <= now_us
    lacking = "" if is_served else ", no worker"
    lacking += f", {kept.replace('kept back by the limit', 'limit')}" if kept else ""
    text = row.status.value
    if row.status is RunStatus.RUNNING and is_due:
        text = f"pending: its holder died{lacking}"
    elif is_due and not row.status.is_final:
        text += (": woken" if row.status is not RunStatus.PENDING else "") + lacking
    elif row.failure is not None and row.status in {RunStatus.NEEDS_DECISION, RunStatus.FAILED}:
        text += f": {_reason_shortly(row)}"
    elif row.waits:
        text += ": " + "; ".join(_wait_shortly(wait) for wait in row.waits)
    elif row.status is RunStatus.PENDING and row.ready_at_us is not None:
        text = f"pending until {_at(row.ready_at_us)}"
    return clean(text, STATUS_CHARS_MAX)


def _reason_shortly(row: RunRow) -> str:
    if row.failure is None:
        return ""
    uncertain = [wait for wait in row.waits if wait.kind is WaitKind.DECISION]
    if uncertain:  # the note begins with the effect's name: "effect charge: ..."
        return f"{row.failure.type}, {uncertain[0].note.partition(':')[0] or uncertain[0].subject}"
    if row.status is RunStatus.FAILED:
        return f"{row.failure.type}: {row.failure.message}"
    return f"{row.failure.type}" + (f" in {row.failure.node}" if row.failure.node else "")


def _wait_shortly(wait: Wait) -> str:
    if wait.kind is WaitKind.ASK:
        return f"approval: {wait.note}"
    if wait.kind is WaitKind.TIMER:
        return f"timer{f' until {_at(wait.due_us)}' if wait.due_us is not None else ''}"
    return describe_wait(wait)


def describe_blockers(outlook: Outlook) -> list[str]:
    """Return what a run needs from outside, one line each."""
    lines = []
    for blocker in outlook.blockers:
        what = (
            describe_wait(blocker.wait)
            if blocker.wait is not None
            else f"decision: {clean(blocker.reason)}"
        )
        lines.append(f"run {blocker.run_id} waits for {what}")
    return lines
