"""Where output goes: tables on a terminal, plain columns without one, JSON with `--json`."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Self

from perdure.cli._text import clean, clean_lines
from perdure.errors import PerdureError, entry_of

SCHEMA = 1
"""Version of every JSON shape. Fields are only added within one version."""


def is_terminal() -> bool:
    """Return whether people look at the output."""
    return sys.stdout.isatty()


def say(text: str = "") -> None:
    """Print a line for people to stdout."""
    print(clean_lines(text), flush=True)


def note(text: str) -> None:
    """Print a line about progress to stderr, so that stdout stays what was asked for."""
    print(clean_lines(text), file=sys.stderr, flush=True)


class Progress:
    """One line on stderr that is written over again and again; nothing where nobody looks."""

    def __init__(self) -> None:
        """Look whether stderr is a terminal."""
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def tell(self, text: str) -> None:
        """Show how far it is."""
        if self._is_shown:
            print(f"\r\x1b[K{clean_lines(text)}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_error: object) -> None:
        """Clear the line."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_json(body: dict[str, Any]) -> None:
    """Print the one object of `--json`; escaped, so that no terminal is steered."""
    print(json.dumps({"schema": SCHEMA, **body}, default=str), flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Print rows for people; `empty` in place of an empty table."""
    if not rows:
        say(empty or "none")
        return
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(headers, cleaned)
    else:
        _plain_table(headers, cleaned)


def _rich_table(headers: Sequence[str], rows: list[list[str]]) -> None:
    from rich import box  # noqa: PLC0415  # only for people on a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        is_id = header in {"run", "ask", "effect", "worker"}
        shown.add_column(header, overflow="fold", no_wrap=is_id)
    for row in rows:
        shown.add_row(*(Text(cell, style=_style(cell)) for cell in row))  # Text: no markup is read
    Console(markup=False, highlight=False, emoji=False).print(shown)


_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "waiting": "yellow",
    "needs_decision": "bold red",
    "failed": "red",
    "error": "bold red",
    "action": "yellow",
}


def _style(cell: str) -> str:
    if cell.startswith("!!"):
        return "bold red"
    return _STYLES.get(cell.partition(" ")[0], "")


def _plain_table(headers: Sequence[str], rows: list[list[str]]) -> None:
    whole = [[header.upper() for header in headers], *rows]
    widths = [max(len(row[column]) for row in whole) for column in range(len(headers))]
    for row in whole:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def heading(text: str) -> None:
    """Print the title of a section."""
    if not is_terminal():
        say(f"\n{text.upper()}")
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(markup=False, highlight=False, emoji=False)
    console.print()
    console.print(Text(clean(text), style="bold"))


def print_error(error: PerdureError, *, as_json: bool, following: Sequence[str] = ()) -> int:
    """Print an error with its next commands; return the exit code of the catalogue."""
    entry = entry_of(error)
    following = following or next_of(error)
    if as_json:
        print_json({"error": error_json(error), "next": list(following)})
    else:
        note(f"error {entry.code}: {error}")
        for extra in getattr(error, "__notes__", ()):
            note(extra)
        for command in following:
            note(f"next: {command}")
    return entry.exit_code


def next_of(error: PerdureError) -> list[str]:
    """Return the commands that an error carries in its field `next`."""
    found = error.fields.get("next")
    return [str(each) for each in found] if isinstance(found, list | tuple) else []


def error_json(error: PerdureError) -> dict[str, Any]:
    """Return an error as `--json` shows it."""
    entry = entry_of(error)
    return {
        "code": entry.code,
        "class": type(error).__name__,
        "message": str(error),
        "fields": json.loads(json.dumps(error.fields, default=str)),
        "exit_code": entry.exit_code,
        "retryable": entry.retryable,
    }
