"""`erase`: everything of a thread or a subject, after a preview and a question, with a receipt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import _audit_shapes as shapes
from perdure.cli._asking import Asking, Yes
from perdure.cli._options import (
    AsJson,
    ExportKeysOf,
    ExportOf,
    FilesOf,
    StoreUrl,
    Tenant,
    await_,
)
from perdure.cli._output import Progress, note, print_json, say
from perdure.cli._retaining import exports_line, shown_size
from perdure.cli._sandbox import kept_in
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.cli._text import clean, indented, plural
from perdure.engine.outlook import command
from perdure.errors import UsageError
from perdure.governance import (
    CheckedReceipt,
    ErasurePreview,
    Receipt,
    SigningKey,
    check_receipt,
    fingerprint,
    load_private_key,
    load_public_key,
    preview_erasure,
    receipt_json,
    write_receipt,
)
from perdure.governance import erase as erase_it

LEFT = 40
"""Exit code when something of it was found afterwards, or a receipt is not what was signed."""

NAMED_MAX = 20
"""Names of one kind that a preview shows: the JSON has all."""


def erase(
    *,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="T", help="Erase this thread.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="S", help="Erase all threads about this subject."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="NAME", help="Who wants it; it is recorded.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="End unfinished runs, as cancelled.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be erased.")
    ] = False,
    yes: Yes = False,
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="Write the receipt there, as JSON."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Private key to sign it with.")
    ] = None,
    sandbox: FilesOf = None,
    sandbox_export: ExportOf = None,
    sandbox_keys: ExportKeysOf = None,
    tenant: Tenant = "default",
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Erase everything of a thread, or of all threads about a subject; with forks and children.

    First shows what goes and what stays, and asks. Journals keep digests, so that the audit still
    verifies. Interrupted anywhere, the same command finishes it. Effects are NOT undone.

    Exit code 0: done, nothing found any more; 40: pieces of it were found afterwards.

    \b
    Examples:
      perdure erase --thread customer-12 --dry-run
      perdure erase --subject person-12 --by ada --receipt erased.json --key audit.key
      perdure erase --thread customer-12 --by ada --sandbox /var/lib/agents --force --yes --json
    """
    files = kept_in(sandbox, sandbox_export, sandbox_keys) if sandbox else None
    named = {"thread": thread, "subject": subject, "tenant": tenant, "sandbox": files}
    if dry_run:
        preview = await_(_preview(store, named))
        _show_preview(preview, as_json=as_json)
        return
    if not by:
        msg = "erase: --by NAME is missing: say who; it is recorded. See: perdure erase --help"
        raise UsageError(msg)
    signing = None if key is None else load_private_key(key)
    again = _again(named, by, force=force)
    again += [
        part
        for name, path in (("--receipt", receipt), ("--key", key))
        if path is not None
        for part in (name, str(path))
    ]
    asking = Asking(again, store, yes=yes, as_json=as_json)
    if receipt is not None:
        _check_place(receipt)
    done = await_(_erase(asking, named, by, force=force, key=signing))
    if receipt is not None:
        write_receipt(done, receipt)
    if as_json:
        print_json(receipt_json(done))
    else:
        _print_receipt(done, receipt)
    raise typer.Exit(0 if done.is_clean else LEFT)


def _check_place(receipt: Path) -> None:
    """Refuse a place where a receipt can't be written: it can't be made again.

    Raises:
        UsageError: it exists, or can't be made; nothing was erased.
    """
    if receipt.exists():
        msg = f"{str(receipt)!r} exists, and a receipt is evidence; nothing was erased"
        raise UsageError(msg, path=str(receipt))
    try:
        with receipt.open("x", encoding="utf-8"):
            pass
        receipt.unlink()
    except OSError as error:
        msg = f"{str(receipt)!r} can't be written: {error.strerror}; nothing was erased"
        raise UsageError(msg, path=str(receipt)) from error


def _again(named: dict[str, Any], by: str, *, force: bool) -> list[str]:
    given = [("--thread", named["thread"]), ("--subject", named["subject"]), ("--by", by)]
    if named["tenant"] != "default":
        given.append(("--tenant", named["tenant"]))
    if named["sandbox"] is not None:
        given.append(("--sandbox", str(named["sandbox"].root)))
        if named["sandbox"].exports is not None:
            given.append(("--sandbox-export", named["sandbox"].exports.objects.place))
    again = [part for name, value in given if value is not None for part in (name, value)]
    return ["erase", *again, *(["--force"] if force else [])]


async def _preview(url: str, named: dict[str, Any]) -> ErasurePreview:
    async with existing(url) as runtime:
        return await preview_erasure(runtime, **named)


def _show_preview(preview: ErasurePreview, *, as_json: bool) -> None:
    if as_json:
        print_json(shapes.erasure_json(preview))
        return
    for line in _lines(preview):
        say(indented(line))


