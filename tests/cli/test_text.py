"""Nothing that a user stored steers the terminal."""

import io
import json

import pytest

from perdure.cli import _output, _text
from perdure.cli._store import pasted, with_store, with_terms
from perdure.errors import NotFound


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand tabs", "two lines and tabs"),
        ("\x1b[31mred", "\N{REPLACEMENT CHARACTER}[31mred"),
        ("\x9b31mred", "\N{REPLACEMENT CHARACTER}31mred"),
        ("a\u202eb", "a\N{REPLACEMENT CHARACTER}b"),
        ("bell\x07", "bell\N{REPLACEMENT CHARACTER}"),
        ("grüße 日本", "grüße 日本"),
        ("x" * 10, "xxxx…"),
    ],
)
def test_clean(text, shown):
    assert _text.clean(text, 5 if text.startswith("xxx") else 100) == shown


def test_pretty_json_is_the_same_json_and_steers_nothing():
    value = {"a": "\x1b[31m\x9b\u202e \U0001f468\u200d\U0001f469 grüße", "b": [1, None]}
    text = _text.pretty_json(value)
    assert json.loads(text) == value
    assert "grüße" in text
    assert not set(text) & {"\x1b", "\x9b", "\u202e"}


def test_commands_keep_their_comment_behind_the_store(monkeypatch):
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    command = with_store("perdure worker FILE:GRAPH  # g v1", "sqlite:///a b.db")
    assert command == "perdure worker FILE:GRAPH --store 'sqlite:///a b.db'  # g v1"
    assert with_store("perdure ps", "sqlite:///perdure.db") == "perdure ps"


MESSAGES = [
    (
        "no run 'r_1'; 'perdure ps --all' lists the runs",
        ["perdure ps --all --store sqlite:///x.db"],
    ),
    (
        "Then: perdure resolve r_1 --retry --by NAME, or perdure cancel r_1",
        [
            "perdure resolve r_1 --retry --by NAME --store sqlite:///x.db",
            "perdure cancel r_1 --store sqlite:///x.db",
        ],
    ),
    ("see: perdure limit list", ["perdure limit list --store sqlite:///x.db"]),
    ("'perdure keys new' makes one; perdure doctor --store sqlite:///y.db", []),
    ("what perdure allows is no command", []),
    ("'perdure history my thread' lists", ["perdure history my thread --store sqlite:///x.db"]),
]


@pytest.mark.parametrize(("text", "commands"), MESSAGES)
def test_commands_of_an_error_come_again_with_their_store(monkeypatch, text, commands):
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    with pytest.raises(NotFound) as caught, with_terms("sqlite:///x.db", None):
        raise NotFound(text)
    assert caught.value.fields.get("next", []) == commands
    with pytest.raises(NotFound) as caught, with_terms("sqlite:///perdure.db", None):
        raise NotFound(text)
    assert "next" not in caught.value.fields


def test_a_password_is_in_no_next_command(monkeypatch):
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    with with_terms("postgresql://ada:secret@host/db", None):
        command = pasted("perdure show r_1")
    assert command == (
        "perdure show r_1 --store postgresql://ada@host/db  # with the password in PGPASSWORD"
    )


def test_json_is_escaped(capsys):
    _output.print_json({"text": "\x1b[31m\x9b\u202e"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == {"schema": 1, "text": "\x1b[31m\x9b\u202e"}


def test_error_is_cleaned_and_has_its_next_commands(capsys):
    code = _output.print_error(NotFound("no \x1b[1mrun"), as_json=False, following=["perdure ps"])
    assert code == 4
    shown = "error PD200: no \N{REPLACEMENT CHARACTER}[1mrun\nnext: perdure ps\n"
    assert capsys.readouterr().err == shown


def test_table_on_a_terminal_reads_no_markup(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    _output.table(("run", "what"), [("r_1", "[bold]not bold[/bold] :smile: \x1b[2J")])
    assert "[bold]not bold[/bold] :smile:" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()


def test_table_without_a_terminal_is_plain_and_whole(capsys):
    _output.table(("a", "b"), [("1", "x" * 300), ("22", "")])
    assert capsys.readouterr().out == f"A   B\n1   {'x' * 300}\n22\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0004, "0 ms"), (0.25, "250 ms"), (59, "59.0 s"), (119, "119.0 s"), (120, "2 min"),
     (7200, "2 h"), (172800, "2 d")],
)  # fmt: skip
def test_duration(seconds, shown):
    assert _text.duration(seconds) == shown
