"""The catalogue: one row per error class, the same facts for CLI, HTTP and docs."""

from msgspec import Struct

from perdure.errors import _tree as tree


class CatalogueEntry(Struct, frozen=True, kw_only=True):
    """What the outside sees of an error class.

    Attributes:
        code: stable identifier, never reused for another meaning.
        http_status: status that the server answers with.
        exit_code: exit code of the command line.
        retryable: whether the same call can succeed later without anybody changing anything.
        anchor: place in `docs/errors.md`.
    """

    code: str
    http_status: int
    exit_code: int
    retryable: bool

    @property
    def anchor(self) -> str:
        """Return the anchor in `docs/errors.md`."""
        return self.code.lower()


def _entry(code: str, http_status: int, exit_code: int, retryable: int) -> CatalogueEntry:
    return CatalogueEntry(
        code=code, http_status=http_status, exit_code=exit_code, retryable=bool(retryable)
    )


CATALOGUE: dict[type[tree.PerdureError], CatalogueEntry] = {
    tree.PerdureError: _entry("PD000", 500, 1, 0),
    tree.UsageError: _entry("PD100", 400, 2, 0),
    tree.GraphInvalid: _entry("PD101", 400, 2, 0),
    tree.UpdateInvalid: _entry("PD102", 422, 2, 0),
    tree.UpdateConflict: _entry("PD103", 422, 2, 0),
    tree.StateMutated: _entry("PD104", 422, 2, 0),
    tree.ValueUnserializable: _entry("PD105", 422, 2, 0),
    tree.SettingInvalid: _entry("PD106", 400, 2, 0),
    tree.KeyUnusable: _entry("PD107", 400, 2, 0),
    tree.NotFound: _entry("PD200", 404, 4, 0),
    tree.Conflict: _entry("PD300", 409, 5, 0),
    tree.StartKeyReused: _entry("PD301", 409, 5, 0),
    tree.EffectKeyReused: _entry("PD302", 409, 5, 0),
    tree.ThreadBusy: _entry("PD303", 409, 5, 1),
    tree.AlreadyAnswered: _entry("PD304", 409, 5, 0),
    tree.AlreadyDecided: _entry("PD305", 409, 5, 0),
    tree.RunFinal: _entry("PD306", 409, 5, 0),
    tree.OutcomeError: _entry("PD400", 500, 10, 0),
    tree.RunFailed: _entry("PD401", 500, 10, 0),
    tree.RunCancelled: _entry("PD402", 410, 11, 0),
    tree.NeedsDecision: _entry("PD403", 409, 12, 0),
    tree.EffectFailed: _entry("PD404", 502, 10, 0),
    tree.AskExpired: _entry("PD405", 410, 10, 0),
    tree.ReceiveTimedOut: _entry("PD406", 504, 10, 0),
    tree.ChildFailed: _entry("PD407", 500, 10, 0),
    tree.NodeTimedOut: _entry("PD408", 504, 10, 1),
    tree.EffectTimedOut: _entry("PD409", 504, 10, 0),
    tree.ResultTimedOut: _entry("PD410", 504, 13, 1),
    tree.StepLimitReached: _entry("PD411", 500, 10, 0),
    tree.LeaseLost: _entry("PD500", 409, 20, 1),
    tree.ReplayDiverged: _entry("PD501", 409, 12, 0),
    tree.VersionMismatch: _entry("PD502", 409, 12, 0),
    tree.MigrationFailed: _entry("PD503", 409, 12, 0),
    tree.SandboxMissing: _entry("PD504", 409, 12, 0),
    tree.SandboxUnstoppable: _entry("PD505", 409, 12, 0),
    tree.SandboxFull: _entry("PD506", 507, 45, 0),
    tree.SnapshotBroken: _entry("PD507", 409, 12, 0),
    tree.SnapshotNotDurable: _entry("PD508", 503, 46, 1),
    tree.StoreError: _entry("PD600", 503, 30, 1),
    tree.StoreUnavailable: _entry("PD601", 503, 30, 1),
    tree.StoreLocked: _entry("PD602", 503, 31, 1),
    tree.StoreReadOnly: _entry("PD603", 503, 32, 0),
    tree.StoreFull: _entry("PD604", 507, 33, 1),
    tree.StoreForeign: _entry("PD605", 500, 34, 0),
    tree.StoreSchemaNewer: _entry("PD606", 500, 35, 0),
    tree.StoreCorrupt: _entry("PD607", 500, 36, 0),
    tree.CommitUncertain: _entry("PD608", 503, 38, 1),
    tree.StoreSealed: _entry("PD609", 503, 39, 0),
    tree.StorePlain: _entry("PD610", 503, 42, 0),
    tree.KeyMissing: _entry("PD611", 503, 43, 0),
    tree.SealBroken: _entry("PD612", 500, 36, 0),
    tree.QuotaExceeded: _entry("PD613", 507, 45, 1),
    tree.CheckImpossible: _entry("PD631", 422, 2, 0),
    tree.NothingToCheck: _entry("PD632", 422, 2, 0),
    tree.BaselineInvalid: _entry("PD633", 422, 2, 0),
    tree.FixRefused: _entry("PD634", 409, 2, 0),
    tree.CheckFailed: _entry("PD635", 500, 2, 0),
    tree.InjectionError: _entry("PD621", 500, 2, 0),
    tree.EngineMissing: _entry("PD622", 503, 2, 1),
    tree.EngineFailed: _entry("PD623", 502, 2, 1),
    tree.TrialImpossible: _entry("PD624", 422, 2, 0),
    tree.DecodeFailed: _entry("PD700", 500, 37, 0),
    tree.TypeUnknown: _entry("PD701", 500, 37, 0),
    tree.RecordErased: _entry("PD702", 410, 37, 0),
    tree.HistoryPruned: _entry("PD704", 410, 44, 0),
    tree.ExportInvalid: _entry("PD703", 422, 41, 0),
    tree.InvariantBroken: _entry("PD900", 500, 70, 0),
    tree.Rejected: _entry("PD412", 502, 10, 0),
    tree.ModelUnavailable: _entry("PD413", 502, 10, 1),
}


def entry_of(error: tree.PerdureError | type[tree.PerdureError]) -> CatalogueEntry:
    """Return the entry of the error's class, or of its nearest ancestor that has one."""
    cls = error if isinstance(error, type) else type(error)
    return next(CATALOGUE[base] for base in cls.__mro__ if base in CATALOGUE)