async def _erase(
    asking: Asking, named: dict[str, Any], by: str, *, force: bool, key: SigningKey | None
) -> Receipt:
    async with existing(asking.url) as runtime:
        preview = await preview_erasure(runtime, **named)
        question = "Erase it? It can't be undone"
        asking.confirm(_lines(preview), shapes.erasure_json(preview), question, "erased")
        with Progress() as progress:
            try:
                return await erase_it(
                    runtime, **named, by=by, force=force, key=key, on_progress=progress.tell
                )
            except KeyboardInterrupt:
                note("interrupted; what was begun is finished by the same command:")
                note(f"  {with_store(command(*_again(named, by, force=force)), asking.url)}")
                raise


def _lines(preview: ErasurePreview) -> Iterator[str]:
    """Yield what would be erased, and what would stay."""
    yield f"would erase {plural(len(preview.all_threads), 'thread')} of tenant {preview.tenant}:"
    yield from _named("threads", preview.threads)
    yield from _named("forks", preview.forks)
    yield from _named("threads of child runs", preview.children)
    yield from _named("schedules", preview.schedules)
    counts = (
        (preview.runs, "run"),
        (preview.records, "record"),
        (preview.effects, "effect"),
        (preview.asks, "ask"),
        (preview.messages, "message"),
        (preview.start_keys, "start key"),
        (preview.business_keys, "business key"),
        (preview.data_keys, "data key"),
    )
    yield "  " + ", ".join(plural(count, noun) for count, noun in counts if count)
    if preview.sandbox_bytes:
        layers = plural(preview.layers, "layer")
        yield f"  files of sandboxes: {layers} and live files, {shown_size(preview.sandbox_bytes)}"
    if preview.exported:
        yield f"  exports of sandboxes: {plural(preview.exported, 'layer')}"
    if preview.under_way:
        yield f"  and finish {plural(len(preview.under_way), 'erasure')} that was interrupted"
    if preview.unfinished:
        yield "  unfinished runs (--force ends them):"
        yield from _some(f"{each.run} {each.status}" for each in preview.unfinished)
    if preview.not_undone:
        yield "  effects that happened, or may have, and are NOT undone:"
        yield from _some(f"{each.effect} {each.name} {each.state}" for each in preview.not_undone)
    if preview.exports:
        yield "  exports that may hold it, and stay:"
        yield from _some(iter(preview.exports))
    for each in preview.remains:
        yield "  " + clean(f"stays: {each.kind} {each.name}: {each.why}")


def _named(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"  {what}:"
        yield from _some(iter(names))


def _some(names: Iterator[str]) -> Iterator[str]:
    every = list(names)
    for name in every[:NAMED_MAX]:
        yield f"    {clean(name)}"
    if len(every) > NAMED_MAX:
        yield f"    and {len(every) - NAMED_MAX} more"


def _print_receipt(done: Receipt, path: Path | None) -> None:
    counts = ", ".join(f"{count} {kind}" for kind, count in done.counts.items() if count)
    say(f"erased {counts.replace('_', ' ')}")
    found = done.verification
    say(
        f"searched {found.scope} for {found.searched} pieces of it: {found.found_before} were "
        f"found before, {found.found} afterwards"
    )
    if found.elsewhere:
        say(f"and {found.elsewhere} that others hold as well")
    files = done.sandbox
    if files is not None:
        say(
            f"files of sandboxes: {plural(files.layers, 'layer')}, live files of "
            f"{plural(files.threads, 'thread')}, {shown_size(files.bytes)} freed; "
            f"{files.searched} pieces looked for there: {files.found} found"
        )
        if files.exports is not None:
            say(exports_line(files.exports))
    if not done.is_clean:
        say("NOT all of it is gone: erase again when nobody else uses the store")
    for each in done.remains:
        say(clean(f"stays: {each.kind} {each.name}: {each.why}".replace(" : ", ": ")))
    if path is not None:
        signed = "signed" if done.signature is not None else "NOT SIGNED"
        say(f"receipt: {path}, {signed}")


def audit_receipt(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'erase --receipt' wrote.")],
    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", metavar="FILE", help="Who must have signed it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    r"""Check the receipt of an erasure, without the store.

    Exit code 0: it is as it was signed; 40: it is not; 41: it is no receipt.

    \b
    Examples:
      perdure audit receipt erased.json --public-key audit.key.pub
    """
    known = None if public_key is None else load_public_key(public_key)
    checked = check_receipt(file, known)
    if as_json:
        body = receipt_json(checked.receipt)
        signed_by = checked.signed_by or None
        print_json({"is_right": checked.is_right, "signed_by": signed_by, "receipt": body})
    else:
        threads = plural(len(checked.receipt.threads), "thread")
        say(f"a receipt of {checked.receipt.ended_at}: {threads} erased for {checked.receipt.by}")
        say(_signed(checked, None if known is None else fingerprint(known)))
    raise typer.Exit(0 if checked.is_right else LEFT)


def _signed(checked: CheckedReceipt, wanted: str | None) -> str:
    if not checked.signed_by:
        return "NOT SIGNED"
    signed = f"signed by key {checked.signed_by}"
    if checked.is_right:
        return signed
    if wanted not in {None, checked.signed_by}:
        return f"{signed}, NOT by the key that was given ({wanted})"
    return f"{signed}: it is NOT what was signed"
