"""The one error tree of Perdure.

Theory: an error tells four things: what failed (with the ids), what is true of the stored data
now, whether trying again can help, and the next command. The tree:

    PerdureError
    +-- UsageError                the caller's code or arguments are wrong; nothing was written
    |   +-- GraphInvalid          a graph that can't be built, or names what does not exist
    |   +-- UpdateInvalid         a node returned something its state can't take
    |   |   +-- UpdateConflict    two nodes of one step replaced the same field
    |   |   +-- StateMutated      a node changed its state in place instead of returning an update
    |   +-- ValueUnserializable   a value that can't be stored exactly
    |   +-- SettingInvalid        an option out of range
    |   +-- KeyUnusable           a key file that is missing, unsafe, or of another kind
    +-- NotFound                  no such run, thread, ask, effect or checkpoint
    +-- Conflict                  the stored data already says something else
    |   +-- StartKeyReused        a start key with another graph or input
    |   +-- EffectKeyReused       a business key with other arguments
    |   +-- ThreadBusy            on_busy="reject" and a run is under way
    |   +-- AlreadyAnswered       an ask has its one answer
    |   +-- AlreadyDecided        an uncertain effect has its one decision
    |   +-- RunFinal              the run has ended; it takes no more input
    +-- OutcomeError              how a run, node, effect or wait ended
    |   +-- RunFailed  RunCancelled  NeedsDecision
    |   +-- EffectFailed          known NOT to have happened
    |   +-- AskExpired  ReceiveTimedOut  ChildFailed
    |   +-- NodeTimedOut  EffectTimedOut  ResultTimedOut
    |   +-- StepLimitReached
    +-- LeaseLost                 another holder owns the run; nothing was written
    +-- ReplayDiverged            a node asked for something else than its record says
    +-- SandboxMissing            a worker has no sandbox, or not the one of the run
    +-- SandboxUnstoppable        processes of a sandbox can't be stopped together
    +-- SandboxFull               a sandbox takes more room than it may
    +-- SnapshotBroken            an exported snapshot that is not what was exported
    +-- VersionMismatch           nobody executes the run's version, or the other one does not fit
    +-- MigrationFailed           what a run stored can't be brought to another graph version
    +-- StoreError                the store can't serve
    |   +-- StoreUnavailable  StoreLocked  StoreReadOnly  StoreFull
    |   |   +-- QuotaExceeded     a start beyond the room that a tenant may take
    |   +-- SnapshotNotDurable    a snapshot that can't be exported, or fetched, now
    |   +-- CommitUncertain       the answer of a write was lost; call again with the same arguments
    |   +-- StoreForeign          not a Perdure store
    |   +-- StoreSchemaNewer      written by a newer Perdure
    |   +-- StoreCorrupt          what was read is not what was written
    |   |   +-- SealBroken        encrypted bytes that are not what was encrypted for that place
    |   +-- StoreSealed           an encrypted store, and no keys were given
    |   +-- StorePlain            keys were given for a store that is not encrypted
    |   +-- KeyMissing            the key that is needed is not among those given
    +-- DecodeFailed              stored bytes that can't be read back (never None or older data)
    |   +-- TypeUnknown           a stored type that this process has not registered
    |   +-- RecordErased          journal records that were erased on purpose
    |   |   +-- HistoryPruned     what was asked for was pruned
    |   +-- ExportInvalid         a file that is no audit export, or a damaged one
    +-- CheckImpossible           a deployment can't be checked
    |   +-- NothingToCheck        nothing in the folder deploys anything
    |   +-- BaselineInvalid       a file of known findings that is none
    |   +-- FixRefused            an edit that can't be made safely
    |   +-- CheckFailed           the check itself is at fault
    +-- InjectionError            a deployment could not be broken as asked
    |   +-- EngineMissing         no container engine answers
    |   +-- EngineFailed          a container engine refused something
    |   +-- TrialImpossible       something that the trial needs is not there
    +-- ModelUnavailable          the endpoint of a model can't be reached, or sent what is no reply
    +-- InvariantBroken           a bug in Perdure

`Rejected` is the one that users raise: an effect raises it to say that the other side refused and
nothing happened. `CATALOGUE` gives every class its code, HTTP status, exit code and whether a
retry can help.
"""

