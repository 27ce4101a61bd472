"""Reports of `perdure check` in the formats that can be asked for."""

import json
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from perdure.cli._text import clean_lines
from perdure.contracts import report as reports
from perdure.contracts.baseline import opened, without_known
from perdure.contracts.findings import Finding, Report, Verdict
from perdure.errors import UsageError

FORMATS = ("text", "json", "sarif", "junit", "github", "markdown")

FAIL_ON = ("violated", "undecided", "never")


def rendered(
    report: Report,
    chosen: str,
    *,
    everything: bool,
    known: frozenset[str],
    fail_on: str = "violated",
    is_fixable: bool = True,
    folder: Path = Path(),
) -> str:
    """Return the report in a format, with what a baseline knows marked as ignored.

    Code hosts want paths from the top of what they checked out, where a check is run: for them
    those below `folder` begin with it.
    """
    left = without_known(report, known)
    if chosen in {"sarif", "github"}:
        left = _from_here(left, folder)
    if chosen == "json":
        return json.dumps(reports.as_json(left), indent=1) + "\n"
    if chosen == "sarif":
        return (
            json.dumps(reports.as_sarif(left, version=sys.modules["perdure"].__version__), indent=1)
            + "\n"
        )
    if chosen == "junit":
        return clean_lines(reports.as_junit(left, fails=failing(fail_on)))
    if chosen == "github":
        return clean_lines(reports.as_github(left))
    if chosen == "markdown":
        return clean_lines(reports.as_markdown(left))
    return clean_lines(reports.as_text(left, everything=everything, is_fixable=is_fixable))


def _from_here(report: Report, folder: Path) -> Report:
    """Return the report with paths from the working folder, if what was checked is below it."""
    try:
        below = folder.resolve().relative_to(Path.cwd())
    except (OSError, ValueError):
        return report
    if below == Path():
        return report

    def finding(each: Finding) -> Finding:
        steps = (replace(step, file=f"{below}/{step.file}") for step in each.evidence)
        return replace(each, evidence=tuple(steps))

    return replace(
        report,
        roots=tuple(
            replace(
                each,
                root=f"{below}/{each.root}",
                findings=tuple(finding(one) for one in each.findings),
            )
            for each in report.roots
        ),
        unread=tuple(replace(each, file=f"{below}/{each.file}") for each in report.unread),
        notices=tuple(replace(each, file=f"{below}/{each.file}") for each in report.notices),
    )


def failing(fail_on: str) -> frozenset[Verdict]:
    """Return the verdicts that `--fail-on` counts."""
    verdicts = {
        "violated": frozenset({Verdict.VIOLATED}),
        "undecided": frozenset({Verdict.VIOLATED, Verdict.UNDECIDED}),
    }
    return verdicts.get(fail_on, frozenset())


def written(path: Path, text: str) -> None:
    """Write a file that was asked for by name.

    Raises:
        UsageError: it can't be written.
    """
    try:
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            file.write(text.encode())
    except OSError as error:
        msg = f"{str(path)!r} can't be written: {error.strerror}"
        raise UsageError(msg) from error
