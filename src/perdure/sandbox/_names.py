"""Names of folders for what callers named."""

import hashlib
import re

READABLE_LENGTH = 32
"""Characters of a name that its folder shows; the digest behind them makes it unique."""


def folder_name(name: str) -> str:
    """Return a safe name for a folder: another one for each name, also where case doesn't count."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:READABLE_LENGTH]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{readable}.{digest}"
