"""Rewriting all that a store holds of users, while nobody else works with it.

Theory: one transaction takes every row of a few kinds, and gives it other bytes in the same place.
Until it is committed the store is as it was, wherever it is cut off; from then on it is as it was
made. What was written before may still lie in free space: `scrub` comes after it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import fields

from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import (
    AskRow,
    EffectRow,
    FrameRow,
    KeyRow,
    Mail,
    Page,
    RunRow,
    ScheduleRow,
    TagRow,
)
from perdure.store import _rows as rows

REWRITTEN_AT_ONCE = 100
"""Rows that are in memory at once: a frame or a page is rarely above a megabyte."""

Row = tuple[Any, ...]


class Owner(Struct, frozen=True):
    """Whose a row is; thread and run id are empty where a row belongs to its tenant."""

    tenant: TenantId
    thread: ThreadId
    run_id: RunId


class RowKind(Struct, frozen=True):
    """One table whose rows hold something of users.

    Attributes:
        name: of the table, without what a backend puts before it.
        key: columns that name a row.
        columns: what is read of a row.
        build: gives the model's row of them.
        changed: columns that are written anew.
        values: gives what is in them, of the model's row.
        of_run: whether thread and run are those of its run, rather than columns of its own.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    build: Callable[[Owner, Row], Any]
    changed: tuple[str, ...]
    values: Callable[[Any], Row]
    of_run: bool = True


class Stored(Struct, frozen=True):
    """A row as it is stored.

    Attributes:
        place: what the backend finds it by.
        owner: whose it is.
        row: the model's row; of a posting its id.
    """

    place: Row
    owner: Owner
    row: Any


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _effect(owner: Owner, row: Row) -> EffectRow:
    return rows.effect_row((row[0], owner.run_id, owner.tenant, owner.thread, *row[1:]))


def _ask(owner: Owner, row: Row) -> AskRow:
    return rows.ask_row((row[0], owner.run_id, owner.tenant, owner.thread, *row[1:]))


def _mail(owner: Owner, row: Row) -> Mail:
    return rows.mail_of(owner.run_id, row)


def _frame(owner: Owner, row: Row) -> FrameRow:
    return rows.frame_row(owner.run_id, row)


def _tag(owner: Owner, row: Row) -> TagRow:
    name, checkpoint, by, at_us = row
    tenant, thread = owner.tenant, owner.thread
    return TagRow(
        tenant=tenant, thread=thread, name=name, checkpoint=checkpoint, by=by, at_us=at_us
    )


def _of_run(row: RunRow) -> Row:
    waits, failure = rows.wire_of_waits(row.waits), rows.wire_of(row.failure)
    return row.start_key, row.input_digest, waits, failure


def _of_effect(row: EffectRow) -> Row:
    failure = rows.wire_of(row.failure)
    wires = (row.request_wire, row.result_wire, failure)
    return (row.key, row.business_key, row.args_digest, *wires, row.decided_by)


def _of_ask(row: AskRow) -> Row:
    return row.question, rows.wire_of(row.schema), row.value_wire, row.answered_by


def _of_schedule(row: ScheduleRow) -> Row:
    return row.input_wire, row.input_digest, row.problem


