"""Shows what a command would do, and asks."""

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from perdure.cli._output import is_terminal, note, say
from perdure.cli._store import with_store
from perdure.cli._text import indented
from perdure.engine.outlook import command
from perdure.errors import UsageError

DECLINED = 1
"""Exit code when the answer was no."""

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask: do it.")]


class Asking:
    """Shows what would be done and asks, where there is somebody to ask."""

    def __init__(self, again: list[str], url: str, *, yes: bool, as_json: bool) -> None:
        """Ask about a command; `again`: its words, to be typed once more with `--yes`."""
        self.url = url
        self.as_json = as_json
        self._yes = yes
        self._again = with_store(command(*again, "--yes"), url)

    def confirm(
        self, lines: Iterable[str], preview: dict[str, Any], question: str, done: str
    ) -> None:
        """Return when it may be done.

        Raises:
            UsageError: nobody can be asked; carries the preview and the command that does it.
            typer.Exit: the answer was no.
        """
        if not self.as_json:
            for line in lines:
                say(indented(line))
        if self._yes:
            return
        if self.as_json or not (sys.stdin.isatty() and is_terminal()):
            msg = f"nobody can be asked here; nothing was {done}. With --yes it is done"
            raise UsageError(msg, next=[self._again], preview=preview)
        if not typer.confirm(question):
            note(f"nothing was {done}")
            raise typer.Exit(DECLINED)
