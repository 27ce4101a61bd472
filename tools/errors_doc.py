"""Write `docs/errors.md` from the error catalogue; with `--check`, fail if it differs.

Run it as `PYTHONPATH=src python tools/errors_doc.py` after a change of the tree or the catalogue.
"""

import inspect
import sys
import textwrap
from pathlib import Path

from perdure import errors
from perdure.errors import CATALOGUE, CatalogueEntry, PerdureError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

WIDTH = 100

HEAD = """\
# Errors

<!-- Written by tools/errors_doc.py from src/perdure/errors. Change those, then run it again. -->

Every error that Perdure raises on purpose is a `PerdureError`. Each class has one code, which never
gets another meaning; the command line exits with the exit code, the server answers with the HTTP
status. *Retryable* says whether the same call can succeed later without anybody changing anything.

The reasons that a run shows and that are no classes are [at the end](#reasons).

A subclass of your own has the row of its nearest ancestor here. Every error carries `fields` (ids
and values for programs) beside its message, and survives pickling and a JSON round trip
(`to_json`, `from_json`).

| code | class | exit code | HTTP | retryable |
|---|---|---|---|---|
"""

NEXT: dict[type[PerdureError], str] = {
    errors.PerdureError: "Read the message: it says what is true of the data now.",
    errors.UsageError: "Change the call or the command as the message says, and repeat it.",
    errors.GraphInvalid: "Mend the graph at the place that is named, or correct the target.",
    errors.UpdateInvalid: (
        "Let the node return fields that the state declares, in their types; input is mended "
        "before the start is repeated."
    ),
    errors.UpdateConflict: (
        "Give the field a reducer (`Annotated[list[T], append]`), or let one of the nodes write it."
    ),
    errors.StateMutated: "Copy what the node changes, and return it as an update.",
    errors.ValueUnserializable: (
        "Store plain data or a registered type in the field that is named; build the rest anew "
        "inside the node."
    ),
    errors.SettingInvalid: "Give the option a value in the range that is named.",
    errors.KeyUnusable: (
        "Name a key that `perdure audit keygen` made; a private key's file is for its owner alone "
        "(`chmod 600`)."
    ),
    errors.NotFound: "Copy the whole id from `perdure ps --all`, `approve` or `show RUN_ID`.",
    errors.Conflict: "Read what is stored (`perdure show RUN_ID`) before you decide again.",
    errors.StartKeyReused: "Use a new key, or repeat the start with the first graph and input.",
    errors.EffectKeyReused: "Make the business key name what differs, or give the same arguments.",
    errors.ThreadBusy: (
        "Try again when the run on the thread has ended, or start with `on_busy` `queue` or "
        "`cancel`."
    ),
    errors.AlreadyAnswered: "Nothing is to be done: the first answer, or the expiry, stands.",
    errors.AlreadyDecided: "Nothing is to be done: the decision that is named stands.",
    errors.RunFinal: "Start a new run, on the same thread to go on from its last checkpoint.",
    errors.OutcomeError: "Look at the run's reason and timeline: `perdure show RUN_ID`.",
    errors.RunFailed: (
        "Mend what `perdure show RUN_ID` names, then start a new run; on the same thread it goes "
        "on from the last checkpoint."
    ),
    errors.RunCancelled: (
        "Decide the effects that `perdure show RUN_ID` lists as uncertain; start a new run to go "
        "on."
    ),
    errors.NeedsDecision: (
        "Decide as `perdure show RUN_ID` says: an uncertain effect with `--happened` or "
        "`--not-happened`, else `--retry` after what parked the run is mended."
    ),
    errors.EffectFailed: "Catch it in the node where going on without the effect makes sense.",
    errors.AskExpired: "Give the ask a default or more time, or catch it in the node.",
    errors.ReceiveTimedOut: "Give the wait more time, or catch it in the node.",
    errors.ChildFailed: "Look at the child that is named (`perdure show RUN_ID`), or catch it.",
    errors.NodeTimedOut: "Raise the node's `timeout_s`, or give it a retry.",
    errors.EffectTimedOut: (
        "Find out on the other side whether it happened, or give the effect a kind that can."
    ),
    errors.ResultTimedOut: "Wait again; `perdure show RUN_ID` says what the run waits for.",
    errors.StepLimitReached: "Look for a loop that never ends, or raise the graph's limit.",
    errors.Rejected: "Catch it in the node where the other side may refuse.",
    errors.ModelUnavailable: (
        "Nothing, while it is tried again. If the run failed of it: look at the endpoint, then "
        "start a run on the same thread; the conversation is kept."
    ),
    errors.LeaseLost: "Nothing is to be done: the other holder goes on with the run.",
    errors.ReplayDiverged: (
        "Make the code before the call the same on every execution (`ctx.now`, `ctx.random`, "
        "`ctx.call` for what varies), then `perdure resolve RUN_ID --retry --by NAME`."
    ),
    errors.SandboxMissing: (
        "Start a worker with `--sandbox FOLDER` (of the run's files, if it has any), then `perdure "
        "resolve RUN_ID --retry --by NAME`."
    ),
    errors.SandboxUnstoppable: (
        "Run the worker as root, or delegate a control group to its user (systemd: "
        "`Delegate=yes`); or leave `live=True` out: then nothing lives between commands."
    ),
    errors.InjectionError: "Read the message; the trial's transcript says what was done.",
    errors.EngineMissing: (
        "Start the engine, name one as DOCKER_HOST, or use `perdure inject --engine process`."
    ),
    errors.EngineFailed: (
        "Read what the engine said; repeat the trial when what it refused is mended."
    ),
    errors.TrialImpossible: (
        "Add what is named: a service, a command, a probe (docs/injection.md)."
    ),
    errors.SandboxFull: (
        "Remove something in the sandbox, go back to a snapshot, or open the sandboxes with a "
        "larger `bytes_max` or `files_max`, as the message says."
    ),
    errors.SnapshotBroken: (
        "Find out who writes to the place of the exports. `perdure sandbox verify URL` says what "
        "is whole there; a worker on the host that took the snapshot still has it."
    ),
    errors.VersionMismatch: (
        "Start a worker with the run's version, which takes it up by itself; or `perdure resolve "
        "RUN_ID --to-version N --by NAME`; or `perdure cancel RUN_ID`."
    ),
    errors.MigrationFailed: (
        "Mend the migration and deploy it, then `perdure resolve RUN_ID --retry --by NAME`; "
        "`perdure migrate FILE:GRAPH --dry-run` tries it on all runs first. Or start a worker with "
        "the old version and retry; or `perdure cancel RUN_ID`."
    ),
    errors.StoreError: "Read the driver's text in the message; `perdure doctor` checks the store.",
    errors.StoreUnavailable: "Create or mend the path that is named, or name another store.",
    errors.CommitUncertain: (
        "Repeat the call with the same arguments: what was written already is not written again."
    ),
    errors.StoreLocked: "Try again; if it stays, find who holds it: `fuser FILE`.",
    errors.StoreReadOnly: "Give this user write permission for the file and its folder.",
    errors.StoreFull: "Free space on the disk (or raise the quota) and try again.",
    errors.QuotaExceeded: (
        "Make room (`perdure prune`), or raise the quota (`perdure quota set`), and try again."
    ),
    errors.SnapshotNotDurable: (
        "Look at the place of the exports as the message says. Workers try again by themselves; by "
        "hand: `perdure sandbox export`."
    ),
    errors.StoreForeign: "Name another file in the store URL.",
    errors.StoreSchemaNewer: "Use the newer Perdure that wrote it, or another store.",
    errors.StoreCorrupt: "Run `perdure doctor`, keep a copy, and restore from a backup.",
    errors.StoreSealed: "Name its keys: `--keys env:NAME` or `--keys file:PATH`.",
    errors.StorePlain: "Open it without keys, or name a new store to encrypt.",
    errors.KeyMissing: "Add the key that is named to the place of the keys, or name another place.",
    errors.SealBroken: (
        "If a data key can't be unwrapped, give the keys of this store; else keep a copy and "
        "restore from a backup."
    ),
    errors.CheckImpossible: "Name the folder of the project: `perdure check FOLDER`.",
    errors.NothingToCheck: (
        "Name the folder that has the Compose file, the manifests or the Dockerfile of the service."
    ),
    errors.BaselineInvalid: "Write it anew: `perdure check --write-baseline FILE`.",
    errors.FixRefused: "Make the change by hand as the message says, and check again.",
    errors.CheckFailed: "Report it, with the message; `--only` judges what does not fail.",
    errors.DecodeFailed: "Bring back the code that wrote the value; the data is left as it is.",
    errors.TypeUnknown: "Import or register the type that is named in this process.",
    errors.RecordErased: (
        "Nothing brings erased records back. `perdure audit verify` shows that nothing else was "
        "changed; read from a copy that was exported before, if there is one."
    ),
    errors.HistoryPruned: (
        "Read one of the checkpoints that are kept: `perdure history THREAD` lists them; tag those "
        "that are to stay (`perdure tag`)."
    ),
    errors.ExportInvalid: (
        "Copy the file again from where it was made, and compare its size; `perdure audit export` "
        "makes another."
    ),
    errors.InvariantBroken: "Stop, keep the store as it is, and report the message with its trace.",
}
"""What to do next, one sentence for each class."""

REASONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "`UncertainEffect`",
        "a parked run",
        "nobody knows whether an effect happened",
        "`perdure resolve EFFECT_ID` with `--happened` or `--not-happened`",
    ),
    (
        "`AttemptsExhausted`",
        "a parked run",
        "taken up several times without finishing a step; its code may kill its workers",
        "mend that, then `perdure resolve RUN_ID --retry --by NAME`",
    ),
    (
        "`ThreadNewer`",
        "a parked run",
        "a newer version of its graph has written the state of its thread since it was started",
        "a worker of that version with a migration moves it by itself; or `perdure cancel RUN_ID`",
    ),
    (
        "`Cancelled`",
        "a cancelled run",
        "somebody asked for it; the message says who",
        "decide its uncertain effects, for the record",
    ),
    (
        "`(interrupted)`",
        "an effect",
        "its worker stopped between the intent and the result",
        "kind `once`: decide it; else it is sent again or looked up by itself",
    ),
    (
        "`Interrupted`",
        "an effect",
        "its run failed or was cancelled, or a compensation was cut off, while it was under way",
        "decide it, for the record",
    ),
    (
        "`(unknown)`",
        "an effect",
        "a lookup could not tell what became of it",
        "it looks again by itself; decide it when the run is parked",
    ),
    (
        "`NotHappened`",
        "an effect",
        "somebody decided that it did not happen",
        "nothing: it is sent again",
    ),
    (
        "`DecisionUnfit`",
        "an effect",
        "somebody gave a result that is not of the effect's type; the run is parked again",
        "decide it again, with a result that fits",
    ),
    (
        "`Absent`",
        "an effect",
        "a lookup found that it did not happen",
        "nothing: it is sent again while tries are left",
    ),
)
"""Reasons that are no classes: the name, of what, what it says, what to do."""

