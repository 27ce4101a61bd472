"""Patterns that wait for their first use: all of them compile, and are what they stand for."""

import gc
import importlib
import pkgutil
import re
import subprocess
import sys

import pytest

from perdure import contracts
from perdure.contracts._patterns import _Pattern, regex


def test_each_pattern_of_the_room_compiles():
    for module in pkgutil.walk_packages(contracts.__path__, "perdure.contracts."):
        importlib.import_module(module.name)
    found = [each for each in gc.get_objects() if isinstance(each, _Pattern)]
    assert len(found) > 100
    for each in found:
        re.compile(each._text, each._flags)


def test_it_does_what_the_pattern_does():
    words = regex(r"(a+)b", re.IGNORECASE)
    assert words.search("xAAb").group(1) == "AA"
    assert words.sub("-", "ab aab") == "- -"
    assert words.pattern == r"(a+)b"
    assert words.findall("ab aab") == ["a", "aa"]


def test_a_wrong_one_is_told_at_its_first_use():
    wrong = regex("(")
    with pytest.raises(re.error, match="unterminated"):
        wrong.match("x")


def test_little_is_loaded_to_check():
    """What takes long to load, and most checks don't need, waits until it is."""
    late = {"hashlib", "subprocess", "xml.etree", "tomllib", "configparser", "difflib"}
    late |= {"dataclasses", "traceback", "asyncio", "typer", "ruamel.yaml", "rich"}
    code = "import sys, perdure.cli._quick, perdure.contracts.check; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert late & {*done.stdout.split()} == set()
