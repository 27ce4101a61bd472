"""The last line of defence: what can't be read costs its own facts, never the whole check.

Readers are bounded and know what they can't read. Projects have what nobody thought of all the
same, and a check that ends with a traceback says nothing of the other services.
"""

from types import TracebackType

from perdure.contracts.files import Project, TooMuchError
from perdure.errors import PerdureError


class defended:  # noqa: N801 - read as `with defended(...)`
    """Go on after whatever the body raises; what could not be read is in `project.unread`.

    Errors of our own go through: they are answers.
    """

    def __init__(self, project: Project, path: str, what: str) -> None:
        """Remember in `project` that `what`, of the file at `path`, could not be read."""
        self._project = project
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        """Nothing is done yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Whether the check goes on: after RecursionError and MemoryError too."""
        if not isinstance(error, Exception) or isinstance(error, PerdureError):
            return False
        if isinstance(error, TooMuchError):
            what = f"{self._what} was left out: {error}"
        else:
            what = f"the check failed at {self._what} with {type(error).__name__}"
        self._project.not_read(self._path, what)
        return True
