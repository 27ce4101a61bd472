"""What an unfinished run needs before it gets further, and the commands that give it.

Theory: a run moves by itself (somebody executes it, or may), at a time (a timer, a retry), or only
when somebody acts (an answer, a signal, a decision). A run that waits for another one (a child, the
run before it on the thread) is where that one is.
"""

import datetime as dt
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.core.room import Kept, Room
from perdure.engine.environment import Environment
from perdure.engine.limits import OUTLOOK_DEPTH_MAX, ROWS_MAX, WORKER_SILENT_S
from perdure.engine.waits import as_datetime
from perdure.ids import WorkerId
from perdure.model import GraphShape, RunRow, RunStatus, Wait, WaitKind, WorkerRow
from perdure.store.api import RunQuery


class Standing(StrEnum):
    """How a run gets further."""

    FINAL = "final"
    MOVING = "moving"
    TIMED = "timed"
    BLOCKED = "blocked"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One thing that only somebody outside can give.

    Attributes:
        run_id: the run that needs it: the run itself, a child, or the run before it on the thread.
        wait: what it waits for; None: that run is parked.
        reason: why it is parked.
    """

    run_id: str
    wait: Wait | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Where a run stands.

    Attributes:
        until: when it goes on by itself, for TIMED (and for BLOCKED where the wait expires).
        blockers: what it needs, for BLOCKED and PARKED.
        kept: which limit keeps it back, in words, for a MOVING run that could be claimed; empty:
            none.
    """

    standing: Standing
    until: dt.datetime | None = None
    blockers: tuple[Blocker, ...] = ()
    kept: str = ""


async def outlook_of(engine: Environment, row: RunRow, depth: int = 0) -> Outlook:
    """Return where a run stands; follows children and the thread's queue."""
    if row.status.is_final:
        return Outlook(standing=Standing.FINAL)
    is_claimable = row.ready_at_us is not None and row.ready_at_us <= engine.now_us()
    if row.status is RunStatus.NEEDS_DECISION and not is_claimable:
        return _parked(row)
    if row.status is RunStatus.RUNNING or depth > OUTLOOK_DEPTH_MAX:
        return Outlook(standing=Standing.MOVING)
    if is_claimable:
        kept = kept_back(row, await room_of(engine))
        return Outlook(standing=Standing.MOVING, kept="" if kept is None else describe_kept(kept))
    found = [await _of_wait(engine, row, wait, depth) for wait in row.waits]
    if not found and row.ready_at_us is not None:
        found = [Outlook(standing=Standing.TIMED, until=as_datetime(row.ready_at_us))]
    return _joined(found)


async def room_of(engine: Environment) -> Room:
    """Return what the limits over all workers leave now."""
    return Room(await engine.store.read_limits(), engine.now_us())


def kept_back(row: RunRow, room: Room) -> Kept | None:
    """Return which limit keeps a run that could be claimed back; None: none."""
    if row.status.is_final or row.status is RunStatus.RUNNING:
        return None
    return room.keeps(row.tenant, row.graph, is_first=row.token == 0)


def describe_kept(kept: Kept) -> str:
    """Return in words which limit keeps a run back, and how full it is."""
    limit = kept.limit
    tenant = f"tenant {kept.tenant!r}" if kept.tenant else ""
    graph = f"graph {limit.graph!r}" if limit.graph else ""
    scope = " and ".join(each for each in (tenant, graph) if each) or "everything"
    if kept.next_at_us is None:
        how = f"{kept.running} of {limit.concurrency} running"
    else:
        per_s = limit.period_us / 1_000_000
        at = as_datetime(kept.next_at_us).isoformat(timespec="seconds")
        how = f"{limit.rate} begun per {per_s:g} s, the next at {at}"
    return f"kept back by the limit of {scope}: {how}"


def _parked(row: RunRow) -> Outlook:
    reason = f"{row.failure.type}: {row.failure.message}" if row.failure is not None else ""
    blocker = Blocker(run_id=row.run_id, wait=None, reason=reason)
    return Outlook(standing=Standing.PARKED, blockers=(blocker,))


async def _of_wait(engine: Environment, row: RunRow, wait: Wait, depth: int) -> Outlook:
    until = None if wait.due_us is None else as_datetime(wait.due_us)
    if wait.kind is WaitKind.TIMER:
        return Outlook(standing=Standing.TIMED, until=until)
    if wait.kind is WaitKind.CHILD:
        child = await engine.store.read_run(wait.subject)  # type: ignore[arg-type]  # a child wait names a run
        return await _of_other(engine, child, depth)
    if wait.kind is WaitKind.THREAD:
        return await _of_other(engine, await run_before(engine, row), depth)
    return Outlook(
        standing=Standing.BLOCKED, until=until, blockers=(Blocker(run_id=row.run_id, wait=wait),)
    )


async def _of_other(engine: Environment, other: RunRow | None, depth: int) -> Outlook:
    if other is None or other.status.is_final:
        return Outlook(standing=Standing.MOVING)
    found = await outlook_of(engine, other, depth + 1)
    if found.standing is Standing.PARKED:
        return Outlook(standing=Standing.BLOCKED, blockers=found.blockers)
    return found


