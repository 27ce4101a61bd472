"""Rows of SQL tables as the model's rows, and back: what the SQL backends share."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec

from perdure.errors import StoreCorrupt
from perdure.model import (
    AskRow,
    AskState,
    BucketRow,
    EffectKind,
    EffectRow,
    EffectState,
    ErasedThread,
    ErasureRow,
    ExportRow,
    Failure,
    FrameRow,
    GraphShape,
    KeyRow,
    LimitRow,
    Mail,
    MailKind,
    Missed,
    OnBusy,
    RunRow,
    RunStatus,
    ScheduleRow,
    ThreadRow,
    Wait,
    WorkerRow,
)

Row = tuple[Any, ...]

_encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_waits = msgspec.msgpack.Decoder(tuple[Wait, ...]).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode
_decode_shapes = msgspec.msgpack.Decoder(tuple[GraphShape, ...]).decode
_decode_erased = msgspec.msgpack.Decoder(tuple[ErasedThread, ...]).decode
_decode_graphs = msgspec.msgpack.Decoder(tuple[tuple[str, int], ...]).decode

RUN_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(RunRow))
"""The columns of a run in the order of `RunRow`."""

KEY_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(KeyRow))
ERASURE_COLUMNS = "erasure_id, tenant, threads, subject, by_whom, begun_at_us, ended_at_us"
EXPORT_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(ExportRow))
THREAD_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(ThreadRow))
WORKER_COLUMNS = ", ".join(field.name for field in msgspec.structs.fields(WorkerRow))


def wire_of_waits(waits: tuple[Wait, ...]) -> bytes | None:
    """Return the waits as stored; None: nothing."""
    return _encode(waits) if waits else None


Read = TypeVar("Read")


def _readable(build: Callable[..., Read]) -> Callable[..., Read]:
    """Turn what a damaged row does to its reader into StoreCorrupt."""

    @wraps(build)
    def read(*args: Any) -> Read:
        try:
            return build(*args)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            what = build.__name__.removesuffix("_row").removesuffix("_of")
            whose = args[0] if len(args) > 1 else args[0][:2] if what == "thread" else args[0][0]
            msg = (
                f"the store's {what} row of {whose!r} can't be read: {error}; nothing was changed. "
                "Restore the store from a backup"
            )
            told = {"run_id": whose} if what == "run" and isinstance(whose, str) else {}
            raise StoreCorrupt(msg, **told) from error

    return read


def waits_of(wire: bytes | None) -> tuple[Wait, ...]:
    """Return the waits that `wire_of_waits` stored."""
    return _decode_waits(wire) if wire is not None else ()


def wire_of(value: object) -> bytes | None:
    """Return a failure or a JSON value as stored; None: nothing."""
    return None if value is None else _encode(value)


def failure_of(wire: bytes | None) -> Failure | None:
    """Return the failure that `wire_of` stored."""
    return None if wire is None else _decode_failure(wire)


def run_params(row: RunRow) -> Row:
    """Return the row as parameters in the order of `RUN_COLUMNS`."""
    values = msgspec.structs.astuple(row)
    return (
        *values[:6],
        row.status.value,
        *values[7:10],
        wire_of_waits(row.waits),
        *values[11:20],
        wire_of(row.failure),
        *values[21:],
    )


@_readable
def run_row(row: Row) -> RunRow:
    """Return the run of a row with `RUN_COLUMNS`."""
    return RunRow(
        run_id=row[0],
        tenant=row[1],
        thread=row[2],
        ordinal=row[3],
        graph=row[4],
        version=row[5],
        status=RunStatus(row[6]),
        token=row[7],
        holder=row[8],
        ready_at_us=row[9],
        waits=waits_of(row[10]),
        priority=row[11],
        claims=row[12],
        last_seq=row[13],
        base_checkpoint=row[14],
        checkpoint=row[15],
        start_key=row[16],
        input_digest=row[17],
        parent=row[18],
        parent_call=row[19],
        failure=failure_of(row[20]),
        created_at_us=row[21],
        ended_at_us=row[22],
        doubted_until_us=row[23],
    )


@_readable
def effect_row(row: Row) -> EffectRow:
    """Return the effect of a row with `EFFECT_COLUMNS`."""
    return EffectRow(
        effect_id=row[0],
        run_id=row[1],
        tenant=row[2],
        thread=row[3],
        node=row[4],
        name=row[5],
        kind=EffectKind(row[6]),
        state=EffectState(row[7]),
        key=row[8],
        business_key=row[9],
        args_digest=row[10],
        request_wire=row[11],
        result_wire=row[12],
        attempt=row[13],
        failure=failure_of(row[14]),
        intended_at_us=row[15],
        changed_at_us=row[16],
        decision=row[17],
        decided_by=row[18],
    )


@_readable
def ask_row(row: Row) -> AskRow:
    """Return the ask of a row with `ASK_COLUMNS`."""
    return AskRow(
        ask_id=row[0],
        run_id=row[1],
        tenant=row[2],
        thread=row[3],
        node=row[4],
        question=row[5],
        schema=None if row[6] is None else _decode_any(row[6]),
        state=AskState(row[7]),
        asked_at_us=row[8],
        expires_at_us=row[9],
        value_wire=row[10],
        answered_by=row[11],
        answered_at_us=row[12],
    )


@_readable
def thread_row(row: Row) -> ThreadRow:
    """Return the thread of a row with `THREAD_COLUMNS`."""
    return ThreadRow(
        tenant=row[0],
        thread=row[1],
        last_ordinal=row[2],
        checkpoint=row[3],
        base_ordinal=row[4],
        base_seq=row[5],
        graph=row[6],
        pruned_at_us=row[7],
        erased=row[8],
        subject=row[9],
    )


def erasure_params(row: ErasureRow) -> tuple[Any, ...]:
    """Return the parameters for `ERASURE_COLUMNS`."""
    ends = (row.begun_at_us, row.ended_at_us)
    return (row.erasure_id, row.tenant, _encode(row.threads), row.subject, row.by, *ends)


@_readable
def erasure_row(row: Row) -> ErasureRow:
    """Return the erasure of a row with `ERASURE_COLUMNS`."""
    return ErasureRow(
        erasure_id=row[0],
        tenant=row[1],
        threads=_decode_erased(row[2]),
        subject=row[3],
        by=row[4],
        begun_at_us=row[5],
        ended_at_us=row[6],
    )


def export_params(row: ExportRow) -> tuple[Any, ...]:
    """Return the parameters for `EXPORT_COLUMNS`."""
    return msgspec.structs.astuple(row)


@_readable
def export_row(row: Row) -> ExportRow:
    """Return the export of a row with `EXPORT_COLUMNS`."""
    names = (field.name for field in msgspec.structs.fields(ExportRow))
    return ExportRow(**dict(zip(names, row, strict=True)))


@_readable
def frame_row(run_id: Any, row: Row) -> FrameRow:
    """Return the frame of a row (first_seq, count, token, at_us, body, prev_hash, hash)."""
    return FrameRow(
        run_id=run_id,
        first_seq=row[0],
        count=row[1],
        token=row[2],
        at_us=row[3],
        body=row[4],
        prev_hash=row[5],
        hash=row[6],
    )


@_readable
def mail_of(run_id: Any, row: Row) -> Mail:
    """Return the message of a row (mail_id, kind, subject, body_wire, sender, at_us, post_id)."""
    return Mail(
        run_id=run_id,
        mail_id=row[0],
        kind=MailKind(row[1]),
        subject=row[2],
        body_wire=row[3],
        sender=row[4],
        at_us=row[5],
        post_id=row[6],
    )


def worker_params(row: WorkerRow) -> Row:
    """Return the worker as parameters in the order of `WORKER_COLUMNS`."""
    return (
        row.worker_id,
        row.host,
        row.pid,
        _encode(row.graphs),
        row.started_at_us,
        row.seen_at_us,
        row.liveness,
        row.is_draining,
        row.concurrency,
        _encode(row.shapes) if row.shapes else None,
    )


@_readable
def worker_row(row: Row) -> WorkerRow:
    """Return the worker of a row with `WORKER_COLUMNS`."""
    return WorkerRow(
        worker_id=row[0],
        host=row[1],
        pid=row[2],
        graphs=_decode_graphs(row[3]),
        started_at_us=row[4],
        seen_at_us=row[5],
        liveness=row[6],
        is_draining=bool(row[7]),
        concurrency=row[8],
        shapes=() if row[9] is None else _decode_shapes(row[9]),
    )


@_readable
def limit_row(row: Row) -> LimitRow:
    """Return the limit of a row (tenant, graph, concurrency, rate, period_us, set_at_us)."""
    return LimitRow(
        tenant=row[0],
        graph=row[1],
        concurrency=row[2],
        rate=row[3],
        period_us=row[4],
        set_at_us=row[5],
    )


@_readable
def key_row(row: Row) -> KeyRow:
    """Return the data key of a row with `KEY_COLUMNS`."""
    return KeyRow(
        tenant=row[0],
        scope=row[1],
        number=row[2],
        key_id=row[3],
        wrapped=bytes(row[4]),
        wrapped_by=row[5],
        created_at_us=row[6],
    )


@_readable
def bucket_row(row: Row) -> BucketRow:
    """Return the bucket of a row (tenant, graph, full_at_us)."""
    return BucketRow(tenant=row[0], graph=row[1], full_at_us=row[2])


def schedule_params(row: ScheduleRow) -> Row:
    """Return the schedule as parameters in the order of `ScheduleRow`."""
    values = msgspec.structs.astuple(row)
    return (*values[:11], row.on_busy.value, row.missed.value, *values[13:])


@_readable
def schedule_row(row: Row) -> ScheduleRow:
    """Return the schedule of a row with the columns in the order of `ScheduleRow`."""
    return ScheduleRow(
        tenant=row[0],
        name=row[1],
        revision=row[2],
        graph=row[3],
        version=row[4],
        cron=row[5],
        timezone=row[6],
        input_wire=row[7],
        input_digest=row[8],
        thread=row[9],
        priority=row[10],
        on_busy=OnBusy(row[11]),
        missed=Missed(row[12]),
        next_at_us=row[13],
        is_paused=bool(row[14]),
        created_at_us=row[15],
        fired_at_us=row[16],
        fired_run=row[17],
        problem=row[18],
    )
