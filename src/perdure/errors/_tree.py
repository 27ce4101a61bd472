"""The error classes. The tree is drawn at the head of `perdure.errors`."""

from typing import Self


class PerdureError(Exception):
    """Any error that Perdure raises on purpose.

    Carries a message for people and `fields` (JSON values: ids, states) for programs. Survives
    pickling and a JSON round trip.
    """

    def __init__(self, message: str = "", /, **fields: object) -> None:
        """Keep the message and the fields.

        Args:
            message: what failed, what is true of the data now, and the next command.
            fields: ids and values that programs read, JSON-compatible.
        """
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.fields = fields

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.fields)

    def to_json(self) -> dict[str, object]:
        """Return `{"error": class name, "message": text, "fields": {...}}`."""
        return {"error": type(self).__name__, "message": str(self), "fields": dict(self.fields)}

    @classmethod
    def from_json(cls, value: dict[str, object]) -> "PerdureError":
        """Build the error that `to_json` described; an unknown class name gives `cls` itself."""
        found = _by_name(PerdureError, str(value.get("error"))) or cls
        fields = value.get("fields")
        return _rebuild(
            found, str(value.get("message")), fields if isinstance(fields, dict) else {}
        )

    def located(self, place: str = "", /, **fields: object) -> Self:
        """Return the same error with the place where it arose: in its text, and in its fields.

        No place: the text says it already. Fields that it has already stay as they are: who raised
        it knew best.
        """
        text = f"{place}: {self}" if place else str(self)
        located = type(self)(text, **{**fields, **self.fields})
        located.__notes__ = list(getattr(self, "__notes__", ()))
        return located

    def note(self, text: str) -> Self:
        """Add a line that is shown under the traceback, and return the error itself."""
        self.add_note(text)
        return self


def _rebuild(cls: type[PerdureError], message: str, fields: dict[str, object]) -> PerdureError:
    return cls(message, **fields)


def _by_name(root: type[PerdureError], name: str) -> type[PerdureError] | None:
    if root.__name__ == name:
        return root
    for child in root.__subclasses__():
        found = _by_name(child, name)
        if found is not None:
            return found
    return None


class UsageError(PerdureError):
    """The caller's code or arguments are wrong; nothing was written."""


class GraphInvalid(UsageError):
    """A graph that cannot be built or run; names the place."""


class UpdateInvalid(UsageError):
    """A node returned something that its state cannot take; nothing of the step was written."""


class UpdateConflict(UpdateInvalid):
    """Two nodes of one step replaced the same field; names both."""


class StateMutated(UpdateInvalid):
    """A node changed its state in place instead of returning an update."""


class ValueUnserializable(UsageError):
    """A value that cannot be stored exactly; names the field and the type."""


class SettingInvalid(UsageError):
    """An option is out of its range; names the option and the range."""


class KeyUnusable(UsageError):
    """A key file that can't be used: missing, unsafe, or of another kind; nothing was written."""


class NotFound(PerdureError):
    """No such run, thread, ask, effect or checkpoint; nothing was written."""


class Conflict(PerdureError):
    """The stored data already says something else; nothing was written."""


class StartKeyReused(Conflict):
    """A start key came again with another graph, thread or input."""


class EffectKeyReused(Conflict):
    """A business key came again with other arguments."""


class ThreadBusy(Conflict):
    """The thread has an unfinished run and the start said on_busy='reject'."""


class AlreadyAnswered(Conflict):
    """The ask has its one answer (or has expired); carries the first one's record."""


class AlreadyDecided(Conflict):
    """The effect is not uncertain any more; carries the decision that stands."""


class RunFinal(Conflict):
    """The run has ended and takes no more input."""


class OutcomeError(PerdureError):
    """How a run, a node, an effect or a wait ended."""


class RunFailed(OutcomeError):
    """The run ended as failed; its last checkpoint stays."""


class RunCancelled(OutcomeError):
    """The run was cancelled; in-flight effects are listed as uncertain."""


class NeedsDecision(OutcomeError):
    """The run is parked until a person or a policy decides; nothing is lost."""


class EffectFailed(OutcomeError):
    """The effect is known not to have happened."""


class AskExpired(OutcomeError):
    """Nobody answered in time; the expiry is recorded."""


class ReceiveTimedOut(OutcomeError, TimeoutError):
    """No signal came in time; the timeout is recorded."""


class ChildFailed(OutcomeError):
    """A child run ended as failed or cancelled."""


class NodeTimedOut(OutcomeError, TimeoutError):
    """A node attempt took longer than its timeout_s."""


class EffectTimedOut(OutcomeError, TimeoutError):
    """An effect attempt took longer than its timeout_s; it may have happened."""


class ResultTimedOut(OutcomeError, TimeoutError):
    """The run had not ended within the timeout; it goes on."""


