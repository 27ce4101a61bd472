"""The command line: arguments, rendering, exit codes. No logic."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: without the program's name; None: those of this process.
    """
    from perdure.cli._app import run  # noqa: PLC0415  # importing perdure.cli must not import typer

    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


__all__ = ["main"]
