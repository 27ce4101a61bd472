"""Backoff: full jitter under a ceiling that doubles, and an honoured, bounded Retry-After."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.retry import RETRY_AFTER_S_MAX, Retry, backoff_s
from perdure.errors import SettingInvalid
from perdure.testing import SeededRng


class Highest:
    """A source of chance that always gives the highest value."""

    def uniform(self, _low, high):
        return high


class Lowest:
    """A source of chance that always gives the lowest value."""

    def uniform(self, low, _high):
        return low


def test_ceiling_doubles_up_to_the_cap():
    retry = Retry(max_attempts=10, base_s=0.5, cap_s=5.0)
    ceilings = [backoff_s(retry, attempt, Highest()) for attempt in range(1, 7)]
    assert ceilings == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_is_full_it_may_be_none_at_all():
    assert backoff_s(Retry(), 1, Lowest()) == 0.0


@pytest.mark.parametrize(("attempt", "is_last"), [(1, False), (2, False), (3, True), (4, True)])
def test_no_more_tries_after_the_last(attempt, is_last):
    assert (backoff_s(Retry(max_attempts=3), attempt, Highest()) is None) is is_last


def test_one_attempt_means_never_again():
    assert backoff_s(Retry(max_attempts=1), 1, Highest(), retry_after_s=1.0) is None


@pytest.mark.parametrize(
    ("asked_s", "waited_s"),
    [
        (7.0, 7.0),
        (0.1, 0.5),  # a shorter one does not shorten the backoff
        (-3.0, 0.5),
        (math.inf, RETRY_AFTER_S_MAX),
    ],
)
def test_retry_after_is_a_bounded_lower_bound(asked_s, waited_s):
    assert backoff_s(Retry(base_s=0.5), 1, Highest(), retry_after_s=asked_s) == waited_s


def test_huge_attempt_counts_do_not_overflow():
    assert backoff_s(Retry(max_attempts=10**9), 10**6, Highest()) == Retry().cap_s


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"base_s": -1.0}, r"base_s=-1\.0"),
        ({"base_s": 2.0, "cap_s": 1.0}, r"cap_s=1\.0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(SettingInvalid, match=named):
        Retry(**settings)


@given(
    attempt=st.integers(1, 200),
    base_s=st.floats(0, 100),
    extra_s=st.floats(0, 1000),
    seed=st.integers(0, 2**32),
    retry_after_s=st.none() | st.floats(allow_nan=False),
)
def test_backoff_is_always_finite_and_within_bounds(attempt, base_s, extra_s, seed, retry_after_s):
    retry = Retry(max_attempts=1000, base_s=base_s, cap_s=base_s + extra_s)
    waited_s = backoff_s(retry, attempt, SeededRng(seed), retry_after_s)
    assert 0 <= waited_s <= max(retry.cap_s, RETRY_AFTER_S_MAX)
