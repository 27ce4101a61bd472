"""`doctor`: whether every run can get further."""

from typing import Annotated

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._host import show_host
from perdure.cli._options import AsJson, StoreUrl, await_
from perdure.cli._output import print_json, say, table
from perdure.cli._store import DEFAULT_URL, existing, with_store
from perdure.cli._text import plural
from perdure.engine.doctor import Report, Severity, examine
from perdure.engine.outlook import command

UNSOUND = 1
"""Exit code when a finding is an error that was not repaired."""


def doctor(
    *,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Make runs claimable that nothing would wake, where that is safe."
        ),
    ] = False,
    host: Annotated[
        bool,
        typer.Option("--host", help="Instead show what this host can isolate, having tried it."),
    ] = False,
    store: StoreUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    r"""Scan the store: can every unfinished run get further, is what was written still there?

    Exit code 0: nothing is wrong (there may be things to decide); 1: some finding is an error.

    \b
    Examples:
      perdure doctor
      perdure doctor --json
      perdure doctor --repair
      perdure doctor --host
    """
    if host:
        raise typer.Exit(show_host(as_json=as_json))
    report = await_(_examine(store, repair=repair))
    is_sound = not any(
        finding.severity is Severity.ERROR and not finding.is_repaired
        for finding in report.findings
    )
    if as_json:
        print_json(
            {
                "is_sound": is_sound,
                "checked": {
                    "runs": report.runs,
                    "records": report.records,
                    "workers": report.workers,
                },
                "findings": [shapes.finding_json(finding) for finding in report.findings],
            }
        )
    else:
        _print(report, store, repair=repair)
    raise typer.Exit(0 if is_sound else UNSOUND)


async def _examine(url: str, *, repair: bool) -> Report:
    async with existing(url) as runtime:
        return await examine(runtime.engine, repair=repair)


def _print(report: Report, url: str, *, repair: bool) -> None:
    checked = (
        f"checked {plural(report.runs, 'unfinished run')}, {plural(report.records, 'record')}, "
        f"{plural(report.workers, 'worker')}"
    )
    if not report.findings:
        sound = "every one is held, due, waits for something named, or can be claimed"
        say(f"{checked}: {sound if report.runs else 'nothing unfinished'}")
        if repair:
            say("nothing to repair")
        return
    table(
        ("severity", "code", "run", "what"),
        [
            (
                "repaired" if finding.is_repaired else finding.severity.value,
                finding.code,
                finding.run_id or "",
                finding.what,
            )
            for finding in report.findings
        ],
    )
    say(checked if report.runs else f"{checked}: nothing unfinished")
    for line in report.done or (["repaired nothing"] if repair else []):
        say(line)
    commands = dict.fromkeys(
        with_store(line, url) for finding in report.findings for line in finding.following
    )
    if repair:
        commands.pop(with_store(command("doctor", "--repair"), url), None)  # it was just that
    if commands:
        say("next:")
    for line in commands:
        say(f"  {line}")
