"""What a stage makes: folders of its own, and things of engines that are made to their end."""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from perdure.contracts.inject.engines import BINDS
from perdure.errors import EngineFailed

Value = TypeVar("Value")


def copies_folder(owner: str) -> Path:
    """Make a folder for copies; its path has no links, so that an engine mounts what we made."""
    return Path(tempfile.mkdtemp(prefix=f"{BINDS}{owner}.")).resolve()


async def finished(
    making: Coroutine[object, object, Value], then: Callable[[Value], None] | None = None
) -> None:
    """Make something to its end, also if we are cancelled: an engine does so, too."""
    then = then or (lambda _: None)
    task = asyncio.ensure_future(making)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(EngineFailed):
            then(await task)
        raise
    then(task.result())
