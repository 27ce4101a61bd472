"""Regular expressions that are compiled when they are first used.

The room has about two hundred, of which a small project needs few; to compile all of them is a
fifth of what `perdure check` does before it reads a file.
"""

import re
from typing import Any, cast


class _Pattern:
    """Stands for a pattern, of which it takes over whatever is asked for."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        # Asked once for each method: what is set here is found before this is called.
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def regex(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return what can be used as `re.compile(text, flags)`; raises its errors at its first use."""
    return cast("re.Pattern[str]", _Pattern(text, flags))
