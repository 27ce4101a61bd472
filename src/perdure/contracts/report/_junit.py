"""The report as JUnit XML: a test case for each contract of each service."""

from typing import TYPE_CHECKING

from perdure.contracts.findings import Finding, Report, RootReport, Verdict
from perdure.contracts.report._plain import plain, quiet
from perdure.contracts.report._titles import TITLES

if TYPE_CHECKING:
    from xml.etree import ElementTree as ET


def as_junit(report: Report, *, fails: frozenset[Verdict]) -> str:
    """Return the report as XML.

    Args:
        report: what a check found.
        fails: verdicts that are failures; undecided ones are skipped tests otherwise.
    """
    from xml.etree import ElementTree as ET  # noqa: PLC0415  # for this format only

    report = plain(report)
    whole = ET.Element("testsuites", name="perdure check")
    for root in report.roots:
        suite = ET.SubElement(whole, "testsuite", name=root.root)
        failures = skips = 0
        for finding in root.findings:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=_clean(f"{root.root}.{finding.service}"),
                name=f"{finding.contract.value} {TITLES[finding.contract]}",
            )
            if finding.verdict in fails and finding.ignored is None:
                failures += 1
                _failure(case, root, finding)
            elif finding.verdict is not Verdict.HELD:
                skips += 1
                why = finding.ignored or finding.question or finding.summary
                ET.SubElement(case, "skipped", message=_clean(why))
        suite.set("tests", str(len(root.findings)))
        suite.set("failures", str(failures))
        suite.set("skipped", str(skips))
        suite.set("errors", "0")
    ET.indent(whole)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + quiet(ET.tostring(whole, "unicode")) + "\n"


def _failure(case: "ET.Element", root: RootReport, finding: Finding) -> None:
    from xml.etree import ElementTree as ET  # noqa: PLC0415

    failure = ET.SubElement(
        case, "failure", type=finding.contract.value, message=_clean(finding.summary)
    )
    lines = [f"{each.file}:{each.line}: {each.note}" for each in finding.evidence]
    if finding.repair:
        lines.append(finding.repair)
    failure.text = _clean("\n".join(lines) or root.root)


def _clean(text: str) -> str:
    """Return text without the characters that XML can't have."""
    return "".join(c for c in text if c in "\t\n" or (c.isprintable() and c not in "\ufffe\uffff"))
