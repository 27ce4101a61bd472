"""Walks from function to function: nearest first, once each, and no further than told."""

import ast

import pytest

from perdure.contracts.code._scopes import Scope
from perdure.contracts.code._walks import led_to

LEADS = {"a": "bc", "b": "da", "c": "d", "d": "e", "e": "a"}


@pytest.mark.parametrize(
    ("begin", "steps", "most", "found"),
    [
        ("a", 9, 99, "abcde"),
        ("ca", 9, 99, "cadbe"),
        ("a", 1, 99, "abc"),
        ("a", 0, 99, "a"),
        ("a", 9, 3, "abc"),
        ("aa", 0, 2, "a"),
        ("", 9, 9, ""),
    ],
)
def test_what_is_led_to(begin, steps, most, found):
    known = {name: scope(name) for name in LEADS}
    walked = led_to(
        [known[name] for name in begin],
        lambda here: [known[name] for name in LEADS[here.name]],
        steps=steps,
        most=most,
    )
    assert "".join(one.name for one in walked) == found


def scope(name):
    return Scope(name=name, kind="function", path="a.py", node=ast.parse(""), parent=None)
