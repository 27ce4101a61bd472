"""Nonces of what is sealed: drawn by chance, none twice."""

import os

from perdure.codec import NONCE_BYTES, DataKey
from perdure.sealing._keyring import ScopeKeys
from perdure.sealing._seals import Seals
from perdure.sealing.limits import BATCH_SEALS


def test_no_nonce_comes_twice_and_few_share_a_half():
    key, other = (DataKey(bytes([n]) * 12, os.urandom(32)) for n in (1, 2))
    own, shared = (ScopeKeys(each, each, {each.id: each}) for each in (key, other))
    seals = Seals("acme", "t", own=own, shared=shared, entropy=os.urandom)
    nonces = []
    for n in range(10 * BATCH_SEALS + 3):
        sealed = seals.seal(b"x", "column", str(n))
        assert seals.unseal(sealed, "column", str(n)) == b"x"
        nonces.append(sealed[14 : 14 + NONCE_BYTES])
        sealed = seals.seal_shared(b"x", "column", str(n), exact=False)
        assert seals.unseal_shared(sealed, "column", str(n)) == b"x"
        nonces.append(sealed[14 : 14 + NONCE_BYTES])
    assert len(set(nonces)) == len(nonces)
    halves = [nonce[: NONCE_BYTES // 2] for nonce in nonces]
    assert max(halves.count(half) for half in set(halves)) == BATCH_SEALS
    assert len({nonce[NONCE_BYTES // 2 :] for nonce in nonces}) == len(nonces)
