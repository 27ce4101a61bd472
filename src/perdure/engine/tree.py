"""A thread with its runs and steps, where it was forked from, and where it was forked, nested.

Theory: a fork's start record names its origin. The other direction is in the fork's row
(`branches.fork_origin`), so that the forks of a thread are found by looking through rows of runs of
its graphs, newest first, back to the time when the thread began; no journal is read for it, but for
forks that an older Perdure made, whose rows say only that they are forks.
"""

from msgspec import Struct, field

from perdure.engine.branches import fork_origin
from perdure.engine.compare import started_of
from perdure.engine.environment import Environment
from perdure.engine.limits import FORK_DEPTH_MAX, FORKS_SCANNED_MAX, SCAN_PAGE
from perdure.engine.living import living_runs
from perdure.engine.story import Story, tell
from perdure.engine.tagging import Tag, tags_of
from perdure.errors import RecordErased
from perdure.ids import TenantId, ThreadId
from perdure.model import RunRow
from perdure.store.api import RunQuery


class Origin(Struct, frozen=True, kw_only=True):
    """Where a thread was forked from."""

    thread: str
    checkpoint: int


class ForkSeen(Struct, frozen=True, kw_only=True):
    """A fork of a thread.

    Attributes:
        checkpoint: of the origin.
        row: the fork's first run.
        tree: of the fork's thread; None: too deep, it was not read.
    """

    checkpoint: int
    row: RunRow
    tree: "ThreadTree | None"


class ThreadTree(Struct, kw_only=True):
    """What `Runtime.tree` returns.

    Attributes:
        origin: None: the thread is no fork.
        runs: its runs with their steps, oldest first.
        forks: of it, by checkpoint, then oldest first.
        tags: names of its checkpoints.
        is_complete: whether all rows were looked through for forks; False: there were more than
            `FORKS_SCANNED_MAX`, older ones may be missing.
    """

    thread: str
    tenant: str
    origin: Origin | None
    runs: list[Story]
    forks: list[ForkSeen]
    is_complete: bool = True
    tags: list[Tag] = field(default_factory=list)


async def tree_of(engine: Environment, tenant: TenantId, thread: ThreadId) -> ThreadTree:
    """Return a thread with its runs, its origin and its forks, nested.

    Raises:
        NotFound: no such thread.
    """
    rows = await living_runs(engine.store, tenant, thread)
    search = _Search(engine, tenant, rows[0].created_at_us)
    found = await _tree(search, rows, 0)
    found.is_complete = search.is_complete
    return found


async def _tree(search: "_Search", rows: list[RunRow], depth: int) -> ThreadTree:
    engine, tenant, thread = search.engine, search.tenant, rows[0].thread
    started = await started_of(engine, rows[0])
    origin = None
    if started.origin_thread is not None and started.origin_checkpoint is not None:
        origin = Origin(thread=started.origin_thread, checkpoint=started.origin_checkpoint)
    runs = [await tell(engine, row) for row in rows]
    await search.look({row.graph for row in rows})
    forks = []
    for checkpoint, row in search.forks_of(thread):
        inner = None
        if depth < FORK_DEPTH_MAX:
            own = await living_runs(engine.store, tenant, row.thread)
            inner = await _tree(search, own, depth + 1)
        forks.append(ForkSeen(checkpoint=checkpoint, row=row, tree=inner))
    return ThreadTree(
        thread=thread,
        tenant=tenant,
        origin=origin,
        runs=runs,
        forks=forks,
        tags=await tags_of(engine, tenant, thread),
    )


class _Search:
    """Looks through the rows of runs of some graphs, once each, and keeps the forks."""

    def __init__(self, engine: Environment, tenant: TenantId, since_us: int) -> None:
        self.engine = engine
        self.tenant = tenant
        self.is_complete = True
        self._since_us = since_us
        self._graphs: set[str] = set()
        self._forks: dict[str, list[tuple[int, RunRow]]] = {}

    async def look(self, graphs: set[str]) -> None:
        """Look for forks among the runs of these graphs, those that were looked at left out."""
        for graph in sorted(graphs - self._graphs):
            self._graphs.add(graph)
            await self._look(graph)

    async def _look(self, graph: str) -> None:
        before = None
        for _page in range(FORKS_SCANNED_MAX // SCAN_PAGE):
            query = RunQuery(tenant=self.tenant, graph=graph, before=before, limit=SCAN_PAGE)
            rows = await self.engine.store.find_runs(query)
            for row in rows:
                await self._keep(row)
            # A fork is younger than what it was forked from.
            if len(rows) < SCAN_PAGE or rows[-1].created_at_us < self._since_us:
                return
            before = rows[-1].run_id
        self.is_complete = False

    async def _keep(self, row: RunRow) -> None:
        if row.ordinal != 1 or row.start_key is not None:
            return
        origin = fork_origin(row)
        if origin is not None:
            checkpoint, thread = origin
            self._forks.setdefault(thread, []).append((checkpoint, row))
        elif not row.input_digest:
            try:
                started = await started_of(self.engine, row)
            except RecordErased:
                return
            if started.origin_thread is not None and started.origin_checkpoint is not None:
                found = self._forks.setdefault(started.origin_thread, [])
                found.append((started.origin_checkpoint, row))

    def forks_of(self, thread: str) -> list[tuple[int, RunRow]]:
        """Return (checkpoint, first run) of a thread's forks: by checkpoint, then oldest first."""
        found = self._forks.get(thread, [])
        return sorted(found, key=lambda fork: (fork[0], fork[1].created_at_us, fork[1].run_id))