RUNS = RowKind(
    "runs",
    ("tenant", "run_id"),
    tuple(field.name for field in fields(RunRow)),
    lambda _owner, row: rows.run_row(row),
    _names("start_key input_digest waits failure"),
    _of_run,
)
FRAMES = RowKind(
    "frames",
    ("tenant", "run_id", "first_seq"),
    _names("first_seq count token at_us body prev_hash hash"),
    _frame,
    ("body",),
    lambda row: (row.body,),
)
MAIL = RowKind(
    "mail",
    ("tenant", "run_id", "mail_id"),
    _names("mail_id kind subject body_wire sender at_us post_id"),
    _mail,
    ("body_wire", "sender", "post_id"),
    lambda row: (row.body_wire, row.sender, row.post_id),
)
POSTS = RowKind(
    "posts",
    ("tenant", "run_id", "post_id"),
    ("post_id",),
    lambda _owner, row: row[0],
    ("post_id",),
    lambda post_id: (post_id,),
)
EFFECTS = RowKind(
    "effects",
    ("tenant", "run_id", "effect_id"),
    _names(
        "effect_id node name kind state key business_key args_digest request_wire result_wire "
        "attempt failure intended_at_us changed_at_us decision decided_by"
    ),
    _effect,
    _names("key business_key args_digest request_wire result_wire failure decided_by"),
    _of_effect,
)
ASKS = RowKind(
    "asks",
    ("tenant", "run_id", "ask_id"),
    _names(
        "ask_id node question schema state asked_at_us expires_at_us value_wire answered_by "
        "answered_at_us"
    ),
    _ask,
    _names("question schema value_wire answered_by"),
    _of_ask,
)
PAGES = RowKind(
    "pages",
    ("tenant", "hash"),
    ("hash", "body"),
    lambda _owner, row: Page(*row),
    ("hash", "body"),
    lambda row: (row.hash, row.body),
    of_run=False,
)
SCHEDULES = RowKind(
    "schedules",
    ("tenant", "name"),
    tuple(field.name for field in fields(ScheduleRow)),
    lambda _owner, row: rows.schedule_row(row),
    _names("input_wire input_digest problem"),
    _of_schedule,
    of_run=False,
)
TAGS = RowKind(
    "tags",
    ("tenant", "thread", "name"),
    _names("name checkpoint by at_us"),
    _tag,
    ("name", "by"),
    lambda row: (row.name, row.by),
    of_run=False,
)
KINDS = (RUNS, FRAMES, MAIL, POSTS, EFFECTS, ASKS, PAGES, SCHEDULES, TAGS)
"""All kinds, in the order in which they are rewritten."""


def selecting(kind: RowKind, key: Sequence[str], *, prefix: str, join: str) -> str:
    """Return the query for rows of a kind (alias `t`): what names one, whose it is, its columns.

    `prefix` stands before names of tables; `join` says how `t` finds its run (alias `r`).
    """
    table = f"{prefix}{kind.name} AS t"
    if kind.name == RUNS.name:
        whose = "t.tenant, t.thread, t.run_id"
    elif kind.of_run:
        table += f" JOIN {prefix}runs AS r ON {join}"
        whose = "r.tenant, r.thread, r.run_id"
    else:
        thread = "t.thread" if "thread" in kind.key else "''"
        whose = f"t.tenant, {thread}, ''"
    named = ", ".join(f"t.{name}" for name in key)
    columns = ", ".join(f"t.{name}" for name in kind.columns)
    return f"SELECT {named}, {whose}, {columns} FROM {table}"  # noqa: S608  # of constants


def stored_of(kind: RowKind, row: Row, width: int) -> Stored:
    """Return a row that `selecting` found; `width`: how many columns name it.

    Raises:
        StoreCorrupt: it can't be read; names it.
    """
    owner = Owner(*row[width : width + 3])
    return Stored(row[:width], owner, kind.build(owner, row[width + 3 :]))


class Rewriting(Protocol):
    """One transaction over a whole store, which nobody else can read or write meanwhile."""

    place: str

    def now_us(self) -> int:
        """Return the store's time."""
        ...

    async def count(self, kind: RowKind) -> int:
        """Return how many rows of a kind there are."""
        ...

    def batches(self, kind: RowKind) -> AsyncIterator[list[Stored]]:
        """Yield all rows of a kind as they were before the first was replaced, each once.

        Raises (the iterator does): StoreCorrupt (a row can't be read; names it).
        """
        ...

    async def replace(self, kind: RowKind, new: Sequence[tuple[Stored, Any]]) -> None:
        """Write rows anew; only what `RowKind.changed` names."""
        ...

    async def read_keys(self, scopes: Sequence[tuple[TenantId, str]]) -> list[KeyRow]:
        """Return data keys; see `Store.read_keys`."""
        ...

    async def put_keys(self, keys: Sequence[KeyRow]) -> list[KeyRow]:
        """Store data keys, after `commit` in a transaction of their own; see `Store.put_keys`."""
        ...

    async def commit(self) -> None:
        """Make all that was replaced durable; from now on no plain row is taken by the store.

        Collections of pages that were cut off are over. Durability: when it returns.
        """
        ...

    async def scrub(self) -> list[str]:
        """Make what was replaced unreadable, after `commit`; see `ErasingStore.scrub`."""
        ...


@runtime_checkable
class RewritableStore(Protocol):
    """A store that can be rewritten as a whole."""

    def rewriting(self) -> AbstractAsyncContextManager[Rewriting]:
        """Begin a transaction over the whole store, which this object must not have open.

        Left without `commit`, nothing was written.

        Raises (entering does): StoreLocked (somebody else has the store open).
        """
        ...
