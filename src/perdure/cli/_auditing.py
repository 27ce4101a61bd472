"""`audit`: prove what happened, here or elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import _audit_shapes as shapes
from perdure.cli._options import AnyTenant, AsJson, StoreUrl, await_
from perdure.cli._output import Progress, note, print_json, say, table
from perdure.cli._store import DEFAULT_URL, existing
from perdure.cli._text import full_time, plural
from perdure.engine.waits import as_datetime
from perdure.errors import UsageError
from perdure.governance import (
    Checked,
    Exported,
    Report,
    check,
    export,
    load_private_key,
    load_public_key,
    make_key,
    verify,
)

TAMPERED = 40
"""Exit code when something is not what was written."""

OneThread = Annotated[str | None, typer.Option("--thread", metavar="T", help="Only this thread.")]
OneRun = Annotated[str | None, typer.Option("--run", metavar="R", help="Only this run.")]


def audit_verify(
    *,
    thread: OneThread = None,
    run: OneRun = None,
    tenant: AnyTenant = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Verify every hash, record and row of the store; say what is not as it was written.

    Exit code 0: all of it is; 40: something is not. Nothing is changed; workers may work meanwhile.

    \b
    Examples:
      perdure audit verify
      perdure audit verify --thread customer-12
      perdure audit verify --run r_01m8mepfmgzeagytn372wvgqwe --json
    """
    _check_scope(thread, run)
    report = await_(_verify(store, thread=thread, run_id=run, tenant=tenant))
    if as_json:
        print_json(shapes.report_json(report))
    else:
        _print_report(report)
    raise typer.Exit(0 if report.is_sound else TAMPERED)


async def _verify(url: str, **scope: str | None) -> Report:
    async with existing(url) as runtime:
        with Progress() as progress:
            return await verify(runtime, on_progress=_telling(progress), **scope)


def _telling(progress: Progress) -> Callable[[Report], None]:
    def tell(report: Report) -> None:
        found = f", {plural(len(report.findings), 'finding')}" if report.findings else ""
        runs = plural(report.runs, "run")
        progress.tell(f"{runs}, {plural(report.records, 'record')} verified{found}")

    return tell


def _check_scope(thread: str | None, run: str | None) -> None:
    if thread is not None and run is not None:
        msg = "--thread and --run exclude each other; nothing was done"
        raise UsageError(msg)


def _print_report(report: Report) -> None:
    if report.findings:
        table(
            ("code", "thread", "run", "records", "what"),
            [
                (
                    each.code,
                    each.thread,
                    each.run_id,
                    _records(each.first_seq, each.last_seq),
                    each.what,
                )
                for each in report.findings
            ],
        )
    if report.dropped:
        say(f"and {plural(report.dropped, 'more finding')}")
    verdict = "all is what was written" if report.is_sound else "NOT all is what was written"
    say(
        f"verified {plural(report.threads, 'thread')}, {plural(report.runs, 'run')}, "
        f"{plural(report.records, 'record')}, {plural(report.effects, 'effect')}, "
        f"{plural(report.asks, 'ask')}: {verdict}"
    )
    for count, noun, what in (
        (report.erased, "record", "erased on purpose: the digests were kept, and verify"),
        (report.unanchored, "run", "begun by an older version: nothing pins what stood before"),
        (report.untimed, "frame", "written by an older version: no hash covers the commit's time"),
        (report.unsettled, "run", "written to all the time: rows not compared; verify again"),
    ):
        if count:
            say(f"{plural(count, noun)} {what}")


def _records(first_seq: int, last_seq: int) -> str:
    if not first_seq:
        return ""
    return str(first_seq) if first_seq == last_seq else f"{first_seq}-{last_seq}"