class StepLimitReached(OutcomeError):
    """The run took more steps than its graph allows."""


class LeaseLost(PerdureError):
    """Another holder owns the run; nothing was written."""


class ReplayDiverged(PerdureError):
    """A node asked for something else than its journal says; nothing was sent."""


class SandboxMissing(PerdureError):
    """A worker has no sandbox, or not the one that a run's files are in; nothing was executed."""


class SandboxUnstoppable(PerdureError):
    """Processes of a sandbox can't be stopped together, so that they can't live between commands.

    There is no control group to do it by, or one of them is where it can't be stopped.
    """


class SandboxFull(PerdureError):
    """A sandbox takes more room than it may; its files are as they were.

    No snapshot of it was taken; far over its room, no command was executed in it either.
    """


class SnapshotBroken(PerdureError):
    """An exported snapshot is not what was exported, or is older than what is known; not restored.

    What was on this host before is as it was.
    """


class VersionMismatch(PerdureError):
    """A run and the graph version that is there do not fit.

    Nobody executes the version that the run is pinned to, or the version that it is to go on with
    lacks what the run stands in.
    """


class MigrationFailed(PerdureError):
    """What a run stored could not be brought to another graph version; nothing was changed.

    A migration raised or gave what the state can't take, or the run stands where no migration says
    how it goes on.
    """


class StoreError(PerdureError):
    """The store cannot serve."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or opened; nothing was written."""


class CommitUncertain(StoreError):
    """The answer of a write was lost: it may or may not be written.

    Calling again with the same arguments is safe: a store recognises what it has written.
    """


class StoreLocked(StoreError):
    """The store stayed locked by another process; nothing was written."""


class StoreReadOnly(StoreError):
    """The store cannot be written; nothing was written."""


class StoreFull(StoreError):
    """No space left for the store; nothing was written."""


class QuotaExceeded(StoreFull):
    """A start beyond the room that the tenant, or the store, may take; nothing was written."""


class SnapshotNotDurable(StoreError):
    """A snapshot could not be exported or fetched; it is where it was, and trying again goes on."""


class StoreForeign(StoreError):
    """The file or database is not a Perdure store; it was left untouched."""


class StoreSchemaNewer(StoreError):
    """The store was written by a newer Perdure; it was left untouched."""


class StoreCorrupt(StoreError):
    """What was read is not what was written."""


class SealBroken(StoreCorrupt):
    """Encrypted bytes are not what was encrypted for that place; names the row and the column."""


class StoreSealed(StoreError):
    """The store is encrypted, and no keys were given; nothing was written."""


class StorePlain(StoreError):
    """Keys were given for a store that is not encrypted; nothing was written."""


class KeyMissing(StoreError):
    """The key that is needed is not among those that were given; nothing was written."""


class DecodeFailed(PerdureError):
    """Stored bytes cannot be read back; names thread, run and place."""


class TypeUnknown(DecodeFailed):
    """A stored type is not registered in this process; names the type."""


class RecordErased(DecodeFailed):
    """Journal records that were erased on purpose; only their digests were kept."""


class HistoryPruned(RecordErased):
    """What was asked for was pruned; the data is as it is, and what is kept can be read."""


class ExportInvalid(DecodeFailed):
    """A file that is no audit export, or a damaged one; names the offset."""


class CheckImpossible(PerdureError):
    """A deployment can't be checked: the folder, or what was asked for, is not there."""


class NothingToCheck(CheckImpossible):
    """Nothing in the folder deploys anything, so that there is nothing to judge."""


class BaselineInvalid(CheckImpossible):
    """A file of known findings that can't be read, or that is no such file."""


class FixRefused(CheckImpossible):
    """An edit that can't be made safely; the file is as it was."""


class CheckFailed(CheckImpossible):
    """The check itself is at fault; nothing is said of the project."""


class InvariantBroken(PerdureError):
    """A bug in Perdure: a rule that always holds did not."""


class InjectionError(PerdureError):
    """A deployment could not be broken as asked; nothing is said about the contract."""


class EngineMissing(InjectionError):
    """No container engine answers; nothing was started."""


class EngineFailed(InjectionError):
    """A container engine refused something; what the trial had made is removed."""


class TrialImpossible(InjectionError):
    """The deployment or the application lacks something that the trial needs; says what."""


class ModelUnavailable(PerdureError):
    """The endpoint of a model can't be reached, or what it sent is no reply; it is asked again."""


class Rejected(PerdureError):
    """Raise this in an effect: the other side refused, and nothing happened.

    `retry_after_s`, where given, asks for another attempt no earlier than that many seconds later;
    without it the effect has failed for good.
    """

    def __init__(
        self, message: str = "", /, *, retry_after_s: float | None = None, **fields: object
    ) -> None:
        """Keep the reason, and after how many seconds to try again (None: never)."""
        super().__init__(message, retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s
