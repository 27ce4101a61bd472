"""Bring what a run stored to another version of its graph: what is written for it, and by whom.

Theory: a run is moved in one commit, while nobody executes it: a `VersionMoved` record, the whole
state as the newer version has it (`StateSnapshot`; of a run that has not begun it is its input),
and the release with the new version. Before that commit the run is as it was, after it nothing is
ever migrated again. Functions of users are called before, on decoded copies; whatever goes wrong
with them is a `MigrationFailed` with nothing written.

A node execution of which something is recorded keeps its path under its new name: identities of
effects, questions and timers are made of the path, so what was confirmed is found and not sent
again. `core.fold` has that rule.

Size: one move of one loaded run: its fields, nodes, updates and subgraphs must fit each other.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw, Struct

from perdure.codec import OldTypes, ValueCodec, unbuilt_types
from perdure.core import fold
from perdure.core import migration as core
from perdure.core.merge import merge
from perdure.core.migration import Chain
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.limits import ERROR_CHARS_MAX
from perdure.engine.loading import Loaded, decode_cells
from perdure.errors import DecodeFailed, MigrationFailed, PerdureError, ValueUnserializable
from perdure.model import Failure, RunRow, WriteOp
from perdure.model import records as rec

MIGRATION = "migration"
"""What a `VersionMoved` record names as its way, and by default as who moved the run."""

FAILED = MigrationFailed.__name__
"""Type of the failure of a run that is parked because a migration of it failed."""

THREAD_NEWER = "ThreadNewer"
"""The same because newer code wrote the state of its thread. No class has it."""

Encoded = dict[str, tuple[str, Raw]]


class Move(Struct, frozen=True, kw_only=True):
    """What is written to move a run.

    Attributes:
        versions: those that it passes, both ends too.
        moved: the record.
        snapshot: the state, of a run that has begun.
        is_base: whether loading may start at the snapshot: nothing of the step under way comes
            before it.
    """

    versions: tuple[int, ...]
    moved: rec.VersionMoved
    snapshot: rec.StateSnapshot | None
    is_base: bool


def plan_move(
    engine: Environment, plan: GraphPlan, row: RunRow, loaded: Loaded, *, by: str = MIGRATION
) -> Move:
    """Return what moves a loaded run to the plan's version; writes nothing.

    Raises:
        MigrationFailed: it can't be moved; says why.
        DecodeFailed: what is stored can't be read at all.
    """
    chain = core.chain_of(plan, row.version)
    if not chain:
        msg = f"no migration leads from {row.graph} v{row.version} to v{plan.version}"
        raise MigrationFailed(msg)
    return _Mover(engine, plan, chain, row, loaded).move(by)


def plan_adoption(
    engine: Environment, plan: GraphPlan, row: RunRow, loaded: Loaded
) -> rec.VersionMoved | None:
    """Return what brings the older state of its thread to a run that has not begun; None: nothing.

    Raises:
        MigrationFailed: it can't be brought, or is newer than the run.
        DecodeFailed: what is stored can't be read at all.
    """
    graph, version = loaded.line
    state = loaded.state
    if graph != row.graph or state.root.is_started or state.is_input_whole:
        return None
    if version > plan.version:
        raise MigrationFailed(_newer(row, version, plan), thread=row.thread, version=version)
    chain = core.chain_of(plan, version)
    if not chain:
        return None  # without a migration the names and types of the fields say whether it fits
    mover = _Mover(engine, plan, (), row, loaded)
    return mover.record(MIGRATION, version, input_=mover.whole_input())


class _Mover:
    """Works out one move. What does not fit is collected, and raised at once."""

    def __init__(
        self, engine: Environment, plan: GraphPlan, chain: Chain, row: RunRow, loaded: Loaded
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.chain = chain
        self.row = row
        self.state = loaded.state
        self.line = loaded.line
        self.old = ValueCodec(OldTypes(engine.registry))
        self.problems: list[str] = []

    # -- the whole ---------------------------------------------------------------------------------

    def move(self, by: str) -> Move:
        """Return what is written."""
        versions = core.versions_of(self.chain)
        if not self.state.root.is_started:
            moved = self._move_beginning(by)
            return Move(versions=versions, moved=moved, snapshot=None, is_base=False)
        root = self.state.root
        self._check_ahead(root)
        values = self._fitted(self.plan, core.upgraded(self.chain, self._values(root)))
        scopes = {"": rec.ScopeMoved(nodes=self._nodes(root, self.plan, self.chain))}
        outcomes = self._outcomes(root, self.plan, self.chain, lambda: self._values(root))
        self._move_inner(root, self.plan, self._values(root), values, (scopes, outcomes))
        self._raise_problems()
        moved = self.record(by, self.row.version, scopes=scopes, outcomes=outcomes)
        nodes = scopes[""].nodes
        tasks = root.tasks.values()
        snapshot = rec.StateSnapshot(
            self.engine.now_us(),
            root.step - 1,
            self.state.checkpoint,
            self._encoded(self.plan, values),
            [fold.renamed(task.spec, nodes) for task in tasks],
            self.state.snapshot,
        )
        # Acts between two phases are recorded before the copy, and are found from there only.
        is_base = not root.ahead and all(fold.is_fresh(self.state, task) for task in tasks)
        return Move(versions=versions, moved=moved, snapshot=snapshot, is_base=is_base)

    def _check_ahead(self, root: fold.Scope) -> None:
        """Check the executions between two phases, of which acts are recorded.

        They are found by the paths of before: where the newer version has the same nodes it goes on
        with them. Where it takes another way, the run parks (`phases.check_ahead`).
        """
        for path, task in root.ahead.items():
            name = task.spec.node
            if core.node_after(self.chain, name) != name or name not in self.plan.nodes:
                self.problems.append(
                    f"the run stands between two phases, after acts of node {path!r}, which has "
                    f"another name in {self.plan.name} v{self.plan.version}: bring it to its next "
                    f"phase with 'perdure worker FILE:GRAPH' of v{self.row.version}"
                )
            else:
                self._check_task(task, self.plan, name)

    def record(
        self,
        by: str,
        from_version: int,
        *,
        scopes: dict[str, rec.ScopeMoved] | None = None,
        outcomes: dict[str, Encoded] | None = None,
        input_: Encoded | None = None,
    ) -> rec.VersionMoved:
        """Return the record of the move."""
        return rec.VersionMoved(
            self.engine.now_us(),
            by,
            from_version,
            self.plan.version,
            MIGRATION,
            scopes or {},
            outcomes or {},
            input_,
        )

    def _raise_problems(self) -> None:
        if self.problems:
            msg = "; ".join(dict.fromkeys(self.problems))
            raise MigrationFailed(msg, problems=self.problems)

    def _fitted(self, plan: GraphPlan, values: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in values.items():
            unbuilt = sorted(unbuilt_types(value))
            if unbuilt:
                msg = (
                    f"field {name!r} still holds a stored {', '.join(unbuilt)}, which this code "
                    "does not have; let the migration turn it into something else"
                )
                self.problems.append(msg)
        self._raise_problems()
        return core.fitted(plan, dict(values))

    def _encoded(self, plan: GraphPlan, values: Mapping[str, Any]) -> Encoded:
        place = f"graph {plan.name!r} v{plan.version}, field "
        try:
            return {
                name: (WriteOp.REPLACE.value, Raw(self.engine.codec.encode(value, name, place)))
                for name, value in values.items()
            }
        except ValueUnserializable as error:
            raise MigrationFailed(str(error)) from error

    def _values(self, scope: fold.Scope) -> dict[str, Any]:
        """Return the stored fields of a scope, anew at each call: functions may change them."""
        return decode_cells(scope.cells, self.old.decode, self.row, self.state.checkpoint)

    # -- a run that has not begun ------------------------------------------------------------------

    def _move_beginning(self, by: str) -> rec.VersionMoved:
        started = self.state.started
        specs = started.next if started is not None and started.next is not None else []
        nodes = {}
        for spec in specs:
            name = self._node_of(spec, self.plan, self.chain)
            if name is not None and name != spec.node:
                nodes[spec.node] = name
        self._raise_problems()
        scopes = {"": rec.ScopeMoved(nodes=nodes)}
        return self.record(by, self.row.version, scopes=scopes, input_=self.whole_input())

    def _line_version(self) -> int:
        graph, version = self.line
        return version if graph == self.row.graph and version else self.row.version

    def whole_input(self) -> Encoded:
        """Return state of the thread and input as one, as the newer version has them."""
        line = self._line_version()
        if line > self.plan.version:
            msg = _newer(self.row, line, self.plan)
            raise MigrationFailed(msg, thread=self.row.thread, version=line)
        below = line <= self.row.version
        values = self._onto_older(line) if below else self._onto_newer(line)
        return self._encoded(self.plan, self._fitted(self.plan, values))

    def _input(self) -> dict[str, tuple[str, Any]]:
        started = self.state.started
        given = started.input if started is not None else {}
        return {name: (op, self.old.decode(raw)) for name, (op, raw) in given.items()}

    def _onto_older(self, line: int) -> dict[str, Any]:
        """The thread's state is as old as the run, or older: it comes to the run's version first.

        Then the input is merged, and both go on together.
        """
        before = core.chain_of(self.plan, line, self.row.version)
        if before is None:
            msg = (
                f"no migration leads from v{line}, which wrote the newest state of thread "
                f"{self.row.thread!r}, to v{self.row.version}, which the run's input is for"
            )
            raise MigrationFailed(msg, thread=self.row.thread)
        values = core.upgraded(before, self._values(self.state.root))
        return core.upgraded(self.chain, core.with_writes(self.plan, values, self._input()))

    def _onto_newer(self, line: int) -> dict[str, Any]:
        """The thread's state has moved on since the run was started: its input follows."""
        after = core.chain_of(self.plan, line)
        if after is None:
            msg = (
                f"the newest state of thread {self.row.thread!r} was written by v{line}, and no "
                f"migration leads from there to v{self.plan.version}"
            )
            raise MigrationFailed(msg, thread=self.row.thread)
        values = core.upgraded(after, self._values(self.state.root))

        def fresh() -> dict[str, Any]:
            return {name: value for name, (_op, value) in self._input().items()}

        given = core.contributed(self.plan, self.chain, fresh)
        merged, _folded = merge(self.plan, values, [("input", given)])
        return merged

    # -- nodes under way ---------------------------------------------------------------------------

    def _nodes(self, scope: fold.Scope, plan: GraphPlan, chain: Chain) -> dict[str, str]:
        """Return the new names of a scope's nodes under way; note those that have none."""
        pairs: list[tuple[str, str]] = []
        specs = []
        for task in scope.tasks.values():
            name = self._node_of(task.spec, plan, chain)
            if name is not None:
                pairs.append((task.spec.node, name))
                self._check_task(task, plan, name)
            if task.outcome is not None and task.outcome.goto is not None:
                specs += task.outcome.goto
        self.problems += core.both_became(pairs)
        for spec in specs:
            name = self._node_of(spec, plan, chain)
            if name is not None:
                pairs.append((spec.node, name))
        return {before: after for before, after in pairs if before != after}

    def _node_of(self, spec: rec.TaskSpec, plan: GraphPlan, chain: Chain) -> str | None:
        name = core.node_after(chain, spec.node)
        where = f"{plan.name} v{plan.version}"
        if name is None:
            self.problems.append(
                f"the run stands at node {spec.node!r}, which is gone in {where}: finish it with a "
                "worker of the older version, or cancel it"
            )
        elif name not in plan.nodes:
            self.problems.append(
                f"the run stands at node {spec.node!r}, and {where} has no node {name!r}; say in "
                "the migration's nodes= what became of it"
            )
            return None
        self._check_readable(spec.argument, f"argument of node {spec.node!r}")
        return name

    def _check_task(self, task: fold.Task, plan: GraphPlan, name: str) -> None:
        is_inside = task.path in self.state.scopes
        is_subgraph = plan.nodes[name].subgraph is not None
        if is_inside and task.outcome is None and not is_subgraph:
            self.problems.append(
                f"the run stands inside subgraph {task.spec.node!r}, and node {name!r} is none"
            )
        if task.calls and is_subgraph:
            self.problems.append(
                f"node {task.spec.node!r} is under way and has done something, and node {name!r} "
                "is a subgraph"
            )
        if task.outcome is None:
            for call in task.calls.values():
                if call.result is not None:
                    self._check_readable(
                        call.result, f"recorded result of {call.name!r} in {task.path!r}"
                    )

    def _check_readable(self, raw: Raw, place: str) -> None:
        try:
            self.engine.codec.decode(raw)
        except DecodeFailed as error:
            self.problems.append(f"{place}: {error}")

    def _outcomes(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        chain: Chain,
        fresh: Callable[[], dict[str, Any]],
    ) -> dict[str, Encoded]:
        """Return the updates of the nodes of the step that have ended, as the newer version's."""
        found: dict[str, Encoded] = {}
        for task in scope.tasks.values() if chain else ():
            if task.outcome is None or not task.outcome.writes:
                continue
            raws = task.outcome.writes
            writes = {name: (op, self.old.decode(raw)) for name, (op, raw) in raws.items()}
            place = f"node {task.spec.node!r} has ended"
            carried = core.carried(plan, chain, fresh, writes, place)
            encoded = self._encoded(plan, {name: value for name, (_op, value) in carried.items()})
            found[task.path] = {
                name: (op, encoded[name][1]) for name, (op, _value) in carried.items()
            }
        return found

    # -- subgraphs ---------------------------------------------------------------------------------

    def _move_inner(
        self,
        outer: fold.Scope,
        plan: GraphPlan,
        before: dict[str, Any],
        after: dict[str, Any],
        found: tuple[dict[str, rec.ScopeMoved], dict[str, Encoded]],
    ) -> None:
        """Move the subgraphs that a scope's nodes under way stand in, and those inside them.

        Args:
            outer: the scope.
            plan: its graph, the newer one.
            before: its state.
            after: its state as the newer graph has it.
            found: where to add what moves, by path: scopes, and updates of ended nodes.
        """
        chain = self.chain if not outer.path else self._inner_chain(outer, plan)
        for task in outer.tasks.values():
            scope = self.state.scopes.get(task.path)
            name = core.node_after(chain, task.spec.node)
            node = plan.nodes.get(name) if name is not None else None
            if scope is None or task.outcome is not None or node is None or node.subgraph is None:
                continue
            given = {} if task.spec.is_sent else before
            self._check_given(task, node.subgraph, given, after)
            inside = self._move_scope(scope, node.subgraph, given, {*plan.channels, *before}, found)
            self._move_inner(scope, node.subgraph, *inside, found)

    def _inner_chain(self, scope: fold.Scope, plan: GraphPlan) -> Chain:
        version = scope.version or plan.version
        chain = core.chain_of(plan, version)
        if chain is None:
            self.problems.append(
                f"the run stands inside subgraph {plan.name!r} v{version}, and no migration of it "
                f"leads to v{plan.version}"
            )
            return ()
        return chain

    def _check_given(
        self,
        task: fold.Task,
        inner: GraphPlan,
        before: dict[str, Any],
        after: dict[str, Any],
    ) -> None:
        """Refuse to change, under a subgraph's feet, what it was given at its beginning."""
        if task.spec.is_sent:
            if self._inner_chain(self.state.scopes[task.path], inner):
                self.problems.append(
                    f"the run stands inside subgraph {task.spec.node!r} of a fan-out, which has "
                    "migrations of its own: finish it with a worker of the older version"
                )
            return
        for name in inner.channels:
            if core.is_equal(before, after, name):
                continue
            self.problems.append(
                f"the run stands inside subgraph {task.spec.node!r}, and the migration changes "
                f"field {name!r}, which that was given: finish it with a worker of the older "
                "version"
            )

    def _move_scope(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        given: dict[str, Any],
        shown: set[str],
        found: tuple[dict[str, rec.ScopeMoved], dict[str, Encoded]],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Add what moves of one subgraph's scope; return its state before and after.

        `shown`: fields that the outer graph has, or had: what is written to them comes out.
        """
        chain = self._inner_chain(scope, plan)
        shared = given if chain else {n: given[n] for n in plan.channels if n in given}

        def fresh() -> dict[str, Any]:
            return self._inner_state(scope, shared)

        nodes = self._nodes(scope, plan, chain)
        scopes, outcomes = found
        outcomes.update(self._outcomes(scope, plan, chain, fresh))
        if not chain:
            scopes[scope.path] = rec.ScopeMoved(nodes=nodes)
            return fresh(), fresh()
        values = self._inner_values(scope, plan, chain, fresh, shared)
        scopes[scope.path] = rec.ScopeMoved(
            nodes=nodes,
            cells=self._encoded(plan, values),
            writes=self._inner_writes(scope, chain, shown, fresh(), values),
            version=plan.version,
        )
        return fresh(), values

    def _inner_state(self, scope: fold.Scope, given: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a subgraph under way: what it was given, and what it wrote."""
        found = dict(given)
        for name, value in self._values(scope).items():
            is_added = scope.cells[name].op == WriteOp.APPEND and name in given
            found[name] = [*given[name], *value] if is_added else value
        return found

    def _inner_values(
        self,
        scope: fold.Scope,
        plan: GraphPlan,
        chain: Chain,
        fresh: Callable[[], dict[str, Any]],
        given: dict[str, Any],
    ) -> dict[str, Any]:
        values = core.upgraded(chain, fresh())
        # Fields of the outer graph that went through untouched are none of the subgraph's.
        own = {
            name: value
            for name, value in values.items()
            if name in plan.channels
            or name in scope.cells
            or not core.is_equal(given, values, name)
        }
        return self._fitted(plan, own)

    def _inner_writes(
        self,
        scope: fold.Scope,
        chain: Chain,
        shown: set[str],
        before: dict[str, Any],
        after: dict[str, Any],
    ) -> list[tuple[str, str, Raw]]:
        """Return what a subgraph's nodes have written for the outer graph, under its new names."""
        found = []
        for name, op, raw in scope.writes:
            renamed = core.field_after(chain, name)
            if renamed is None or not shown & {name, renamed}:
                continue
            is_same = core.is_alike(before.get(name), after.get(renamed))
            if not is_same:
                self.problems.append(
                    f"inside subgraph {scope.path!r} field {name!r} was written, and its migration "
                    "changes more than its name: finish it with a worker of the older version"
                )
            found.append((renamed, op, raw))
        return found


# -- what people are told --------------------------------------------------------------------------


def _newer(row: RunRow, version: int, plan: GraphPlan) -> str:
    return (
        f"the newest state of thread {row.thread!r} was written by {row.graph} v{version}, which "
        f"is newer than v{plan.version}: older code does not read it"
    )


def reason_of(error: PerdureError, row: RunRow, plan: GraphPlan) -> str:
    """Return why a run was not moved, with what is true now and what to do."""
    return _shortened(
        f"run {row.run_id!r} can't go on with {row.graph} v{plan.version}: {error}",
        f"; nothing was changed. Mend the migration and deploy it (or start a worker with "
        f"v{row.version}), then: perdure resolve {row.run_id} --retry --by NAME; or: "
        f"perdure cancel {row.run_id}",
    )


def _shortened(what: str, following: str) -> str:
    text = what if len(what) <= ERROR_CHARS_MAX else f"{what[:ERROR_CHARS_MAX]}..."
    # What users' exceptions say may hold surrogates, which can't be stored.
    return f"{text}{following}".encode("utf-8", "backslashreplace").decode()


def failure_of_move(error: MigrationFailed, row: RunRow, plan: GraphPlan) -> Failure:
    """Return the failure that a run is parked with that was not moved."""
    return Failure(type=FAILED, message=reason_of(error, row, plan))


def failure_of_adoption(error: PerdureError, row: RunRow, plan: GraphPlan) -> Failure:
    """Return the failure that a run is parked with that can't go on with its thread's state."""
    newer = error.fields.get("version")
    if not isinstance(newer, int):
        return Failure(type=FAILED, message=reason_of(error, row, plan))
    message = (
        f"run {row.run_id!r} does not begin: {error}. A worker of v{newer} that has a migration "
        f"from v{row.version} moves the run by itself; or: perdure migrate FILE:GRAPH; or: perdure "
        f"cancel {row.run_id}"
    )
    return Failure(type=THREAD_NEWER, message=message)
