"""The sandboxes of a command that executes runs: `--sandbox FOLDER`."""

import os
from dataclasses import dataclass
from pathlib import Path

from perdure.cli._host import CRIU_VARIABLE
from perdure.cli._store import keys_given
from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes, check_root


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxTerms:
    """What was said of sandboxes on the command line.

    Attributes:
        folder: where they are kept; None: there are none.
        export: where snapshots are exported to; None: they are on this host only.
        keys: what exports are encrypted with; None: what the store is encrypted with.
        is_durable: whether runs go on only when a snapshot is exported.
    """

    folder: str | None
    export: str | None = None
    keys: str | None = None
    is_durable: bool = False

    async def open(self) -> IsolatedSandboxes | None:
        """Return isolated sandboxes, after trying one; None: no folder was named.

        Where PERDURE_CRIU names a program, processes are kept with it.

        Raises:
            UsageError: this host can't isolate, or the terms don't fit; nothing was executed.
        """
        if not self.folder:
            if self.is_durable:
                msg = "--sandbox-durable needs --sandbox and --sandbox-export; nothing was executed"
                raise UsageError(msg)
            return None
        keys = (self.keys or keys_given()) if self.export else None
        criu = os.environ.get(CRIU_VARIABLE) or None
        backend = IsolatedSandboxes(
            self.folder, export=self.export, keys=keys, durable=self.is_durable, criu=criu
        )
        try:
            await backend.capabilities()
        except BaseException:
            backend.close()
            raise
        return backend

    def words(self) -> list[str]:
        """Return the options that say the same, without what the environment says already."""
        words: list[str] = []
        for option, value, variable in (
            ("--sandbox", self.folder, "PERDURE_SANDBOX"),
            ("--sandbox-export", self.export, "PERDURE_SANDBOX_EXPORT"),
            ("--sandbox-keys", self.keys, "PERDURE_SANDBOX_KEYS"),
        ):
            if value and value != os.environ.get(variable):
                words += [option, value]
        return [*words, "--sandbox-durable"] if self.is_durable else words


def kept_in(
    folder: str | Path, export: str | None = None, keys: str | None = None, *, plain: bool = False
) -> IsolatedSandboxes:
    """Return the sandboxes that a folder has.

    Args:
        folder: theirs.
        export: where they are exported to; None: that is left alone.
        keys: what exports are encrypted with; None: what the store is encrypted with.
        plain: they are not encrypted.

    Raises:
        NotFound: it has none, so that nothing can be said of their files; nothing was done.
        SettingInvalid: the place or the keys are none; the same.
    """
    check_root(Path(folder))
    if export is None:
        return IsolatedSandboxes(folder)
    given = None if plain else keys or keys_given()
    return IsolatedSandboxes(folder, export=export, keys=given, plain=plain)
