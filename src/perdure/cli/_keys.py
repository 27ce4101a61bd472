"""`perdure keys`: make keys, see which a store needs, wrap its data keys anew, seal what it has."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli._options import AsJson, StoreUrl, await_
from perdure.cli._output import Progress, note, print_json, say, table
from perdure.cli._store import DEFAULT_URL, KEYS_VARIABLE, check_exists, check_shared, keys_given
from perdure.cli._text import full_time, plural
from perdure.clock import Services, system_services
from perdure.engine.waits import as_datetime
from perdure.errors import SettingInvalid, UsageError
from perdure.sealing import (
    KeyProvider,
    Sealing,
    make_keys,
    new_key,
    parse_keys,
    preview_seal,
    read_key_file,
    rotate,
    seal,
    wrappings,
)
from perdure.store import make_store
from perdure.store.api import Store

KeyFile = Annotated[
    str | None,
    typer.Option("--file", metavar="PATH", help="Add it to this file as the newest, mode 0600."),
]


def keys_new(*, file: KeyFile = None, as_json: AsJson = False) -> None:
    r"""Make a key; print it as env: takes it, or add it to a file as file: takes it.

    The key is a secret, and all that it encrypts is lost with it: keep a copy in another place.

    \b
    Examples:
      perdure keys new --file /etc/perdure/keys
      export AGENT_KEYS="$(perdure keys new)"
    """
    entry = new_key(system_services().entropy)
    key_id = entry.partition(":")[0]
    if file is None:
        if as_json:
            print_json({"key": {"id": key_id, "entry": entry}})
        else:
            say(entry)
        return
    _add(Path(file), entry)
    if as_json:
        print_json({"key": {"id": key_id, "path": file}})
    else:
        say(
            f"added key {key_id} to {file}; keep a copy elsewhere: what it encrypts is lost with it"
        )


def _add(path: Path, entry: str) -> None:
    """Add a line to a file of keys, all of it or nothing.

    Raises:
        SettingInvalid: the file holds something else than keys, or others may reach it.
    """
    text = ""
    if path.exists():
        text = read_key_file(path)
        if text.strip():
            parse_keys(text, f"file:{path}")
        text = text if text.endswith("\n") or not text else f"{text}\n"
    new = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(f"{text}{entry}\n")
            out.flush()
            os.fsync(out.fileno())
        new.replace(path)
    except OSError as error:
        msg = f"{error.filename or path}: {error.strerror}; {path} is as it was"
        raise SettingInvalid(msg, path=str(path)) from error


def keys_list(*, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    r"""List the keys that an encrypted store needs, and how many data keys each of them wraps.

    Says of each whether it is among those given (--keys), if any are. Shows no key.

    \b
    Examples:
      perdure keys list --keys file:/etc/perdure/keys
    """
    found, current = await_(_list(store))
    if as_json:
        print_json(
            {
                "keys": [
                    {
                        "id": each.key_id,
                        "data_keys": each.data_keys,
                        "since": as_datetime(each.oldest_us).isoformat(),
                        "is_current": None if current is None else each.key_id == current,
                    }
                    for each in found
                ]
            }
        )
        return
    rows = [
        (
            each.key_id,
            each.data_keys,
            full_time(as_datetime(each.oldest_us)),
            "current" if each.key_id == current else "",
        )
        for each in found
    ]
    table(("key", "data keys", "since (UTC)", ""), rows)
    if current is not None and any(each.key_id != current for each in found):
        note("some data keys are wrapped by other keys than the current one: perdure keys rotate")


async def _list(url: str) -> tuple[list[Any], str | None]:
    spec = keys_given()
    provider = None if spec is None else make_keys(spec, system_services())
    current = None if provider is None else await provider.current()

    async def work(store: Store) -> list[Any]:
        return await wrappings(store)

    return await _on_bare(url, work), current


def keys_rotate(*, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    r"""Wrap every data key of a store with the newest of the keys; no data is rewritten.

    May be stopped and started again at any time. When it has ended, this store needs the older keys
    no more. Processes that have the older keys only must be given the new one first.

    \b
    Examples:
      perdure keys rotate --keys file:/etc/perdure/keys
    """
    services = system_services()
    provider = _needed("rotate", services)
    done = await_(_on_bare(store, lambda opened: rotate(opened, provider, services)))
    body = {"key": done.key_id, "wrapped": done.wrapped, "kept": done.kept}
    if as_json:
        print_json({"rotation": body})
    else:
        kept = f", {plural(done.kept, 'data key')} had it already" if done.kept else ""
        say(f"wrapped {plural(done.wrapped, 'data key')} with {done.key_id}{kept}")


def _needed(command: str, services: Services) -> KeyProvider:
    """Return the keys that a command can't do without.

    Raises:
        UsageError: none were named.
    """
    spec = keys_given()
    if spec is None:
        msg = (
            f"keys {command}: name the keys, the newest last: --keys file:PATH (or {KEYS_VARIABLE})"
        )
        raise UsageError(msg)
    return make_keys(spec, services)


def keys_seal(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be encrypted; change nothing.")
    ] = False,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Encrypt a store that has data, in place; nobody else may have it open.

    All of it or nothing, wherever it is stopped; then its files are written anew, so that nothing
    in plain is left. Started again, it does what is left. Backups and exports stay as they are.

    \b
    Examples:
      perdure keys seal --keys file:/etc/perdure/keys --dry-run
      perdure keys seal --keys file:/etc/perdure/keys
    """
    services = system_services()
    provider = _needed("seal", services)
    done = await_(_seal(store, provider, services, is_dry=dry_run))
    if as_json:
        print_json({"sealing": _sealing_json(done, is_dry=dry_run)})
        return
    will = "would be" if dry_run else "are"
    if done.rows:
        shown = ", ".join(f"{count} {kind}" for kind, count in done.rows.items() if count)
        say(f"{shown or 'no rows'} {will} encrypted")
    else:
        say(f"{store} is encrypted already")
    if done.files_written:
        say(f"its files {'would be' if dry_run else 'were'} written anew")
    for each in done.left:
        note(f"may still hold something in plain: {each}")
    if done.rows and not dry_run:
        note("so may backups and audit exports of before; whoever opens it needs the keys now")


async def _seal(url: str, provider: KeyProvider, services: Services, *, is_dry: bool) -> Sealing:
    check_shared(url)
    store = make_store(url, services)
    await check_exists(store, url)
    if is_dry:
        return await preview_seal(store)
    with Progress() as progress:

        def tell(kind: str, made: int, of: int) -> None:
            progress.tell("writing files anew" if kind == "files" else f"{kind}: {made} of {of}")

        return await seal(store, provider, services, progress=tell)


def _sealing_json(done: Sealing, *, is_dry: bool) -> dict[str, Any]:
    return {
        "is_dry_run": is_dry,
        "rows": sum(done.rows.values()),
        "kinds": [{"kind": kind, "rows": count} for kind, count in done.rows.items()],
        "files_written": done.files_written,
        "remains": done.left,
    }


async def _on_bare(url: str, work: Callable[[Store], Awaitable[Any]]) -> Any:
    """Do the work over a store as it is, without a runtime: nothing is decrypted."""
    check_shared(url)
    store = make_store(url, system_services())
    await check_exists(store, url)
    await store.open()
    try:
        return await work(store)
    finally:
        await store.close()
