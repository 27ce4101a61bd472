"""The commands put together, and what every one of them does with an error."""

import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from perdure.cli import (
    _auditing,
    _checking,
    _deciding,
    _erasing,
    _executing,
    _keys,
    _migrating,
    _orders,
    _reading,
    _retaining,
    _sandbox_export,
    _sandboxes,
    _travel,
    _working,
)
from perdure.cli._options import opens_store
from perdure.cli._output import print_error
from perdure.errors import PerdureError, UsageError

INTERRUPTED = 130
"""Exit code after Ctrl-C where there was nothing to drain, as shells have it."""

app = typer.Typer(
    name="perdure",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: dict[Callable[..., None], str] = {
    _executing.run: "Start a run and execute it here.",
    _executing.start: "Store a run for a worker to execute.",
    _working.worker: "Execute runs until told to stop.",
    _reading.ps: "List runs, or workers.",
    _reading.show: "Show one run and what to do next.",
    _reading.history: "Show a thread's runs, steps and forks.",
    _travel.diff: "Compare checkpoints, threads or runs.",
    _travel.fork: "Branch a thread at a checkpoint.",
    _travel.replay: "Recompute a run; does the code still fit?",
    _travel.rollback: "Put a thread back to a checkpoint.",
    _deciding.approve: "Answer a question, or list the open ones.",
    _deciding.signal: "Send a run a signal.",
    _deciding.resolve: "Decide an uncertain effect or parked run.",
    _deciding.cancel: "Ask a run to cancel.",
    _retaining.prune: "Erase what is not wanted any more.",
    _retaining.tag: "Name a checkpoint, and keep it.",
    _retaining.untag: "Remove such a name.",
    _migrating.migrate: "Move runs of older versions to this one.",
    _erasing.erase: "Erase a thread, or all about a subject.",
    _checking.doctor: "Scan the store for runs that are stuck.",
}
"""Every command with what the list of commands says about it."""

GROUPS: dict[str, tuple[str, dict[Callable[..., None], str]]] = {
    "audit": (
        "Prove what happened: verify, export, check.",
        {
            _auditing.audit_verify: "Verify every hash and row of the store.",
            _auditing.audit_export: "Write a file that proves it elsewhere.",
            _auditing.audit_check: "Check such a file, without the store.",
            _erasing.audit_receipt: "Check the receipt of an erasure.",
            _auditing.audit_keygen: "Make a key pair to sign exports with.",
        },
    ),
    "limit": (
        "Limits that all workers obey together.",
        {
            _orders.limit_set: "Set a limit, or replace it.",
            _orders.limit_list: "List the limits, and how full they are.",
            _orders.limit_remove: "Remove a limit.",
        },
    ),
    "schedule": (
        "Schedules: runs that start at due times.",
        {
            _orders.schedule_add: "Add a schedule, or replace it.",
            _orders.schedule_list: "List the schedules.",
            _orders.schedule_remove: "Remove a schedule.",
            _orders.schedule_pause: "Let a schedule rest.",
            _orders.schedule_resume: "Let it go on.",
        },
    ),
    "quota": (
        "Quotas: how much room tenants may take.",
        {
            _retaining.quota_set: "Set a quota, or replace it.",
            _retaining.quota_list: "List the quotas, and how full they are.",
            _retaining.quota_drop: "Remove a quota.",
        },
    ),
    "sandbox": (
        "Files of threads: list, collect, export.",
        {
            _sandboxes.sandbox_list: "List the threads whose files are there.",
            _sandboxes.sandbox_show: "Show a thread's snapshots of files.",
            _sandboxes.sandbox_collect: "Remove snapshots that nothing needs.",
            _sandbox_export.sandbox_export: "Export snapshots, for other hosts.",
            _sandbox_export.sandbox_import: "Bring an exported snapshot here.",
            _sandbox_export.sandbox_verify: "Is what was exported whole?",
        },
    ),
    "keys": (
        "Keys of encrypted stores.",
        {
            _keys.keys_new: "Make a key.",
            _keys.keys_list: "List the keys that a store needs.",
            _keys.keys_rotate: "Wrap the data keys with the newest key.",
            _keys.keys_seal: "Encrypt a store that has data.",
        },
    ),
}
"""Every group of commands; a function `group_name` is the command `group name`."""


def _help(function: Callable[..., None]) -> str:
    r"""Return the docstring as help text; after the letters `\b` lines are kept."""
    return inspect.cleandoc(function.__doc__ or "").replace("\\b", "\b")


for _function, _summary in COMMANDS.items():
    app.command(_function.__name__, help=_help(_function), short_help=_summary)(
        opens_store(_function)
    )

for _group, (_summary, _commands) in GROUPS.items():
    _inner = typer.Typer(add_completion=False, rich_markup_mode=None, help=_summary)
    for _function, _what in _commands.items():
        _name = _function.__name__.removeprefix(f"{_group}_")
        _inner.command(_name, help=_help(_function), short_help=_what)(opens_store(_function))
    app.add_typer(_inner, name=_group, short_help=_summary)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # typer's form
    if wanted:
        print(f"perdure {sys.modules['perdure'].__version__}")
        raise typer.Exit


def perdure(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    r"""Run agents durably: start runs, execute them, look at them, decide for them.

    \b
    Examples:
      perdure run refunds.py:graph --input '{"order_id": "o-7"}'
      perdure worker refunds.py:graph --store sqlite:///agents.db
      perdure ps --all
    """
    del version


app.callback(help=_help(perdure))(perdure)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed, with their next command."""
    as_json = "--json" in arguments
    try:
        code = typer.main.get_command(app).main(
            args=arguments or ["--help"], prog_name="perdure", standalone_mode=False
        )
        sys.stdout.flush()
    except TyperException as error:
        return print_error(_usage(error), as_json=as_json)
    except PerdureError as error:
        return print_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as ended:  # what typer makes of a broken pipe
        if isinstance(ended.__context__, BrokenPipeError):
            return _nobody_reads()
        raise
    return code if isinstance(code, int) else 0


def _nobody_reads() -> int:
    """Say no more, also not when the interpreter ends; return the exit code of SIGPIPE."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # stays open until the end
    return 128 + signal.SIGPIPE


def _usage(error: TyperException) -> UsageError:
    """Return a mistake on the command line as an error of the catalogue."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "perdure"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return UsageError(f"{message.rstrip('.')}. See: {path} --help")
