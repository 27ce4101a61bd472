"""Proof of what happened: verify a store, export what it holds, check an export elsewhere."""

from perdure.governance._check import Checked, check
from perdure.governance._export import Exported, export
from perdure.governance._keys import (
    FileKey,
    SigningKey,
    fingerprint,
    load_private_key,
    load_public_key,
    make_key,
)
from perdure.governance._report import FINDING_CODES, Finding, Report
from perdure.governance._verify import verify

__all__ = [
    "FINDING_CODES",
    "Checked",
    "Exported",
    "FileKey",
    "Finding",
    "Report",
    "SigningKey",
    "check",
    "export",
    "fingerprint",
    "load_private_key",
    "load_public_key",
    "make_key",
    "verify",
]
