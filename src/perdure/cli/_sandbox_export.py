"""`perdure sandbox export|import|verify`: snapshots that outlive the host."""

from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli._options import AsJson, Tenant, await_
from perdure.cli._output import print_json, say, table
from perdure.cli._text import plural
from perdure.clock import system_services
from perdure.errors import SettingInvalid, UsageError
from perdure.sandbox import (
    IsolatedSandboxes,
    Tally,
    Verified,
    check_root,
    check_thread,
    make_objects,
    tenants_of,
    verify,
)
from perdure.sealing import make_keys

BROKEN = 40
"""Exit code of `sandbox verify` when something is not what was exported."""

Folder = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER", envvar="PERDURE_SANDBOX", help="Where the sandboxes are kept."
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        envvar="PERDURE_SANDBOX_EXPORT",
        metavar="URL",
        help="Where to export to, e.g. file:///mnt/exports.",
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="PERDURE_SANDBOX_EXPORT",
        metavar="URL",
        help="Where it was exported to.",
    ),
]
ExportKeys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        envvar="PERDURE_SANDBOX_KEYS",
        metavar="FROM",
        help="What exports are encrypted with: env:NAME or file:PATH.",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="The exports are not encrypted.")]
OneSnapshot = Annotated[
    str | None, typer.Option("--snapshot", metavar="S", help="Which (default: the newest).")
]


def sandbox_export(
    *,
    folder: Folder,
    to: To,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="T", help="Only this thread's newest (default: all)."),
    ] = None,
    snapshot: OneSnapshot = None,
    tenant: Tenant = "default",
    keys: ExportKeys = None,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    r"""Export snapshots of files, so that another host can restore them.

    Whether what was exported is there is looked at; what is not is exported again. Content that is
    there already is not written again. Workers may work meanwhile.

    \b
    Examples:
      perdure sandbox export /var/lib/agents --to file:///mnt/exports --keys file:/etc/perdure/keys
      perdure sandbox export /var/lib/agents --to file:///mnt/exports --plain --thread customer-12
    """
    if snapshot is not None and thread is None:
        msg = "--snapshot needs the thread that stands on it: --thread; nothing was exported"
        raise UsageError(msg)
    check_root(Path(folder))
    if thread is not None:
        check_thread(Path(folder), tenant, thread)
    backend = _backend(folder, to, keys, plain=plain)
    done, tally = await_(_export(backend, tenant, thread, snapshot))
    if as_json:
        print_json({"exported": {"snapshots": done, "known": tally.known, **_tally_json(tally)}})
        return
    say(
        f"exported {plural(len(done), 'snapshot')} to {to}: {plural(tally.pieces, 'piece')}, "
        f"{tally.new} of them new; {tally.stored_bytes} bytes written; "
        f"{plural(tally.known, 'snapshot')} already there"
    )


async def _export(
    backend: IsolatedSandboxes, tenant: str, thread: str | None, snapshot: str | None
) -> tuple[list[str], Tally]:
    try:
        if thread is None:
            return await backend.make_all_durable()
        sandbox = backend.open(tenant, thread)
        wanted = snapshot or sandbox.head()
        tally = await sandbox.make_durable(wanted, is_checked=True)
        if not tally.snapshots:
            tally.known = 1
        return [wanted] if tally.snapshots else [], tally
    finally:
        backend.close()


