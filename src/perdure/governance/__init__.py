"""Proof of what happened, and what is kept of it: verify, export, check; prune, collect, erase."""

from perdure.governance._check import Checked, check
from perdure.governance._collect import Collected, collect
from perdure.governance._erase import erase, preview_erasure
from perdure.governance._erase_sandbox import SandboxErased
from perdure.governance._erase_scope import ErasurePreview, NotUndone, Remaining, Unfinished
from perdure.governance._export import Exported, export
from perdure.governance._keys import (
    FileKey,
    SigningKey,
    fingerprint,
    load_private_key,
    load_public_key,
    make_key,
)
from perdure.governance._prune import prune
from perdure.governance._pruned import Pruned, ThreadPruned
from perdure.governance._receipt import (
    CheckedReceipt,
    Receipt,
    Verification,
    check_receipt,
    receipt_json,
    write_receipt,
)
from perdure.governance._report import FINDING_CODES, Finding, Report
from perdure.governance._snapshots import collect_snapshots
from perdure.governance._staying import Stay, Why
from perdure.governance._verify import verify

__all__ = [
    "FINDING_CODES",
    "Checked",
    "CheckedReceipt",
    "Collected",
    "ErasurePreview",
    "Exported",
    "FileKey",
    "Finding",
    "NotUndone",
    "Pruned",
    "Receipt",
    "Remaining",
    "Report",
    "SandboxErased",
    "SigningKey",
    "Stay",
    "ThreadPruned",
    "Unfinished",
    "Verification",
    "Why",
    "check",
    "check_receipt",
    "collect",
    "collect_snapshots",
    "erase",
    "export",
    "fingerprint",
    "load_private_key",
    "load_public_key",
    "make_key",
    "preview_erasure",
    "prune",
    "receipt_json",
    "verify",
    "write_receipt",
]