def _joined(found: Sequence[Outlook]) -> Outlook:
    """Return the most hopeful of several waits: one that ends is enough to get further."""
    by_standing: dict[Standing, list[Outlook]] = {}
    for each in found:
        by_standing.setdefault(each.standing, []).append(each)
    if Standing.MOVING in by_standing or not found:
        return Outlook(standing=Standing.MOVING)
    blockers = tuple(blocker for each in found for blocker in each.blockers)
    times = [each.until for each in found if each.until is not None]
    standing = Standing.TIMED if Standing.TIMED in by_standing else Standing.BLOCKED
    return Outlook(standing=standing, until=min(times) if times else None, blockers=blockers)


async def run_before(engine: Environment, row: RunRow) -> RunRow | None:
    """Return the unfinished run of the thread that this queued one stands behind, or None."""
    query = RunQuery(
        tenant=row.tenant,
        thread=row.thread,
        statuses=tuple(status for status in RunStatus if not status.is_final),
        limit=1000,
    )
    earlier = [
        other for other in await engine.store.find_runs(query) if other.ordinal < row.ordinal
    ]
    return max(earlier, key=lambda other: other.ordinal, default=None)


# -- workers ---------------------------------------------------------------------------------------


def is_silent(engine: Environment, worker: WorkerRow) -> bool:
    """Return whether a worker was not seen for so long that nobody should count on it."""
    return engine.now_us() - worker.seen_at_us > WORKER_SILENT_S * 1_000_000


def worker_state(engine: Environment, worker: WorkerRow) -> str:
    """Return whether a worker is `live`, `draining`, or `silent` (dead or cut off)."""
    if is_silent(engine, worker):
        return "silent"
    return "draining" if worker.is_draining else "live"


async def held_runs(engine: Environment, worker_id: WorkerId) -> int:
    """Return how many runs a worker holds; more than `ROWS_MAX` are not counted."""
    query = RunQuery(statuses=(RunStatus.RUNNING,), holder=worker_id, limit=ROWS_MAX)
    return len(await engine.store.find_runs(query))


async def served_graphs(engine: Environment) -> set[tuple[str, int]]:
    """Return the graph versions that some live worker executes."""
    return {
        graph
        for worker in await engine.store.find_workers()
        if not is_silent(engine, worker)
        for graph in worker.graphs
    }


async def moved_graphs(engine: Environment) -> set[tuple[str, int]]:
    """Return the graph versions that some live worker has migrations from."""
    shapes = (await served_shapes(engine)).values()
    return {(shape.name, version) for shape in shapes for version in shape.migrates}


async def natively_served(engine: Environment, *, by_others_than: str) -> set[tuple[str, int]]:
    """Return the graph versions that some live worker executes that claims runs."""
    return {
        graph
        for worker in await engine.store.find_workers()
        if not is_silent(engine, worker)
        and not worker.is_draining
        and worker.worker_id != by_others_than
        for graph in worker.graphs
    }


async def served_shapes(engine: Environment) -> dict[tuple[str, int], GraphShape]:
    """Return the shapes of the graph versions that some live worker executes."""
    return {
        (shape.name, shape.version): shape
        for worker in await engine.store.find_workers()
        if not is_silent(engine, worker) and not worker.is_draining
        for shape in worker.shapes
    }


def is_due(engine: Environment, row: RunRow) -> bool:
    """Return whether any worker of its graph may take the run up now."""
    return (
        not row.status.is_final
        and row.ready_at_us is not None
        and row.ready_at_us <= engine.now_us()
    )


# -- commands --------------------------------------------------------------------------------------


def command(*parts: str) -> str:
    """Return a `perdure` command as one would type it."""
    return shlex.join(["perdure", *parts])


def worker_command(graph: str, version: int) -> str:
    """Return the command that executes a graph version; its file is to be filled in."""
    return f"{command('worker', 'FILE:GRAPH')}  # {graph} v{version}"


def approve_command(ask_id: str, schema: dict[str, Any] | None) -> str:
    """Return the command that answers an ask, with an answer of the shape that it wants."""
    answer = example_of(schema, schema or {})
    given = ["--yes"] if answer is True else ["--value", json.dumps(answer)]
    return command("approve", ask_id, *given, "--by", "NAME")


def version_commands(row: RunRow, versions: Sequence[int]) -> tuple[str, ...]:
    """Return the commands for a run whose version nobody executes, while these are executed."""
    moves = (
        command("resolve", row.run_id, "--to-version", str(version), "--by", "NAME")
        for version in sorted(versions, reverse=True)
    )
    return (worker_command(row.graph, row.version), *moves, command("cancel", row.run_id))


def resolve_commands(effect_id: str) -> tuple[str, ...]:
    """Return the commands that decide an uncertain effect."""
    return (
        command("resolve", effect_id, "--happened", "--result", "JSON", "--by", "NAME"),
        command("resolve", effect_id, "--not-happened", "--by", "NAME"),
    )


def example_of(schema: dict[str, Any] | None, root: dict[str, Any], depth: int = 0) -> Any:
    """Return an example of what a JSON Schema describes; True where it says nothing."""
    if schema is None or depth > OUTLOOK_DEPTH_MAX:
        return True
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return example_of(root.get("$defs", {}).get(name), root, depth + 1)
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return example_of(schema[choice][0], root, depth + 1)
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return {
            name: example_of(fields.get(name), root, depth + 1)
            for name in schema.get("required", fields)
        }
    if schema.get("type") == "array":
        return [example_of(schema.get("items"), root, depth + 1)]
    return _PLAIN.get(str(schema.get("type")), True)


_PLAIN: dict[str, Any] = {"string": "TEXT", "integer": 0, "number": 0.0, "null": None}
