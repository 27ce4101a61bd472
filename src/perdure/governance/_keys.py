"""Keys that exports are signed and checked with: Ed25519, in PEM files that other tools read too.

A private key is PKCS #8 (`-----BEGIN PRIVATE KEY-----`), a public one SubjectPublicKeyInfo. Neither
is encrypted: who may read the private key's file can sign, so that nobody but its owner may.
"""

import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from perdure.errors import KeyUnusable
from perdure.governance.limits import KEY_FILE_BYTES_MAX

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SigningKey(Protocol):
    """What signs an export: a key in memory, or whatever keeps one and signs for others."""

    @property
    def public_key(self) -> bytes:
        """The public key: 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message: 64 bytes."""


class FileKey:
    """A private key from a file."""

    def __init__(self, key: Any) -> None:
        """Wrap a key of `cryptography`."""
        self._key = key

    @property
    def public_key(self) -> bytes:
        """The public key: 32 bytes."""
        found: bytes = self._key.public_key().public_bytes_raw()
        return found

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message: 64 bytes."""
        signature: bytes = self._key.sign(message)
        return signature


def fingerprint(public_key: bytes) -> str:
    """Return a short name of a public key: the beginning of its SHA-256."""
    return sha256(public_key).hexdigest()[:16]


def make_key(path: Path) -> tuple[Path, str]:
    """Make a key pair: the private key at `path`, the public one beside it with `.pub`.

    Returns:
        The public key's path, and its fingerprint.

    Raises:
        KeyUnusable: one of the files exists or can't be written; nothing was written.
    """
    _ed25519, serialization = _cryptography()
    key = _ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = path.with_name(f"{path.name}.pub")
    if beside.exists():
        raise _refused(beside, "it exists; another name for the key makes another pair")
    _create(path, private, 0o600)
    try:
        _create(beside, public, 0o644)
    except KeyUnusable:
        with suppress(OSError):
            path.unlink()
        raise
    return beside, fingerprint(key.public_key().public_bytes_raw())


def _create(path: Path, data: bytes, mode: int) -> None:
    """Write a file that does not exist yet, durably, with exactly this mode."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise _refused(path, f"{error.strerror}; nothing was written") from error
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)
        file.write(data)
        file.flush()
        os.fsync(handle)


def load_private_key(path: Path) -> FileKey:
    """Return the private key of a file.

    Raises:
        KeyUnusable: missing, readable for others, or no private Ed25519 key.
    """
    data = _read(path, is_secret=True)
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise _refused(path, "it is no private key in PEM that is not encrypted") from error
    except Exception as error:
        raise _refused(path, f"it can't be read as a key: {type(error).__name__}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _refused(path, "it is a key of another kind; 'perdure audit keygen' makes one")
    return FileKey(key)


def load_public_key(path: Path) -> bytes:
    """Return the public key of a file: 32 bytes.

    Raises:
        KeyUnusable: missing, or no public Ed25519 key.
    """
    data = _read(path, is_secret=False)
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_public_key(data)
    except Exception as error:
        what = f"it is no public key in PEM ({type(error).__name__}); it ends in .pub"
        raise _refused(path, what) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _refused(path, "it is a key of another kind than Ed25519")
    found: bytes = key.public_bytes_raw()
    return found


def is_signature_right(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature is that of the message by the key."""
    ed25519, _serialization = _cryptography()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  # as _cryptography

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path, *, is_secret: bool) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path, "it is no regular file")
            if is_secret and status.st_mode & _OTHERS:
                mode = stat.S_IMODE(status.st_mode)
                what = f"others than its owner may use it (mode {mode:04o}): chmod 600 {path}"
                raise _refused(path, what)
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    if len(data) > KEY_FILE_BYTES_MAX:
        raise _refused(path, f"it is larger than {KEY_FILE_BYTES_MAX} bytes")
    return data


def _refused(path: Path, what: str) -> KeyUnusable:
    return KeyUnusable(f"key file {str(path)!r} can't be used: {what}", path=str(path))


def _cryptography() -> tuple[Any, Any]:
    """Return the parts of `cryptography` that are needed.

    Raises:
        KeyUnusable: it is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # an extra
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
    except ImportError as error:
        msg = (
            "signing and checking signatures needs the extra 'encryption': pip install "
            "'perdure[encryption]'. Verifying a store needs it not, nor do exports without a "
            "signature"
        )
        raise KeyUnusable(msg) from error
    return ed25519, serialization
