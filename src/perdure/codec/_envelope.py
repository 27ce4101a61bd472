"""The sealed form of bytes: AES-256-GCM under a data key, bound to the place where they are stored.

Theory: a sealed form is `0xC1`, a format byte, the id of the data key, a nonce, and what
AES-256-GCM made of the plaintext, with its tag. `0xC1` begins no MessagePack value, no frame and no
page, so that plain and sealed bytes can't be taken for each other. The associated data names the
place (tenant, thread, kind of row, its id, the column): bytes that were moved there are refused.

The nonce has 192 bits: the first half makes the key of this message, by two blocks of AES under the
data key, the second half is the nonce of GCM (XAES-256-GCM). So nonces may be drawn by chance by
any number of processes that know nothing of each other: after 2**80 messages under one data key the
odds that one came twice are 2**-32, and that is more than anything stores in its life. Plain GCM,
whose nonce has 96 bits, bears 2**32 messages, and nobody could count them. A few messages that are
sealed together share the first half, and the key made of it (`Batch`).

Where a store compares what it is given with what it has (a key, an answer that comes again), the
nonce is derived from place and plaintext instead, by HMAC-SHA-256 under a key of its own. Equal
texts of one place are then equal when sealed, and that is all that it tells.

Invariants: a key is in no error, log or `repr`; a tag that does not fit is an error.

Source: C2SP XAES-256-GCM; NIST SP 800-38D section 8.3 for the bound; RFC 5869 for derived keys.
"""

import hmac
from functools import cache
from typing import Any

import msgspec

from perdure.codec.limits import SEALED_BYTES_MAX
from perdure.errors import SealBroken, SettingInvalid

SEALED_BYTE = 0xC1
"""First byte of whatever is sealed; no MessagePack value, frame or page begins with it."""

SEAL_FORMAT = 1

KEY_BYTES = 32
KEY_ID_BYTES = 12
NONCE_BYTES = 24

_HEAD = bytes([SEALED_BYTE, SEAL_FORMAT])
_NONCE_AT = len(_HEAD) + KEY_ID_BYTES
_BODY_AT = _NONCE_AT + NONCE_BYTES
_TAG_BYTES = 16
SEAL_BYTES = _BODY_AT + _TAG_BYTES
"""How much longer a sealed form is than what it holds."""

_GCM_NONCE_BYTES = 12
_BLOCK_BYTES = 16
_MSB = 1 << 127
_ENDS = (1 << 128) - 1
_R128 = 0x87

_encode_place = msgspec.msgpack.Encoder().encode

Place = tuple[Any, ...]
"""Where sealed bytes belong: strings, numbers and bytes that name the row and the column."""


