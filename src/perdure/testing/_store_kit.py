"""Short ways to write rows and appends in store tests; times are microseconds after `T0`."""

from typing import Any

import pytest

from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model import (
    Append,
    Appended,
    AppendOutcome,
    AskRow,
    Change,
    EffectKind,
    EffectRow,
    EffectState,
    Mail,
    MailKind,
    NewRun,
    RunEnded,
    RunReleased,
    RunRow,
    RunStatus,
    Started,
    WorkerRow,
)
from perdure.store.api import Capability, Store

T0 = 1_700_000_000_000_000
"""The time at which the tests play; in the past of every real clock."""
FAR = 1 << 60
"""A time after every real clock's."""
TENANT = TenantId("default")
WORKER = WorkerId("w_1")
OTHER = WorkerId("w_2")
GRAPHS = (("g", 1),)
ZERO = bytes(32)


def new_run(name: str, **fields: Any) -> NewRun:
    """Return a start of graph `g` version 1 on a thread of its own, due at `T0`."""
    given: dict[str, Any] = {
        "run_id": RunId(f"r_{name}"),
        "tenant": TENANT,
        "thread": ThreadId(f"thread_{name}"),
        "graph": "g",
        "version": 1,
        "created_at_us": T0,
        "first_body": b"first",
        "first_hash": b"1" * 32,
    }
    return NewRun(**(given | fields))


def appended_to(row: RunRow, *changes: Change, **fields: Any) -> Append:
    """Return the next append of one record for the run as the row says it is."""
    given: dict[str, Any] = {
        "run_id": row.run_id,
        "tenant": row.tenant,
        "thread": row.thread,
        "token": row.token,
        "first_seq": row.last_seq + 1,
        "at_us": T0 + 10,
        "count": 1,
        "body": b"body",
        "prev_hash": b"1" * 32,
        "hash": b"2" * 32,
        "changes": changes,
    }
    return Append(**(given | fields))


def effect_of(row: RunRow, name: str, **fields: Any) -> EffectRow:
    """Return an intended effect of the run."""
    given: dict[str, Any] = {
        "effect_id": EffectId(f"e_{name}"),
        "run_id": row.run_id,
        "tenant": row.tenant,
        "thread": row.thread,
        "node": "1:node",
        "name": "refund",
        "kind": EffectKind.ONCE,
        "state": EffectState.INTENDED,
        "key": f"key-{name}",
        "changed_at_us": T0,
    }
    return EffectRow(**(given | fields))


def ask_of(row: RunRow, name: str, **fields: Any) -> AskRow:
    """Return an open ask of the run."""
    given: dict[str, Any] = {
        "ask_id": AskId(f"a_{name}"),
        "run_id": row.run_id,
        "tenant": row.tenant,
        "thread": row.thread,
        "node": "1:node",
        "question": "Refund?",
        "asked_at_us": T0,
    }
    return AskRow(**(given | fields))


def signal_to(run_id: RunId, **fields: Any) -> Mail:
    """Return a signal for the run."""
    given: dict[str, Any] = {"kind": MailKind.SIGNAL, "subject": "topic", "at_us": T0 + 20}
    return Mail(run_id=run_id, **(given | fields))


def worker(worker_id: WorkerId = WORKER, **fields: Any) -> WorkerRow:
    """Return a worker that runs `GRAPHS`."""
    given: dict[str, Any] = {"host": "host", "pid": 1, "graphs": GRAPHS, "started_at_us": T0}
    return WorkerRow(worker_id=worker_id, **(given | {"seen_at_us": T0} | fields))


def ended(status: RunStatus = RunStatus.SUCCEEDED, **fields: Any) -> RunEnded:
    """Return the change that ends a run."""
    return RunEnded(status=status, at_us=T0 + 30, **fields)


def waiting(**fields: Any) -> RunReleased:
    """Return the change that lets a run wait."""
    return RunReleased(status=RunStatus.WAITING, **fields)


async def started(store: Store, name: str, **fields: Any) -> RunRow:
    """Start one run and return its row."""
    [outcome] = await store.start([new_run(name, **fields)])
    assert isinstance(outcome, Started), outcome
    return outcome.row


async def taken(store: Store, name: str, **fields: Any) -> RunRow:
    """Start one run that `WORKER` holds until `T0 + 1000`, and return its row."""
    given: dict[str, Any] = {"take_for": WORKER, "lease_until_us": T0 + 1000}
    return await started(store, name, **(given | fields))


async def claimed(store: Store, worker_id: WorkerId = WORKER, **fields: Any) -> list[RunRow]:
    """Claim what is due at `T0 + 100`."""
    given: dict[str, Any] = {"now_us": T0 + 100, "lease_until_us": T0 + 1000, "limit": 10}
    return await store.claim(worker_id, GRAPHS, **(given | fields))


async def written(store: Store, row: RunRow, *changes: Change, **fields: Any) -> RunRow:
    """Append one record that must be accepted, and return the row after it."""
    assert await outcome_of(store, appended_to(row, *changes, **fields)) == Appended()
    return await the_run(store, row.run_id)


async def outcome_of(store: Store, item: Append) -> AppendOutcome:
    """Return what becomes of one append."""
    [outcome] = await store.append([item])
    return outcome


async def the_run(store: Store, run_id: str) -> RunRow:
    """Return the row of a run that exists."""
    row = await store.read_run(RunId(run_id))
    assert row is not None
    return row


def needs(store: Store, capability: Capability) -> None:
    """Skip the test, naming the gap, where the store does not offer the capability."""
    if capability not in store.capabilities:
        pytest.skip(f"gap: {type(store).__name__} does not offer capability {capability.name!r}")
