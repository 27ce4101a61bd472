"""An edit of whole lines: what a repair changes, and what SARIF shows of it."""

from msgspec import Struct


class Edit(Struct, frozen=True, kw_only=True):
    """Replace `removed` lines from `line` (counted from 1) on by `lines`; none removed: insert."""

    file: str
    line: int
    removed: int
    lines: tuple[str, ...]
