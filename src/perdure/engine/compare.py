"""Two points of threads compared: their states, steps, effects and decisions.

Theory: a point has a line of runs that lead to it, back through forks to where the first thread
began. What two lines have in common is left out without being read; they part at their last common
checkpoint. What each did after that is compared in order: steps by the nodes that ran, effects and
decisions by node and name, those with equal arguments first.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field

from perdure.core import fold
from perdure.engine.branches import fork_origin
from perdure.engine.edge import is_text
from perdure.engine.environment import Environment
from perdure.engine.limits import FORK_DEPTH_MAX
from perdure.engine.living import living_runs
from perdure.engine.loading import load_checkpoint, read_kept, read_records
from perdure.engine.patch import Edit, edits
from perdure.engine.points import checkpoint_at, split_point
from perdure.engine.story import Decision, EffectSeen, StepRun, node_name, tell
from perdure.engine.views import Checkpoint, is_pair, plain_values
from perdure.errors import HistoryPruned, NotFound, UsageError
from perdure.ids import RunId, TenantId, ThreadId
from perdure.model import RunRow
from perdure.model import records as rec


class Leg(Struct, frozen=True):
    """A run that leads to a point: all of it, or up to a checkpoint."""

    row: RunRow
    upto: int | None = None


class Place(Struct, frozen=True, kw_only=True):
    """A point of a thread.

    Attributes:
        checkpoint: None: the run has committed nothing.
        run_id: the run that wrote it.
    """

    thread: str
    checkpoint: int | None
    run_id: str


class Moment(Struct, kw_only=True):
    """A point of a thread with its state and what led to it.

    Attributes:
        state: JSON-like.
        next: nodes that came next; empty: the graph had ended.
        snapshot: sandbox snapshot that belongs to it.
        steps: from the beginning of the line (the thread's, or its origin's) or of the run.
        effects: the same, in the order of their first records.
        decisions: the same.
    """

    place: Place
    state: dict[str, Any]
    next: tuple[str, ...] = ()
    snapshot: str | None = None
    steps: list[StepRun] = field(default_factory=list)
    effects: list[EffectSeen] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)


class StepsCompared(Struct, frozen=True, kw_only=True):
    """Steps since the common checkpoint.

    Attributes:
        same: how many ran the same nodes on both sides before the first that did not.
        a: the others of the one side, oldest first.
        b: the others of the other.
    """

    same: int
    a: tuple[StepRun, ...]
    b: tuple[StepRun, ...]


class EffectsCompared(Struct, frozen=True, kw_only=True):
    """Effects since the common checkpoint.

    Attributes:
        same: how many are on both sides with the same arguments, state and result.
        only_a: those without a counterpart.
        only_b: the same.
        differing: pairs of one node and name whose arguments, state or result differ.
    """

    same: int
    only_a: tuple[EffectSeen, ...]
    only_b: tuple[EffectSeen, ...]
    differing: tuple[tuple[EffectSeen, EffectSeen], ...]


class DecisionsCompared(Struct, frozen=True, kw_only=True):
    """What people decided since the common checkpoint; fields as of `EffectsCompared`."""

    same: int
    only_a: tuple[Decision, ...]
    only_b: tuple[Decision, ...]
    differing: tuple[tuple[Decision, Decision], ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """What `Runtime.compare` returns.

    Attributes:
        parted: the last checkpoint that both lines have; None: they have none.
        edits: from the state at `a` to the state at `b`.
        steps, effects, decisions: since `parted`, or since the beginning of both.
    """

    a: Place
    b: Place
    parted: Place | None
    edits: tuple[Edit, ...]
    steps: StepsCompared
    effects: EffectsCompared
    decisions: DecisionsCompared

    @property
    def patch(self) -> list[dict[str, Any]]:
        """The edits as JSON Patch (RFC 6902): applied to the state at `a` they give that at `b`."""
        return [edit.to_json() for edit in self.edits]

    @property
    def is_same(self) -> bool:
        """Whether state, steps, effects and decisions are the same."""
        steps, effects, decisions = self.steps, self.effects, self.decisions
        several = (self.edits, steps.a, steps.b, effects.only_a, effects.only_b, effects.differing)
        return not any((*several, decisions.only_a, decisions.only_b, decisions.differing))


async def moment(
    engine: Environment, tenant: TenantId, at: Any, *, of_run: bool | None = None
) -> Moment:
    """Return a point with its state and all that led to it.

    Args:
        engine: whose store it is in.
        tenant: whose thread it is.
        at: a `Checkpoint`, a pair (thread, checkpoint id or None), a run id, or a text that is
            `thread`, `thread@checkpoint` or a run id.
        of_run: only what its run did; None: where `at` is a run.

    Raises:
        NotFound: no such thread, run or checkpoint.
    """
    point, is_run = await resolve(engine, tenant, at)
    legs = await _line(engine, point, only_run=is_run if of_run is None else of_run)
    found = await _state_at(engine, point)
    await _tell_all(engine, found, legs, None)
    return found


async def compare(engine: Environment, tenant: TenantId, a: Any, b: Any) -> Comparison:
    """Return how two points differ; see `Runtime.compare`."""
    (point_a, a_is_run), (point_b, b_is_run) = [await resolve(engine, tenant, at) for at in (a, b)]
    only_runs = a_is_run and b_is_run
    line_a, line_b = [
        await _line(engine, point, only_run=only_runs) for point in (point_a, point_b)
    ]
    left, right = await _state_at(engine, point_a), await _state_at(engine, point_b)
    shared, parted = _shared(line_a, line_b)
    await _tell_all(engine, left, line_a[shared:], parted)
    await _tell_all(engine, right, line_b[shared:], parted)
    return Comparison(
        a=left.place,
        b=right.place,
        parted=parted,
        edits=tuple(edits(left.state, right.state)),
        steps=_steps(left.steps, right.steps),
        effects=EffectsCompared(**_paired(left.effects, right.effects, _effect_words)),
        decisions=DecisionsCompared(**_paired(left.decisions, right.decisions, _decision_words)),
    )


# -- points ----------------------------------------------------------------------------------------


class Point(Struct, frozen=True):
    """A point that was found: its run, and its checkpoint (None: nothing is committed).

    `is_newest`: it is where its run stands, with what is not committed yet.
    """

    row: RunRow
    checkpoint: int | None
    is_newest: bool = False


async def resolve(engine: Environment, tenant: TenantId, at: Any) -> tuple[Point, bool]:
    """Return the point that somebody means, and whether it was named by a run.

    Raises:
        NotFound: there is none.
        UsageError: it names nothing of the kind.
    """
    if isinstance(at, Checkpoint):
        return await _point_of_thread(engine, tenant, at.thread, at.id), False
    if is_pair(at):
        return await _point_of_thread(engine, tenant, *at), False
    if not is_text(at):
        msg = (
            f"{at!r} is no Checkpoint, (thread, checkpoint id or tag), run id or text "
            "'thread@checkpoint' or 'thread@tag'; for plain checkpoint ids say whose they are: "
            "diff(3, 5, thread='t')"
        )
        raise UsageError(msg)
    row = await engine.store.read_run(RunId(at))
    if row is not None:
        return Point(row, await _newest_of_run(engine, row), is_newest=True), True
    thread, checkpoint = await split_point(engine, tenant, at)
    try:
        return await _point_of_thread(engine, tenant, thread, checkpoint), False
    except NotFound as error:
        if checkpoint is not None:
            raise
        msg = f"no run and no thread {at!r}; 'perdure ps --all' lists the runs and their threads"
        raise NotFound(msg, name=at) from error


async def _point_of_thread(
    engine: Environment, tenant: TenantId, thread: str, at: int | str | None
) -> Point:
    checkpoint = await checkpoint_at(engine, tenant, ThreadId(thread), at)
    found = await load_checkpoint(engine.store, tenant, ThreadId(thread), checkpoint)
    return Point(found.run, found.checkpoint, is_newest=checkpoint is None)


async def _newest_of_run(engine: Environment, row: RunRow) -> int | None:
    """Return a run's newest checkpoint by its journal: its row knows it at each release only."""
    found = None
    for _seq, _frame, record in await read_kept(engine.store, row.run_id):
        if isinstance(record, rec.StepCommitted) and record.scope == "":
            found = record.checkpoint
    return found


