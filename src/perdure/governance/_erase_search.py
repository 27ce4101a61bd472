"""Looks after an erasure whether anything of it is left: by pieces of what was erased.

Of an encrypted store the pieces are those of sealed rows: nothing else is in its files. What others
hold as well is no remainder; nor is what another erasure has, which is under way at the same time.
"""

from collections.abc import Callable, Sequence

from perdure.codec import encode_record, is_erased
from perdure.engine.environment import Environment
from perdure.governance._erase_pages import Candidates, records_in
from perdure.governance._erase_scope import runs_of
from perdure.governance._needles import Needles
from perdure.governance._receipt import Verification
from perdure.governance._verify import frames_of, rows_of
from perdure.governance.limits import OTHERS_PAUSE_S, OTHERS_TRIES
from perdure.ids import RunId, TenantId
from perdure.model import ErasureRow, RunRow
from perdure.sealing import stored_by
from perdure.store.api import REMOTE


class Search:
    """The search of one erasure."""

    def __init__(
        self,
        engine: Environment,
        rows: Sequence[ErasureRow],
        known: Sequence[str],
        *,
        is_erased: Callable[[RunRow], bool],
    ) -> None:
        """Have no pieces yet.

        Args:
            engine: over the store.
            rows: the erasures that are done.
            known: names that stay: pieces with one of them are left out.
            is_erased: tells which runs are erased.
        """
        self.needles = Needles(known)
        self.left: list[str] = []
        self._engine = engine
        self._store = engine.store
        self.is_sealed = stored_by(self._store) is not self._store
        # What is in plain elsewhere, as in files of sandboxes: another sample where that differs.
        self.plain = Needles(known) if self.is_sealed else self.needles
        self._rows = rows
        self._is_erased = is_erased

    async def add_sealed(self, run_id: RunId) -> None:
        """Take in pieces of what an encrypted store has of a run."""
        store = stored_by(self._store)
        async for frame in frames_of(store, run_id, 1):
            if not is_erased(frame.body):
                self.needles.add_stored(frame.body)
        effects, asks = await rows_of(store, run_id)
        for effect in effects:
            self.needles.add_row((effect.request_wire, effect.result_wire))
        for ask in asks:
            self.needles.add_row((ask.question.encode(), ask.value_wire))

    async def verify(self, before: Sequence[int]) -> Verification:
        """Look for the pieces; `before`: how often each was there."""
        since_us = self._engine.now_us()
        pieces = self.needles.pieces
        found = await self._found(pieces)
        elsewhere = await self._held_by_others(found)
        left = found - elsewhere
        for _try in range(OTHERS_TRIES):
            if not left or not await self._others_erase(since_us):
                break
            # Another erasure has, or had until now, what is found: it goes with that one.
            await self._engine.services.clock.sleep(OTHERS_PAUSE_S)
            self.left = await self._store.scrub()
            found = await self._found(sorted(left))
            held = await self._held_by_others(found)
            left, elsewhere = found - held, elsewhere | held
        remote = REMOTE in self._store.capabilities
        return Verification(
            searched=len(pieces),
            found_before=sum(count > 0 for count in before),
            found=len(left),
            elsewhere=len(elsewhere),
            scope="every row of every table" if remote else "every byte of the store's files",
        )

    async def _found(self, pieces: Sequence[bytes]) -> set[bytes]:
        counts = await self._store.count_bytes(pieces)
        return {piece for piece, count in zip(pieces, counts, strict=True) if count}

    async def _others_erase(self, since_us: int) -> bool:
        """Return whether another erasure is under way, or ended since a time."""
        own = {row.erasure_id for row in self._rows}
        return any(
            row.ended_at_us is None or row.ended_at_us >= since_us
            for row in await self._store.find_erasures()
            if row.erasure_id not in own
        )

    async def _held_by_others(self, pieces: set[bytes]) -> set[bytes]:
        """Return the pieces that journals and pages of others hold as well, of whatever tenant."""
        found: set[bytes] = set()
        seen: dict[TenantId, Candidates] = {}
        async for row in runs_of(self._store, None):
            if pieces == found:
                break
            if self._is_erased(row):
                continue
            pages = seen.setdefault(row.tenant, Candidates(self._store, row.tenant))
            async for frame in frames_of(self._store, row.run_id, 1):
                records = list(records_in(frame))
                held = [frame.body, *map(encode_record, records)]
                for record in records:
                    held += [each for pair in await pages.add(record) for each in pair]
                found |= {piece for piece in pieces - found if any(piece in each for each in held)}
        return found