def sandbox_import(
    *,
    folder: Folder,
    source: From,
    thread: Annotated[str, typer.Option("--thread", metavar="T", help="The thread.")],
    snapshot: OneSnapshot = None,
    tenant: Tenant = "default",
    keys: ExportKeys = None,
    plain: Plain = False,
    any_base: Annotated[
        bool, typer.Option("--any-base", help="Also what was made over another /usr.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    r"""Bring an exported snapshot to this host, with all that it stands on.

    A worker with the same place does that by itself when a run needs it. Everything is checked
    before it gets a name here; no thread's files change. Which snapshot a run stands on is in the
    store ('perdure history'): without --snapshot it is the newest that is there.

    \b
    Examples:
      perdure sandbox import /var/lib/agents --from file:///mnt/exports --thread customer-12 \
        --keys file:/etc/perdure/keys
    """
    backend = _backend(folder, source, keys, plain=plain)
    found = await_(_import(backend, tenant, thread, snapshot, is_any_base=any_base))
    if as_json:
        body = {
            "snapshot": found.snapshot,
            "thread": found.thread,
            "generation": list(found.generation),
            "pieces": found.tally.pieces,
            "bytes": found.tally.bytes,
        }
        print_json({"imported": body})
        return
    say(
        f"imported {found.snapshot} of thread {found.thread or '(not known)'}: "
        f"{plural(found.tally.pieces, 'piece')}, {found.tally.bytes} bytes fetched"
    )


async def _import(
    backend: IsolatedSandboxes,
    tenant: str,
    thread: str,
    snapshot: str | None,
    *,
    is_any_base: bool,
) -> Any:
    try:
        sandbox = backend.open(tenant, thread)
        return await sandbox.fetch(snapshot, is_any_base=is_any_base)
    finally:
        backend.close()


def sandbox_verify(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL", envvar="PERDURE_SANDBOX_EXPORT", help="Where it was exported to."
        ),
    ],
    keys: ExportKeys = None,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    r"""Read everything that was exported, and say what is not as it was written.

    Exit code 0: all of it is; 40: something is not. Nothing is changed. What can't be seen is
    whether newer snapshots were taken away: compare with the store's ('perdure history').

    \b
    Examples:
      perdure sandbox verify file:///mnt/exports --keys file:/etc/perdure/keys
      perdure sandbox verify file:///mnt/exports --keys env:EXPORT_KEYS --json
    """
    found = await_(_verify(source, keys, plain=plain))
    is_sound = not any(each.problem for each in found)
    if as_json:
        print_json({"is_sound": is_sound, "snapshots": [_verified_json(each) for each in found]})
    else:
        table(
            ("snapshot", "thread", "number", "files", "bytes", "stands on", ""),
            [
                (
                    each.snapshot or each.tenant,
                    each.thread,
                    "-".join(map(str, each.generation)),
                    each.files,
                    each.bytes,
                    each.parent or "(base)",
                    each.problem or "whole",
                )
                for each in found
            ],
            empty="nothing was exported there",
        )
    raise typer.Exit(0 if is_sound else BROKEN)


async def _verify(url: str, keys: str | None, *, plain: bool) -> list[Verified]:
    if (keys is None) != plain:
        msg = "name the keys that the exports are encrypted with (--keys), or say --plain"
        raise SettingInvalid(msg)
    services = system_services()
    objects = make_objects(url, services)
    provider = None if keys is None else make_keys(keys, services)
    found: list[Verified] = []
    for folder in tenants_of(objects):
        found += await verify(objects, provider, services, folder=folder)
    return found


def _backend(folder: str, url: str, keys: str | None, *, plain: bool) -> IsolatedSandboxes:
    return IsolatedSandboxes(folder, export=url, keys=keys, plain=plain)


def _tally_json(tally: Tally) -> dict[str, int]:
    return {
        "pieces": tally.pieces,
        "new": tally.new,
        "bytes": tally.bytes,
        "stored_bytes": tally.stored_bytes,
    }


def _verified_json(each: Verified) -> dict[str, Any]:
    return {
        "snapshot": each.snapshot or None,
        "tenant": each.tenant,
        "thread": each.thread or None,
        "generation": list(each.generation),
        "is_whole": each.is_whole,
        "parent": each.parent or None,
        "files": each.files,
        "bytes": each.bytes,
        "driver": each.driver or None,
        "kernel": each.kernel or None,
        "problem": each.problem or None,
    }
