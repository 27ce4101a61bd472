"""The runs of a thread that were not erased: only they can be read."""

from collections.abc import Iterable

from perdure.errors import NotFound
from perdure.ids import TenantId, ThreadId
from perdure.model import RunRow, ThreadRow
from perdure.store.api import Store


def first_living(row: ThreadRow | None) -> int:
    """Return the ordinal that the runs of a thread begin with which were not erased."""
    return 1 if row is None else row.erased + 1


async def living_runs(store: Store, tenant: TenantId, thread: ThreadId) -> list[RunRow]:
    """Return the thread's runs that were not erased, by ordinal; at least one.

    Raises:
        NotFound: no such thread, or all of its runs were erased; says which.
    """
    row = await store.read_thread(tenant, thread)
    runs = await store.read_thread_runs(tenant, thread, from_ordinal=first_living(row))
    if not runs:
        raise no_thread(tenant, thread, row)
    return runs


async def subjects_of(store: Store, runs: Iterable[RunRow]) -> dict[str, str]:
    """Return whom the threads of runs are about, by run; those about nobody are left out."""
    found: dict[str, str] = {}
    known: dict[tuple[TenantId, ThreadId], str | None] = {}
    for run in runs:
        place = (run.tenant, run.thread)
        if place not in known:
            row = await store.read_thread(*place)
            known[place] = None if row is None else row.subject
        subject = known[place]
        if subject is not None:
            found[run.run_id] = subject
    return found


def no_thread(tenant: TenantId, thread: ThreadId, row: ThreadRow | None) -> NotFound:
    """Return the error of who looks for a thread that is not there, or not any more."""
    if row is not None and row.erased:
        msg = (
            f"thread {thread!r} of tenant {tenant!r} was erased, and nothing was started on it "
            f"since; 'perdure audit verify --thread {thread}' shows that it was there"
        )
    else:
        msg = (
            f"no thread {thread!r} for tenant {tenant!r}; 'perdure ps --all' lists the runs and "
            "their threads"
        )
    return NotFound(msg, thread=thread, tenant=tenant)
