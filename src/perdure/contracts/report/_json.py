"""The report for programs: schema 1. Within a schema, keys are only added."""

from typing import Any

from perdure.contracts.findings import Finding, Report

SCHEMA = 1


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values, every finding with its whole story."""
    return {
        "schema": SCHEMA,
        "roots": [
            {
                "root": root.root,
                "kind": root.kind.value,
                "findings": [finding_json(finding) for finding in root.findings],
                "beside": list(root.beside),
            }
            for root in report.roots
        ],
        "unread": [
            {"file": each.file, "line": each.line, "reason": each.reason} for each in report.unread
        ],
        "notices": [
            {"file": each.file, "line": each.line, "text": each.text} for each in report.notices
        ],
        "unused": list(report.unused),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one finding as JSON values."""
    return {
        "contract": finding.contract.value,
        "service": finding.service,
        "verdict": finding.verdict.value,
        "confidence": finding.confidence.value,
        "evidence": [
            {"file": each.file, "line": each.line, "note": each.note} for each in finding.evidence
        ],
        "question": finding.question,
        "answer": finding.answer,
        "is_beyond_files": finding.is_beyond_files,
        "summary": finding.summary,
        "repair": finding.repair,
        "warnings": list(finding.warnings),
        "assumptions": list(finding.assumptions),
        "ignored": finding.ignored,
    }
