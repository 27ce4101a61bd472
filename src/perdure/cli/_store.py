"""The store that a command works on: its URL, whether it exists, and a runtime over it."""

import os
import shlex
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from perdure.engine import Runtime, WorkerSettings
from perdure.errors import SettingInvalid, StoreUnavailable

DEFAULT_URL = "sqlite:///perdure.db"
VARIABLE = "PERDURE_STORE"


@asynccontextmanager
async def existing(url: str) -> AsyncIterator[Runtime]:
    """Open a runtime that only asks and decides, over a store that must exist.

    Raises:
        StoreUnavailable: there is no store; nothing was created.
    """
    check_shared(url)
    check_exists(url)
    async with Runtime.open(url, worker=False) as runtime:
        yield runtime


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Runtime]:
    """Open the same, after the runs of workers of this host that died have been freed.

    Any live worker does that at once; where none is left, whoever looks does.

    Raises:
        StoreUnavailable: there is no store; nothing was created.
    """
    async with existing(url) as runtime:
        await runtime.engine.store.release_dead()
        yield runtime


def creating(url: str, graphs: Iterable[Any], *, worker: WorkerSettings | bool) -> Runtime:
    """Return a runtime over a store that is created if it does not exist."""
    return Runtime.open(url, graphs, worker=worker)


def check_shared(url: str) -> None:
    """Refuse a store that no other process can see.

    Raises:
        SettingInvalid: it lives in this process only.
    """
    if url.startswith("memory:"):
        msg = (
            f"--store {url}: a memory store ends with its process, nobody else would see it; "
            f"name a file: --store {DEFAULT_URL}"
        )
        raise SettingInvalid(msg, url=url)


def check_exists(url: str) -> None:
    """Refuse a SQLite file that does not exist, rather than create it.

    Raises:
        StoreUnavailable: says how it would be created.
    """
    if not url.startswith("sqlite:"):
        return
    from perdure.store.sqlite import parse_url  # noqa: PLC0415  # only for this kind of store

    path = parse_url(url).path
    if not path.exists():
        msg = (
            f"there is no store at {str(path)!r}; nothing was created. 'perdure run', "
            f"'perdure start' and 'perdure worker' create it; --store or {VARIABLE} names another"
        )
        raise StoreUnavailable(msg, url=url, path=str(path))


def with_store(command: str, url: str) -> str:
    """Return a command that finds the same store again when it is typed into the same shell."""
    if url == os.environ.get(VARIABLE, DEFAULT_URL):
        return command
    words, mark, comment = command.partition("  #")
    return f"{words} --store {shlex.quote(url)}{mark}{comment}"
