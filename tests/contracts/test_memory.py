"""The measure of memory that other tests of this room lean on."""

import pytest

from tests.contracts.memory import memory_within

MB = 1024 * 1024


def test_a_peak_is_seen_though_it_is_given_back():
    with pytest.raises(AssertionError, match="more than before"), memory_within(50):
        bytearray(b"x" * (100 * MB))


def test_what_was_taken_before_does_not_count():
    bytearray(b"x" * (300 * MB))
    with memory_within(50):
        bytearray(b"x" * (10 * MB))
