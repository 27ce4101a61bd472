"""Conformance: a killed writer, and damage behind the store's back."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest

from perdure.codec import chain_hash, encode_frame, encode_record
from perdure.engine.loading import read_records
from perdure.errors import DecodeFailed, StoreCorrupt
from perdure.model import Append, EffectState, RunRow
from perdure.model import records as rec
from perdure.store.api import DURABLE, EffectQuery, RunQuery, Store
from perdure.testing._crash_writer import RUNS, run_names
from perdure.testing._store_kit import T0, needs, taken, the_run

MakeStore = Callable[[], Store]
KILLS_AFTER = (1, 4, 17)
"""Acknowledged batches after which a writer is killed, one writer each."""


class CrashRules:
    """What was acknowledged survives the writer's death, and nothing is there by halves."""

    @pytest.fixture
    def crash_url(self) -> str | None:
        """Return a URL of the store for `make_store` of another process; None: there is none."""
        return None

    async def test_batch_is_whole_after_a_kill(
        self, make_store: MakeStore, store: Store, crash_url: str | None
    ) -> None:
        """DURABLE: a writer that is killed in the middle leaves whole batches, all acknowledged."""
        needs(store, DURABLE)
        if crash_url is None:
            pytest.skip(f"gap: {type(store).__name__} gives no URL to write to from a process")
        acknowledged = [
            await _killed_after(crash_url, f"k{batches}", batches) for batches in KILLS_AFTER
        ]
        await store.close()
        again = make_store()
        await again.open()
        try:
            for batches, known in zip(KILLS_AFTER, acknowledged, strict=True):
                await _check_whole(again, f"k{batches}", known)
        finally:
            await again.close()


async def _killed_after(url: str, name: str, batches: int) -> int:
    """Let a process write; kill it after so many batches; return how many it acknowledged."""
    arguments = ("-m", "perdure.testing._crash_writer", url, name)
    pipe = asyncio.subprocess.PIPE
    writer = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe)
    assert writer.stdout is not None
    acknowledged = 0
    try:
        while acknowledged < batches:
            line = await writer.stdout.readline()
            assert line.endswith(b"\n"), "the writer ended by itself"
            acknowledged = int(line)
    finally:
        with contextlib.suppress(ProcessLookupError):
            writer.kill()
        left = await writer.stdout.read()
        await writer.wait()
    whole = left.rpartition(b"\n")[0].split()
    return int(whole[-1]) if whole else acknowledged


async def _check_whole(store: Store, name: str, acknowledged: int) -> None:
    wanted = {f"r_{each}" for each in run_names(name)}
    rows = [row for row in await store.find_runs(RunQuery(limit=1000)) if row.run_id in wanted]
    [last_seq] = {row.last_seq for row in rows}
    assert len(rows) == RUNS
    assert last_seq - 1 >= acknowledged
    for row in rows:
        frames = await store.read_frames(row.run_id)
        assert [frame.first_seq for frame in frames] == list(range(1, last_seq + 1))
        query = EffectQuery(run_id=row.run_id, states=(EffectState.INTENDED,), limit=10_000)
        assert len(await store.find_effects(query)) == last_seq - 1


class DamageRules:
    """Damage is an error, never another history: the hash chain shows what a store can't."""

    async def put_body(self, store: Store, run_id: str, first_seq: int, body: bytes) -> None:
        """Replace a frame's body behind the store's back."""
        pytest.skip(
            f"gap: {type(store).__name__} gives no back door to frame {first_seq} of {run_id} "
            f"({len(body)} bytes)"
        )

    async def test_torn_frame_is_an_error(self, store: Store) -> None:
        """A frame of which only a part was written is not read as a shorter one."""
        row, appends = await _journal(store)
        whole = appends[1].body
        await self.put_body(store, row.run_id, appends[1].first_seq, whole[: len(whole) // 2])
        with pytest.raises((StoreCorrupt, DecodeFailed)):
            await read_records(store, row.run_id)

    async def test_changed_frame_is_an_error(self, store: Store) -> None:
        """A frame that says something else than it did is an error, however well formed."""
        row, appends = await _journal(store)
        other = encode_frame([encode_record(rec.LeaseTaken(T0, "somebody else", 1, 1))])
        await self.put_body(store, row.run_id, appends[1].first_seq, other)
        with pytest.raises((StoreCorrupt, DecodeFailed)):
            await read_records(store, row.run_id)

    async def test_reordered_frames_are_an_error(self, store: Store) -> None:
        """Frames in another order than they were written in are an error."""
        row, appends = await _journal(store)
        for one, other in pairwise([*appends[:2], appends[0]]):
            await self.put_body(store, row.run_id, one.first_seq, other.body)
        with pytest.raises((StoreCorrupt, DecodeFailed)):
            await read_records(store, row.run_id)


async def _journal(store: Store) -> tuple[RunRow, list[Append]]:
    """Write a journal with a true hash chain; return the run and its appends."""
    start = encode_record(rec.RunStarted(T0, "r_a", "default", "thread_a", "g", 1, {}))
    previous = chain_hash(bytes(32), "r_a", 1, 0, [start])
    row = await taken(store, "a", first_body=encode_frame([start]), first_hash=previous)
    appends: list[Append] = []
    for number in range(3):
        encoded = [encode_record(rec.LeaseTaken(T0 + number, f"w_{number}", 1, 1))]
        following = chain_hash(previous, row.run_id, row.last_seq + 1, row.token, encoded)
        appends.append(
            Append(
                run_id=row.run_id,
                tenant=row.tenant,
                thread=row.thread,
                token=row.token,
                first_seq=row.last_seq + 1,
                at_us=T0 + number,
                count=1,
                body=encode_frame(encoded),
                prev_hash=previous,
                hash=following,
            )
        )
        previous = following
        assert [type(each).__name__ for each in await store.append(appends[-1:])] == ["Appended"]
        row = await the_run(store, row.run_id)
    assert len(await read_records(store, row.run_id)) == 4  # a start and three
    return row, appends
