"""The rows that a store keeps beside the journal: what is hot, and what people query.

All are frozen. Times are microseconds since the epoch (UTC). A `bytes` field called `..._wire`
holds one value as the codec encodes it.
"""

from typing import Any

import msgspec

from perdure.ids import AskId, EffectId, RunId, TenantId, ThreadId, WorkerId
from perdure.model.states import (
    AskState,
    EffectKind,
    EffectState,
    MailKind,
    OnBusy,
    RunStatus,
    WaitKind,
)


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a waiting run waits for.

    Attributes:
        kind: what it is.
        subject: which one: ask id, topic, child run id, thread; empty for a plain timer.
        node: path of the node that waits.
        due_us: when the wait ends by itself; None: only by the event.
        note: the question or the reason, shortened, for people.
    """

    kind: WaitKind
    subject: str = ""
    node: str = ""
    due_us: int | None = None
    note: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why something failed, without a live exception.

    Attributes:
        type: class name of the exception, or of the Perdure error.
        message: its text, shortened, no traceback.
        node: path of the node, if one raised it.
        trace: shortened traceback for people; empty where not taken.
    """

    type: str
    message: str
    node: str = ""
    trace: str = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """The small hot row of a run.

    Attributes:
        ordinal: position among the runs of its thread, from 1.
        token: fencing token; rises with every claim. 0: never claimed.
        holder: the worker that holds the lease; None: nobody.
        ready_at_us: from when on any worker may claim it. For a running one this is the end of its
            lease; None: only an event can make it claimable.
        waits: what it waits for; empty unless waiting or queued.
        claims: claims since the last progress; a poison run is parked when they exceed the limit.
        last_seq: seq of its newest journal record.
        base_checkpoint: id of the thread's checkpoint that the run goes on from (0: none).
        checkpoint: id of the newest checkpoint (known at each release and at the end).
        input_digest: digest of graph and input, compared when a start key comes again.
        parent: run id of the parent, for a child run.
        parent_call: identity of the spawn in the parent.
        failure: why it failed or needs a decision.
        doubted_until_us: the run was taken from a holder that was believed dead, before its lease
            had ended: until then that holder, if it lives, may still send what it has intended. 0:
            never.
    """

    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    ordinal: int
    graph: str
    version: int
    status: RunStatus
    token: int = 0
    holder: WorkerId | None = None
    ready_at_us: int | None = None
    waits: tuple[Wait, ...] = ()
    priority: int = 0
    claims: int = 0
    last_seq: int = 0
    base_checkpoint: int = 0
    checkpoint: int = 0
    start_key: str | None = None
    input_digest: str = ""
    parent: RunId | None = None
    parent_call: str | None = None
    failure: Failure | None = None
    created_at_us: int = 0
    ended_at_us: int | None = None
    doubted_until_us: int = 0


class ThreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread knows about its line of state.

    Attributes:
        last_ordinal: ordinal of its newest run.
        checkpoint: id of its newest checkpoint that a run ended or released with.
        base_ordinal: run (by ordinal) that holds the newest snapshot record of the whole state; 0:
            the thread has no state yet and the line starts at its first run.
        base_seq: seq of that record.
        pruned_at_us: when records of the thread were erased last; 0: never.
        graph: name of the graph that wrote the newest checkpoint; empty: it has no state (yet, or
            any more, after an erasure).
        erased: its runs up to this ordinal are erased, or an erasure of them is under way.
        subject: whom it is about, by the caller's name for them; None: nobody said so.
    """

    tenant: TenantId
    thread: ThreadId
    last_ordinal: int = 0
    checkpoint: int = 0
    base_ordinal: int = 0
    base_seq: int = 0
    graph: str = ""
    pruned_at_us: int = 0
    erased: int = 0
    subject: str | None = None


class FrameRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit made durable for one run: one or more journal records that share their fate.

    Attributes:
        first_seq: seq of its first record; the others follow without gaps.
        count: number of records, at least 1.
        token: fencing token under which it was written.
        at_us: time of the commit that wrote it, by the writer's clock.
        body: the encoded records (`codec.decode_frame`).
        prev_hash: hash of the run's previous frame; 32 zero bytes for the first.
        hash: `codec.chain_hash` over prev_hash, run, seq, token and the records' digests.
    """

    run_id: RunId
    first_seq: int
    count: int
    token: int
    at_us: int
    body: bytes
    prev_hash: bytes
    hash: bytes


class EffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """One effect of the ledger.

    Attributes:
        node: path of the node execution that asked for it.
        key: idempotency key sent to the other side.
        business_key: key given by the user, unique per tenant over all runs; None: none.
        args_digest: digest of the canonical arguments.
        request_wire: `[args, kwargs]` as encoded.
        result_wire: encoded result; None unless confirmed.
        attempt: newest attempt, from 1.
        decided_by: who decided an uncertain effect.
        decision: "happened" or "not_happened", once decided.
    """

    effect_id: EffectId
    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    node: str
    name: str
    kind: EffectKind
    state: EffectState
    key: str
    business_key: str | None = None
    args_digest: str = ""
    request_wire: bytes = b""
    result_wire: bytes | None = None
    attempt: int = 1
    failure: Failure | None = None
    intended_at_us: int = 0
    changed_at_us: int = 0
    decision: str | None = None
    decided_by: str | None = None


class AskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a person.

    Attributes:
        question: text for people.
        schema: JSON Schema of the answer; None: anything.
        expires_at_us: when it expires; None: never.
        value_wire: the answer, encoded.
        answered_by: who answered.
    """

    ask_id: AskId
    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    node: str
    question: str
    schema: dict[str, Any] | None = None
    state: AskState = AskState.OPEN
    asked_at_us: int = 0
    expires_at_us: int | None = None
    value_wire: bytes | None = None
    answered_by: str | None = None
    answered_at_us: int | None = None


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """One durable message to a run, kept until the run consumes it.

    Attributes:
        mail_id: position in the store's order of arrival; 0 before it is stored.
        subject: topic of a signal, ask id of an answer, effect id of a decision, child run id.
        body_wire: encoded value.
        sender: who sent it, for the record.
        post_id: identity of the posting: a second one with it to the same run is not stored. Empty:
            each posting counts.
    """

    run_id: RunId
    kind: MailKind
    subject: str = ""
    body_wire: bytes = b"\xc0"
    sender: str = ""
    at_us: int = 0
    mail_id: int = 0
    post_id: str = ""


class GraphShape(msgspec.Struct, array_like=True, frozen=True):
    """What a run that stands in a graph needs of it: whether the run can go on there.

    Attributes:
        nodes: names of its nodes, sorted; of a subgraph's nodes with the path to them, by `/`.
        fields: names of its state's fields, sorted.
        migrates: older versions that migrations lead here from, sorted.
    """

    name: str
    version: int
    nodes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    migrates: tuple[int, ...] = ()


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as it advertises itself.

    Attributes:
        graphs: `(name, version)` of every graph that it can run.
        seen_at_us: newest heartbeat.
        liveness: token of the operating-system lock that proves it alive on its own host; empty
            where the store has none.
        is_draining: it claims nothing more and will be gone soon.
        concurrency: runs that it executes at once; 0: it did not say.
        shapes: of the graphs; empty: it did not say.
    """

    worker_id: WorkerId
    host: str
    pid: int
    graphs: tuple[tuple[str, int], ...] = ()
    started_at_us: int = 0
    seen_at_us: int = 0
    liveness: str = ""
    is_draining: bool = False
    concurrency: int = 0
    shapes: tuple[GraphShape, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """A part of a large value, named by what is in it.

    Attributes:
        hash: SHA-256 of the bytes that it holds.
        body: those bytes, packed as the codec does; the store keeps them as they are.
    """

    hash: bytes
    body: bytes


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A data key, wrapped: what is needed beside the provider's key to read what it sealed.

    Keyed by (tenant, scope, number).

    Attributes:
        tenant: whose data it seals; empty for the key that belongs to the store.
        scope: what it seals: "store", "tenant" (pages and names), or "thread:" and the thread.
        number: from 1; the highest one of a scope seals, the others read.
        key_id: its identity, in all that it sealed; hexadecimal.
        wrapped: the data key as the provider wrapped it.
        wrapped_by: id of the provider's key.
    """

    tenant: TenantId
    scope: str
    number: int
    key_id: str
    wrapped: bytes
    wrapped_by: str
    created_at_us: int = 0


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to create.

    Attributes:
        start_key: unique per tenant: the same key with the same `input_digest` gives the first run.
        on_busy: what to do when the thread has an unfinished run.
        ready_at_us: earliest claim (a delayed start); 0: at once.
        first_body: the encoded frame with the one `RunStarted` record; the store writes it as seq
            1, token 0.
        first_hash: the frame's chain hash.
        take_for: worker that takes the lease in the same transaction, if the run is ready and
            unqueued.
        lease_until_us: end of that lease.
        pages: what its first record refers to; durable no later than the run.
        subject: whom the thread is about; the first one that a thread is told stays.
        origin: the thread whose state is in the first record (of a fork, a rollback).
        origin_erased: `ThreadRow.erased` of that thread when its state was read.
        sealed_by: key id of the thread's data key that sealed the first frame; empty: none.
    """

    run_id: RunId
    tenant: TenantId
    thread: ThreadId
    graph: str
    version: int
    priority: int = 0
    start_key: str | None = None
    input_digest: str = ""
    on_busy: OnBusy = OnBusy.QUEUE
    ready_at_us: int = 0
    created_at_us: int = 0
    first_body: bytes = b""
    first_hash: bytes = b""
    parent: RunId | None = None
    parent_call: str | None = None
    take_for: WorkerId | None = None
    lease_until_us: int = 0
    pages: tuple[Page, ...] = ()
    subject: str | None = None
    origin: ThreadId | None = None
    origin_erased: int = 0
    sealed_by: str = ""


class ErasedThread(msgspec.Struct, frozen=True, array_like=True):
    """A thread of an erasure, and the ordinal of the newest run that it erases."""

    thread: str
    through: int = 0


class ErasureRow(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure: first the intent, then the mark that it was done.

    Attributes:
        threads: what is erased; the store says how far when the erasure begins.
        subject: whom it was asked for; empty: it was asked for by thread.
        by: who asked for it.
        ended_at_us: None: it is under way, or was interrupted.
    """

    erasure_id: str
    tenant: TenantId
    threads: tuple[ErasedThread, ...]
    subject: str = ""
    by: str = ""
    begun_at_us: int = 0
    ended_at_us: int | None = None


class ErasureBegun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of beginning an erasure.

    Attributes:
        row: the erasure, with how far each thread is erased; None: nothing was written.
        unfinished: runs of its threads that have not ended.
        other: an erasure of one of its threads that is under way.
    """

    row: ErasureRow | None = None
    unfinished: tuple[RunId, ...] = ()
    other: ErasureRow | None = None


class ExportRow(msgspec.Struct, frozen=True, kw_only=True):
    """An export that was made, so that who erases knows of it.

    Attributes:
        export_id: digest of the file's blocks, hexadecimal, as the file itself says it.
        tenant, thread, run_id: what is in it; empty: all.
        signed_by: fingerprint of the key that signed it; empty: none.
    """

    export_id: str
    tenant: str = ""
    thread: str = ""
    run_id: str = ""
    made_at_us: int = 0
    signed_by: str = ""
