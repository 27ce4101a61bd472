"""What users look at, compare, recompute and put back of what happened. A part of `Runtime`."""

from collections.abc import Mapping
from typing import Any

from perdure.engine import branches, tagging, views
from perdure.engine.compare import Comparison, Moment, compare, moment, resolve
from perdure.engine.costs import CheckpointCost, costs_of
from perdure.engine.divergence import Replay
from perdure.engine.edge import checked
from perdure.engine.environment import Environment
from perdure.engine.points import checkpoint_at
from perdure.engine.starting import DEFAULT_TENANT, checked_name
from perdure.engine.tree import ThreadTree, tree_of
from perdure.errors import NotFound, SettingInvalid, TypeUnknown, UsageError
from perdure.ids import RunId, TenantId, ThreadId

REASON_CHARS_MAX = 2000
"""Longest reason of a rollback: it is part of the journal for ever."""


def undecoded(error: TypeUnknown, other: str, command: str) -> TypeUnknown:
    """Return the error of a class that is gone, with what shows the same without classes."""
    return type(error)(f"{error}; {other} '{command}', which needs no class", **error.fields)


class Travels:
    """The part of a runtime that speaks of what happened."""

    engine: Environment

    # -- looking -----------------------------------------------------------------------------------

    @checked
    async def history(self, thread: str, *, tenant: str = DEFAULT_TENANT) -> list[views.Checkpoint]:
        """Return the thread's checkpoints, newest first.

        Raises:
            NotFound: no such thread.
        """
        return await views.history(self.engine, TenantId(tenant), ThreadId(thread))

    @checked
    async def costs(self, thread: str, *, tenant: str = DEFAULT_TENANT) -> list[CheckpointCost]:
        """Return what each checkpoint of the thread costs, oldest first.

        What it stored (records, whole copies, pages that are new in the thread), how long its step
        took, and what a fork before it would do again: effects, other calls, children, tokens. A
        step under way is the last one of its run, with `checkpoint` None.

        Tokens are those that results of effects tell: a mapping or an object with `usage` (or
        `usage_metadata`), which has `input_tokens` and `output_tokens` (or `prompt_tokens` and
        `completion_tokens`). In a step of which no result says so, what was emitted counts.

        Reads the thread's journal from its beginning, and every page that it refers to.

        Raises:
            NotFound: no such thread.
            StoreCorrupt, DecodeFailed: the journal is not what was written.
        """
        return await costs_of(self.engine, TenantId(tenant), ThreadId(thread))

    @checked
    async def tree(self, thread: str, *, tenant: str = DEFAULT_TENANT) -> ThreadTree:
        """Return the thread's runs with their steps, where it was forked from, and its forks.

        Forks of forks are nested. Their runs are found by looking through rows of runs, newest
        first, at most `FORKS_SCANNED_MAX` of each graph (`ThreadTree.is_complete`).

        Raises:
            NotFound: no such thread.
        """
        return await tree_of(self.engine, TenantId(tenant), ThreadId(thread))

    @checked
    async def moment(
        self, at: Any, *, of_run: bool | None = None, tenant: str = DEFAULT_TENANT
    ) -> Moment:
        """Return the state at a point, and the steps, effects and decisions that led to it.

        Args:
            at: as for `compare`.
            of_run: whether only what the point's run did; None: where `at` is a run id.
            tenant: whose.

        Raises:
            NotFound: no such thread, run or checkpoint; says which there are.
        """
        return await moment(self.engine, TenantId(tenant), at, of_run=of_run)

    # -- keeping -----------------------------------------------------------------------------------

    @checked
    async def tag(
        self,
        thread: str,
        checkpoint: int,
        name: str,
        *,
        by: str = "",
        tenant: str = DEFAULT_TENANT,
    ) -> None:
        """Name a checkpoint, which keeps it from being pruned; a name of the thread is moved.

        Args:
            thread: which one.
            checkpoint: id.
            name: unique in the thread.
            by: who wants it.
            tenant: whose.

        Raises:
            NotFound: no such thread or checkpoint; nothing was written.
            HistoryPruned: the checkpoint was pruned; nothing is tagged that was not before.
            SettingInvalid: the name is empty or too long; nothing was written.

        Durability: when it returns. Idempotent: yes.
        """
        await tagging.tag(
            self.engine, TenantId(tenant), ThreadId(thread), checkpoint, name=name, by=by
        )

    @checked
    async def untag(self, thread: str, name: str, *, tenant: str = DEFAULT_TENANT) -> bool:
        """Remove a tag; return whether there was one. What it kept goes with the next prune.

        Durability: when it returns. Idempotent: yes.
        """
        return await self.engine.store.drop_tag(TenantId(tenant), ThreadId(thread), name)

    @checked
    async def tags(self, thread: str, *, tenant: str = DEFAULT_TENANT) -> list[tagging.Tag]:
        """Return the thread's tags, by checkpoint, then name."""
        return await tagging.tags_of(self.engine, TenantId(tenant), ThreadId(thread))

    # -- comparing ---------------------------------------------------------------------------------

    @checked
    async def diff(
        self, a: Any, b: Any, *, thread: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[dict[str, Any]]:
        """Return what changed between two checkpoints, as JSON Patch operations (RFC 6902).

        Args:
            a: a `Checkpoint`, a pair (thread, checkpoint id or tag), a run id (its newest state),
                or, with `thread`, a checkpoint id.
            b: the same.
            thread: whose checkpoints plain ids are.
            tenant: whose.
        """
        pair = [(thread, at) if thread is not None and isinstance(at, int) else at for at in (a, b)]
        return await views.diff(self.engine, TenantId(tenant), *pair)

    @checked
    async def compare(self, a: Any, b: Any, *, tenant: str = DEFAULT_TENANT) -> Comparison:
        """Return how two points differ: in state, steps, effects and decisions.

        What they have in common, also before a fork, is left out. Two runs are compared by what
        each of them did, else the whole lines that lead to the points.

        Args:
            a: a `Checkpoint`, a pair (thread, checkpoint id or tag; None: the newest), a run id, or
                a text: `thread`, `thread@checkpoint`, `thread@tag` or a run id.
            b: the same.
            tenant: whose.

        Raises:
            NotFound: no such thread, run or checkpoint; says which there are.
        """
        return await compare(self.engine, TenantId(tenant), a, b)

    @checked
    async def replay(
        self, run_id: str, graph: Any = None, *, tenant: str = DEFAULT_TENANT
    ) -> Replay:
        """Recompute a run from its journal with today's code, and report where they differ.

        Nothing is dispatched, no file is touched, nothing is written, no lease is taken: results of
        effects, answers, signals, timers, children and times come from the journal. Works for runs
        that have ended, wait, are parked, or are under way elsewhere (up to where they stand). Of a
        run that was moved to another version the part is recomputed that the graph's version did,
        else the last one (`Replay.part`).

        Args:
            run_id: which run; or `thread@checkpoint` or `thread@tag`: the run that came to it.
            graph: to replay it with, e.g. a newer version; None: the known one of the run's
                version.
            tenant: whose the thread is, where one is named.

        Raises:
            NotFound: no such run, or its graph is not known here.
            UsageError: the graph is another one than the run's.
            StoreCorrupt, DecodeFailed: the journal is not what was written, or a stored type is
                not known here.
        """
        row = await self.engine.store.read_run(RunId(run_id))
        if row is None and "@" in run_id:
            row = (await resolve(self.engine, TenantId(tenant), run_id))[0].row
        if row is None:
            msg = f"no run {run_id!r}; 'perdure ps --all' lists the runs"
            raise NotFound(msg, run_id=run_id)
        run_id = row.run_id
        if graph is None:
            plan = self.engine.plan_named(row.graph, row.version)
        else:
            plan = self.engine.plan_of(graph)
        if plan.name != row.graph:
            msg = f"run {run_id!r} is of graph {row.graph!r}, not {plan.name!r}; nothing was done"
            raise UsageError(msg, run_id=run_id, graph=plan.name)
        from perdure.engine.replay import replay  # noqa: PLC0415  # costs start-up time

        try:
            return await replay(self.engine, row, plan)
        except TypeUnknown as error:
            other = f"'perdure replay {run_id} FILE:GRAPH' with the code that has the class, or"
            raise undecoded(error, other, f"perdure show {run_id}") from error

    # -- branching ---------------------------------------------------------------------------------

    @checked
    async def preview_fork(
        self,
        thread: str,
        *,
        at: int | str | None = None,
        update: Mapping[str, Any] | None = None,
        rerun: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> branches.ForkPreview:
        """Return what `fork` with these arguments would start with and do again. Nothing is done.

        Raises:
            NotFound, UpdateInvalid: as `fork`.
        """
        whose, of_thread = TenantId(tenant), ThreadId(thread)
        checkpoint = await checkpoint_at(self.engine, whose, of_thread, at)
        found = await branches.fork_point(self.engine, whose, of_thread, checkpoint, rerun=rerun)
        return await branches.preview_fork(
            self.engine, whose, of_thread, found, update=update or {}, is_rerun=rerun
        )

    @checked
    async def preview_rollback(
        self, thread: str, *, at: int | str, tenant: str = DEFAULT_TENANT
    ) -> branches.RollbackPreview:
        """Return what `rollback` would put back, and what it would leave. Nothing is done.

        Raises:
            NotFound, ThreadBusy, UsageError: as `rollback`.
        """
        whose, of_thread = TenantId(tenant), ThreadId(thread)
        checkpoint = await checkpoint_at(self.engine, whose, of_thread, at) or 0
        preview, _found = await branches.preview_rollback(self.engine, whose, of_thread, checkpoint)
        return preview

    @checked
    async def rollback(
        self,
        thread: str,
        *,
        at: int | str,
        by: str,
        reason: str = "",
        tenant: str = DEFAULT_TENANT,
    ) -> branches.RolledBack:
        """Put the thread's state back to that of a checkpoint; the next run goes on from there.

        It is a run of its own, which takes that state in and ends; history is not rewritten, the
        new checkpoint has a new id. The next use of the thread's sandbox restores the snapshot of
        the checkpoint. Effects since then stay as they happened: they are returned.

        Args:
            thread: which one.
            at: checkpoint id, or the name of a tag.
            by: who wants it; recorded.
            reason: why; recorded.
            tenant: whose.

        Raises:
            NotFound: no such thread or checkpoint; says which there are.
            ThreadBusy: a run of the thread has not ended; nothing was written.
            UsageError: it is the newest checkpoint, or `by` is missing; nothing was written.
            SettingInvalid: `by` or `reason` is too long; nothing was written.

        Durability: the rollback, when it returns. Idempotent: no; a second one to the same
            checkpoint is one more run.
        """
        if not by:
            msg = "rollback(by=...): say who wants it; it is recorded"
            raise UsageError(msg)
        checked_name(by, "by")
        if len(reason) > REASON_CHARS_MAX:
            msg = f"reason: at most {REASON_CHARS_MAX} characters, not {len(reason)}"
            raise SettingInvalid(msg)
        whose, of_thread = TenantId(tenant), ThreadId(thread)
        checkpoint = await checkpoint_at(self.engine, whose, of_thread, at) or 0
        return await branches.roll_back(
            self.engine, whose, of_thread, checkpoint, by=by, reason=reason
        )
