"""Runs whose graph version nobody executes: shown, taken up again, moved, cancelled.

Theory: a run is pinned to the version of its graph that it was started with. When it is due, no
live worker executes that version, and for longer than `VERSION_GRACE_S` live workers execute
another one, then waiting is no answer any more: the run is parked with the failure
`VersionMismatch`, which names the three ways out. A worker of the old version takes such runs up
again by itself; a person moves one to another version, or cancels it.

Every write goes through `Store.take` with the token that was seen, so that whoever comes first, a
worker of the version that is back or the one that parks, has the run, and the other has nothing.
"""

import logging
from collections.abc import Iterable

from perdure.codec import encode_record
from perdure.core import fold
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.limits import UNSERVED_MAX, VERSION_GRACE_S
from perdure.engine.loading import load_run
from perdure.engine.outlook import command, served_graphs, served_shapes, version_commands
from perdure.engine.queue import RunJournal
from perdure.errors import NotFound, RunFinal, UsageError, VersionMismatch
from perdure.ids import RunId, WorkerId
from perdure.model import (
    Change,
    Failure,
    GraphShape,
    Mail,
    MailKind,
    RunReleased,
    RunRow,
    RunStatus,
)
from perdure.model import records as rec
from perdure.store.api import RunQuery

log = logging.getLogger("perdure")

MISMATCH = VersionMismatch.__name__
"""Type of the failure of a run that is parked because nobody executes its version."""

Graph = tuple[str, int]


def shape_of(plan: GraphPlan) -> GraphShape:
    """Return what a run that stands in the graph needs of it."""
    return GraphShape(
        plan.name, plan.version, tuple(sorted(_nodes(plan))), tuple(sorted(plan.channels))
    )


def _nodes(plan: GraphPlan, prefix: str = "") -> Iterable[str]:
    for name, node in plan.nodes.items():
        yield prefix + name
        if node.subgraph is not None:
            yield from _nodes(node.subgraph, f"{prefix}{name}/")


def misfits(shape: GraphShape, state: fold.RunState) -> list[str]:
    """Return why a run can't go on in a graph of this shape; empty: nothing speaks against it.

    Looked at are the node executions of the step under way and the fields that have a value. Edits
    that keep those, and the effects that a node calls, are compatible.
    """
    nodes, fields = set(shape.nodes), set(shape.fields)
    paths = {
        "/".join(part.partition(":")[2].partition("#")[0] for part in path.split("/"))
        for scope in state.scopes.values()
        for path in scope.tasks
    }
    given = state.started.input if state.started is not None else {}
    stored = set(state.root.cells) | (set() if state.root.is_started else set(given))
    return [
        *(f"node {path!r} is under way and does not exist there" for path in sorted(paths - nodes)),
        *(
            f"field {name!r} has a value and does not exist there"
            for name in sorted(stored - fields)
        ),
    ]


# -- parking ---------------------------------------------------------------------------------------


def mismatch_of(row: RunRow, versions: Iterable[int]) -> Failure:
    """Return the failure of a run whose version nobody executes, with what to type."""
    there = sorted(versions)
    ways = version_commands(row, there)
    named = ", ".join(f"v{version}" for version in there)
    message = (
        f"no live worker executes {row.graph} v{row.version}, which the run is pinned to; live "
        f"workers execute {named}. Start a worker with v{row.version}, which takes the run up by "
        f"itself ({ways[0]}), or let it go on with another version ({ways[1]}), or cancel it "
        f"({ways[-1]})"
    )
    return Failure(type=MISMATCH, message=message)


async def write_released(
    engine: Environment, row: RunRow, records: Iterable[rec.Record], change: Change
) -> None:
    """Append records to a run that was taken, and let it go, in one commit with the taking.

    Raises:
        StoreError, LeaseLost: nothing was written; the lease ends by itself.
    """
    frames = await engine.store.read_frames(row.run_id, from_seq=row.last_seq)
    journal = RunJournal(engine.queue, row, frames[-1].hash)
    taken = rec.LeaseTaken(engine.now_us(), row.holder or "", row.token, row.claims)
    *before, last = records
    for record in (taken, *before):
        journal.add_encoded(encode_record(record), ())
    journal.add(last, change)
    await journal.barrier()


