"""Runs whose graph version nobody executes: shown, taken up again, moved, cancelled.

Theory: a run is pinned to the version of its graph that it was started with. When it is due and no
live worker executes that version, a worker of a newer one that has migrations from it (it says so
in its row) claims the run and moves it; a worker that drains does not count. While an old worker
lives, the new ones leave its runs alone, so that a deploy can be tried on some workers, and taken
back.

Where no migration leads from the version, and for longer than `VERSION_GRACE_S` live workers
execute another one, waiting is no answer any more: the run is parked with the failure
`VersionMismatch`, which names the three ways out. A worker of the old version takes such runs up
again by itself; one with a migration moves them; a person moves one to another version, or cancels
it. A run whose migration fails is parked with the failure `MigrationFailed`.

Every write goes through `Store.take` with the token that was seen, so that whoever comes first, a
worker of the version that is back or the one that parks, has the run, and the other has nothing.
"""

import logging
from collections.abc import Iterable

from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.limits import UNSERVED_MAX, VERSION_GRACE_S
from perdure.engine.migrations import FAILED, THREAD_NEWER, failure_of_move
from perdure.engine.moving import MISMATCH, move_unheld, take, write_parked
from perdure.engine.outlook import (
    command,
    moved_graphs,
    served_graphs,
    version_commands,
    worker_command,
)
from perdure.errors import (
    DecodeFailed,
    LeaseLost,
    MigrationFailed,
    NotFound,
    StoreCorrupt,
    UsageError,
)
from perdure.model import Failure, Mail, MailKind, RunRow, RunStatus
from perdure.store.api import RunQuery

log = logging.getLogger("perdure")

Graph = tuple[str, int]


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


async def _park(engine: Environment, row: RunRow, failure: Failure) -> bool:
    """Park a due run; return whether it was this worker that did."""
    mail = await engine.store.read_mail(row.run_id)
    taken = await take(engine, row, engine.worker_id)
    if taken is None:
        return False
    await write_parked(engine, taken, failure, mail)
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
        served = await served_graphs(engine) | set(engine.graphs()) | await moved_graphs(engine)
        await self._wake_own()
        await self._move_parked()
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
                if (name, row.version) in own and is_mismatched(row) and row.ready_at_us is None:
                    await engine.store.post(_retry(engine, row))

    async def _move_parked(self) -> None:
        """Move what was parked for its version, where migrations lead from it to one known here."""
        engine = self._engine
        for name in {name for name, _version in engine.migratable()}:
            query = RunQuery(graph=name, statuses=(RunStatus.NEEDS_DECISION,), limit=UNSERVED_MAX)
            for row in await engine.store.find_runs(query):
                plan = engine.migrating_plan(name, row.version)
                is_parked = row.failure is not None and row.failure.type in {MISMATCH, THREAD_NEWER}
                if plan is not None and is_parked and row.ready_at_us is None:
                    await self._move_one(row, plan)

    async def _move_one(self, row: RunRow, plan: GraphPlan) -> None:
        try:
            await move_unheld(self._engine, row, plan)
        except MigrationFailed as error:
            await _park(self._engine, row, failure_of_move(error, row, plan))
        except (LeaseLost, UsageError) as error:
            log.info("run %s was not moved: %s", row.run_id, error)  # somebody else was first
        except (StoreCorrupt, DecodeFailed) as error:
            log.warning("run %s can't be read: %s", row.run_id, error)


def _retry(engine: Environment, row: RunRow) -> Mail:
    return Mail(
        run_id=row.run_id,
        kind=MailKind.RETRY,
        body_wire=engine.codec.encode(None),
        sender=f"worker {engine.worker_id}, which executes v{row.version}",
        at_us=engine.now_us(),
        post_id=f"back:{row.token}",  # of several workers that are back, one is enough
    )


def is_mismatched(row: RunRow) -> bool:
    """Return whether a run is parked because nobody executes its version."""
    is_parked = row.status is RunStatus.NEEDS_DECISION and row.failure is not None
    return is_parked and row.failure is not None and row.failure.type == MISMATCH


async def ways_out(engine: Environment, row: RunRow) -> tuple[str, ...]:
    """Return the commands that let a parked run go on."""
    retry = command("resolve", row.run_id, "--retry", "--by", "NAME")
    kind = row.failure.type if row.failure is not None else ""
    if kind == FAILED:
        dry_run = f"{command('migrate', 'FILE:GRAPH', '--dry-run')}  # the mended one"
        return dry_run, retry, worker_command(row.graph, row.version), command("cancel", row.run_id)
    if kind == THREAD_NEWER:
        return command("migrate", "FILE:GRAPH"), command("cancel", row.run_id)
    if not is_mismatched(row):
        return (retry,)
    served = await served_graphs(engine)
    return version_commands(row, [version for name, version in served if name == row.graph])
