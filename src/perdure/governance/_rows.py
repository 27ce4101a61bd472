"""Rows as an audit reads them: one that can't be read is told of, and stops nothing.

Theory: a store gives rows by the page, and a page with an unreadable row not at all. So such a page
is read again row by row; the error says which row it is. What can be read may still hold values of
other types (a store checks what it decodes, not what it copies): that is unreadable, too.
"""

from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct, structs

from perdure.errors import StoreCorrupt
from perdure.governance.limits import RUNS_PAGE
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import RunRow
from perdure.store.api import RunQuery, Store


class Unreadable(Struct, frozen=True):
    """A row of a run that can't be read; `run_id` is empty where not even that can."""

    run_id: str
    what: str


def misfit(row: Struct) -> str:
    """Return what of a row has another type than it must have; empty: nothing."""
    try:
        # Bytes and texts stay as they are; all else is looked at by its type.
        plain = msgspec.to_builtins(row, builtin_types=(bytes,))
        msgspec.convert(plain, type(row), builtin_types=(bytes,))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        return str(error)
    return ""


async def runs_of(
    store: Store,
    *,
    tenant: TenantId | None = None,
    thread: str | None = None,
    before: RunId | None = None,
    at_once: int = RUNS_PAGE,
) -> AsyncIterator[RunRow | Unreadable]:
    """Yield runs, newest first, those that can't be read too; `at_once`: rows in one read."""
    line = None if thread is None else ThreadId(thread)
    query = RunQuery(tenant=tenant, thread=line, before=before, limit=at_once)
    while True:
        try:
            rows = await store.find_runs(query)
        except StoreCorrupt as error:
            if query.limit > 1:
                query = structs.replace(query, limit=1)
                continue
            found = unreadable(error)
            yield found
            if not found.run_id:
                return  # nothing says where to go on
            query = structs.replace(query, before=RunId(found.run_id), limit=at_once)
            continue
        for row in rows:
            wrong = misfit(row)
            yield Unreadable(row.run_id, _row_wrong(row.run_id, wrong)) if wrong else row
        if len(rows) < query.limit:
            return
        query = structs.replace(query, before=rows[-1].run_id)


async def run_row(store: Store, run_id: str) -> RunRow | Unreadable | None:
    """Return the row of a run, or why it can't be read; None: there is none."""
    try:
        row = await store.read_run(RunId(run_id))
    except StoreCorrupt as error:
        return Unreadable(run_id, str(error))
    wrong = "" if row is None else misfit(row)
    return Unreadable(run_id, _row_wrong(run_id, wrong)) if wrong else row


def unreadable(error: StoreCorrupt) -> Unreadable:
    """Return whose row a store could not read."""
    run_id = error.fields.get("run_id")
    return Unreadable(run_id if isinstance(run_id, str) else "", str(error))


def _row_wrong(run_id: str, wrong: str) -> str:
    return f"the row of run {run_id!r} has a column of another type: {wrong}"
