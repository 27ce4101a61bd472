"""`prune`, `tag`, `untag` and `quota`: what is kept, and how much room it may take."""

import datetime as dt
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._options import (
    AnyTenant,
    AsJson,
    ExportKeysOf,
    ExportOf,
    FilesOf,
    StoreUrl,
    Tenant,
    await_,
)
from perdure.cli._output import Progress, note, print_json, say, table
from perdure.cli._sandbox import kept_in
from perdure.cli._store import DEFAULT_URL, check_shared, creating, existing, with_store
from perdure.cli._text import plural
from perdure.cli.limits import STAYS_SHOWN
from perdure.engine import Runtime
from perdure.engine.orders import Quota
from perdure.engine.outlook import command
from perdure.errors import SettingInvalid, UsageError
from perdure.governance import Pruned, ThreadPruned
from perdure.governance import prune as prune_threads
from perdure.sandbox import ExportsCollected, LayersCollected

OneThread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")]
TagName = Annotated[str, typer.Argument(metavar="NAME", help="Name, unique in the thread.")]

_AGES = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_age(text: str) -> dt.timedelta:
    """Return an age such as 30d, 12h, 90min, 2w.

    Raises:
        SettingInvalid: it is none.
    """
    found = re.fullmatch(r"(\d{1,6})(s|min|h|d|w)", text)
    if found is None:
        msg = f"--older-than {text!r}: write a number and a unit, e.g. 30d, 12h, 90min, 2w"
        raise SettingInvalid(msg, value=text)
    return dt.timedelta(seconds=int(found[1]) * _AGES[found[2]])


def parse_size(text: str) -> int:
    """Return a size such as 10GB, 500MiB.

    Raises:
        SettingInvalid: it is none.
    """
    found = re.fullmatch(r"(\d{1,18})\s*([A-Za-z]*)", text)
    size = None if found is None else _SIZES.get(found[2].upper())
    if found is None or size is None:
        msg = f"--max-bytes {text!r}: write a number and a unit, e.g. 10GB, 500MiB"
        raise SettingInvalid(msg, value=text)
    return int(found[1]) * size


def shown_size(size: int) -> str:
    """Return a size in its largest fitting unit."""
    for unit in ("TB", "GB", "MB", "KB"):
        if abs(size) >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.1f} {unit}"
    return f"{size} B"


# -- pruning ---------------------------------------------------------------------------------------


