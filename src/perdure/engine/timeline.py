"""A run's story: its events, who held it when, and where a holder was lost.

Theory: a holder that lets go writes `released` (or the run's end). A `lease_taken` that follows
another one with nothing of that kind in between means that the holder before died or lost its
lease: what it had not recorded by then is what the next holder does again, or finds out about.
"""

import datetime as dt
from dataclasses import dataclass, field, replace

from perdure.core import fold
from perdure.engine.environment import Environment
from perdure.engine.events import Event, event_at
from perdure.engine.loading import read_kept, resumed
from perdure.engine.paging import VALUES, inline_record
from perdure.engine.waits import as_datetime
from perdure.ids import TenantId
from perdure.model import EffectState
from perdure.model import records as rec


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """An outside effect that was intended and has no result."""

    id: str
    name: str
    kind: str
    node: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One worker's time with the run.

    Attributes:
        until: when it let go; for a lost one the time of its last record; None: it holds the run.
        last_seq: its last record.
        end: "held", "released" (with `reason`), "ended" (the run did), or "lost".
    """

    token: int
    holder: str
    since: dt.datetime
    first_seq: int
    until: dt.datetime | None
    last_seq: int
    end: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A lease that was taken although the holder before had not let go: it died, or lost its lease.

    Attributes:
        seq: the record that the new holder began with.
        silent_claims: claims between the two that left no record.
        nodes: executions that had no outcome then.
        effects: outside effects that were intended and had no result then.
    """

    seq: int
    at: dt.datetime
    holder: str
    token: int
    lost_holder: str
    lost_token: int
    lost_seq: int
    lost_at: dt.datetime
    silent_claims: int
    nodes: tuple[str, ...]
    effects: tuple[InFlight, ...]


@dataclass(slots=True)
class Timeline:
    """What `timeline_of` returns, oldest first."""

    events: list[Event] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    nodes: tuple[str, ...] = ()
    effects: tuple[InFlight, ...] = ()


async def timeline_of(engine: Environment, run_id: str) -> Timeline:
    """Return a run's timeline; `nodes` and `effects` are those without an outcome now.

    What was pruned is left out.

    Raises:
        StoreCorrupt, DecodeFailed: the journal is not what was written.
    """
    story = Timeline()
    state = fold.RunState(run_id)
    tenant = TenantId("")
    for seq, frame, record in await read_kept(engine.store, run_id):
        going = resumed(state, seq, record)
        if going is None:
            continue
        if going is not state and story.leases and story.leases[-1].end == "held":
            story.leases[-1] = replace(story.leases[-1], end="released", reason="pruned")
        state = going
        if isinstance(record, rec.LeaseTaken):
            _lease_taken(story, state, seq, record)
        elif story.leases:
            story.leases[-1] = _went_on(story.leases[-1], seq, record)
        if isinstance(record, rec.RunStarted):
            tenant = TenantId(record.tenant)
        told = record
        if type(record) in VALUES:
            told = await inline_record(engine.store, tenant, f"run {run_id!r}, seq {seq}", record)
        story.events.append(event_at(frame.run_id, seq, frame.token, told))
        fold.apply(state, record)
    story.nodes, story.effects = _nodes(state), _effects(state)
    return story


def _lease_taken(story: Timeline, state: fold.RunState, seq: int, record: rec.LeaseTaken) -> None:
    at = as_datetime(record.at_us)
    if story.leases and story.leases[-1].end == "held":
        before = story.leases[-1]
        story.leases[-1] = replace(before, end="lost", until=story.events[-1].at)
        story.takeovers.append(
            Takeover(
                seq=seq,
                at=at,
                holder=record.holder,
                token=record.token,
                lost_holder=before.holder,
                lost_token=before.token,
                lost_seq=story.events[-1].seq,
                lost_at=story.events[-1].at,
                silent_claims=max(record.token - before.token - 1, 0),
                nodes=_nodes(state),
                effects=_effects(state),
            )
        )
    story.leases.append(
        Lease(
            token=record.token,
            holder=record.holder,
            since=at,
            first_seq=seq,
            until=None,
            last_seq=seq,
            end="held",
        )
    )


def _went_on(lease: Lease, seq: int, record: rec.Record) -> Lease:
    at = as_datetime(record.at_us)
    if isinstance(record, rec.Released):
        return replace(lease, end="released", until=at, last_seq=seq, reason=record.reason)
    if isinstance(record, rec.RunEnded):
        return replace(lease, end="ended", until=at, last_seq=seq, reason=record.status)
    return replace(lease, last_seq=seq)


def _nodes(state: fold.RunState) -> tuple[str, ...]:
    """Return the node executions without an outcome; of a subgraph those inside."""
    return tuple(
        task.path
        for scope in state.scopes.values()
        for task in scope.tasks.values()
        if task.outcome is None and task.path not in state.scopes
    )


def _effects(state: fold.RunState) -> tuple[InFlight, ...]:
    return tuple(
        InFlight(
            id=call.call_id,
            name=call.name,
            kind=call.kind,
            node=task.path,
            attempt=call.attempt,
        )
        for scope in state.scopes.values()
        for task in scope.all_tasks
        for call in task.calls.values()
        if call.state == EffectState.INTENDED
    )
