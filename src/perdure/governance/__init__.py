"""Proof of what happened, and what is kept of it: verify, export, check; prune, collect."""

from perdure.governance._check import Checked, check
from perdure.governance._collect import Collected, collect
from perdure.governance._export import Exported, export
from perdure.governance._keys import (
    FileKey,
    SigningKey,
    fingerprint,
    load_private_key,
    load_public_key,
    make_key,
)
from perdure.governance._prune import Pruned, ThreadPruned, prune
from perdure.governance._report import FINDING_CODES, Finding, Report
from perdure.governance._verify import verify

__all__ = [
    "FINDING_CODES",
    "Checked",
    "Collected",
    "Exported",
    "FileKey",
    "Finding",
    "Pruned",
    "Report",
    "SigningKey",
    "ThreadPruned",
    "check",
    "collect",
    "export",
    "fingerprint",
    "load_private_key",
    "load_public_key",
    "make_key",
    "prune",
    "verify",
]
