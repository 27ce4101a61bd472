"""What the commands of the audit show with `--json` (docs/cli.md)."""

from typing import Any

import msgspec

from perdure.cli._shapes import us_json
from perdure.governance import Checked, ErasurePreview, Exported, Report


def report_json(report: Report) -> dict[str, Any]:
    """Return what an audit found."""
    counts = (
        "threads",
        "runs",
        "frames",
        "records",
        "effects",
        "asks",
        "pages",
        "erased",
        "anchored",
        "unanchored",
        "untimed",
        "unsettled",
    )
    return {
        "is_sound": report.is_sound,
        "checked": {name: getattr(report, name) for name in counts},
        "findings": [
            {
                "code": each.code,
                "tenant": each.tenant or None,
                "thread": each.thread or None,
                "run": each.run_id or None,
                "first_seq": each.first_seq or None,
                "last_seq": each.last_seq or None,
                "trusted_seq": each.trusted_seq,
                "what": each.what,
            }
            for each in report.findings
        ],
        "dropped": report.dropped,
    }


def exported_json(done: Exported) -> dict[str, Any]:
    """Return what an export wrote."""
    return {
        "path": str(done.path),
        "threads": done.threads,
        "runs": done.runs,
        "frames": done.frames,
        "bytes": done.bytes,
        "signed_by": done.signed_by or None,
        "unreadable": done.unreadable,
    }


def checked_json(checked: Checked, *, has_since: bool) -> dict[str, Any]:
    """Return what a check of an export found."""
    head = checked.head
    since = {"grown": checked.grown, "uncovered": checked.uncovered, "unseen": checked.unseen}
    return {
        "file": None
        if head is None
        else {
            "made_at": us_json(head.made_at_us),
            "perdure": head.perdure,
            "tenant": head.tenant or None,
            "thread": head.thread or None,
            "run": head.run_id or None,
        },
        "signed_by": checked.signed_by or None,
        "is_signer_known": checked.is_signer_known,
        "since": since if has_since else None,
        **report_json(checked.report),
    }


def erasure_json(preview: ErasurePreview) -> dict[str, Any]:
    """Return what an erasure would erase, and what it would leave."""
    found: dict[str, Any] = msgspec.to_builtins(preview)
    return found
