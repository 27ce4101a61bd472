"""The commands put together, and what every one of them does with an error."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from typer.exceptions import TyperException

from perdure.cli._ending import ended, nobody_reads
from perdure.cli._table import COMMANDS, GROUPS
from perdure.errors import UsageError


def _help(function: Callable[..., None]) -> str:
    r"""Return the docstring as help text; after the letters `\b` lines are kept."""
    return inspect.cleandoc(function.__doc__ or "").replace("\\b", "\b")


def _function(module: str, name: str) -> Callable[..., None]:
    """Import a command; one that opens a store has the option `--keys`."""
    found: Callable[..., None] = getattr(importlib.import_module(f"perdure.cli.{module}"), name)
    if "store" not in inspect.signature(found).parameters:
        return found
    # Only here: with it come the stores, which a check of a deployment does without.
    from perdure.cli._options import opens_store  # noqa: PLC0415

    return opens_store(found)


def build(names: Iterable[str] | None = None) -> typer.Typer:
    """Return the application with the commands and groups that are named, or with all of them."""
    app = typer.Typer(
        name="perdure",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    wanted = frozenset((*COMMANDS, *GROUPS) if names is None else names)
    for name, (module, summary) in COMMANDS.items():
        if name in wanted:
            function = _function(module, name)
            app.command(name, help=_help(function), short_help=summary)(function)
    for group, (summary, commands) in GROUPS.items():
        if group in wanted:
            app.add_typer(_group(group, summary, commands), name=group, short_help=summary)
    app.callback(help=_help(perdure))(perdure)
    return app


def _group(group: str, summary: str, commands: dict[str, tuple[str, str]]) -> typer.Typer:
    inner = typer.Typer(add_completion=False, rich_markup_mode=None, help=summary)
    for full_name, (module, what) in commands.items():
        function = _function(module, full_name)
        name = full_name.removeprefix(f"{group}_")
        inner.command(name, help=_help(function), short_help=what)(function)
    return inner


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


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed, with their next command."""
    return ended(lambda: _called(arguments), as_json="--json" in arguments)


def _called(arguments: list[str]) -> int:
    # One command is enough where one is named.
    named = arguments[:1] if arguments[:1] and arguments[0] in {*COMMANDS, *GROUPS} else None
    try:
        code = typer.main.get_command(build(named)).main(
            args=arguments or ["--help"], prog_name="perdure", standalone_mode=False
        )
    except TyperException as error:
        raise _usage(error) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as error:  # what typer makes of a broken pipe
        if isinstance(error.__context__, BrokenPipeError):
            return nobody_reads()
        raise
    return code if isinstance(code, int) else 0


def _usage(error: TyperException) -> UsageError:
    """Return a mistake on the command line as an error of the catalogue."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "perdure"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return UsageError(f"{message.rstrip('.')}. See: {path} --help")
