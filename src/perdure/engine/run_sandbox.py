"""The sandbox of a held run's thread: one node execution at a time, as of the newest snapshot.

Theory: a node that used it leaves a snapshot. Where steps go by (`phases`), what their contained
effects changed is left as it is, and the checkpoint that ends the phase takes one snapshot of it
all. Until then no snapshot holds those files: a node that comes next works on them, and a node that
fails on them takes them with it, so that the run goes back to its last checkpoint.

Invariant: a checkpoint is written only with the files that belong to it. Where they are gone, or
hold what a node under way did, it is not written.
"""

import asyncio
from typing import Any

from perdure.engine.ports import HeldRun, NodePort
from perdure.errors import NotFound, SandboxMissing, SnapshotBroken, UsageError
from perdure.model import EffectKind
from perdure.model import records as rec


class RunSandbox:
    """Opens the thread's sandbox when it is first used, restores it, and takes its snapshots."""

    def __init__(self, run: HeldRun) -> None:
        """Belong to a held run.

        `_untaken`: the newest execution that left files which no snapshot holds. `is_spoilt`: one
        that failed wrote to such files.
        """
        self._run = run
        self._sandbox: Any = None
        self._owner: NodePort | None = None
        self._gate = asyncio.Lock()
        self._untaken = ""
        self.is_spoilt = False

    def open(self) -> Any:
        """Return the sandbox; where the runtime has none the run is parked."""
        if self._sandbox is None:
            backend = self._run.engine.sandbox_backend
            if backend is None:
                self._run.park(self._missing("this worker has no sandbox"))
            row = self._run.row
            fence = row.ordinal, row.token
            self._sandbox = backend.open(row.tenant, row.thread, fence=fence)
        return self._sandbox

    async def enter(self, context: NodePort) -> None:
        """Return when this node execution has the sandbox to itself, at the newest snapshot."""
        if self._owner is context:
            return
        context.active += 1
        try:
            await self._gate.acquire()
        finally:
            context.active -= 1
        self._owner = context
        # With a lease that is not safe, the files may be the next holder's by now.
        await self._run.check_dispatch()
        if self._untaken:
            return  # what the steps before it left
        # Whatever no snapshot holds was left by an execution that did not end.
        try:
            await self.open().resume(self._run.state.snapshot)
        except (NotFound, SnapshotBroken, UsageError) as error:
            self._run.park(self._missing(f"its sandboxes are not those of this run: {error}"))

    def _missing(self, why: str) -> SandboxMissing:
        run_id = self._run.row.run_id
        msg = (
            f"run {run_id!r} works on files of a sandbox, and {why}; nothing was executed. Start "
            "a worker with --sandbox FOLDER, or Runtime.open(..., "
            "sandbox=IsolatedSandboxes(FOLDER)), where FOLDER is the one that has them ('perdure "
            "sandbox list FOLDER'; 'perdure sandbox import FOLDER' brings what was exported), "
            f"then: perdure resolve {run_id} --retry --by NAME"
        )
        return SandboxMissing(msg, run_id=run_id)

    async def leave(self, context: NodePort, *, defers: bool = False) -> None:
        """Let others in, if the node has the sandbox, with a snapshot of what it left.

        `defers`: without one; its step goes by, and the end of the phase takes it.
        """
        if self._owner is not context:
            return
        self._untaken = context.task.path
        if not defers:
            await self._take()
        self._owner = None
        self._gate.release()

    async def _take(self) -> None:
        """Take a snapshot of what executions left, if no snapshot holds it."""
        if not self._untaken:
            return
        # crash-point: sandbox.take.before
        self._run.engine.services.probe("sandbox.take.before")
        before = self._run.state.snapshot
        snapshot = await self.open().take()
        # crash-point: sandbox.take.after
        self._run.engine.services.probe("sandbox.take.after")
        changed = await self._changed(before, snapshot)
        self._run.record(rec.SandboxTaken(self._run.now_us(), self._untaken, snapshot, *changed))
        self._untaken = ""

    async def _changed(self, before: str | None, snapshot: str) -> tuple[str, int]:
        """Return what changed between two snapshots, and its bytes, as far as the backend tells."""
        tell = getattr(self.open(), "snapshot", None)
        if snapshot == before:
            return "nothing", 0
        if tell is None:
            return "", 0
        found = await tell(snapshot)  # None: it is the base
        return ("nothing", 0) if found is None else (found.changes, found.bytes)

    async def settle(self) -> bool:
        """Take a snapshot of what steps that went by left; return whether the files are theirs.

        False: a node under way has the files, or had them and failed, or a holder before got
        further than this one has come again.
        """
        if self.is_spoilt or self._owner is not None:
            return False
        await self._take()
        return not any(
            call.kind == EffectKind.CONTAINED and not call.is_tentative
            for task in self._run.state.root.all_tasks
            for call in task.calls.values()
        )

    async def leave_waiting(self) -> None:
        """Take the snapshot of whoever has the sandbox, before the run is released."""
        if self._owner is not None:
            await self.leave(self._owner)

    def abandon(self, context: NodePort) -> None:
        """Let others in without a snapshot.

        The execution ended badly; its files are dropped by the next `enter`. With what steps before
        it left in them, the run has to go back to its last checkpoint.
        """
        if self._owner is context:
            self.is_spoilt = bool(self._untaken)
            self._owner = None
            self._gate.release()

    async def close(self) -> None:
        """End what is alive in the sandbox: this worker holds the run no more."""
        if self._sandbox is not None:
            await self._sandbox.close()
