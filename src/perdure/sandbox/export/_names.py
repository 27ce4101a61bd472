"""What objects may be called."""

import re

from perdure.errors import UsageError
from perdure.sandbox.limits import OBJECT_NAME_CHARACTERS_MAX

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def checked_name(name: str) -> str:
    """Return the name of an object.

    Raises:
        UsageError: it can be none.
    """
    if len(name) > OBJECT_NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        msg = f"{name[:80]!r} can't be the name of an object; nothing was changed"
        raise UsageError(msg)
    return name