REASONS_HEAD = """
<a id="reasons"></a>

## Reasons of parked and failed runs

`perdure show RUN_ID` names the type of what parked or ended a run, or made an effect fail or
uncertain. Most are classes: those above, or the exception that a node or an effect of yours raised.
`ReplayDiverged`, `SandboxMissing`, `VersionMismatch`, `MigrationFailed`, `StoreCorrupt` and
`DecodeFailed` park a run; others end it. These are no classes:

| reason | of | meaning | next |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = sorted(CATALOGUE.items(), key=lambda row: row[1].code)
    table = "".join(
        f"| [{entry.code}](#{entry.anchor}) | `{cls.__name__}` | {entry.exit_code} "
        f"| {entry.http_status} | {'yes' if entry.retryable else 'no'} |\n"
        for cls, entry in rows
    )
    return HEAD + table + "".join(section(cls, entry) for cls, entry in rows) + reasons()


def reasons() -> str:
    """Return the section on reasons that are no classes."""
    return REASONS_HEAD + "".join(f"| {' | '.join(row)} |\n" for row in REASONS)


def section(cls: type[PerdureError], entry: CatalogueEntry) -> str:
    """Return the section of one class, under the anchor that its code names."""
    parent = next((base for base in cls.__mro__[1:] if base in CATALOGUE), None)
    kind = f"A kind of `{parent.__name__}`. " if parent else ""
    again = "Trying again can help." if entry.retryable else "Trying again alone does not help."
    return (
        f'\n<a id="{entry.anchor}"></a>\n\n## {entry.code} {cls.__name__}\n\n'
        f"{inspect.getdoc(cls)}\n\n{kind}{again}\n\n"
        f"{textwrap.fill(f'*Next:* {NEXT[cls]}', WIDTH, break_on_hyphens=False)}\n"
    )


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 if it differs."""
    if "--check" not in arguments:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/errors.md is not what the catalogue says; run tools/errors_doc.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
