"""Syntax of later releases is read by the Python that runs the check, line by line."""

import ast
import sys
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.code._newer import lowered, without_block
from perdure.contracts.code._unread import mattering
from perdure.contracts.code.facts import Medium
from tests.contracts.code.test_sites import only

WRITTEN = [
    ("def f[T](x: T) -> T:\n    return x", "def f(x: T) -> T:\n    return x"),
    ("async def f[T: (int, str) = int](): pass", "async def f():\n    pass"),
    ("class A[\n    T,  # what\n    *Ts,\n](Base):\n    pass", "class A(Base):\n    pass"),
    ("type X = int | str\ntype Y[T] = list[T]", "X = int | str\nY = list[T]"),
    ("type = 3\ntype(3)\nmatch = type", "type = 3\ntype(3)\nmatch = type"),
    ('x = f"{a["b"]}"', "x = f\"{a['b']}\""),
    ('x = f"{", ".join(a)} {"\\n".join(b)}"', "x = f\"{', '.join(a)} {' '.join(b)}\""),
    ('x = f"{\n    a  # why\n    + b\n}"', 'x = f"{a + b}"'),
    ("x = t\"select {a['b']!r:>{w}}\"", "x = f\"select {a['b']!r:>{w}}\""),
    ("try: pass\nexcept A, B: pass", "try:\n    pass\nexcept (A, B):\n    pass"),
    ("try: pass\nexcept A as b: pass", "try:\n    pass\nexcept A as b:\n    pass"),
    ("lazy import json\nlazy from a import b", "import json\nfrom a import b"),
    ('s = """\ndef f[T]: type X = 1\n"""', "s = '\\ndef f[T]: type X = 1\\n'"),
    ("if a: type X = int", "if a:\n    X = int"),
]


@pytest.mark.parametrize(("text", "expected"), WRITTEN)
def test_what_later_releases_added_is_written_as_before(text, expected):
    found = lowered(text)
    assert found is not None
    assert found.count("\n") == text.count("\n")
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(expected))


@pytest.mark.parametrize("text", ["x = '", 'x = f"{', "def f[T", "x = f'{a!r:", "except A,"])
def test_what_is_no_python_is_told_apart(text):
    assert lowered(text) is None


@given(st.text(alphabet="ft'\"{}[]()\\ \n:#def type class except,ab=", max_size=80))
def test_no_text_makes_it_fail(text):
    found = lowered(text)
    assert found is None or isinstance(found, str)


def test_a_block_is_left_out_with_its_name_kept():
    text = "class A:\n    def f(\n        self,\n    ):\n        a = $\n\n    def g(self): pass\n"
    rest, left_out = without_block(text, 5) or ("", "")
    assert "f = _newer_python" in rest
    assert "def g(self): pass" in rest
    assert rest.count("\n") == text.count("\n")
    assert left_out.endswith("a = $\n")


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="this Python reads all of it")
def test_a_saver_beside_syntax_of_a_newer_python_is_found_with_its_line(read):
    text = """
        from fastapi import FastAPI
        from langgraph.checkpoint.memory import MemorySaver
        from langgraph.graph import StateGraph
        type State = dict[str, str]
        def named[T](x: T) -> str: return f"{x["a"]} {t"{x}"}"
        def rest(several): return [*one for one in several]
        graph = StateGraph(State).compile(checkpointer=MemorySaver())
        app = FastAPI()
    """
    site = only(read({"app.py": dedent(text)}))
    assert site.medium is Medium.MEMORY
    assert ("app.py", 8) in {(step.file, step.line) for step in site.evidence}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class Row: id: int", frozenset()),
        ("def f(): return create_all()", frozenset({"S4"})),
        ("from .others import f", None),
        ("import mine.others", None),
        ("import json", frozenset()),
        ("import_module(name)", None),
    ],
)
def test_words_say_what_a_text_that_is_not_read_could_matter_to(text, expected):
    assert mattering([text], ["mine"]) == expected
