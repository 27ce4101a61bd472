"""Remove pages of large values that nothing refers to any more, while others write.

Theory: mark and sweep. `begin_collection` comes back when everything that was being written is
there; from then on whoever puts a page marks it. So every page that is in use is found: it is put
after the beginning, or a record that was there at the beginning refers to it. The third case does
not exist: a writer counts, without putting it, on a page of the version before only, to which the
newest record of its thread refers; and such records are not erased without ending the collection.

Invariants: nothing is removed unless every journal of the tenant was read whole; what is not
understood is kept; memory is `MARK_BITS` for each page, and the names of lists of pages.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import Raw

from perdure.codec import decode_record, is_erased, names_in, opened, ref_of, split_frame
from perdure.engine import Runtime
from perdure.engine.paging import values_in
from perdure.errors import Conflict, PerdureError, StoreCorrupt
from perdure.governance._marks import Marks
from perdure.governance._verify import frames_of, rows_of
from perdure.governance.limits import COLLECT_TRIES, PAGES_READ, RUNS_PAGE, SWEEP_PAGES
from perdure.ids import EffectId, RunId, TenantId
from perdure.model import Collection, RunRow
from perdure.store.api import RunQuery, Store


@dataclass(slots=True)
class Collected:
    """What a collection did.

    Attributes:
        runs: whose journals were read.
        pages: that nothing referred to.
        bytes: that they took.
        is_dry: whether they were counted only.
    """

    tenants: int = 0
    runs: int = 0
    pages: int = 0
    bytes: int = 0
    is_dry: bool = False


@dataclass(slots=True)
class Gone:
    """What a dry run takes for erased.

    Attributes:
        frames: by run and first seq.
        effects: whose request and result are emptied.
    """

    frames: set[tuple[RunId, int]] = field(default_factory=set)
    effects: set[EffectId] = field(default_factory=set)


Telling = Callable[[Collected], None]


async def collect(
    runtime: Runtime,
    *,
    tenant: str | None = None,
    dry_run: bool = False,
    gone: Gone | None = None,
    on_progress: Telling = lambda _collected: None,
) -> Collected:
    """Remove the pages that no readable record refers to.

    Runs may be started and executed meanwhile. May be stopped at any time, and started again.

    Args:
        runtime: an open one; no worker or graph is needed.
        tenant: only this tenant's; None: everybody's.
        dry_run: count them only. A collection that somebody else has under way begins again.
        gone: what counts as erased already, for a dry run.
        on_progress: called with what was done so far.

    Raises:
        StoreCorrupt, DecodeFailed: a journal can't be read; of its tenant nothing was removed.
        Conflict: others erase or collect all the time; what was removed was garbage.
    """
    done = Collected(is_dry=dry_run)
    store = runtime.engine.store
    for owner in [TenantId(tenant)] if tenant is not None else await store.page_tenants():
        done.tenants += 1
        for _try in range(COLLECT_TRIES):
            if await _Sweep(runtime, owner, done, gone or Gone(), on_progress).is_done():
                break
        else:
            msg = (
                f"tenant {owner!r}: others erase or collect all the time; what was removed was not "
                "in use. Try again later"
            )
            raise Conflict(msg, tenant=owner)
    return done


class _Sweep:
    """One collection of a tenant's pages."""

    def __init__(
        self,
        runtime: Runtime,
        tenant: TenantId,
        done: Collected,
        gone: Gone,
        on_progress: Telling,
    ) -> None:
        self._store: Store = runtime.engine.store
        self._probe = runtime.engine.services.probe
        self._tenant = tenant
        self._done = done
        self._gone = gone
        self._on_progress = on_progress
        self._lists: set[bytes] = set()

    async def is_done(self) -> bool:
        """Collect; return False if somebody ended it, so that it has to begin again."""
        begun = await self._store.begin_collection(self._tenant)
        # crash-point: collect.begun
        self._probe("collect.begun")
        try:
            self._marks = Marks(begun.pages, begun.number)
            await self._mark()
            # crash-point: collect.marked
            self._probe("collect.marked")
            return await self._sweep(begun)
        finally:
            with suppress(PerdureError):  # one that is under way costs a mark for each page put
                await self._store.end_collection(begun)

    # -- marking -----------------------------------------------------------------------------------

    async def _mark(self) -> None:
        for schedule in await self._store.find_schedules(tenant=self._tenant):
            await self._mark_values([Raw(schedule.input_wire)])
        before: RunId | None = None
        while True:
            query = RunQuery(tenant=self._tenant, before=before, limit=RUNS_PAGE)
            rows = await self._store.find_runs(query)
            for row in rows:
                await self._mark_run(row)
                self._done.runs += 1
                self._on_progress(self._done)
            if len(rows) < RUNS_PAGE:
                return
            before = rows[-1].run_id

    async def _mark_run(self, row: RunRow) -> None:
        async for frame in frames_of(self._store, row.run_id, 1):
            if is_erased(frame.body) or (row.run_id, frame.first_seq) in self._gone.frames:
                continue
            records = [decode_record(encoded) for encoded in split_frame(frame.body)]
            await self._mark_values(raw for record in records for raw in values_in(record))
        effects, asks = await rows_of(self._store, row.run_id)
        wires = [
            wire
            for each in effects
            if each.effect_id not in self._gone.effects
            for wire in (each.request_wire, each.result_wire)
        ]
        wires += [ask.value_wire for ask in asks]
        if not row.status.is_final:
            wires += [mail.body_wire for mail in await self._store.read_mail(row.run_id)]
        await self._mark_values(Raw(wire) for wire in wires if wire)

    async def _mark_values(self, values: Iterable[Raw]) -> None:
        """Mark the pages of all values that are in pages, and the lists of pages on the way."""
        for raw in values:
            ref = ref_of(raw)
            if ref is None:
                continue
            names = names_in(ref.hashes)
            for _level in range(ref.depth):
                await self._add(names)
                new = [name for name in dict.fromkeys(names) if name not in self._lists]
                self._lists.update(new)
                names = await self._listed(new)
            await self._add(names)

    async def _add(self, names: list[bytes]) -> None:
        for name in await self._store.page_names(self._tenant, names):
            self._marks.add(name)

    async def _listed(self, lists: list[bytes]) -> list[bytes]:
        """Return the names in lists of pages.

        Raises:
            StoreCorrupt: one is missing: nobody knows which pages it names.
        """
        found: list[bytes] = []
        for at in range(0, len(lists), PAGES_READ):
            part = lists[at : at + PAGES_READ]
            bodies = await self._store.read_pages(self._tenant, part)
            for name in part:
                if name not in bodies:
                    msg = (
                        f"tenant {self._tenant!r}: page {name.hex()[:16]} is missing; nothing was "
                        "removed. 'perdure audit verify' lists the damage"
                    )
                    raise StoreCorrupt(msg, tenant=self._tenant)
                found += names_in(opened(bodies[name], name))
        return found

    # -- sweeping ----------------------------------------------------------------------------------

    async def _sweep(self, begun: Collection) -> bool:
        after = b""
        while True:
            pages = await self._store.find_pages(begun, after=after, limit=SWEEP_PAGES)
            garbage = {page.name: page.size for page in pages if page.name not in self._marks}
            if garbage and not self._done.is_dry:
                dropped = await self._store.drop_pages(begun, list(garbage))
                # crash-point: collect.dropped
                self._probe("collect.dropped")
                if dropped is None:
                    return False
            self._done.pages += len(garbage)
            self._done.bytes += sum(garbage.values())
            self._on_progress(self._done)
            if len(pages) < SWEEP_PAGES:
                return True
            after = pages[-1].name
