"""Make a run: its row, its first record, and back from its last state to what the caller gets."""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from perdure.codec import NO_HASH, chain_hash, encode_frame, encode_record
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment, input_digest
from perdure.engine.paging import paged_writes
from perdure.errors import SettingInvalid
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import NewRun, OnBusy
from perdure.model import records as rec

DEFAULT_TENANT = TenantId("default")
PRIORITY_MAX = 1_000_000
"""Highest priority: far from what a store's integers can hold."""

NAME_CHARS_MAX = 200
"""Longest thread, tenant or key, in characters: they are part of every index."""


def checked_name(value: object, what: str) -> str:
    """Return a thread, tenant or key.

    Raises:
        SettingInvalid: empty, too long, or with characters that can't be printed.
    """
    if (
        not isinstance(value, str)
        or not value
        or len(value) > NAME_CHARS_MAX
        or not value.isprintable()
    ):
        msg = f"{what}={value!r}: must be 1 to {NAME_CHARS_MAX} printable characters"
        raise SettingInvalid(msg)
    return value


def new_run(
    engine: Environment,
    plan: GraphPlan,
    given: Any,
    *,
    tenant: str = DEFAULT_TENANT,
    thread: str | None = None,
    start_key: str | None = None,
    on_busy: OnBusy = OnBusy.QUEUE,
    priority: int = 0,
    delay_s: float = 0.0,
    parent: tuple[str, str] | None = None,
    is_first: bool | None = None,
    take: bool = False,
    subject: str | None = None,
) -> NewRun:
    """Return the run to create, with its encoded start record.

    Args:
        engine: for time, ids and the codec.
        plan: the graph.
        given: input as the user passed it; checked against the graph's state here.
        tenant: whose run it is.
        thread: the line of state to go on with; None: a new one, named like the run.
        start_key: unique per tenant.
        on_busy: what to do on a busy thread.
        priority: higher is claimed first.
        delay_s: seconds before it may be claimed.
        parent: run id and call id of the spawn, for a child.
        is_first: whether the thread has no state yet; None: a fresh thread if no thread is named.
        take: whether this worker may take its lease in the same transaction.
        subject: whom the thread is about.

    Raises:
        UpdateInvalid: the input does not fit the state; names the field.
        ValueUnserializable: names the field.
    """
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        msg = (
            f"priority={priority!r}: must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
        raise SettingInvalid(msg)
    now_us = engine.now_us()
    run_id = RunId(engine.services.ids.new("r", now_us))
    thread_id = ThreadId(checked_name(thread, "thread") if thread is not None else run_id)
    takes_all = thread is None if is_first is None else is_first
    values = plan.read_input(given, takes_all)
    # Whether the thread has run before must not change the digest: the same start may come again.
    told = plan.read_input(given, False) if takes_all else values  # noqa: FBT003  # is_first
    writes = encode_writes(engine, plan, values, "input field")
    record = rec.RunStarted(
        now_us,
        run_id,
        checked_name(tenant, "tenant"),
        thread_id,
        plan.name,
        plan.version,
        writes,
        start_key,
        parent=None if parent is None else parent[0],
        parent_call=None if parent is None else parent[1],
        subject=None if subject is None else checked_name(subject, "subject"),
    )
    return finish_new_run(
        engine,
        record,
        digest=input_digest(
            plan.name, plan.version, engine.codec.canonical([thread, told], "input")
        ),
        on_busy=on_busy,
        priority=priority,
        ready_at_us=now_us + round(delay_s * 1_000_000) if delay_s else 0,
        take=take and not delay_s,
    )


def finish_new_run(
    engine: Environment,
    record: rec.RunStarted,
    *,
    digest: str = "",
    on_busy: OnBusy = OnBusy.QUEUE,
    priority: int = 0,
    ready_at_us: int = 0,
    take: bool = False,
    origin: tuple[str, int] | None = None,
) -> NewRun:
    """Return the run to create for a start record.

    `origin`: the thread that its state is from, and how many runs of that had been erased then.
    """
    held, pages = paged_writes(record.input)
    encoded = [encode_record(replace(record, input=held) if pages else record)]
    return NewRun(
        run_id=RunId(record.run_id),
        tenant=TenantId(record.tenant),
        thread=ThreadId(record.thread),
        graph=record.graph,
        version=record.version,
        priority=priority,
        start_key=record.start_key,
        input_digest=digest,
        on_busy=on_busy,
        ready_at_us=ready_at_us,
        created_at_us=record.at_us,
        first_body=encode_frame(encoded),
        first_hash=chain_hash(NO_HASH, record.run_id, 1, 0, encoded, at_us=record.at_us),
        parent=RunId(record.parent) if record.parent else None,
        parent_call=record.parent_call,
        take_for=engine.worker_id if take and engine.worker_id else None,  # type: ignore[arg-type]  # a WorkerId as str
        lease_until_us=engine.lease_until_us(),
        pages=pages,
        subject=record.subject,
        origin=None if origin is None else ThreadId(origin[0]),
        origin_erased=0 if origin is None else origin[1],
    )


def encode_writes(
    engine: Environment, plan: GraphPlan, values: Mapping[str, Any], place: str
) -> dict[str, tuple[str, Raw]]:
    """Return an update as stored: field -> (op, encoded value).

    Raises:
        ValueUnserializable: names graph and field.
    """
    encode = engine.codec.encode
    return {
        name: (
            plan.channels[name].op.value,
            Raw(encode(value, f"graph {plan.name!r}, {place} {name!r}")),
        )
        for name, value in values.items()
    }


def result_of(plan: GraphPlan, values: Mapping[str, Any]) -> Any:
    """Return what a caller gets of the final values: the typed state, or a function's result."""
    if plan.is_function:
        return values.get("result")
    return plan.build_state(values)


def folded_defaults(engine: Environment, plan: GraphPlan, values: dict[str, Any]) -> dict[str, Raw]:
    """Fill in the defaults of fields without a value, in place, and return them encoded."""
    encoded: dict[str, Raw] = {}
    for name, channel in plan.channels.items():
        if name not in values and channel.default is not None:
            values[name] = channel.default()
            place = f"graph {plan.name!r}, default of field {name!r}"
            encoded[name] = Raw(engine.codec.encode(values[name], place))
    return encoded
