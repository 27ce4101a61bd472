"""The sandbox of a held run's thread: one node execution at a time, as of the newest snapshot."""

import asyncio
from typing import Any

from perdure.engine.ports import HeldRun, NodePort
from perdure.errors import NotFound, SandboxMissing
from perdure.model import records as rec


class RunSandbox:
    """Opens the thread's sandbox when it is first used, restores it, and takes its snapshots."""

    def __init__(self, run: HeldRun) -> None:
        """Belong to a held run."""
        self._run = run
        self._sandbox: Any = None
        self._owner: NodePort | None = None
        self._gate = asyncio.Lock()

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
        # Whatever no snapshot holds was left by an execution that did not end.
        try:
            await self.open().restore(self._run.state.snapshot)
        except NotFound as error:
            self._run.park(self._missing(f"its sandboxes are not those of this run: {error}"))

    def _missing(self, why: str) -> SandboxMissing:
        run_id = self._run.row.run_id
        msg = (
            f"run {run_id!r} works on files of a sandbox, and {why}; nothing was executed. Start "
            "a worker with --sandbox FOLDER, or Runtime.open(..., "
            "sandbox=IsolatedSandboxes(FOLDER)), "
            f"then: perdure resolve {run_id} --retry --by NAME"
        )
        return SandboxMissing(msg, run_id=run_id)

    async def leave(self, context: NodePort) -> None:
        """Take a snapshot of what the node left, and let others in, if it has the sandbox."""
        if self._owner is not context:
            return
        # crash-point: sandbox.take.before
        self._run.engine.services.probe("sandbox.take.before")
        snapshot = await self.open().take()
        # crash-point: sandbox.take.after
        self._run.engine.services.probe("sandbox.take.after")
        self._run.record(rec.SandboxTaken(self._run.now_us(), context.task.path, snapshot))
        self._owner = None
        self._gate.release()

    async def leave_waiting(self) -> None:
        """Take the snapshot of whoever has the sandbox, before the run is released."""
        if self._owner is not None:
            await self.leave(self._owner)

    def abandon(self, context: NodePort) -> None:
        """Let others in without a snapshot.

        The execution ended badly; its files are dropped by the next `enter`.
        """
        if self._owner is context:
            self._owner = None
            self._gate.release()
