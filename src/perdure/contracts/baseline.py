"""Known findings: a file of fingerprints, so that a check of an old project speaks of what is new.

A fingerprint is made of the contract, the deployment, the service and the files of the story: it
stays the same when lines move, and is another one when the cause is in another file.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts.findings import Finding, Report, RootReport, Verdict
from perdure.errors import BaselineInvalid

SCHEMA = 1

_FINGERPRINT_CHARS = 32


def fingerprint(root: RootReport, finding: Finding) -> str:
    """Return what identifies a finding from one check to the next."""
    files = sorted({each.file for each in finding.evidence})
    parts = [finding.contract.value, root.root, finding.service, finding.verdict.value, *files]
    import hashlib  # noqa: PLC0415  # loads OpenSSL, for some ways to tell a report

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_FINGERPRINT_CHARS]


def counted(report: Report) -> Iterable[tuple[RootReport, Finding]]:
    """Yield what is violated or undecided and not ignored, in the report's order."""
    for root in report.roots:
        for finding in root.findings:
            if finding.ignored is None and finding.verdict in {Verdict.VIOLATED, Verdict.UNDECIDED}:
                yield root, finding


def baseline_text(report: Report) -> str:
    """Return the file that knows all that counts in a report."""
    known = {
        fingerprint(root, finding): f"{finding.contract.value} {finding.service} {root.root}"
        for root, finding in counted(report)
    }
    body = {"schema": SCHEMA, "known": dict(sorted(known.items(), key=lambda row: row[1]))}
    return json.dumps(body, indent=2) + "\n"


def read_baseline(path: Path) -> frozenset[str]:
    """Return the fingerprints of a file that `baseline_text` made.

    Raises:
        BaselineInvalid: it can't be read, or is another kind of file.
    """
    try:
        with opened(path, os.O_RDONLY) as file:
            content = file.read(limits.FILE_BYTES_MAX + 1)
    except OSError as error:
        msg = f"the baseline {str(path)!r} can't be read: {error.strerror}; nothing was checked"
        raise BaselineInvalid(msg, file=str(path)) from error
    try:
        body = json.loads(content[: limits.FILE_BYTES_MAX])
    except (ValueError, RecursionError):
        body = None
    known = body.get("known") if isinstance(body, dict) and body.get("schema") == SCHEMA else None
    if not isinstance(known, dict):
        msg = f"{str(path)!r} is no baseline of this version; write it anew with --write-baseline"
        raise BaselineInvalid(msg, file=str(path))
    return frozenset(known)


def opened(path: Path, flags: int) -> BinaryIO:
    """Open a file that was asked for by name; a pipe with nobody at its other end is no wait.

    Raises:
        OSError: it can't be opened.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    os.set_blocking(file, True)
    return os.fdopen(file, "rb" if flags == os.O_RDONLY else "wb")


def without_known(report: Report, known: frozenset[str]) -> Report:
    """Return the report in which known findings are marked as ignored."""
    if not known:
        return report
    return replace(
        report,
        roots=tuple(
            replace(
                root,
                findings=tuple(
                    replace(finding, ignored="known by the baseline")
                    if finding.ignored is None and fingerprint(root, finding) in known
                    else finding
                    for finding in root.findings
                ),
            )
            for root in report.roots
        ),
    )