async def _state_at(engine: Environment, point: Point) -> Moment:
    row = point.row
    place = Place(thread=row.thread, checkpoint=point.checkpoint, run_id=row.run_id)
    if point.checkpoint is None:
        return Moment(place=place, state={})
    found = await load_checkpoint(engine.store, row.tenant, row.thread, point.checkpoint)
    return Moment(
        place=place,
        state=plain_values(found.cells, found.run, found.checkpoint),
        next=tuple(spec.node for spec in found.next),
        snapshot=found.snapshot,
    )


async def _line(engine: Environment, point: Point, *, only_run: bool) -> list[Leg]:
    """Return the runs that lead to a point, oldest first.

    `only_run`: of each thread only the run that the point (or the fork) is in.
    """
    legs: list[Leg] = []
    row, upto = point.row, None if point.is_newest else point.checkpoint
    for _depth in range(FORK_DEPTH_MAX):
        rows = await living_runs(engine.store, row.tenant, row.thread)
        before = [] if only_run else [Leg(each) for each in rows if each.ordinal < row.ordinal]
        legs = [*before, Leg(row, upto), *legs]
        started = await started_of(engine, row if only_run else rows[0])
        if started.origin_thread is None or started.origin_checkpoint is None:
            break
        origin = ThreadId(started.origin_thread)
        try:
            at = await load_checkpoint(engine.store, row.tenant, origin, started.origin_checkpoint)
        except (NotFound, HistoryPruned):
            break  # the origin is not there any more
        row, upto = at.run, at.checkpoint
    return legs


