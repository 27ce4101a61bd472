"""The commands put together, and what every one of them does with an error."""

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from perdure.cli import _checking, _deciding, _executing, _reading
from perdure.cli._output import print_error
from perdure.errors import PerdureError, UsageError

INTERRUPTED = 130
"""Exit code after Ctrl-C where there was nothing to drain, as shells have it."""

app = typer.Typer(
    name="perdure",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    _executing.run,
    _executing.start,
    _executing.worker,
    _reading.ps,
    _reading.show,
    _reading.history,
    _deciding.approve,
    _deciding.signal,
    _deciding.resolve,
    _deciding.cancel,
    _checking.doctor,
):
    app.command(command.__name__)(command)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # typer's form
    if wanted:
        print(f"perdure {sys.modules['perdure'].__version__}")
        raise typer.Exit


@app.callback()
def perdure(
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


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed, with their next command."""
    as_json = "--json" in arguments
    try:
        code = typer.main.get_command(app).main(
            args=arguments, prog_name="perdure", standalone_mode=False
        )
    except TyperException as error:
        return print_error(_usage(error), as_json=as_json)
    except PerdureError as error:
        return print_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    return code if isinstance(code, int) else 0


def _usage(error: TyperException) -> UsageError:
    """Return a mistake on the command line as an error of the catalogue."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "perdure"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return UsageError(f"{message.rstrip('.')}. See: {path} --help")