def prune(
    *,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREAD]...", help="Only these threads (default: all)."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", help="Keep the newest N checkpoints of each thread."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Let go what is older, e.g. 30d, 12h."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; change nothing.")
    ] = False,
    vacuum: Annotated[
        bool | None,
        typer.Option(
            "--vacuum/--no-vacuum",
            help="Rewrite SQLite's file without its free room (default: if that is quick).",
        ),
    ] = None,
    sandbox: FilesOf = None,
    sandbox_export: ExportOf = None,
    sandbox_keys: ExportKeysOf = None,
    tenant: AnyTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Erase what of threads is not wanted any more; what is kept stays readable and provable.

    Always kept: the newest state of each thread, all of unfinished runs, tagged and forked
    checkpoints. Workers may work meanwhile. It may be stopped at any time, and started again.
    With --sandbox, snapshots of files go that no journal of the tenants names any more.

    \b
    Examples:
      perdure prune --older-than 30d --dry-run
      perdure prune --older-than 30d --keep 10
      perdure prune customer-12 --keep 1 --sandbox /var/lib/agents
    """
    age = None if older_than is None else parse_age(older_than)
    if keep is None and age is None:
        msg = "prune: say what to keep: --keep N, --older-than AGE, or both; nothing was done"
        raise UsageError(msg)

    files = kept_in(sandbox, sandbox_export, sandbox_keys) if sandbox else None

    async def work(runtime: Runtime, progress: Progress) -> Pruned:
        """Prune, and tell how far it is."""
        return await prune_threads(
            runtime,
            keep=keep,
            older_than=age,
            threads=threads or (),
            tenant=tenant,
            dry_run=dry_run,
            rewrite=vacuum,
            sandbox=files,
            on_progress=lambda done: progress.tell(_progress_line(done)),
        )

    done = await_(_with_progress(store, work))
    if as_json:
        print_json({"pruned": pruned_json(done)})
        return
    _print_pruned(done)
    if dry_run:
        words = ["prune", *(threads or []), *(["--keep", str(keep)] if keep else [])]
        words += ["--older-than", older_than] if older_than else []
        words += ["--tenant", tenant] if tenant else []
        words += ["--sandbox", sandbox] if sandbox else []
        words += ["--sandbox-export", sandbox_export] if sandbox and sandbox_export else []
        note(f"next: {with_store(command(*words), store)}")


async def _with_progress(
    url: str, work: Callable[[Runtime, Progress], Awaitable[Pruned]]
) -> Pruned:
    async with existing(url) as runtime:
        with Progress() as progress:
            return await work(runtime, progress)


def _progress_line(done: Pruned) -> str:
    frames = sum(thread.frames for thread in done.threads)
    return f"{plural(len(done.threads), 'thread')}, {plural(frames, 'frame')} erased"


def _print_pruned(done: Pruned) -> None:
    will = "would go" if done.is_dry else "went"
    table(
        ("tenant", "thread", "checkpoints", "kept", will, "bytes", "stays, too", "note"),
        [
            (
                each.tenant,
                each.thread,
                each.checkpoints,
                each.kept,
                each.lost,
                shown_size(each.bytes),
                _stays(each),
                each.note,
            )
            for each in done.threads
            if each.frames or each.effects or each.stays or each.note
        ],
        empty="nothing to prune",
    )
    if done.collected is not None:
        pages = f"{plural(done.collected.pages, 'page')}, {shown_size(done.collected.bytes)}"
        say(f"pages that nothing {'would refer' if done.is_dry else 'refers'} to any more: {pages}")
    if done.problem:
        note(f"pages can't be counted, and would not be removed: {done.problem}")
    if done.layers is not None:
        say(layers_line(done.layers))
        if done.layers.exports is not None:
            say(exports_line(done.layers.exports))
    elif done.snapshots:
        say(
            f"files of sandboxes: journals named {plural(done.snapshots, 'snapshot')}; their files "
            "were not touched: name their folder with --sandbox"
        )
    compacted = done.compacted
    if compacted is not None and compacted.before:
        words = f"files: {shown_size(compacted.before)} before, {shown_size(compacted.after)} after"
        free = f"; {shown_size(compacted.free)} in them is free and will be used again"
        say(words + (free if compacted.free else ""))


def _stays(each: ThreadPruned) -> str:
    """Return why checkpoints stay that the rule does not keep, the newest few."""
    shown = [str(stay) for stay in each.stays[-STAYS_SHOWN:]]
    more = len(each.stays) - len(shown)
    return ", ".join([*([f"{more} more"] if more > 0 else []), *shown])


def _thread_json(each: ThreadPruned) -> dict[str, Any]:
    return {
        "tenant": each.tenant,
        "thread": each.thread,
        "checkpoints": each.checkpoints,
        "kept": each.kept,
        "lost": each.lost,
        "frames": each.frames,
        "records": each.records,
        "bytes": each.bytes,
        "effects": each.effects,
        "stays": [
            {"first": stay.first, "last": stay.last, "why": stay.why.value, "of": stay.of}
            for stay in each.stays
        ],
        "note": each.note,
    }


def pruned_json(done: Pruned) -> dict[str, Any]:
    """Return what a prune did, or would do."""
    pages, files = done.collected, done.compacted
    return {
        "is_dry_run": done.is_dry,
        "bytes": done.bytes,
        "threads": [_thread_json(each) for each in done.threads],
        "snapshots": done.snapshots,
        "layers": layers_json(done.layers),
        "pages": None if pages is None else {"count": pages.pages, "bytes": pages.bytes},
        "problem": done.problem,
        "files": None
        if files is None
        else {
            "before": files.before,
            "after": files.after,
            "free": files.free,
            "is_rewritten": files.is_rewritten,
        },
    }


def layers_json(done: LayersCollected | None) -> dict[str, Any] | None:
    """Return what became of snapshots of files; None: no folder was named."""
    if done is None:
        return None
    return {
        "layers": done.layers,
        "bytes": done.bytes,
        "kept": done.kept,
        "unknown": done.unknown,
        "is_dry_run": done.is_dry,
        "exports": _exports_json(done.exports),
    }


def _exports_json(done: ExportsCollected | None) -> dict[str, Any] | None:
    if done is None:
        return None
    return {
        "manifests": done.manifests,
        "pieces": done.pieces,
        "kept": done.kept,
        "unknown": done.unknown,
    }


def exports_line(done: ExportsCollected) -> str:
    """Return what became of what is exported, in words."""
    line = (
        f"exports: {plural(done.manifests, 'layer')} and {plural(done.pieces, 'piece')} of content "
        f"that nothing needs any more {'would go' if done.is_dry else 'removed'}; {done.kept} kept"
    )
    return f"{line}; {done.unknown} stay, of threads of other stores" if done.unknown else line


def layers_line(done: LayersCollected) -> str:
    """Return what became of snapshots of files, in words."""
    what = f"{plural(done.layers, 'layer')} of files that nothing needs any more"
    line = f"{what}: {shown_size(done.bytes)}{' would be free' if done.is_dry else ' freed'}"
    line += f"; {done.kept} kept"
    if done.unknown:
        line += (
            f"; {done.unknown} stay that nobody is known to need, as this store does not know who "
            "took them"
        )
    return line


# -- tags ------------------------------------------------------------------------------------------


def tag(
    *,
    thread: OneThread,
    checkpoint: Annotated[int, typer.Argument(metavar="CHECKPOINT", help="Id of the checkpoint.")],
    name: TagName,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who wants it.")] = "",
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Name a checkpoint: it is kept until the tag is removed.

    \b
    Examples:
      perdure tag customer-12 7 before-the-refund --by ada
    """
    await_(_on(store, lambda runtime: runtime.tag(thread, checkpoint, name, by=by, tenant=tenant)))
    if as_json:
        print_json({"thread": thread, "checkpoint": checkpoint, "name": name, "by": by})
        return
    say(f"checkpoint {checkpoint} of thread {thread} is kept as {name}")


