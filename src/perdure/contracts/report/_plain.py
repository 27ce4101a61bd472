"""Texts of a project as lines of a report: each on one line, and none of them a command.

Names of services and folders may hold line breaks and control characters. CI systems take some
lines and words of a log for commands: `::error::` of GitHub at the begin of a line, indented or
not, and `##[`, `##vso[`, `##teamcity[` anywhere.
"""

import unicodedata

from msgspec.structs import replace

from perdure.contracts.evidence import Evidence
from perdure.contracts.findings import Finding, Report, RootReport

_UNSAFE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_MARK = "\N{REPLACEMENT CHARACTER}"


def plain(report: Report) -> Report:
    """Return the report with every text on one line, for formats that are lines."""
    return replace(
        report,
        roots=tuple(_root(root) for root in report.roots),
        unread=tuple(
            replace(each, file=one_line(each.file), reason=one_line(each.reason))
            for each in report.unread
        ),
        notices=tuple(
            replace(each, file=one_line(each.file), text=one_line(each.text))
            for each in report.notices
        ),
        unused=tuple(one_line(each) for each in report.unused),
    )


def one_line(text: str) -> str:
    """Return text without line breaks, control characters and words that a CI system obeys."""
    if text.isascii() and text.isprintable() and "##" not in text:
        return text
    joined = "".join(_shown(character) for character in text)
    return joined.replace("##", "# #")


def quiet(text: str) -> str:
    """Return lines of which none begins as a command of a workflow log does."""
    if "::" not in text and "##" not in text:
        return text
    lines = text.replace("##[", "# #[").split("\n")
    return "\n".join(_quiet_line(line) for line in lines)


def _quiet_line(line: str) -> str:
    begun = line.lstrip()
    if not begun.startswith("::"):
        return line
    return f"{line[: len(line) - len(begun)]}: {begun[1:]}"


def _shown(character: str) -> str:
    if character in "\t\n\r\v\f":
        return " "
    return _MARK if unicodedata.category(character) in _UNSAFE else character


def _root(root: RootReport) -> RootReport:
    return replace(
        root,
        root=one_line(root.root),
        findings=tuple(_finding(each) for each in root.findings),
        beside=tuple(one_line(each) for each in root.beside),
    )


def _finding(finding: Finding) -> Finding:
    return replace(
        finding,
        service=one_line(finding.service),
        summary=one_line(finding.summary),
        evidence=tuple(_evidence(each) for each in finding.evidence),
        question=None if finding.question is None else one_line(finding.question),
        answer=None if finding.answer is None else one_line(finding.answer),
        repair=None if finding.repair is None else one_line(finding.repair),
        warnings=tuple(one_line(each) for each in finding.warnings),
        assumptions=tuple(one_line(each) for each in finding.assumptions),
        ignored=None if finding.ignored is None else one_line(finding.ignored),
    )


def _evidence(step: Evidence) -> Evidence:
    return replace(step, file=one_line(step.file), note=one_line(step.note))
