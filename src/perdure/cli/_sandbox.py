"""The sandboxes of a command that executes runs: `--sandbox FOLDER`."""

import os

from perdure.cli._host import CRIU_VARIABLE
from perdure.sandbox import IsolatedSandboxes


async def sandboxes(folder: str | None) -> IsolatedSandboxes | None:
    """Return isolated sandboxes in a folder, after trying one; None: no folder was named.

    Where PERDURE_CRIU names a program, processes are kept with it.

    Raises:
        UsageError: this host can't isolate; nothing was executed.
    """
    if not folder:
        return None
    backend = IsolatedSandboxes(folder, criu=os.environ.get(CRIU_VARIABLE) or None)
    try:
        await backend.capabilities()
    except BaseException:
        backend.close()
        raise
    return backend
