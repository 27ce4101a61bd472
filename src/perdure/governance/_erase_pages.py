"""Pages of large values that only erased runs refer to.

Theory: pages are shared by all threads of a tenant. Those of the erased runs are candidates; then
the journals of all others are read, and what they refer to is struck off. What is put meanwhile is
younger than the mark, and stays. A page that leads to others is removed after them, so that an
erasure that was interrupted finds them again.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec import Raw

from perdure.codec import decode_record, is_erased, names_in, opened, ref_of, split_frame
from perdure.engine.paging import values_in
from perdure.errors import DecodeFailed, StoreCorrupt
from perdure.governance._verify import frames_of, rows_of
from perdure.governance.limits import PAGES_READ
from perdure.ids import TenantId
from perdure.model import FrameRow, RunRow
from perdure.model import records as rec
from perdure.store.api import Store


def records_in(frame: FrameRow) -> Iterator[rec.Record]:
    """Yield the records of a frame that can be read; of an erased one: none."""
    if is_erased(frame.body):
        return
    with suppress(DecodeFailed):
        for encoded in split_frame(frame.body):
            with suppress(DecodeFailed):
                yield decode_record(encoded)


def refs_in(record: rec.Record) -> Iterator[tuple[bytes, int]]:
    """Yield (page, depth) of what a record refers to."""
    for raw in values_in(record):
        with suppress(DecodeFailed):
            ref = ref_of(raw)
            if ref is not None:
                for name in names_in(ref.hashes):
                    yield name, ref.depth


class Candidates:
    """Pages that may go, with how many levels of lists they lead to."""

    def __init__(self, store: Store, tenant: TenantId) -> None:
        """Have none yet."""
        self._store = store
        self._tenant = tenant
        self.depths: dict[bytes, int] = {}
        self._lists: set[tuple[bytes, int]] = set()

    async def add(self, record: rec.Record) -> list[tuple[bytes, bytes]]:
        """Take in what an erased record refers to; return (body, content) of pages not seen yet."""
        todo = [(name, depth) for name, depth in refs_in(record) if name not in self.depths]
        seen: list[tuple[bytes, bytes]] = []
        while todo:
            part, todo = todo[:PAGES_READ], todo[PAGES_READ:]
            bodies = await self._store.read_pages(self._tenant, [name for name, _depth in part])
            for name, depth in part:
                self.depths[name] = max(depth, self.depths.get(name, 0))
                with suppress(DecodeFailed, KeyError):
                    piece = opened(bodies[name], name)
                    seen.append((bodies[name], piece))
                    if depth:
                        todo += [(leaf, depth - 1) for leaf in names_in(piece)]
        return seen

    async def keep_run(self, row: RunRow) -> None:
        """Strike off what a run of somebody else refers to: in its journal, and in its rows.

        Raises:
            DecodeFailed, StoreCorrupt: it can't be read whole, so that nobody knows what it needs.
        """
        async for frame in frames_of(self._store, row.run_id, 1):
            if not is_erased(frame.body):
                for encoded in split_frame(frame.body):
                    await self._keep(values_in(decode_record(encoded)))
        effects, asks = await rows_of(self._store, row.run_id)
        wires = [wire for each in effects for wire in (each.request_wire, each.result_wire)]
        wires += [ask.value_wire for ask in asks]
        wires += [mail.body_wire for mail in await self._store.read_mail(row.run_id)]
        await self._keep(Raw(wire) for wire in wires if wire)

    async def keep_wire(self, wire: bytes) -> None:
        """Strike off what an encoded value refers to."""
        await self._keep([Raw(wire)])

    async def _keep(self, values: Iterable[Raw]) -> None:
        refs = (ref_of(raw) for raw in values)
        todo = [(name, ref.depth) for ref in refs if ref for name in names_in(ref.hashes)]
        while todo:
            for name, _depth in todo:
                self.depths.pop(name, None)
            lists = [pair for pair in dict.fromkeys(todo) if pair[1] and pair not in self._lists]
            self._lists.update(lists)
            todo = []
            for at in range(0, len(lists), PAGES_READ):
                todo += await self._leaves(lists[at : at + PAGES_READ])

    async def _leaves(self, lists: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        bodies = await self._store.read_pages(self._tenant, [name for name, _depth in lists])
        found = []
        for name, depth in lists:
            if name not in bodies:
                msg = f"page {name.hex()[:16]}, a list of pages, is missing"
                raise StoreCorrupt(msg, tenant=self._tenant)
            found += [(leaf, depth - 1) for leaf in names_in(opened(bodies[name], name))]
        return found

    def in_order(self) -> Iterable[list[bytes]]:
        """Yield the pages that may go in parts, those that lead to others last."""
        names = sorted(self.depths, key=lambda name: self.depths[name])
        for depth in sorted(set(self.depths.values())):
            level = [name for name in names if self.depths[name] == depth]
            for at in range(0, len(level), PAGES_READ):
                yield level[at : at + PAGES_READ]