from perdure.errors._catalogue import CATALOGUE, CatalogueEntry, entry_of
from perdure.errors._tree import (
    AlreadyAnswered,
    AlreadyDecided,
    AskExpired,
    BaselineInvalid,
    CheckFailed,
    CheckImpossible,
    ChildFailed,
    CommitUncertain,
    Conflict,
    DecodeFailed,
    EffectFailed,
    EffectKeyReused,
    EffectTimedOut,
    EngineFailed,
    EngineMissing,
    ExportInvalid,
    FixRefused,
    GraphInvalid,
    HistoryPruned,
    InjectionError,
    InvariantBroken,
    KeyMissing,
    KeyUnusable,
    LeaseLost,
    MigrationFailed,
    ModelUnavailable,
    NeedsDecision,
    NodeTimedOut,
    NotFound,
    NothingToCheck,
    OutcomeError,
    PerdureError,
    QuotaExceeded,
    ReceiveTimedOut,
    RecordErased,
    Rejected,
    ReplayDiverged,
    ResultTimedOut,
    RunCancelled,
    RunFailed,
    RunFinal,
    SandboxFull,
    SandboxMissing,
    SandboxUnstoppable,
    SealBroken,
    SettingInvalid,
    SnapshotBroken,
    SnapshotNotDurable,
    StartKeyReused,
    StateMutated,
    StepLimitReached,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StorePlain,
    StoreReadOnly,
    StoreSchemaNewer,
    StoreSealed,
    StoreUnavailable,
    ThreadBusy,
    TrialImpossible,
    TypeUnknown,
    UpdateConflict,
    UpdateInvalid,
    UsageError,
    ValueUnserializable,
    VersionMismatch,
)

__all__ = [
    "CATALOGUE",
    "AlreadyAnswered",
    "AlreadyDecided",
    "AskExpired",
    "BaselineInvalid",
    "CatalogueEntry",
    "CheckFailed",
    "CheckImpossible",
    "ChildFailed",
    "CommitUncertain",
    "Conflict",
    "DecodeFailed",
    "EffectFailed",
    "EffectKeyReused",
    "EffectTimedOut",
    "EngineFailed",
    "EngineMissing",
    "ExportInvalid",
    "FixRefused",
    "GraphInvalid",
    "HistoryPruned",
    "InjectionError",
    "InvariantBroken",
    "KeyMissing",
    "KeyUnusable",
    "LeaseLost",
    "MigrationFailed",
    "ModelUnavailable",
    "NeedsDecision",
    "NodeTimedOut",
    "NotFound",
    "NothingToCheck",
    "OutcomeError",
    "PerdureError",
    "QuotaExceeded",
    "ReceiveTimedOut",
    "RecordErased",
    "Rejected",
    "ReplayDiverged",
    "ResultTimedOut",
    "RunCancelled",
    "RunFailed",
    "RunFinal",
    "SandboxFull",
    "SandboxMissing",
    "SandboxUnstoppable",
    "SealBroken",
    "SettingInvalid",
    "SnapshotBroken",
    "SnapshotNotDurable",
    "StartKeyReused",
    "StateMutated",
    "StepLimitReached",
    "StoreCorrupt",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreLocked",
    "StorePlain",
    "StoreReadOnly",
    "StoreSchemaNewer",
    "StoreSealed",
    "StoreUnavailable",
    "ThreadBusy",
    "TrialImpossible",
    "TypeUnknown",
    "UpdateConflict",
    "UpdateInvalid",
    "UsageError",
    "ValueUnserializable",
    "VersionMismatch",
    "entry_of",
]
