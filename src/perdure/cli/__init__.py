"""The command line: arguments, rendering, exit codes. No logic."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: without the program's name; None: those of this process.
    """
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed, with their next command."""
    if arguments[:1] == ["check"]:
        # A check begins at once: what reads its command line knows no more than its options.
        from perdure.cli import _quick  # noqa: PLC0415

        code = _quick.run(arguments[1:])
        if code is not None:
            return code
    from perdure.cli import _app  # noqa: PLC0415  # importing perdure.cli must not import typer

    return _app.run(arguments)


__all__ = ["main", "run"]
