"""The report as SARIF 2.1.0, which code hosts show beside the lines.

A finding is a result: its story is a code flow, its first line that can be changed is the location.
"""

from typing import Any

from perdure.contracts._secrets import without_secrets
from perdure.contracts.baseline import fingerprint
from perdure.contracts.evidence import Evidence
from perdure.contracts.findings import Contract, Finding, Report, RootReport, Verdict
from perdure.contracts.report._decisive import decisive
from perdure.contracts.report._edits import Edit
from perdure.contracts.report._titles import TITLES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_KINDS = {Verdict.VIOLATED: "fail", Verdict.UNDECIDED: "review"}
_LEVELS = {Verdict.VIOLATED: "error", Verdict.UNDECIDED: "none"}


def as_sarif(
    report: Report, *, version: str, edits: dict[str, tuple[Edit, ...]] | None = None
) -> dict[str, Any]:
    """Return the report as a SARIF log.

    Args:
        report: what a check found; what is held or does not apply is left out.
        version: of Perdure.
        edits: by fingerprint of a finding, what would mend it.
    """
    results = [
        _result(root, finding, (edits or {}).get(fingerprint(root, finding), ()))
        for root in report.roots
        for finding in root.findings
        if finding.verdict in _KINDS
    ]
    notifications = [
        _notification(f"{each.file} was not read: {each.reason}", each.file, each.line)
        for each in report.unread
    ]
    notifications += [_notification(n.text, n.file, n.line) for n in report.notices]
    run = {
        "tool": {
            "driver": {
                "name": "perdure check",
                "version": version,
                "informationUri": "https://github.com/perdure/perdure",
                "rules": [_rule(contract) for contract in Contract],
            }
        },
        "invocations": [
            {"executionSuccessful": True, "toolConfigurationNotifications": notifications}
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(contract: Contract) -> dict[str, Any]:
    return {
        "id": contract.value,
        "shortDescription": {"text": f"{TITLES[contract]}."},
        "help": {"text": f"perdure check --explain {contract.value}"},
    }


def _result(root: RootReport, finding: Finding, edits: tuple[Edit, ...]) -> dict[str, Any]:
    told = finding.evidence or (Evidence(file=root.root, line=1, note=finding.summary),)
    result: dict[str, Any] = {
        "ruleId": finding.contract.value,
        "ruleIndex": list(Contract).index(finding.contract),
        "kind": _KINDS[finding.verdict],
        "level": _LEVELS[finding.verdict],
        "message": {"text": _message(root, finding)},
        "locations": [_location(decisive(told) or told[0])],
        "relatedLocations": [
            {"id": place, **_location(each)} for place, each in enumerate(told[1:], start=1)
        ],
        "codeFlows": [{"threadFlows": [{"locations": [{"location": _location(e)} for e in told]}]}],
        "partialFingerprints": {"perdure/v1": fingerprint(root, finding)},
        "properties": {
            "service": finding.service,
            "deployment": root.root,
            "confidence": finding.confidence.value,
        },
    }
    if edits and not any(without_secrets(line) != line for each in edits for line in each.lines):
        result["fixes"] = [_fix(finding, edits)]
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.ignored}]
    return result


def _message(root: RootReport, finding: Finding) -> str:
    parts = [
        f"{finding.service} in {root.root}: {finding.summary.rstrip('.')}.",
        finding.question,
        finding.repair,
    ]
    return " ".join(part for part in parts if part)


def _location(evidence: Evidence) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(evidence.file), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": max(evidence.line, 1)},
        },
        "message": {"text": evidence.note or "here"},
    }


def _uri(file: str) -> str:
    return "".join(
        c if c.isascii() and (c.isalnum() or c in "/._-~") else _percent(c) for c in file
    )


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _fix(finding: Finding, edits: tuple[Edit, ...]) -> dict[str, Any]:
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    return {
        "description": {"text": finding.repair or TITLES[finding.contract]},
        "artifactChanges": [
            {
                "artifactLocation": {"uri": _uri(file), "uriBaseId": "%SRCROOT%"},
                "replacements": [_replacement(edit) for edit in of_file],
            }
            for file, of_file in by_file.items()
        ],
    }


def _replacement(edit: Edit) -> dict[str, Any]:
    """Return whole lines replaced: from the first column of one to that of the line after."""
    return {
        "deletedRegion": {
            "startLine": edit.line,
            "startColumn": 1,
            "endLine": edit.line + edit.removed,
            "endColumn": 1,
        },
        "insertedContent": {"text": "".join(f"{line}\n" for line in edit.lines)},
    }


def _notification(text: str, file: str, line: int | None) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(file), "uriBaseId": "%SRCROOT%"}}
    if line is not None:
        place["region"] = {"startLine": max(line, 1)}
    return {
        "level": "warning",
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }
