"""The list of attacks is whole, its proofs exist, and the page says what the list does."""

import importlib

import pytest

from tests.sandbox.attack_list import DOCUMENT, LIST, PROGRAM, document
from tests.sandbox.attacks import ATTACKS


def test_it_is_whole():
    assert [each.number for each in LIST] == [*range(1, 40)]
    assert {attack.number for attack in ATTACKS} <= {*range(40)}
    numbers = {each.number for each in LIST if PROGRAM in each.proofs}
    assert numbers == {attack.number for attack in ATTACKS} - {0}
    assert [each.number for each in LIST if not each.proofs] == [38]


@pytest.mark.parametrize("proof", sorted({p for each in LIST for p in each.proofs}))
def test_its_proof_exists(proof):
    module, name = proof.split("::")
    assert callable(getattr(importlib.import_module(f"tests.sandbox.{module}"), name))


def test_the_page_is_true():
    assert DOCUMENT.read_text() == document(), "python -m tests.sandbox.attack_list"