@cache
def _gcm() -> Any:
    """Return the class of AES-GCM; imported by who seals, as it costs start-up time."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # as above
    except ModuleNotFoundError as error:
        msg = "encryption needs a package that is not installed: pip install 'perdure[encryption]'"
        raise SettingInvalid(msg) from error
    return AESGCM


@cache
def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # as above

    return InvalidTag


def _ecb(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415  # as above

    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305  # single blocks, in a derivation


class DataKey:
    """A key that data is sealed with.

    Attributes:
        id: its identity, 12 bytes, in every form that is sealed with it.
    """

    __slots__ = ("_ecb", "_key", "_masks", "_names", "_nonces", "id")

    def __init__(self, key_id: bytes, key: bytes) -> None:
        """Take a key of 32 bytes from a source of chance.

        Raises:
            SettingInvalid: `perdure[encryption]` is not installed.
        """
        if len(key) != KEY_BYTES or len(key_id) != KEY_ID_BYTES:
            msg = f"a data key has {KEY_BYTES} bytes and an id of {KEY_ID_BYTES}"
            raise SettingInvalid(msg)
        _gcm()
        self.id = key_id
        self._key = key
        self._ecb = _ecb(key)
        self._masks = _masks(self._ecb)
        self._nonces = derived(key, b"perdure nonces")
        self._names = derived(key, b"perdure names")

    def __repr__(self) -> str:
        return f"DataKey({self.id.hex()})"

    def __reduce__(self) -> Any:
        msg = "a data key is not pickled"
        raise TypeError(msg)

    def seal(self, plain: bytes, place: Place, nonce: bytes) -> bytes:
        """Return the sealed form of bytes.

        Args:
            plain: what is sealed, at most `SEALED_BYTES_MAX` bytes.
            place: where it belongs; the same is needed to unseal it.
            nonce: 24 bytes of chance, or `nonce_of` the same bytes and place.
        """
        return self.batch(nonce[:_GCM_NONCE_BYTES]).seal(plain, place, nonce[_GCM_NONCE_BYTES:])

    def batch(self, half: bytes) -> "Batch":
        """Return what seals some messages whose nonces begin with the same 12 bytes of chance."""
        return Batch(_HEAD + self.id + half, _gcm()(self._message_key(half)))

    def unseal(self, sealed: bytes, place: Place) -> bytes:
        """Return what `seal` was given.

        Raises:
            SealBroken: it is not what was sealed for this place under this key.
        """
        nonce = sealed[_NONCE_AT:_BODY_AT]
        cipher = _gcm()(self._message_key(nonce[:_GCM_NONCE_BYTES]))
        try:
            plain: bytes = cipher.decrypt(
                nonce[_GCM_NONCE_BYTES:], sealed[_BODY_AT:], _encode_place(place)
            )
        except _invalid_tag() as error:
            msg = "what is stored there is not what was sealed for that place"
            raise SealBroken(msg) from error
        return plain

    def nonce_of(self, plain: bytes, place: Place) -> bytes:
        """Return the nonce that equal bytes of one place always get."""
        where = _encode_place(place)
        head = len(where).to_bytes(8, "big")
        return hmac.digest(self._nonces, head + where + plain, "sha256")[:NONCE_BYTES]

    def name_of(self, name: bytes) -> bytes:
        """Return 32 bytes that stand for a name, and tell nothing of it to who lacks the key."""
        return hmac.digest(self._names, name, "sha256")

    def _message_key(self, half_nonce: bytes) -> bytes:
        """Return the key of a message: SP 800-108 with CMAC, as XAES-256-GCM has it."""
        half = int.from_bytes(half_nonce, "big")
        first, second = self._masks
        blocks = (first ^ half).to_bytes(_BLOCK_BYTES, "big") + (second ^ half).to_bytes(
            _BLOCK_BYTES, "big"
        )
        key: bytes = self._ecb.update(blocks)
        return key


class Batch:
    """A few messages under one data key that share the key which is made of half their nonce.

    Making that key costs more than sealing a small message. Nonces stay distinct by their other
    halves, drawn by chance as well: two messages of any batches have the same nonce as seldom as
    two that share nothing.
    """

    __slots__ = ("_cipher", "_head")

    def __init__(self, head: bytes, cipher: Any) -> None:
        """Seal with a cipher; `head`: what all sealed forms begin with."""
        self._head = head
        self._cipher = cipher

    def seal(self, plain: bytes, place: Place, rest: bytes) -> bytes:
        """Return the sealed form of bytes; `rest`: 12 bytes of chance, the rest of the nonce."""
        body: bytes = self._cipher.encrypt(rest, plain, _encode_place(place))
        return b"%b%b%b" % (self._head, rest, body)


def _masks(ecb: Any) -> tuple[int, int]:
    """Return CMAC's subkey, over the constant parts of the two blocks of a derivation."""
    block = int.from_bytes(ecb.update(bytes(_BLOCK_BYTES)), "big")
    subkey = (block << 1 & _ENDS) ^ (_R128 if block & _MSB else 0)
    first, second = [
        int.from_bytes(bytes([0, counter, ord("X"), 0]) + bytes(_GCM_NONCE_BYTES), "big")
        for counter in (1, 2)
    ]
    return subkey ^ first, subkey ^ second


def derived(key: bytes, label: bytes) -> bytes:
    """Return another key of 32 bytes for another use (HKDF-Expand with SHA-256)."""
    return hmac.digest(key, label + b"\x01", "sha256")


def is_sealed(stored: bytes) -> bool:
    """Return whether stored bytes are a sealed form, of whatever format."""
    return stored[:1] == _HEAD[:1]


def key_id_of(sealed: bytes) -> bytes:
    """Return the id of the data key of a sealed form.

    Raises:
        SealBroken: it is none, of a format that is unknown here, or of a length that is none.
    """
    if sealed[:1] != _HEAD[:1]:
        msg = "what is stored there is not encrypted"
        raise SealBroken(msg)
    if sealed[:2] != _HEAD:
        msg = f"sealed form of a format that is unknown here (known: {SEAL_FORMAT})"
        raise SealBroken(msg)
    if not SEAL_BYTES <= len(sealed) <= SEALED_BYTES_MAX:
        msg = f"sealed form of {len(sealed)} bytes (possible: {SEAL_BYTES} to {SEALED_BYTES_MAX})"
        raise SealBroken(msg)
    return sealed[len(_HEAD) : _NONCE_AT]
