"""What an erasure reaches: threads, their forks and children, and what it must leave.

Theory: a fork holds its origin's data, and a child what its parent gave it, so both are erased with
it, forks of forks as well. The other way round nothing is erased: a parent's journal holds what a
child returned, and stays, as it is somebody else's; it is named. All is found in one pass over the
rows of the tenant's runs.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from msgspec import Struct

from perdure.engine import Runtime
from perdure.engine.branches import FORK_MARK
from perdure.engine.compare import started_of
from perdure.engine.living import first_living
from perdure.errors import DecodeFailed, UsageError
from perdure.governance._verify import DEFAULT_TENANT, rows_of
from perdure.governance.limits import RUNS_PAGE, SUBJECT_PAGE
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import EffectRow, EffectState, ErasureRow, RunRow
from perdure.store.api import RunQuery, Store

_DONE = frozenset(
    {
        EffectState.CONFIRMED,
        EffectState.UNCERTAIN,
        EffectState.INTENDED,
        EffectState.COMPENSATING,
        EffectState.COMPENSATION_FAILED,
    }
)


class Asked(Struct, frozen=True):
    """What an erasure is asked for: a thread, or a subject."""

    thread: str | None
    subject: str | None
    tenant: TenantId

    def as_words(self) -> dict[str, str]:
        """Return it as a receipt says it."""
        if self.thread is not None:
            return {"thread": self.thread}
        return {"subject": self.subject or ""}


def asked_for(thread: str | None, subject: str | None, tenant: str | None) -> Asked:
    """Return what is asked for.

    Raises:
        UsageError: neither or both of thread and subject; nothing was erased.
    """
    if (thread is None) == (subject is None):
        msg = "say whose data is to be erased: a thread, or a subject; nothing was erased"
        raise UsageError(msg)
    return Asked(thread, subject, TenantId(tenant) if tenant else DEFAULT_TENANT)


class Remaining(Struct, frozen=True):
    """Something that an erasure leaves.

    Attributes:
        kind: "parent", "shared_thread", "origin", "sandbox", "sandbox_layer", "export", "effects",
            "ids", "copies".
        name: which: a run, a thread, an export; empty: it has no name.
        why: why it stays, and what may be done about it.
    """

    kind: str
    name: str
    why: str


class NotUndone(Struct, frozen=True):
    """An effect that happened, or may have: erasing what is known of it does not undo it."""

    effect: str
    run: str
    name: str
    state: str


class Unfinished(Struct, frozen=True):
    """A run that keeps its thread from being erased."""

    run: str
    thread: str
    status: str


class ErasurePreview(Struct, kw_only=True):
    """What `erase` with the same arguments would do.

    Attributes:
        threads: what was asked for, by thread.
        forks, children: threads that are erased with them.
        under_way: ids of erasures that were begun, and that it would finish.
        layers: snapshots of sandboxes, where a folder was named; garbage of others among them.
        sandbox_bytes: that those and the live files take.
        exported: exported layers of sandboxes, where a place was named.
    """

    tenant: str
    threads: list[str]
    forks: list[str] = []
    children: list[str] = []
    runs: int = 0
    records: int = 0
    effects: int = 0
    asks: int = 0
    messages: int = 0
    start_keys: int = 0
    business_keys: int = 0
    schedules: list[str] = []
    data_keys: int = 0
    unfinished: list[Unfinished] = []
    not_undone: list[NotUndone] = []
    exports: list[str] = []
    remains: list[Remaining] = []
    under_way: list[str] = []
    layers: int = 0
    sandbox_bytes: int = 0
    exported: int = 0

    @property
    def all_threads(self) -> list[str]:
        """Every thread that is erased."""
        return [*self.threads, *self.forks, *self.children]


async def runs_of(store: Store, tenant: TenantId | None) -> AsyncIterator[RunRow]:
    """Yield the rows of all runs (of a tenant), newest first."""
    before: RunId | None = None
    while True:
        rows = await store.find_runs(RunQuery(tenant=tenant, before=before, limit=RUNS_PAGE))
        for row in rows:
            yield row
        if len(rows) < RUNS_PAGE:
            return
        before = rows[-1].run_id


async def threads_about(store: Store, tenant: TenantId, subject: str) -> list[str]:
    """Return the threads that are about a subject."""
    found: list[str] = []
    while True:
        after = found[-1] if found else ""
        page = await store.find_threads(tenant, subject, after=after, limit=SUBJECT_PAGE)
        found += [row.thread for row in page]
        if len(page) < SUBJECT_PAGE:
            return found


class Links:
    """How the threads of a tenant hang together."""

    def __init__(self) -> None:
        """Know none yet."""
        self.forks: dict[str, list[str]] = {}
        self.origins: dict[str, str] = {}
        self.children: dict[str, list[RunRow]] = {}

    @classmethod
    async def read(cls, runtime: Runtime, tenant: TenantId) -> "Links":
        """Read the rows of all runs of a tenant."""
        links = cls()
        async for row in runs_of(runtime.engine.store, tenant):
            if row.parent is not None:
                links.children.setdefault(row.parent, []).append(row)
            origin = await _origin_of(runtime, row)
            if origin is not None:
                links.forks.setdefault(origin, []).append(row.thread)
                links.origins[row.thread] = origin
        return links


async def _origin_of(runtime: Runtime, row: RunRow) -> str | None:
    """Return the thread that a run's thread was forked from; None: it is no fork."""
    if row.ordinal != 1 or row.start_key is not None:
        return None
    if row.input_digest.startswith(FORK_MARK):
        return row.input_digest.removeprefix(FORK_MARK).partition(":")[2]
    if not row.input_digest:
        with suppress(DecodeFailed):  # erased, or damaged: it says nothing any more
            return (await started_of(runtime.engine, row)).origin_thread
    return None


