"""`perdure sandbox`: what a folder of sandboxes has, and removing what nothing needs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._options import AnyTenant, AsJson, StoreUrl, Tenant, await_
from perdure.cli._output import note, print_json, say, table
from perdure.cli._retaining import exports_line, layers_json, layers_line, shown_size
from perdure.cli._sandbox import kept_in
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.cli._text import full_time, plural
from perdure.engine.outlook import command
from perdure.governance import collect_snapshots
from perdure.sandbox import (
    LayersCollected,
    Snapshot,
    ThreadFiles,
    history_of,
    threads_in,
)

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", envvar="PERDURE_SANDBOX", help="Where the sandboxes are kept."
    ),
]


def sandbox_list(*, folder: Folder, as_json: AsJson = False) -> None:
    r"""List the threads whose files a folder has, and how much room they take.

    Folders show the beginning of a name, and a digest of all of it.

    \b
    Examples:
      perdure sandbox list /var/lib/agents
      perdure sandbox list /var/lib/agents --json
    """
    found = list(threads_in(folder))
    if as_json:
        print_json({"threads": [_thread_json(each) for each in found]})
        return
    table(
        (
            "tenant",
            "thread",
            "snapshot",
            "taken (UTC)",
            "layers",
            "files",
            "size",
            "since then",
            "processes",
        ),
        [
            (
                each.tenant,
                each.thread,
                each.head or "(base)",
                full_time(each.at) if each.at else "",
                each.damage or each.layers,
                each.entries,
                shown_size(each.bytes),
                shown_size(each.live_bytes),
                shown_size(each.image_bytes) if each.image_bytes else "",
            )
            for each in found
        ],
        empty="no sandboxes",
    )


def _thread_json(each: ThreadFiles) -> dict[str, Any]:
    return {
        "tenant": each.tenant,
        "thread": each.thread,
        "snapshot": each.head or None,
        "taken_at": shapes.time_json(each.at),
        "layers": each.layers,
        "files": each.entries,
        "bytes": each.bytes,
        "live_files": each.live_entries,
        "live_bytes": each.live_bytes,
        "image_bytes": each.image_bytes,
        "damage": each.damage or None,
    }


def sandbox_show(
    *,
    folder: Folder,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")],
    tenant: Tenant = "default",
    as_json: AsJson = False,
) -> None:
    r"""Show the snapshots that a thread's files stand on, newest first, and what made them.

    \b
    Examples:
      perdure sandbox show /var/lib/agents customer-12
      perdure sandbox show /var/lib/agents customer-12 --json
    """
    found, snapshots = history_of(folder, tenant, thread)
    if as_json:
        shown = [_snapshot_json(each) for each in snapshots]
        print_json({"files": _thread_json(found), "snapshots": shown})
        return
    say(
        f"thread {thread}: {plural(len(snapshots), 'snapshot')}, "
        f"{shown_size(found.bytes)} in {found.entries} files; since then {found.live_entries} "
        f"files, {shown_size(found.live_bytes)}"
    )
    table(
        ("snapshot", "taken (UTC)", "files", "size", "kept as one", "driver", "kernel", "perdure"),
        [
            (
                each.id,
                full_time(each.at) if each.at else "",
                each.entries,
                shown_size(each.bytes),
                "yes" if each.is_squashed else "",
                each.made.driver or "(not known)",
                each.made.kernel,
                each.made.perdure,
            )
            for each in snapshots
        ],
        empty="none: the files stand on the base",
    )


def _snapshot_json(each: Snapshot) -> dict[str, Any]:
    return {
        "snapshot": each.id,
        "format": each.format,
        "parent": each.parent or None,
        "base": each.base,
        "taken_by": each.thread or None,
        "taken_at": shapes.time_json(each.at),
        "changes": each.changes or None,
        "files": each.entries,
        "bytes": each.bytes,
        "layers": each.layers,
        "is_squashed": each.is_squashed,
        "driver": each.made.driver or None,
        "kernel": each.made.kernel or None,
        "filter": each.made.filter or None,
        "landlock": each.made.landlock,
        "perdure": each.made.perdure or None,
    }


def sandbox_collect(
    *,
    folder: Folder,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; change nothing.")
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            envvar="PERDURE_SANDBOX_EXPORT",
            metavar="URL",
            help="Do it where they are exported to, too.",
        ),
    ] = None,
    export_keys: Annotated[
        str | None,
        typer.Option(
            "--export-keys",
            envvar="PERDURE_SANDBOX_KEYS",
            metavar="FROM",
            help="What exports are encrypted with (default: the store's keys).",
        ),
    ] = None,
    export_plain: Annotated[
        bool, typer.Option("--export-plain", help="The exports are not encrypted.")
    ] = False,
    tenant: AnyTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Remove the snapshots of files that no journal of the store names any more.

    Live files of threads that were erased go, too. Workers may work meanwhile, on the same folder.
    It may be stopped at any time, and started again. 'perdure prune --sandbox' does it as well.

    \b
    Examples:
      perdure sandbox collect /var/lib/agents --dry-run
      perdure sandbox collect /var/lib/agents --store sqlite:///agents.db
      perdure sandbox collect /var/lib/agents --export file:///mnt/exports --dry-run
    """

    async def work() -> LayersCollected:
        """Collect."""
        backend = kept_in(folder, export, export_keys, plain=export_plain)
        async with existing(store) as runtime:
            return await collect_snapshots(runtime, backend, tenant=tenant, dry_run=dry_run)

    done = await_(work())
    if as_json:
        print_json({"collected": layers_json(done)})
        return
    say(layers_line(done))
    if done.exports is not None:
        say(exports_line(done.exports))
    if dry_run:
        words = ["sandbox", "collect", str(folder), *(["--tenant", tenant] if tenant else [])]
        words += ["--export", export] if export else []
        note(f"next: {with_store(command(*words), store)}")
