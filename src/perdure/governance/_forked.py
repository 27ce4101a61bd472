"""Where the threads of a tenant were forked, for whoever removes what forks may need."""

from perdure.engine import Runtime
from perdure.engine.branches import fork_origin
from perdure.engine.compare import started_of
from perdure.engine.environment import Environment
from perdure.engine.origins import inheriting_start
from perdure.engine.tagging import PIN_MARK
from perdure.governance.limits import PIN_GRACE_US, RUNS_PAGE
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import RunRow, TagRow
from perdure.model import records as rec
from perdure.store.api import RunQuery


async def is_stale_pin(engine: Environment, tag: TagRow) -> bool:
    """Return whether a tag was put there by a fork that refers to its origin no more.

    The fork was erased, or never started: then it is left alone for as long as a start may take.
    """
    if not tag.name.startswith(PIN_MARK):
        return False
    row = await engine.store.read_run(RunId(tag.name.removeprefix(PIN_MARK)))
    if row is None:
        return engine.now_us() - tag.at_us > PIN_GRACE_US
    return await inheriting_start(engine.store, row) is None


class Forks:
    """The checkpoints that threads of a tenant were forked at."""

    def __init__(self, runtime: Runtime, tenant: TenantId) -> None:
        """Know of none yet."""
        self._runtime = runtime
        self._tenant = tenant
        self._newest = RunId("")
        self._found: dict[str, set[int]] = {}
        self._places: dict[str, set[rec.StatePlace]] = {}

    async def look(self) -> None:
        """Look at the runs that are newer than those that were looked at."""
        newest = self._newest
        before: RunId | None = None
        while True:
            query = RunQuery(tenant=self._tenant, before=before, limit=RUNS_PAGE)
            rows = await self._runtime.engine.store.find_runs(query)
            for row in rows:
                if row.run_id <= newest:
                    return
                self._newest = max(self._newest, row.run_id)
                await self._take(row)
            if len(rows) < RUNS_PAGE:
                return
            before = rows[-1].run_id

    async def _take(self, row: RunRow) -> None:
        origin = fork_origin(row)
        if origin is not None:
            started = await inheriting_start(self._runtime.engine.store, row)
            if started is not None and started.state_at is not None:
                self._places.setdefault(origin[1], set()).add(started.state_at)
        if origin is None and row.ordinal == 1 and not row.input_digest and row.start_key is None:
            started = await started_of(self._runtime.engine, row)
            if started.origin_thread is not None and started.origin_checkpoint is not None:
                origin = started.origin_checkpoint, started.origin_thread
        if origin is not None:
            self._found.setdefault(origin[1], set()).add(origin[0])

    def places(self, thread: ThreadId) -> set[rec.StatePlace]:
        """Return where in a thread's journal the states are that forks refer to."""
        return self._places.get(thread, set())

    def of(self, thread: ThreadId) -> set[int]:
        """Return those of a thread."""
        return self._found.get(thread, set())