def audit_export(
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file; it must not exist.")
    ],
    thread: OneThread = None,
    run: OneRun = None,
    everything: Annotated[bool, typer.Option("--all", help="Every thread (of --tenant).")] = False,
    tenant: AnyTenant = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Private key to sign with.")
    ] = None,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Write journals and rows to a file that proves elsewhere what they prove here.

    \b
    Examples:
      perdure audit export --all -o 2026-11.audit --key audit.key
      perdure audit export --thread customer-12 -o customer-12.audit
    """
    _check_scope(thread, run)
    if [thread is not None, run is not None, everything].count(True) != 1:
        msg = "say what to export: one of --thread T, --run R, --all; nothing was written"
        raise UsageError(msg)
    signing = None if key is None else load_private_key(key)
    done = await_(_export(store, output, thread=thread, run_id=run, tenant=tenant, key=signing))
    if not done.signed_by:
        note("NOT SIGNED: whoever changes the file can make it anew; sign with --key FILE")
    if as_json:
        print_json(shapes.exported_json(done))
        return
    signed = f"signed by key {done.signed_by}" if done.signed_by else "NOT SIGNED"
    say(
        f"exported {plural(done.threads, 'thread')}, {plural(done.runs, 'run')}, "
        f"{plural(done.frames, 'frame')} to {done.path} ({done.bytes} bytes), {signed}"
    )
    if done.unreadable:
        which = f"the file says which: perdure audit check {done.path}"
        note(f"rows and frames that could not be read: {done.unreadable}; {which}")


async def _export(url: str, output: Path, **options: Any) -> Exported:
    async with existing(url) as runtime:
        with Progress() as progress:
            return await export(
                runtime,
                output,
                on_progress=lambda done: progress.tell(
                    f"{plural(done.runs, 'run')}, {done.bytes} bytes exported"
                ),
                **options,
            )


def audit_check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'audit export' wrote.")],
    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", metavar="FILE", help="Who must have signed it."),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="OLD", help="An earlier export that it must go on from."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    r"""Check an export without the store; say what it proves, and what it does not.

    Exit code 0: nothing is wrong; 40: something is; 41: it can't be read as an export.

    \b
    Examples:
      perdure audit check 2026-11.audit --public-key audit.key.pub
      perdure audit check 2026-12.audit --since 2026-11.audit --public-key audit.key.pub
    """
    known = None if public_key is None else load_public_key(public_key)
    with Progress() as progress:
        checked = check(file, public_key=known, since=since, on_progress=_telling(progress))
    if as_json:
        print_json(shapes.checked_json(checked, has_since=since is not None))
    else:
        _print_checked(checked, has_since=since is not None)
    raise typer.Exit(0 if checked.report.is_sound else TAMPERED)


def _print_checked(checked: Checked, *, has_since: bool) -> None:
    if checked.head is not None:
        made_at = full_time(as_datetime(checked.head.made_at_us))
        scope = checked.head.run_id or checked.head.thread or checked.head.tenant or "all"
        say(f"an export of {scope}, made at {made_at} UTC")
    _print_report(checked.report)
    for line in proven(checked, has_since=has_since):
        say(f"proves: {line}")
    for line in unproven(checked, has_since=has_since):
        say(f"does not prove: {line}")


def proven(checked: Checked, *, has_since: bool) -> list[str]:
    """Return in words what a file proves."""
    if not checked.report.is_sound:
        return []
    found = ["every record fits the hashes around it, and every row the records"]
    if checked.report.anchored:
        runs = plural(checked.report.anchored, "run")
        found.append(f"{runs} of a thread stand on the run before as it was when they began")
    if checked.is_signer_known:
        found.append(f"the file is as the owner of key {checked.signed_by} signed it")
    if has_since:
        runs = plural(checked.grown, "run")
        found.append(f"{runs} of the earlier export only got longer since then")
    return found


def unproven(checked: Checked, *, has_since: bool) -> list[str]:
    """Return in words what a file does not prove."""
    found = []
    if not checked.signed_by:
        found.append("who made it: it is NOT SIGNED, and whoever changed it could make it anew")
    elif not checked.is_signer_known:
        found.append(
            f"who made it: it says that key {checked.signed_by} signed it; name the key that you "
            "trust with --public-key"
        )
    if not has_since:
        found.append(
            "that the newest runs were not cut or made anew before the export: compare it with an "
            "earlier one (--since OLD)"
        )
    if checked.uncovered:
        left_out = plural(checked.uncovered, "run")
        found.append(f"anything about {left_out} of the earlier export, which this one leaves out")
    if checked.unseen:
        found.append(
            f"that {plural(checked.unseen, 'run')} of it only grew: the earlier export was of some "
            "runs, and left them out"
        )
    found.append("that what was recorded is true: only that it was not changed afterwards")
    return found


def audit_keygen(
    *,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Private key; FILE.pub: the public."),
    ],
    as_json: AsJson = False,
) -> None:
    r"""Make a key pair to sign exports with; the private key is readable for its owner alone.

    \b
    Examples:
      perdure audit keygen -o audit.key
    """
    public, name = make_key(output)
    if as_json:
        print_json({"private_key": str(output), "public_key": str(public), "fingerprint": name})
        return
    say(f"key {name}: {output} (private, mode 0600; keep it away from whoever keeps the store)")
    say(f"next: give {public} to whoever checks the exports")