async def started_of(engine: Environment, row: RunRow) -> rec.RunStarted:
    """Return a run's start record; of one that was pruned what its row says of it."""
    try:
        [(_seq, _frame, record), *_rest] = await read_records(engine.store, row.run_id, limit=1)
    except HistoryPruned:
        return _started_by(row)
    if not isinstance(record, rec.RunStarted):
        msg = f"the journal of run {row.run_id!r} does not begin with a start record"
        raise NotFound(msg, run_id=row.run_id)
    return record


def _started_by(row: RunRow) -> rec.RunStarted:
    """Return a start record by a row alone: no input; the origin, where it is a fork."""
    origin = fork_origin(row)
    return rec.RunStarted(
        row.created_at_us,
        row.run_id,
        row.tenant,
        row.thread,
        row.graph,
        row.version,
        {},
        origin_thread=None if origin is None else origin[1],
        origin_checkpoint=None if origin is None else origin[0],
    )


def _shared(a: list[Leg], b: list[Leg]) -> tuple[int, Place | None]:
    """Return how many legs to leave out, and the last checkpoint that both lines have."""
    count = 0
    parted: Place | None = None
    for one, other in zip(a, b, strict=False):
        if one.row.run_id != other.row.run_id:
            break
        ends = [leg.upto for leg in (one, other) if leg.upto is not None]
        parted = Place(
            thread=one.row.thread,
            checkpoint=min(ends, default=one.row.checkpoint),
            run_id=one.row.run_id,
        )
        if one.upto != other.upto:
            break
        count += 1
    return count, parted


async def _tell_all(
    engine: Environment, found: Moment, legs: list[Leg], parted: Place | None
) -> None:
    """Add what the legs did; of the run where they parted only what came after that."""
    for leg in legs:
        is_parted = parted is not None and parted.run_id == leg.row.run_id
        after = parted.checkpoint if parted is not None and is_parted else None
        story = await tell(engine, leg.row, after=after, upto=leg.upto)
        found.steps += story.steps
        found.effects += story.effects.values()
        found.decisions += story.decisions


# -- pairs -----------------------------------------------------------------------------------------


def _steps(a: list[StepRun], b: list[StepRun]) -> StepsCompared:
    """Compare steps; those that only took an input in are left out."""
    left, right = ([step for step in steps if step.step != fold.INPUT_STEP] for steps in (a, b))
    same = 0
    for one, other in zip(left, right, strict=False):
        if ran(one) != ran(other):
            break
        same += 1
    return StepsCompared(same=same, a=tuple(left[same:]), b=tuple(right[same:]))


def ran(step: StepRun) -> tuple[Any, ...]:
    """Return the names of the nodes that ran in a step, those inside subgraphs with them."""
    return tuple((n.node, n.index, tuple(ran(inner) for inner in n.steps)) for n in step.nodes)


def _effect_words(effect: EffectSeen) -> tuple[Any, ...]:
    """Return what an effect is found by, what it was asked with, and what became of it."""
    about = (node_name(effect.node), effect.name)
    return about, (effect.args, effect.kwargs), (effect.state, effect.result)


def _decision_words(decision: Decision) -> tuple[Any, ...]:
    about = (node_name(decision.node), decision.about)
    return about, decision.kind, (decision.value, decision.by)


def _paired(
    a: Iterable[Any], b: Iterable[Any], words: Callable[[Any], tuple[Any, ...]]
) -> dict[str, Any]:
    """Pair what is on both sides, in order: first what is equal, then what is asked alike."""
    left, right = list(a), list(b)
    same = _take_pairs(left, right, words)
    asked = _take_pairs(left, right, lambda each: words(each)[:2])
    named = _take_pairs(left, right, lambda each: words(each)[:1])
    return {
        "same": len(same),
        "only_a": tuple(left),
        "only_b": tuple(right),
        "differing": tuple(asked + named),
    }


def _take_pairs(
    left: list[Any], right: list[Any], key: Callable[[Any], Any]
) -> list[tuple[Any, Any]]:
    """Take pairs with equal keys out of both lists, in order."""
    waiting: dict[str, list[Any]] = {}
    for each in right:
        waiting.setdefault(_text(key(each)), []).append(each)
    pairs, rest = [], []
    for each in left:
        found = waiting.get(_text(key(each)))
        if found:
            pairs.append((each, found.pop(0)))
        else:
            rest.append(each)
    taken = {id(other) for _each, other in pairs}
    left[:] = rest
    right[:] = [each for each in right if id(each) not in taken]
    return pairs


def _text(key: Any) -> str:
    """Return a text that is equal for equal keys, whatever the order of their maps."""
    return json.dumps(key, sort_keys=True, default=str)
