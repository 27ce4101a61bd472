"""Courses of turns by chance that the quick run leaves out."""

import functools

import pytest

MORE = functools.partial(pytest.param, marks=pytest.mark.slow)
"""Another seed: in the quick run one course of each test is enough."""
