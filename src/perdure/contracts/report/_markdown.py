"""The report as Markdown: a table for a summary, then a story for each violation."""

from collections import Counter

from perdure.contracts.findings import Contract, Finding, Report, Verdict
from perdure.contracts.report._plain import plain, quiet
from perdure.contracts.report._titles import TITLES

_MARKS = {
    Verdict.VIOLATED: "**violated**",
    Verdict.UNDECIDED: "open",
    Verdict.HELD: "held",
    Verdict.NOT_APPLICABLE: "-",
}


def as_markdown(report: Report) -> str:
    """Return the report for a comment or a page of a code host."""
    report = plain(report)
    parts = ["# perdure check", ""]
    for root in report.roots:
        parts += [f"## {_code(root.root)}", "", *_table(root.findings), ""]
        for finding in root.findings:
            if finding.verdict is Verdict.VIOLATED and finding.ignored is None:
                parts += [*_story(finding), ""]
        questions = [
            f"- {finding.contract.value}, {_code(finding.service)}: {_text(finding.question or '')}"
            + (f" Answer: {_text(finding.answer)}" if finding.answer else "")
            for finding in root.findings
            if finding.verdict is Verdict.UNDECIDED and finding.ignored is None
        ]
        if questions:
            parts += ["Open:", "", *questions, ""]
        if root.beside:
            names = ", ".join(_code(name) for name in root.beside)
            parts += [f"Not judged, as no Python of the project runs there: {names}.", ""]
    if report.unread:
        parts += ["Not read:", ""]
        parts += [f"- {_code(each.file)}: {_text(each.reason)}" for each in report.unread]
        parts.append("")
    counts = Counter(finding.verdict for root in report.roots for finding in root.findings)
    said = ", ".join(f"{counts[verdict]} {verdict.value.replace('_', ' ')}" for verdict in Verdict)
    return quiet("\n".join([*parts, f"{said}."])) + "\n"


def _table(findings: tuple[Finding, ...]) -> list[str]:
    services = list(dict.fromkeys(finding.service for finding in findings))
    contracts = [each for each in Contract if any(f.contract is each for f in findings)]
    verdicts = {(f.contract, f.service): f for f in findings}
    lines = [
        f"| contract | {' | '.join(_code(service) for service in services)} |",
        f"|---|{'---|' * len(services)}",
    ]
    for contract in contracts:
        cells = [_cell(verdicts.get((contract, service))) for service in services]
        lines.append(f"| {contract.value} {TITLES[contract]} | {' | '.join(cells)} |")
    return lines


def _cell(finding: Finding | None) -> str:
    if finding is None:
        return ""
    return "ignored" if finding.ignored is not None else _MARKS[finding.verdict]


def _story(finding: Finding) -> list[str]:
    lines = [
        f"**{finding.contract.value}, {_code(finding.service)}:** {_text(finding.summary)}",
        "",
    ]
    lines += [f"1. {_code(f'{e.file}:{e.line}')} {_text(e.note)}" for e in finding.evidence]
    if finding.repair:
        lines += ["", f"*{_text(finding.repair)}*"]
    return lines


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", " ")
    for character in "|<>*_`[]":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped
