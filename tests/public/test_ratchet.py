"""The size ratchet holds here, counts rightly, and turns one way only."""

import ast
import json
import textwrap
from pathlib import Path

import pytest

from tools import ratchet

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "src").mkdir()
    return tmp_path


def put(tree, *, lines, header="", name="long"):
    body = "".join(f"    x = {n}\n" for n in range(lines - 1))
    (tree / "src" / "a.py").write_text(f'"""{header}"""\ndef {name}():\n{body}', encoding="utf-8")


def test_nothing_here_is_over_its_limit():
    frozen = json.loads(ratchet.FROZEN.read_text(encoding="utf-8"))
    assert ratchet.offences(ROOT, frozen) == []


def test_frozen_list_is_as_short_as_it_can_be():
    frozen = json.loads(ratchet.FROZEN.read_text(encoding="utf-8"))
    assert ratchet.lowered(ROOT, frozen) == frozen


def test_docstrings_and_decorators_do_not_count():
    source = '''
    @decorated
    def documented():
        """One line.

        Another.
        """
        return 1
    '''
    node = ast.parse(textwrap.dedent(source)).body[0]
    assert ratchet.function_lines(node) == 2


def test_functions_are_named_by_where_they_are():
    source = """
    class Outer:
        async def method(self):
            if True:
                def inner(): ...
    """
    named = [name for name, _node in ratchet.functions(ast.parse(textwrap.dedent(source)))]
    assert named == ["Outer.method", "Outer.method.inner"]


@pytest.mark.parametrize(("lines", "offends"), [(70, False), (71, True)])
def test_long_function_offends_from_71_lines(tree, lines, offends):
    put(tree, lines=lines)
    assert bool(ratchet.offences(tree, {})) is offends


def test_frozen_function_may_stay_but_not_grow(tree):
    put(tree, lines=90)
    assert ratchet.offences(tree, {"src/a.py::long": 90}) == []
    assert ratchet.offences(tree, {"src/a.py::long": 89}) != []


@pytest.mark.parametrize(("lines", "header", "offends"), [
    (500, "", False),
    (501, "", True),
    (501, "What it is.\n\nSize: one table.\n", False),
    (801, "Size: no excuse.", True),
])  # fmt: skip
def test_large_file_must_explain_itself_and_then_be_split(tree, lines, header, offends):
    comment = "# a comment\n" * (lines - len(header.splitlines() or [""]))
    (tree / "src" / "a.py").write_text(f'"""{header}"""\n{comment}', encoding="utf-8")
    assert bool(ratchet.offences(tree, {})) is offends


def test_update_lowers_drops_and_never_adds(tree):
    put(tree, lines=90)
    assert ratchet.lowered(tree, {}) == {}
    assert ratchet.lowered(tree, {"src/a.py::long": 100}) == {"src/a.py::long": 90}
    assert ratchet.lowered(tree, {"src/a.py::long": 80}) == {"src/a.py::long": 80}
    assert ratchet.lowered(tree, {"src/a.py::gone": 90, "src/b.py": 900}) == {}
    put(tree, lines=60)
    assert ratchet.lowered(tree, {"src/a.py::long": 90}) == {}


def test_report_names_functions_to_rethink(tree):
    put(tree, lines=41)
    assert "src/a.py::long: 41" in ratchet.report(tree)
