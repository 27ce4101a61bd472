"""The store that a command works on: its URL, whether it exists, and a runtime over it."""

import os
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from perdure.clock import system_services
from perdure.engine import Runtime, WorkerSettings
from perdure.errors import PerdureError, SettingInvalid, StoreUnavailable
from perdure.store import make_store, shown_url
from perdure.store.api import Store

DEFAULT_URL = "sqlite:///perdure.db"
VARIABLE = "PERDURE_STORE"
KEYS_VARIABLE = "PERDURE_KEYS_FROM"

_keys: ContextVar[str | None] = ContextVar("perdure_keys", default=None)
_url: ContextVar[str] = ContextVar("perdure_url", default=DEFAULT_URL)

_COMMAND = re.compile(
    r"'(perdure [a-z][^']*)'"
    r"|\b(perdure (?:(?:audit|keys|limit|schedule) [a-z]+|approve|cancel|doctor|history|migrate|ps"
    r"|replay|resolve|show|signal|worker)"
    r"(?: (?:--[a-z-]+|[A-Z]+(?::[A-Z]+)?\b|[a-z]+_[0-9a-z]+))*)"
)
"""A command in the text of an error: in quotes as a whole, else as far as it looks like one."""

_STORELESS = ("perdure audit check", "perdure audit keygen", "perdure keys new")


@contextmanager
def with_terms(url: str, keys: str | None) -> Iterator[None]:
    """Let a command work on this store, with these keys (None or empty: with none).

    An error on its way out gets the commands that its text names, with the same store and keys.
    """
    tokens = _url.set(url), _keys.set(keys or None)
    try:
        yield
    except PerdureError as error:
        told = [str(each) for each in error.fields.get("next") or ()]  # type: ignore[attr-defined]  # a list, where it is there
        more = [each for each in pasted_from(str(error)) if each not in told]
        if more:
            error.fields["next"] = [*told, *more]
        raise
    finally:
        _url.reset(tokens[0])
        _keys.reset(tokens[1])


def pasted_from(text: str) -> list[str]:
    """Return the commands that a text names and that need more words to find the same store."""
    found = [quoted or bare for quoted, bare in _COMMAND.findall(text)]
    short = [each for each in found if not each.startswith(_STORELESS) and "--store" not in each]
    return list(dict.fromkeys(pasted(each) for each in short if pasted(each) != each))


def pasted(command: str) -> str:
    """Return a command as it can be typed next: see `with_store`."""
    return with_store(command, _url.get())


def keys_given() -> str | None:
    """Return where the keys of the command's store are, or None."""
    return _keys.get()


@asynccontextmanager
async def existing(url: str, graphs: Iterable[Any] = ()) -> AsyncIterator[Runtime]:
    """Open a runtime that only asks and decides, over a store that must exist.

    Raises:
        StoreUnavailable: there is no store; nothing was created.
    """
    check_shared(url)
    services = system_services()
    store = make_store(url, services)
    await check_exists(store, url)
    async with Runtime.open(
        store, graphs, worker=False, keys=keys_given(), services=services
    ) as runtime:
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


def creating(
    url: str | Store,
    graphs: Iterable[Any],
    *,
    worker: WorkerSettings | bool,
    sandbox: Any = None,
) -> Runtime:
    """Return a runtime over a store that is created if it does not exist."""
    return Runtime.open(url, graphs, worker=worker, keys=keys_given(), sandbox=sandbox)


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


async def check_exists(store: Store, url: str) -> None:
    """Refuse a store that is not there, rather than create it.

    Raises:
        StoreUnavailable: says how it would be created.
    """
    if await store.is_there():
        return
    msg = (
        f"there is no store at {store.place!r}; nothing was created. 'perdure run', "
        f"'perdure start' and 'perdure worker' create it; --store or {VARIABLE} names another"
    )
    raise StoreUnavailable(msg, url=shown_url(url))


def with_store(command: str, url: str) -> str:
    """Return a command that finds the same store again when it is typed into the same shell.

    A password is not shown: `PERDURE_STORE` keeps it out of commands, too.
    """
    words, mark, comment = command.partition("  #")
    keys = keys_given()
    if keys is not None and keys != os.environ.get(KEYS_VARIABLE):
        words += f" --keys {shlex.quote(keys)}"
    if url == os.environ.get(VARIABLE, DEFAULT_URL):
        return f"{words}{mark}{comment}"
    shown = shown_url(url)
    if shown != url:  # a command with stars in it would fail, and say nothing of why
        shown = shown.replace(":***@", "@")
        mark, comment = "  #", f"{comment} with the password in PGPASSWORD"
    return f"{words} --store {shlex.quote(shown)}{mark}{comment}"
