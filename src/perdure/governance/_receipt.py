"""The receipt of an erasure: what was erased, what remains, and what a search found afterwards.

It holds names that callers gave to threads and subjects, ids, names of effects and counts: nothing
that was erased. Signed, it is the JSON of everything but the signature, with sorted keys and no
spaces, behind one line that says what it is.
"""

import base64
import binascii
import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import ExportInvalid, UsageError
from perdure.governance._erase_sandbox import SandboxErased
from perdure.governance._erase_scope import NotUndone, Remaining
from perdure.governance._keys import SigningKey, fingerprint, is_signature_right
from perdure.governance.limits import RECEIPT_BYTES_MAX

_WHAT = b"perdure erasure receipt 1\n"


class Verification(Struct, kw_only=True):
    """What a search for pieces of what was erased found afterwards.

    Attributes:
        searched: byte strings that were looked for.
        found_before: how many of them were found before.
        found: how many were found afterwards, and are in nobody else's data: 0.
        elsewhere: how many were found afterwards in journals of others, who hold the same.
        scope: what was searched.
    """

    searched: int = 0
    found_before: int = 0
    found: int = 0
    elsewhere: int = 0
    scope: str = ""


class ReceiptSignature(Struct, kw_only=True):
    """Who vouches for a receipt; both in base64."""

    public_key: str
    signature: str
    algorithm: str = "ed25519"


class Receipt(Struct, kw_only=True):
    """What `erase` returns.

    Attributes:
        asked: what the erasure was asked for: thread or subject.
        erasures: ids of the erasures, as the store has them.
        counts: what went, by kind.
        exports: ids of exports that may hold what was erased.
        is_resumed: an erasure that was interrupted was finished: counts are of this part.
        sandbox: what became of files of sandboxes; None: no folder was named.
    """

    format: int = 1
    perdure: str = ""
    tenant: str
    asked: dict[str, str]
    by: str
    erasures: list[str]
    begun_at: str
    ended_at: str
    threads: list[str]
    counts: dict[str, int]
    not_undone: list[NotUndone]
    exports: list[str]
    remains: list[Remaining]
    verification: Verification
    is_resumed: bool = False
    signature: ReceiptSignature | None = None
    sandbox: SandboxErased | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing of it was found any more."""
        files = self.sandbox.found if self.sandbox is not None else 0
        return self.verification.found == 0 and files == 0


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as it is written; effects and what remains as objects."""
    found: dict[str, Any] = msgspec.to_builtins(receipt)
    if receipt.sandbox is None:
        del found["sandbox"]  # as in receipts of before, whose signatures don't cover it
    elif receipt.sandbox.exports is None:
        del found["sandbox"]["exports"]  # the same
    return found


def _message(receipt: Receipt) -> bytes:
    shown = receipt_json(receipt)
    del shown["signature"]
    return _WHAT + json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()


def signed(receipt: Receipt, key: SigningKey | None) -> Receipt:
    """Return the receipt, signed; `key` None: as it is."""
    if key is None:
        return receipt
    return replace(
        receipt,
        signature=ReceiptSignature(
            public_key=base64.b64encode(key.public_key).decode(),
            signature=base64.b64encode(key.sign(_message(receipt))).decode(),
        ),
    )


def write_receipt(receipt: Receipt, path: Path) -> None:
    """Write a receipt to a file that does not exist yet.

    Raises:
        UsageError: it exists, or can't be written; what was erased is erased.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(receipt_json(receipt), file, indent=2)
            file.write("\n")
    except OSError as error:
        msg = f"the receipt can't be written to {str(path)!r}: {error.strerror}; all is erased"
        raise UsageError(msg, path=str(path)) from error


class CheckedReceipt(Struct, frozen=True):
    """A receipt, and who signed it.

    Attributes:
        signed_by: fingerprint of the key; "": nobody.
        is_right: whether the signature is that of these words, by the key that was given if one
            was.
    """

    receipt: Receipt
    signed_by: str
    is_right: bool


def check_receipt(path: Path, public_key: bytes | None = None) -> CheckedReceipt:
    """Return a receipt from a file, and whether its signature is right. Needs no store.

    Raises:
        ExportInvalid: it is no receipt.
        KeyUnusable: its signature can't be checked, as the extra is not installed.
        UsageError: the file can't be opened.
    """
    receipt = _read(path)
    if receipt.signature is None:
        return CheckedReceipt(receipt, "", public_key is None)
    try:
        own = base64.b64decode(receipt.signature.public_key, validate=True)
        signature = base64.b64decode(receipt.signature.signature, validate=True)
    except (binascii.Error, ValueError):
        return CheckedReceipt(receipt, "", is_right=False)
    is_right = is_signature_right(own, signature, _message(receipt))
    return CheckedReceipt(receipt, fingerprint(own), is_right and public_key in {None, own})


def _read(path: Path) -> Receipt:
    try:
        content = path.read_bytes() if path.stat().st_size <= RECEIPT_BYTES_MAX else b""
    except OSError as error:
        msg = f"{str(path)!r} can't be opened: {error.strerror}"
        raise UsageError(msg, path=str(path)) from error
    try:
        return msgspec.json.decode(content, type=Receipt)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"{str(path)!r} is no receipt of an erasure: {error}"
        raise ExportInvalid(msg, path=str(path)) from error
