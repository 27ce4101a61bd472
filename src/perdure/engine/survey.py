"""What becomes of the runs and threads of older versions under the code that is here.

The survey does what a worker of that code would do, up to the write: it loads each run, calls the
migrations and checks what comes of it, and executes the nodes under way up to where their records
end, with nothing sent.
"""

from collections.abc import AsyncIterator
from enum import StrEnum

from msgspec import Struct

from perdure.codec import NO_HASH
from perdure.core import fold
from perdure.core.migration import chain_of, shown
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.limits import SCAN_PAGE
from perdure.engine.loading import Line, Loaded, load_run, load_thread_line
from perdure.engine.migrations import plan_adoption, plan_move
from perdure.engine.moving import is_executed, move_unheld
from perdure.engine.rehearsal import rehearse
from perdure.errors import DecodeFailed, LeaseLost, MigrationFailed, StoreCorrupt, UsageError
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import RunRow, RunStatus
from perdure.store.api import RunQuery


class Fate(StrEnum):
    """What becomes of a run or a thread."""

    RESUMES = "resumes"
    MIGRATES = "migrates"
    MIGRATED = "migrated"
    HELD = "held"
    PARKS = "parks"


class Finding(Struct, frozen=True, kw_only=True):
    """One run or thread, and what becomes of it.

    Attributes:
        run_id: the run; None: it is about a thread that no unfinished run is on.
        version: graph version that it is of, or that wrote the thread's newest state.
        fate: RESUMES: goes on as it is. MIGRATES: is moved when a worker takes it up (a thread:
            when its next run begins). MIGRATED: was moved now. HELD: a worker executes it now, or
            it is queued behind another run: it is moved after that. PARKS: needs a decision.
        path: versions that it passes, as `1->2->3`; empty: none.
        reason: why it is parked.
    """

    run_id: str | None
    tenant: str
    thread: str
    version: int
    fate: Fate
    path: str = ""
    reason: str = ""


async def survey_runs(
    engine: Environment, plan: GraphPlan, *, moves: bool = False
) -> AsyncIterator[Finding]:
    """Yield what becomes of each unfinished run of the graph, oldest first; move it if asked to.

    Each move is one commit: whoever stops listening leaves every run as it was, or moved.
    """
    rows = [row async for row in _rows(engine, plan, is_final=False)]
    for row in reversed(rows):
        yield await _of_run(engine, plan, row, moves=moves)


async def survey_threads(engine: Environment, plan: GraphPlan) -> AsyncIterator[Finding]:
    """Yield what becomes of each thread that no run is on and whose state is of another version."""
    seen: set[tuple[TenantId, ThreadId]] = set()
    busy = {(row.tenant, row.thread) async for row in _rows(engine, plan, is_final=False)}
    async for row in _rows(engine, plan, is_final=True):
        key = (row.tenant, row.thread)
        if key in seen or key in busy:
            continue
        seen.add(key)
        found = await _of_thread(engine, plan, row)
        if found is not None:
            yield found


async def _rows(engine: Environment, plan: GraphPlan, *, is_final: bool) -> AsyncIterator[RunRow]:
    statuses = tuple(status for status in RunStatus if status.is_final is is_final)
    before: RunId | None = None
    while True:
        query = RunQuery(graph=plan.name, statuses=statuses, before=before, limit=SCAN_PAGE)
        rows = await engine.store.find_runs(query)
        for row in rows:
            yield row
        if len(rows) < SCAN_PAGE:
            return
        before = rows[-1].run_id


async def _of_run(engine: Environment, plan: GraphPlan, row: RunRow, *, moves: bool) -> Finding:
    try:
        return await _fate_of_run(engine, plan, row, moves=moves)
    except (MigrationFailed, DecodeFailed, StoreCorrupt) as error:
        return _found(row, row.version, Fate.PARKS, reason=str(error))
    except (UsageError, LeaseLost):  # somebody took it up in between
        return _found(row, row.version, Fate.HELD, path=_path(plan, row.version))


async def _fate_of_run(
    engine: Environment, plan: GraphPlan, row: RunRow, *, moves: bool
) -> Finding:
    if row.version > plan.version:
        reason = f"it is of v{row.version}, which is newer than v{plan.version}; it is left alone"
        return _found(row, row.version, Fate.PARKS, reason=reason)
    if row.version == plan.version:
        loaded = await load_run(engine.store, row)
        adopted = plan_adoption(engine, plan, row, loaded)
        path = _path(plan, adopted.from_version) if adopted is not None else ""
        return _found(row, row.version, Fate.RESUMES, path=path)
    chain = chain_of(plan, row.version)
    if chain is None:
        reason = f"no migration leads from v{row.version} to v{plan.version}"
        return _found(row, row.version, Fate.PARKS, reason=reason)
    if moves and not is_executed(engine, row):
        await move_unheld(engine, row, plan)
        return _found(row, row.version, Fate.MIGRATED, path=shown(chain))
    loaded = await load_run(engine.store, row)
    reason = await rehearse(engine, row, plan, loaded, plan_move(engine, plan, row, loaded))
    if reason:
        return _found(row, row.version, Fate.PARKS, path=shown(chain), reason=reason)
    fate = Fate.HELD if is_executed(engine, row) else Fate.MIGRATES
    return _found(row, row.version, fate, path=shown(chain))


async def _of_thread(engine: Environment, plan: GraphPlan, row: RunRow) -> Finding | None:
    try:
        line = await load_thread_line(engine.store, row.tenant, row.thread)
        if line.graph != plan.name or line.version == plan.version:
            return None
        plan_adoption(engine, plan, _next_run(row, plan), _loaded(row, line))
    except (MigrationFailed, DecodeFailed, StoreCorrupt) as error:
        return _found(row, row.version, Fate.PARKS, reason=str(error), is_thread=True)
    path = _path(plan, line.version)
    fate = Fate.MIGRATES if path else Fate.RESUMES
    return _found(row, line.version, fate, path=path, is_thread=True)


def _next_run(row: RunRow, plan: GraphPlan) -> RunRow:
    """Return the row of the run that would go on with the thread: without input of its own."""
    return RunRow(
        run_id=row.run_id,
        tenant=row.tenant,
        thread=row.thread,
        ordinal=row.ordinal + 1,
        graph=plan.name,
        version=plan.version,
        status=RunStatus.PENDING,
    )


def _loaded(row: RunRow, line: Line) -> Loaded:
    state = fold.RunState(row.run_id)
    state.root.cells = line.cells
    return Loaded(state, NO_HASH, 0, line=(line.graph, line.version))


def _path(plan: GraphPlan, version: int) -> str:
    return shown(chain_of(plan, version) or ())


def _found(
    row: RunRow,
    version: int,
    fate: Fate,
    *,
    path: str = "",
    reason: str = "",
    is_thread: bool = False,
) -> Finding:
    return Finding(
        run_id=None if is_thread else row.run_id,
        tenant=row.tenant,
        thread=row.thread,
        version=version,
        fate=fate,
        path=path,
        reason=reason,
    )