async def take(engine: Environment, row: RunRow, holder: str) -> RunRow | None:
    """Take a run as it was seen; None: somebody else was first."""
    return await engine.store.take(
        row.run_id,
        WorkerId(holder),
        token=row.token,
        now_us=engine.now_us(),
        lease_until_us=engine.lease_until_us(),
    )


async def _park(engine: Environment, row: RunRow, failure: Failure) -> bool:
    """Park a due run; return whether it was this worker that did."""
    mail = await engine.store.read_mail(row.run_id)
    taken = await take(engine, row, engine.worker_id)
    if taken is None:
        return False
    change = RunReleased(
        status=RunStatus.NEEDS_DECISION,
        failure=failure,
        checkpoint=row.checkpoint,
        # What was there must not wake it again and again; what comes later does.
        mail_seen=max((each.mail_id for each in mail), default=0),
    )
    record = rec.Released(engine.now_us(), "needs_decision", (), failure)
    await write_released(engine, taken, [record], change)
    engine.on_released(taken, RunStatus.NEEDS_DECISION, failure)
    return True


class VersionWatch:
    """What one worker does about due runs of versions that no live worker executes."""

    def __init__(self, engine: Environment) -> None:
        """Have seen nothing yet."""
        self._engine = engine
        self._since: dict[Graph, float] = {}
        self._warned: set[Graph] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a grace is running."""
        return bool(self._since)

    async def look(self) -> list[tuple[RunRow, GraphPlan]]:
        """Park what has waited long enough; return the runs to cancel here, with a plan each.

        The runs returned were taken: the caller holds them.
        """
        engine = self._engine
        served = await served_graphs(engine) | set(engine.graphs())
        await self._wake_own()
        query = RunQuery(
            due_us=engine.now_us(), except_graphs=tuple(sorted(served)), limit=UNSERVED_MAX
        )
        rows = await engine.store.find_runs(query)
        lacking = {(row.graph, row.version) for row in rows}
        self._since = {graph: at for graph, at in self._since.items() if graph in lacking}
        found = [await self._look_at(row, served) for row in rows]
        return [each for each in found if each is not None]

    async def _look_at(self, row: RunRow, served: set[Graph]) -> tuple[RunRow, GraphPlan] | None:
        self._warn(row)
        versions = [version for name, version in served if name == row.graph]
        if not versions:
            self._since.pop((row.graph, row.version), None)
            return None
        now_s = self._engine.services.clock.monotonic_s()
        since_s = self._since.setdefault((row.graph, row.version), now_s)
        was_parked = row.failure is not None and row.failure.type == MISMATCH
        if not was_parked and now_s - since_s < VERSION_GRACE_S:
            return None
        mail = await self._engine.store.read_mail(row.run_id)
        if any(each.kind is MailKind.CANCEL for each in mail):
            return await self._to_cancel(row)
        if await _park(self._engine, row, mismatch_of(row, versions)):
            log.warning("run %s parked: no live worker executes its version", row.run_id)
        return None

    async def _to_cancel(self, row: RunRow) -> tuple[RunRow, GraphPlan] | None:
        """Take a run that is to be cancelled, if this worker executes its graph in any version."""
        try:
            plan = self._engine.plan_named(row.graph)
        except NotFound:
            return None
        taken = await take(self._engine, row, self._engine.worker_id)
        return None if taken is None else (taken, plan)

    def _warn(self, row: RunRow) -> None:
        """Say once for each graph version that nobody executes it."""
        if (row.graph, row.version) not in self._warned:
            self._warned.add((row.graph, row.version))
            log.warning(
                "run %s is due, and no worker executes its graph %s v%d: start one with that "
                "version ('perdure doctor' lists all such runs)",
                row.run_id,
                row.graph,
                row.version,
            )

    async def _wake_own(self) -> None:
        """Take up again what was parked while nobody executed a version that this worker does."""
        engine = self._engine
        own = set(engine.graphs())
        for name in {name for name, _version in own}:
            query = RunQuery(graph=name, statuses=(RunStatus.NEEDS_DECISION,), limit=UNSERVED_MAX)
            for row in await engine.store.find_runs(query):
                is_parked = row.failure is not None and row.failure.type == MISMATCH
                if (name, row.version) in own and is_parked and row.ready_at_us is None:
                    await engine.store.post(_retry(engine, row))


def _retry(engine: Environment, row: RunRow) -> Mail:
    return Mail(
        run_id=row.run_id,
        kind=MailKind.RETRY,
        body_wire=engine.codec.encode(None),
        sender=f"worker {engine.worker_id}, which executes v{row.version}",
        at_us=engine.now_us(),
        post_id=f"back:{row.token}",  # of several workers that are back, one is enough
    )


# -- moving ----------------------------------------------------------------------------------------


async def move_run(engine: Environment, run_id: str, version: int, by: str) -> None:
    """Let an unheld run go on with another version of its graph; see `Runtime.resolve_version`."""
    row = await engine.store.read_run(RunId(run_id))
    if row is None:
        msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
        raise NotFound(msg, run_id=run_id)
    shape = await _target_shape(engine, row, version)
    loaded = await load_run(engine.store, row)
    problems = misfits(shape, loaded.state)
    if problems:
        msg = (
            f"run {run_id!r} can't go on with {row.graph} v{version}: {'; '.join(problems)}; "
            f"nothing was changed. Start a worker with v{row.version}, or give v{version} what is "
            "missing"
        )
        raise VersionMismatch(msg, run_id=run_id, version=version, problems=problems)
    taken = await take(engine, row, engine.services.ids.new("w", engine.now_us()))
    if taken is None:
        raise _is_executed(row)
    now_us = engine.now_us()
    records: list[rec.Record] = [
        rec.VersionMoved(now_us, by, row.version, version),
        rec.Released(now_us, "version_moved", ()),
    ]
    change = RunReleased(
        status=RunStatus.PENDING,
        ready_at_us=now_us,
        checkpoint=row.checkpoint,
        version=version,
    )
    await write_released(engine, taken, records, change)
    engine.poke()


async def _target_shape(engine: Environment, row: RunRow, version: int) -> GraphShape:
    """Return the shape of the graph to go on with, after what can be said without the journal."""
    run_id = row.run_id
    if row.status.is_final:
        msg = f"run {run_id!r} has ended ({row.status.value}); nothing was changed"
        raise RunFinal(msg, run_id=run_id, status=row.status.value)
    if row.version == version:
        msg = f"run {run_id!r} is pinned to {row.graph} v{version} already; nothing was changed"
        raise UsageError(msg, run_id=run_id)
    is_held = row.status is RunStatus.RUNNING and (row.ready_at_us or 0) > engine.now_us()
    if is_held or (row.status is RunStatus.PENDING and row.ready_at_us is None):
        raise _is_executed(row)
    own = [graph for graph in engine.graphs() if graph == (row.graph, version)]
    if own:
        return shape_of(engine.plan_named(row.graph, version))
    found = (await served_shapes(engine)).get((row.graph, version))
    if found is None:
        msg = (
            f"no live worker executes {row.graph} v{version}, so nobody can say whether run "
            f"{run_id!r} fits; nothing was changed. Start one first: perdure worker FILE:GRAPH"
        )
        raise UsageError(msg, run_id=run_id, version=version)
    return found


def _is_executed(row: RunRow) -> UsageError:
    what = f"held by {row.holder}" if row.holder else "queued, or was just taken"
    msg = (
        f"run {row.run_id!r} is {what}; nothing was changed. Only a run that nobody executes can "
        f"be moved to another version: perdure show {row.run_id}"
    )
    return UsageError(msg, run_id=row.run_id)


def is_mismatched(row: RunRow) -> bool:
    """Return whether a run is parked because nobody executes its version."""
    is_parked = row.status is RunStatus.NEEDS_DECISION and row.failure is not None
    return is_parked and row.failure is not None and row.failure.type == MISMATCH


async def ways_out(engine: Environment, row: RunRow) -> tuple[str, ...]:
    """Return the commands that let a parked run go on."""
    if not is_mismatched(row):
        return (command("resolve", row.run_id, "--retry", "--by", "NAME"),)
    served = await served_graphs(engine)
    return version_commands(row, [version for name, version in served if name == row.graph])


def shapes_of(engine: Environment) -> tuple[GraphShape, ...]:
    """Return the shapes of every graph that this process knows."""
    return tuple(shape_of(engine.plan_named(*graph)) for graph in engine.graphs())