def untag(
    *,
    thread: OneThread,
    name: TagName,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Remove a tag; what it kept goes with the next prune.

    \b
    Examples:
      perdure untag customer-12 before-the-refund
    """
    was_there = await_(_on(store, lambda runtime: runtime.untag(thread, name, tenant=tenant)))
    if as_json:
        print_json({"thread": thread, "name": name, "is_removed": was_there})
        return
    say(f"removed the tag {name}" if was_there else f"thread {thread} has no tag {name}")


async def _on(url: str, work: Callable[[Runtime], Awaitable[Any]]) -> Any:
    async with existing(url) as runtime:
        return await work(runtime)


# -- quotas ----------------------------------------------------------------------------------------


def quota_set(
    *,
    max_bytes: Annotated[
        str, typer.Option("--max-bytes", metavar="SIZE", help="Most room, e.g. 10GB, 500MiB.")
    ],
    tenant: AnyTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Set how much room a tenant (or all together) may take; starts beyond it are refused.

    \b
    Examples:
      perdure quota set --max-bytes 10GB
      perdure quota set --max-bytes 500MB --tenant acme
    """
    size = parse_size(max_bytes)

    async def work() -> None:
        """Set it, in a store that may be new."""
        check_shared(store)
        async with creating(store, [], worker=False) as runtime:
            await runtime.set_quota(size, tenant=tenant)

    await_(work())
    if as_json:
        print_json({"tenant": tenant, "bytes_max": size})
        return
    say(f"set: {tenant or 'all tenants together'} may take {shown_size(size)}")


def quota_list(*, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    r"""List the quotas, and how much is taken now. Reads the length of every row.

    \b
    Examples:
      perdure quota list
      perdure quota list --json
    """
    found: list[Quota] = await_(_on(store, lambda runtime: runtime.quotas()))
    if as_json:
        print_json({"quotas": [quota_json(each) for each in found]})
        return
    table(
        ("tenant", "taken", "of", "full", "journals", "pages", "ledger"),
        [
            (
                each.tenant or "(all)",
                shown_size(each.usage.total),
                shown_size(each.bytes_max),
                f"{100 * each.usage.total / each.bytes_max:.0f} %",
                shown_size(each.usage.frames),
                shown_size(each.usage.pages),
                shown_size(each.usage.ledger),
            )
            for each in found
        ],
        empty="no quotas; set one with: perdure quota set --max-bytes 10GB",
    )


def quota_json(quota: Quota) -> dict[str, Any]:
    """Return a quota with what is taken."""
    return {
        "tenant": quota.tenant,
        "bytes_max": quota.bytes_max,
        "taken": quota.usage.total,
        "frames": quota.usage.frames,
        "pages": quota.usage.pages,
        "ledger": quota.usage.ledger,
        "set_at": shapes.time_json(quota.set_at),
    }


def quota_drop(
    *, tenant: AnyTenant = None, store: StoreUrl = DEFAULT_URL, as_json: AsJson = False
) -> None:
    r"""Remove a quota.

    \b
    Examples:
      perdure quota drop --tenant acme
    """
    await_(_on(store, lambda runtime: runtime.remove_quota(tenant=tenant)))
    if as_json:
        print_json({"tenant": tenant})
        return
    say(f"removed the quota of {tenant or 'all tenants together'}")
