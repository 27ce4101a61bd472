"""The sealed form: what it hides, what it is bound to, and what it refuses."""

import pickle
from itertools import count

import pytest

from perdure.codec import _envelope as envelope
from perdure.codec import is_sealed, key_id_of
from perdure.codec._envelope import SEAL_BYTES, DataKey
from perdure.errors import SealBroken, SettingInvalid

KEY = DataKey(b"k" * 12, bytes(range(32)))
PLACE = ("default", "thread", "column", ("r_1", 7))
_numbers = count()


def nonce():
    return next(_numbers).to_bytes(24, "big")


@pytest.mark.parametrize(
    ("key", "aad", "expected"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            b"\x03" * 32,
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
)
def test_vectors_of_xaes_256_gcm(key, aad, expected):
    data_key = DataKey(bytes(12), key)
    given = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    cipher = envelope._gcm()(data_key._message_key(given[:12]))
    assert cipher.encrypt(given[12:], b"XAES-256-GCM", aad).hex() == expected


@pytest.mark.parametrize("plain", [b"", b"x", b"\xc1" * 100, bytes(100_000)])
def test_what_was_sealed_comes_back(plain):
    sealed = KEY.seal(plain, PLACE, nonce())
    assert is_sealed(sealed)
    assert key_id_of(sealed) == KEY.id
    assert len(sealed) == len(plain) + SEAL_BYTES
    assert KEY.unseal(sealed, PLACE) == plain


def test_every_bit_counts():
    sealed = KEY.seal(b"a secret", PLACE, nonce())
    for at in range(len(sealed)):
        for bit in range(8):
            other = bytearray(sealed)
            other[at] ^= 1 << bit
            with pytest.raises(SealBroken):
                _read(bytes(other))


def _read(sealed):
    key = {KEY.id: KEY}.get(key_id_of(sealed))
    if key is None:
        raise SealBroken("another key")
    return key.unseal(sealed, PLACE)


def test_every_length_but_its_own_is_refused():
    sealed = KEY.seal(b"a secret", PLACE, nonce())
    for length in range(len(sealed)):
        with pytest.raises(SealBroken):
            _read(sealed[:length])
    with pytest.raises(SealBroken):
        _read(sealed + b"\0")


@pytest.mark.parametrize(
    "place",
    [
        ("other", "thread", "column", ("r_1", 7)),
        ("default", "other", "column", ("r_1", 7)),
        ("default", "thread", "other", ("r_1", 7)),
        ("default", "thread", "column", ("r_1", 8)),
        ("default", "thread", "column", "r_17"),
        ("default", "threadcolumn", ("r_1", 7)),
    ],
)
def test_another_place_is_refused(place):
    with pytest.raises(SealBroken):
        KEY.unseal(KEY.seal(b"a secret", PLACE, nonce()), place)


def test_another_key_is_refused():
    other = DataKey(KEY.id, b"x" * 32)
    with pytest.raises(SealBroken):
        other.unseal(KEY.seal(b"a secret", PLACE, nonce()), PLACE)


def test_derived_nonces_are_equal_for_equal_bytes_of_one_place_only():
    assert KEY.nonce_of(b"a", PLACE) == KEY.nonce_of(b"a", PLACE)
    others = [
        KEY.nonce_of(b"b", PLACE),
        KEY.nonce_of(b"a", (*PLACE, "")),
        DataKey(KEY.id, b"x" * 32).nonce_of(b"a", PLACE),
    ]
    assert len({KEY.nonce_of(b"a", PLACE), *others}) == 4


def test_names_tell_nothing_and_belong_to_their_key():
    named = bytes(32)
    assert KEY.name_of(named) == KEY.name_of(named) != named
    assert DataKey(KEY.id, b"x" * 32).name_of(named) != KEY.name_of(named)


def test_a_newer_format_is_named():
    sealed = bytearray(KEY.seal(b"", PLACE, nonce()))
    sealed[1] = 9
    with pytest.raises(SealBroken, match="format"):
        key_id_of(bytes(sealed))


def test_a_key_is_neither_shown_nor_pickled():
    shown = repr(KEY) + str(KEY)
    assert bytes(range(32)).hex() not in shown
    assert KEY.id.hex() in shown
    with pytest.raises(TypeError):
        pickle.dumps(KEY)


@pytest.mark.parametrize(("key_id", "key"), [(b"", bytes(32)), (bytes(12), b"short")])
def test_keys_of_another_length_are_refused(key_id, key):
    with pytest.raises(SettingInvalid):
        DataKey(key_id, key)


def test_messages_of_a_batch_are_as_those_that_share_nothing():
    key = DataKey(bytes(12), bytes(range(32)))
    half, rests = b"h" * 12, [bytes([n]) * 12 for n in range(3)]
    batch = key.batch(half)
    for rest in rests:
        sealed = batch.seal(b"text", ("t", 1), rest)
        assert sealed == key.seal(b"text", ("t", 1), half + rest)
        assert key.unseal(sealed, ("t", 1)) == b"text"
        with pytest.raises(SealBroken):
            key.unseal(sealed, ("t", 2))
