"""The sandboxes of a command that executes runs: `--sandbox FOLDER`."""

from perdure.sandbox import IsolatedSandboxes


async def sandboxes(folder: str | None) -> IsolatedSandboxes | None:
    """Return isolated sandboxes in a folder, after trying one; None: no folder was named.

    Raises:
        UsageError: this host can't isolate; nothing was executed.
    """
    if not folder:
        return None
    backend = IsolatedSandboxes(folder)
    try:
        await backend.capabilities()
    except BaseException:
        backend.close()
        raise
    return backend
