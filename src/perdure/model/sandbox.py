"""What commands in a sandbox gave and changed: values that nodes get, and that journals keep."""

from msgspec import Struct


class Contact(Struct, frozen=True, kw_only=True):
    """One connection that was asked for.

    Attributes:
        reason: why it was refused or failed; empty: it was made.
        sent, received: bytes, as seen from the sandbox.
    """

    host: str
    port: int
    reason: str = ""
    sent: int = 0
    received: int = 0


class ServiceState(Struct, frozen=True, kw_only=True):
    """Whether a service was up when a command began. `reason`: why not; empty: it was."""

    name: str
    reason: str = ""

    @property
    def is_up(self) -> bool:
        """Whether it answered."""
        return not self.reason


class Ran(Struct, frozen=True, kw_only=True):
    """How a command ended.

    Attributes:
        code: exit code; 128 + signal where a signal ended it; 137 where it was killed by us.
        output, errors: what it printed, decoded as UTF-8 with replacements, up to the limit.
        is_cut: whether it printed more than was kept.
        killed_by: deadline, flood, memory, disk (it took more room than there is); empty: nobody.
        left: command lines of what was alive when it ended. All of it was killed, unless the
            sandbox is live: then all of it goes on, also what earlier commands left.
        lost: in words, what was alive when the snapshot was taken that the files are of, or was
            left by an earlier command, and is not alive any more. It is said once.
        services: those of the sandbox, started for this command or up since before.
        contacts: what it reached outside, or tried to.
    """

    code: int
    output: str
    errors: str
    is_cut: bool = False
    killed_by: str = ""
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    contacts: tuple[Contact, ...] = ()
    services: tuple[ServiceState, ...] = ()


class Change(Struct, frozen=True, kw_only=True):
    """One path that was changed.

    Attributes:
        path: in the sandbox; names that are no UTF-8 with surrogates.
        kind: added, changed, removed, or replaced (a folder that took the place of another).
        is_folder: whether it is a folder now.
        bytes: size of a file now; 0 for all else.
    """

    path: str
    kind: str
    is_folder: bool = False
    bytes: int = 0


class Package(Struct, frozen=True, kw_only=True):
    """A package that was installed. `manager`: apt, pip or npm."""

    manager: str
    name: str
    version: str


class Changes(Struct, frozen=True, kw_only=True):
    """What changed between two states of the files.

    Attributes:
        paths: by path.
        packages: installed by apt, pip or npm, as far as their own records tell.
        is_cut: there are more than were listed.
    """

    paths: tuple[Change, ...]
    packages: tuple[Package, ...] = ()
    is_cut: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether nothing changed."""
        return not self.paths
