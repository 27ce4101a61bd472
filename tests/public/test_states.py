"""docs/states.md is drawn from the tables that the code goes by."""

import re

import pytest

from tools import states_doc


def test_the_page_is_what_the_tables_say():
    assert states_doc.main(["--check"]) == 0


def test_another_table_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(states_doc, "PAGE", tmp_path / "states.md")
    assert states_doc.main(["--check"]) == 1
    assert states_doc.main([]) == 0
    assert states_doc.main(["--check"]) == 0
    name, (text, table, first) = next(iter(states_doc.MACHINES.items()))
    less = dict(list(table.items())[1:])
    monkeypatch.setitem(states_doc.MACHINES, name, (text, less, first))
    assert states_doc.main(["--check"]) == 1
    assert "run tools/states_doc.py" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "table", "first"), states_doc.MACHINES.values())
def test_a_diagram_has_every_state_and_transition(text, table, first):
    drawn = states_doc.diagram(table, first)
    assert len(re.findall(r"^    \w+ --> \w+ : \w+$", drawn, re.MULTILINE)) == len(table)
    for state in type(first):
        assert re.search(rf"\b{state.value}\b", drawn)