class Scope:
    """Finds what an erasure reaches."""

    def __init__(self, runtime: Runtime, tenant: TenantId) -> None:
        """Look in the store of a runtime."""
        self._runtime = runtime
        self._store = runtime.engine.store
        self._tenant = tenant
        self._links = Links()

    async def look(self, roots: Iterable[str], opened: Iterable[ErasureRow]) -> ErasurePreview:
        """Return what the erasure of some threads reaches, and of what was begun before."""
        self._links = await Links.read(self._runtime, self._tenant)
        begun = list(opened)
        names = [*roots, *(each.thread for row in begun for each in row.threads)]
        found = ErasurePreview(
            tenant=self._tenant,
            threads=list(dict.fromkeys(names)),
            under_way=[row.erasure_id for row in begun],
        )
        todo = list(found.threads)
        seen = set(todo)
        while todo:
            await self._thread(found, todo.pop(), todo, seen)
        found.remains = [each for each in found.remains if not await self._is_reached(each, seen)]
        for schedule in await self._store.find_schedules(tenant=self._tenant):
            if schedule.thread in seen:
                found.schedules.append(schedule.name)
        return found

    async def _thread(
        self, found: ErasurePreview, name: str, todo: list[str], seen: set[str]
    ) -> None:
        """Count what one thread has, and note which threads hang on it."""
        thread = ThreadId(name)
        for fork in self._links.forks.get(name, ()):
            if fork not in seen:
                seen.add(fork)
                todo.append(fork)
                found.forks.append(fork)
        origin = self._links.origins.get(name)
        if origin is not None:
            why = "it was forked from there: what came before the fork is there, too"
            found.remains.append(Remaining("origin", origin, why))
        for row in await self._store.read_thread_runs(self._tenant, thread, from_ordinal=1):
            await self._run(found, row, todo, seen)
        for export in await self._store.find_exports(self._tenant, thread):
            if export.export_id not in found.exports:
                found.exports.append(export.export_id)
        found.data_keys += len(await self._store.read_keys([(self._tenant, f"thread:{name}")]))

    async def _run(
        self, found: ErasurePreview, row: RunRow, todo: list[str], seen: set[str]
    ) -> None:
        found.runs += 1
        found.records += row.last_seq
        found.start_keys += row.start_key is not None
        if not row.status.is_final:
            found.unfinished.append(Unfinished(row.run_id, row.thread, row.status.value))
        effects, asks = await rows_of(self._store, row.run_id)
        found.effects += len(effects)
        found.asks += len(asks)
        found.business_keys += sum(effect.business_key is not None for effect in effects)
        found.not_undone += [_not_undone(effect) for effect in effects if _is_done(effect)]
        found.messages += len(await self._store.read_mail(row.run_id))
        if row.parent is not None:
            why = f"the journal of this run holds what run {row.run_id} was given and returned"
            found.remains.append(Remaining("parent", row.parent, why))
        for child in self._links.children.get(row.run_id, ()):
            if child.thread in seen:
                continue
            if await self._is_first(child):
                seen.add(child.thread)
                todo.append(child.thread)
                found.children.append(child.thread)
            else:
                why = f"run {child.run_id}, a child, is one of several runs of this thread"
                found.remains.append(Remaining("shared_thread", child.thread, why))

    async def _is_reached(self, remaining: Remaining, seen: set[str]) -> bool:
        """Return whether something that seemed to remain is erased all the same."""
        if remaining.kind != "parent":
            return remaining.name in seen
        row = await self._store.read_run(RunId(remaining.name))
        return row is None or row.thread in seen

    async def _is_first(self, row: RunRow) -> bool:
        """Return whether a run is the first of its thread that was not erased."""
        thread = await self._store.read_thread(row.tenant, row.thread)
        return row.ordinal <= first_living(thread)


def _is_done(effect: EffectRow) -> bool:
    return effect.kind.is_outside and effect.state in _DONE


def _not_undone(effect: EffectRow) -> NotUndone:
    return NotUndone(effect.effect_id, effect.run_id, effect.name, effect.state.value)
