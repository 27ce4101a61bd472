"""How every command ends: its exit code, an error with its next command, or nobody reading."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from perdure.cli._output import print_error
from perdure.errors import PerdureError

INTERRUPTED = 130
"""Exit code after Ctrl-C where there was nothing to drain, as shells have it."""


def ended(command: Callable[[], int], *, as_json: bool) -> int:
    """Run a command and return its exit code; errors are printed, with their next command."""
    try:
        code = command()
        sys.stdout.flush()
    except PerdureError as error:
        return print_error(error, as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return nobody_reads()
    return code


def nobody_reads() -> int:
    """Say no more, also not when the interpreter ends; return the exit code of SIGPIPE."""
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # stays open until the end
    return 128 + signal.SIGPIPE
