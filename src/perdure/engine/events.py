"""The run's stream: its durable records, as events for people and programs."""

import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct

from perdure.codec import describe
from perdure.engine.environment import Environment
from perdure.engine.loading import read_records
from perdure.engine.paging import inline_record
from perdure.engine.waits import as_datetime
from perdure.errors import DecodeFailed, NotFound, StoreCorrupt
from perdure.ids import RunId
from perdure.model import records as rec

_KINDS = {
    rec.RunStarted: "run_started",
    rec.LeaseTaken: "lease_taken",
    rec.NodeStarted: "node_started",
    rec.NodeFinished: "node_finished",
    rec.NodeFailed: "node_failed",
    rec.StepCommitted: "step_committed",
    rec.EffectIntended: "effect_intended",
    rec.EffectConfirmed: "effect_confirmed",
    rec.EffectFailed: "effect_failed",
    rec.EffectUncertain: "effect_uncertain",
    rec.CompensationStarted: "compensation_started",
    rec.CompensationEnded: "compensation_ended",
    rec.TimerSet: "timer_set",
    rec.TimerFired: "timer_fired",
    rec.Asked: "asked",
    rec.AskAnswered: "answered",
    rec.AskLapsed: "ask_expired",
    rec.ReceiveStarted: "receive_started",
    rec.SignalConsumed: "signal_consumed",
    rec.ReceiveLapsed: "receive_timed_out",
    rec.Spawned: "child_spawned",
    rec.ChildEnded: "child_ended",
    rec.Noted: "noted",
    rec.Emitted: "emitted",
    rec.Released: "released",
    rec.CancelRequested: "cancel_requested",
    rec.RunEnded: "run_ended",
    rec.StateSnapshot: "state_snapshot",
    rec.StateCopied: "state_snapshot",
    rec.SandboxTaken: "sandbox_taken",
    rec.RetryRequested: "retry_requested",
    rec.VersionMoved: "version_moved",
}

EVENT_KINDS = tuple(sorted(set(_KINDS.values())))
"""Every kind of event."""


class Event(Struct, frozen=True, kw_only=True):
    """One durable fact of a run.

    Attributes:
        seq: position in the run, from 1, without gaps: where a reader goes on
            (`events(after=seq)`).
        kind: one of EVENT_KINDS.
        at: when it was recorded (UTC).
        node: path of the node execution it belongs to, or "".
        token: fencing token of the holder that wrote it; chunks of an older token of the same node
            are superseded.
        body: its fields, JSON-like.
    """

    seq: int
    kind: str
    at: dt.datetime
    node: str
    token: int
    body: dict[str, Any]

    @property
    def chunk(self) -> Any:
        """What `ctx.emit` was given, for kind "emitted"."""
        return self.body.get("chunk")

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON-like data."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "at": self.at.isoformat(),
            "node": self.node,
            "token": self.token,
            "body": self.body,
        }


def event_of(seq: int, token: int, record: rec.Record) -> Event:
    """Return a record as an event."""
    body = {
        name: _plain(getattr(record, name))
        for name in record.__struct_fields__
        if name not in {"at_us", "task"}
    }
    return Event(
        seq=seq,
        kind=_KINDS[type(record)],
        at=as_datetime(record.at_us),
        node=getattr(record, "task", getattr(record, "scope", "")),
        token=token,
        body=body,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return describe(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


async def read_events(engine: Environment, run_id: str, after: int = 0) -> list[Event]:
    """Return the durable events with a seq above `after`."""
    found = await read_records(engine.store, run_id, after + 1)
    row = await engine.store.read_run(RunId(run_id))
    events = []
    for seq, frame, record in found:
        whole = record
        if row is not None:
            place = f"run {run_id!r}, seq {seq}"
            try:
                whole = await inline_record(engine.store, row.tenant, place, record)
            except StoreCorrupt as error:
                raise error.located(run_id=run_id, seq=seq, tenant=row.tenant) from error
        events.append(event_at(run_id, seq, frame.token, whole))
    return events


def event_at(run_id: str, seq: int, token: int, record: rec.Record) -> Event:
    """Return a record as an event.

    Raises:
        DecodeFailed: a value in it can't be read; names run and seq.
    """
    try:
        return event_of(seq, token, record)
    except DecodeFailed as error:
        place = f"run {run_id!r}, seq {seq}"
        raise error.located(place, run_id=run_id, seq=seq) from error


async def follow(engine: Environment, run_id: str, after: int) -> AsyncIterator[Event]:
    """Yield the events above `after` as they become durable, until the run has ended.

    Raises:
        NotFound: no such run.
    """
    while True:
        mark = engine.store.change_mark()
        row = await engine.store.read_run(RunId(run_id))
        if row is None:
            msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
            raise NotFound(msg, run_id=run_id)
        if row.last_seq > after:
            for event in await read_events(engine, run_id, after):
                after = event.seq
                yield event
        if row.status.is_final and after >= row.last_seq:
            return
        if row.last_seq <= after:
            await engine.wait_for_news(run_id, mark, after)
