"""The report as commands of GitHub's workflow log, which become annotations of lines."""

from collections.abc import Iterable

from perdure.contracts.findings import Finding, Report, RootReport, Verdict
from perdure.contracts.report._decisive import decisive
from perdure.contracts.report._plain import plain
from perdure.contracts.report._titles import TITLES

_COMMANDS = {Verdict.VIOLATED: "error", Verdict.UNDECIDED: "notice"}


def as_github(report: Report) -> str:
    """Return a line for each finding that is violated or undecided and not ignored."""
    return "".join(f"{line}\n" for line in _lines(plain(report)))


def _lines(report: Report) -> Iterable[str]:
    for root in report.roots:
        for finding in root.findings:
            if finding.verdict in _COMMANDS and finding.ignored is None:
                yield _line(root, finding)
    for each in report.unread:
        place = f"file={_property(each.file)},line={each.line or 1}"
        yield f"::warning {place},title=perdure check::{_message('not read: ' + each.reason)}"


def _line(root: RootReport, finding: Finding) -> str:
    point = decisive(finding.evidence)
    file, line = (point.file, point.line) if point is not None else (root.root, 1)
    title = f"{finding.contract.value} {TITLES[finding.contract]}"
    story = [
        f"{each.file}:{each.line} {each.note}" for each in finding.evidence if each is not point
    ]
    parts = [f"{finding.service}: {finding.summary}", *story, finding.question, finding.repair]
    text = "\n".join(part for part in parts if part)
    command = _COMMANDS[finding.verdict]
    return (
        f"::{command} file={_property(file)},line={line},title={_property(title)}::{_message(text)}"
    )


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
