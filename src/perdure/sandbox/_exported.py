"""The part of a sandbox that outlives its host: snapshots exported, and fetched from exports."""

from typing import Protocol

from perdure.errors import LeaseLost, NotFound, SettingInvalid
from perdure.sandbox._ground import Ground
from perdure.sandbox._layers import BASE, Layers, is_id
from perdure.sandbox._lock import last_generation
from perdure.sandbox._states import States
from perdure.sandbox.export import Exports, Fetched, Tally, Tenant


class ExportingBackend(Protocol):
    """What this needs of the backend."""

    exports: Exports | None


class Exported:
    """What `IsolatedSandbox` has for this; it sets the attributes."""

    _backend: ExportingBackend
    _ground: Ground
    _states: States
    _tenant: Tenant

    @property
    def _layers(self) -> Layers:
        return self._ground.layers

    def head(self) -> str:
        """Return the snapshot that the files stand on; what changed since is not in it."""
        return self._layers.head(self._ground.folder)

    def is_durable(self, snapshot: str) -> bool:
        """Return whether a snapshot is exported, so that another host can restore it.

        Of a snapshot of nothing changed since the base it is true. Where nothing is exported to,
        it is false for all others.
        """
        if self._backend.exports is None:
            return snapshot == BASE
        return self._backend.exports.is_durable(self._tenant, snapshot)

    async def make_durable(self, snapshot: str, *, is_checked: bool = False) -> Tally:
        """Return when a snapshot is exported: it is the next one that this host exports.

        Args:
            snapshot: its id.
            is_checked: look whether what it stands on is really there, too, and export again what
                is not. Else it is enough that the place is the one that it was exported to.

        Returns:
            What was put there for it.

        Raises:
            SettingInvalid: the backend has no place to export to.
            NotFound: there is no such snapshot.
            UsageError: it can't be exported; says which file, and why.
            SnapshotNotDurable: the place can't serve; it stays on this host.

        Durability: the snapshot outlives this host when this returns. Idempotent: yes. Cancel-safe:
            yes; it may be exported still.
        """
        if self._backend.exports is None:
            if snapshot == BASE:
                return Tally()
            msg = "these sandboxes export nothing: name a place, IsolatedSandboxes(..., export=URL)"
            raise SettingInvalid(msg)
        return await self._backend.exports.make_durable(
            self._tenant, snapshot, is_checked=is_checked
        )

    async def fetch(self, snapshot: str | None = None, *, is_any_base: bool = False) -> Fetched:
        """Make an exported snapshot be on this host, with all it stands on; no file changes.

        Args:
            snapshot: its id; None: the newest of this thread that is exported.
            is_any_base: take it though it was made over another base: what it does not hold is
                then this host's.

        Raises:
            SettingInvalid: the backend has no place to export to.
            NotFound: it is not there, or nothing of this thread is.
            SnapshotBroken: it is not what was exported; or the newest is older than one of the
                thread that was here.
            UsageError: it was made over another base, or has what can't be written here.
            SnapshotNotDurable: the place can't serve.
        """
        exports = self._backend.exports
        if exports is None:
            msg = "these sandboxes export nothing: name a place, IsolatedSandboxes(..., export=URL)"
            raise SettingInvalid(msg)
        if snapshot is None:
            folder = self._ground.folder
            known = last_generation(folder)
            snapshot = await exports.newest(self._tenant, folder.name, at_least=known)
        if not is_id(snapshot):
            msg = f"{snapshot!r} is no snapshot: ids begin with 'l_'"
            raise NotFound(msg, snapshot=snapshot)
        await self._states.announce(snapshot)
        taken, tally = await exports.fetch(self._tenant, snapshot, is_any_base=is_any_base)
        if taken.thread == self._ground.folder.name:
            await self._states.note_generation(taken.generation)
        return Fetched(
            snapshot=snapshot, thread=taken.thread, generation=taken.generation, tally=tally
        )

    def _offer(self, snapshot: str) -> None:
        if self._backend.exports is not None:
            self._backend.exports.offer(self._tenant, snapshot)

    async def _fetch(self, snapshot: str) -> None:
        """Make a snapshot be on this host, if it is exported."""
        if self._backend.exports is None or not is_id(snapshot) or self._layers.has(snapshot):
            return
        await self._states.announce(snapshot)
        taken, _ = await self._backend.exports.fetch(self._tenant, snapshot)
        fence = self._ground.fence or taken.generation[:2]
        if taken.thread == self._ground.folder.name and taken.generation[:2] > fence:
            msg = (
                f"snapshot {snapshot!r} was taken by a newer holder (run {taken.generation[0]} "
                f"of the thread, token {taken.generation[1]}); nothing was restored"
            )
            raise LeaseLost(msg, snapshot=snapshot)
