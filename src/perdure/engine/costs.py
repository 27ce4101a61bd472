"""What each checkpoint of a thread costs: bytes, time, and what doing its step again would take.

Theory: every figure is read from the journal. The bytes of a record are its share of the frame that
it is stored in, so compression is counted as it is. A page belongs to the checkpoint whose records
are the first of the thread, and of what the thread inherits, to refer to it. Whole copies are
written right after a checkpoint, which they belong to.

"Again" is for forks and reruns, which begin before the step. A worker that takes a run over
executes at most the nodes of the step under way again, and repeats nothing that was recorded.
"""

import datetime as dt
from collections.abc import AsyncIterator, Iterable
from typing import Any

from msgspec import Raw, Struct

from perdure.codec import PageRef, describe, is_erased, names_in, opened, ref_of
from perdure.core import fold
from perdure.engine.environment import Environment
from perdure.engine.limits import PAGES_READ_MAX
from perdure.engine.loading import check_frame, load_inherited, record_at
from perdure.engine.paging import VALUES, inline_record, values_in
from perdure.engine.story import node_name
from perdure.engine.waits import as_datetime
from perdure.errors import DecodeFailed, NotFound
from perdure.ids import TenantId, ThreadId
from perdure.model import EffectKind, FrameRow, RunRow
from perdure.model import records as rec
from perdure.store.api import Store

INPUT_TOKENS = ("input_tokens", "prompt_tokens")
OUTPUT_TOKENS = ("output_tokens", "completion_tokens")
USAGE = ("usage", "usage_metadata")


class CheckpointCost(Struct, frozen=True, kw_only=True):
    """What a checkpoint costs.

    Attributes:
        checkpoint: its id; None: the step is under way, these are the records so far.
        at: when it was committed; None: under way.
        nodes: names of what ran in its step; empty: it took the input in.
        journal_bytes: of its records, as stored; the run's end is with its last checkpoint.
        copy_bytes: of whole copies of the state that were written after it, as stored.
        pages: pages that are referred to for the first time in the thread.
        page_bytes: of these, as stored.
        elapsed_ms: since the checkpoint before it, or the run's start: waits are in it.
        node_ms: of the executions whose outcome counted, each from its last beginning to its end.
        again: names of effects that others can see and that a fork before it would send again.
        repeated: how many other recorded calls it would do again (kinds pure and contained).
        children: child runs that it would start again.
        sandbox: what changed in the thread's sandbox, as its snapshots say ("nothing", "files",
            ...); empty: it was not used, or nothing tells.
        sandbox_bytes: of these changes, on the disk of the sandbox.
        input_tokens, output_tokens: of its recorded calls, as their results say (`usage`).
    """

    thread: str
    run_id: str
    checkpoint: int | None
    step: int
    at: dt.datetime | None
    nodes: tuple[str, ...]
    journal_bytes: int
    copy_bytes: int
    pages: int
    page_bytes: int
    elapsed_ms: float
    node_ms: float
    again: tuple[str, ...]
    repeated: int
    children: int
    sandbox: str
    sandbox_bytes: int
    input_tokens: int
    output_tokens: int

    @property
    def stored_bytes(self) -> int:
        """All bytes of it."""
        return self.journal_bytes + self.copy_bytes + self.page_bytes


async def costs_of(engine: Environment, tenant: TenantId, thread: ThreadId) -> list[CheckpointCost]:
    """Return what the checkpoints of a thread cost, oldest first; see `Runtime.costs`."""
    rows = await engine.store.read_thread_runs(tenant, thread, from_ordinal=1)
    if not rows:
        msg = (
            f"no thread {thread!r} for tenant {tenant!r}; 'perdure ps --all' lists the runs and "
            "their threads"
        )
        raise NotFound(msg, thread=thread)
    pages = _Pages(engine.store, tenant)
    found: list[CheckpointCost] = []
    for row in rows:
        found += await _costs_of_run(engine.store, row, pages)
    return found


async def _costs_of_run(store: Store, row: RunRow, pages: "_Pages") -> list[CheckpointCost]:
    tallies = [_Tally(row, row.created_at_us, fold.INPUT_STEP)]
    async for record, size in _sized_records(store, row):
        if isinstance(record, rec.RunStarted) and record.inherits:
            inherited = await load_inherited(store, record)
            await pages.know(raw for cell in inherited.cells.values() for raw in cell.pieces)
        whole = record
        if type(record) in VALUES:
            whole = await inline_record(store, row.tenant, f"run {row.run_id!r}", record)
        is_after = isinstance(record, rec.StateCopied | rec.StateSnapshot | rec.RunEnded)
        tally = tallies[-2] if is_after and len(tallies) > 1 else tallies[-1]
        tally.take(whole, size)
        tally.count(*await pages.new(values_in(record)))
        if isinstance(record, rec.StepCommitted) and record.scope == "":
            tallies.append(_Tally(row, record.at_us, record.step + 1))
    *done, rest = tallies
    if done and row.status.is_final:
        done[-1].journal_bytes += rest.journal_bytes
    elif rest.journal_bytes:
        done.append(rest)
    return [tally.cost() for tally in done]


async def _sized_records(store: Store, row: RunRow) -> AsyncIterator[tuple[rec.Record, float]]:
    """Yield the records of a run that were not pruned, each with its share of the bytes stored."""
    previous: FrameRow | None = None
    for frame in await store.read_frames(row.run_id):
        if is_erased(frame.body):
            previous = frame  # pruned: what is left is told
            continue
        encoded = check_frame(frame, previous)
        share = len(frame.body) / max(sum(map(len, encoded)), 1)
        for seq, one in enumerate(encoded, frame.first_seq):
            yield record_at(frame, seq, one), len(one) * share
        previous = frame


