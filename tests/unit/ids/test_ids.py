"""Typed identifiers cost nothing at run time."""

import pytest

from perdure import ids


@pytest.mark.parametrize("name", ids.__all__)
def test_identifier_is_its_own_string(name):
    text = "r_1"
    assert getattr(ids, name)(text) is text