class _Tally:
    """Adds up what belongs to one checkpoint."""

    def __init__(self, row: RunRow, since_us: int, step: int) -> None:
        self._row = row
        self._step = step
        self._since_us = since_us
        self._last_us = since_us
        self._end: rec.StepCommitted | None = None
        self._nodes: list[str] = []
        self._node_us = 0
        self._again: list[str] = []
        self._tokens = {True: (0, 0), False: (0, 0)}
        self._counts = {"repeated": 0, "children": 0, "pages": 0, "page_bytes": 0}
        self._counts["sandbox_bytes"] = 0
        self._sandbox = ""
        self.journal_bytes = self._copy_bytes = 0.0

    def take(self, record: rec.Record, size: float) -> None:
        """Take in a record and the bytes that it is stored in."""
        if isinstance(record, rec.StateCopied | rec.StateSnapshot):
            self._copy_bytes += size
            return
        self.journal_bytes += size
        if self._end is not None:
            return  # the run's end
        self._last_us = record.at_us
        if isinstance(record, rec.NodeFinished) and "/" not in record.task:
            self._nodes.append(node_name(record.task))
            self._node_us += record.at_us - record.started_us
        elif isinstance(record, rec.EffectConfirmed):
            self._effect(record)
        elif isinstance(record, rec.Emitted):
            self._add_tokens(record.chunk, is_result=False)
        elif isinstance(record, rec.Spawned):
            self._counts["children"] += 1
        elif isinstance(record, rec.SandboxTaken):
            if record.changes != "nothing" or not self._sandbox:
                self._sandbox = record.changes
            self._counts["sandbox_bytes"] += record.changed_bytes
        elif isinstance(record, rec.StepCommitted) and record.scope == "":
            self._end = record
            self._nodes = [node_name(each.task) for each in record.passed] + self._nodes
            self._node_us += sum(each.ended_us - each.started_us for each in record.passed)

    def _effect(self, record: rec.EffectConfirmed) -> None:
        if record.via == "key":
            return  # another run's, which is not sent again
        if EffectKind(record.kind).is_outside:
            self._again.append(record.name)
        else:
            self._counts["repeated"] += 1
        self._add_tokens(record.result, is_result=True)

    def _add_tokens(self, raw: Raw, *, is_result: bool) -> None:
        before, more = self._tokens[is_result], tokens_in(describe(raw))
        self._tokens[is_result] = before[0] + more[0], before[1] + more[1]

    def count(self, pages: int, page_bytes: int) -> None:
        """Count pages that are new."""
        self._counts["pages"] += pages
        self._counts["page_bytes"] += page_bytes

    def cost(self) -> CheckpointCost:
        """Return the sums. What was emitted counts where no result says anything of tokens."""
        end = self._end
        tokens = self._tokens[True] if any(self._tokens[True]) else self._tokens[False]
        return CheckpointCost(
            thread=self._row.thread,
            run_id=self._row.run_id,
            checkpoint=None if end is None else end.checkpoint,
            step=self._step,
            at=None if end is None else as_datetime(end.at_us),
            nodes=tuple(self._nodes),
            journal_bytes=round(self.journal_bytes),
            copy_bytes=round(self._copy_bytes),
            elapsed_ms=(self._last_us - self._since_us) / 1000,
            node_ms=self._node_us / 1000,
            again=tuple(self._again),
            sandbox=self._sandbox,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            **self._counts,
        )


def tokens_in(value: Any) -> tuple[int, int]:
    """Return the tokens that a result says were used: of its `usage`, for input and output."""
    if not isinstance(value, dict):
        return 0, 0
    usage: dict[str, Any] = next(
        (value[name] for name in USAGE if isinstance(value.get(name), dict)), {}
    )
    return _first_of(usage, INPUT_TOKENS), _first_of(usage, OUTPUT_TOKENS)


def _first_of(usage: dict[str, Any], names: Iterable[str]) -> int:
    return next((usage[name] for name in names if type(usage.get(name)) is int), 0)


def _listed(name: bytes, body: bytes) -> list[bytes]:
    """Return the hashes that a page lists."""
    try:
        return names_in(opened(body, name))
    except DecodeFailed as error:
        place = f"page {name.hex()[:16]}"
        raise error.located(place) from error


class _Pages:
    """The pages that a thread has referred to so far."""

    def __init__(self, store: Store, tenant: TenantId) -> None:
        self._store = store
        self._tenant = tenant
        self._seen: set[bytes] = set()

    async def know(self, raws: Iterable[Raw]) -> None:
        """Take pages for known."""
        await self.new(raws)

    async def new(self, raws: Iterable[Raw]) -> tuple[int, int]:
        """Return how many pages the values refer to that were not known, and their bytes."""
        count = size = 0
        refs: list[PageRef] = [ref for raw in raws if (ref := ref_of(raw)) is not None]
        wanted = [(name, ref.depth) for ref in refs for name in names_in(ref.hashes)]
        while wanted:
            part, wanted = wanted[:PAGES_READ_MAX], wanted[PAGES_READ_MAX:]
            depths = {name: depth for name, depth in part if name not in self._seen}
            self._seen |= depths.keys()
            for name, body in (await self._store.read_pages(self._tenant, [*depths])).items():
                count += 1
                size += len(body)
                if depths[name]:
                    wanted += [(each, depths[name] - 1) for each in _listed(name, body)]
        return count, size
