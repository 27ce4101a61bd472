"""Names that say nothing are not used for modules, and no file names the machine of its author."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = (".ci", "bench", "docs", "examples", "src", "tests", "tools")
"""What is looked at, beside the files of the root. Without git: it need not be installed."""

EMPTY_WORDS = re.compile(r"(^|_)(managers?|helpers?|utils?)(_|$)")

# Written in pieces, so that this file does not name what it looks for.
MACHINE_PATH = re.compile(
    "|".join(rf"(?<![\w.])/{name}/" for name in ("home", "root", "Users", "work"))
)

NOT_OURS = {"__pycache__", ".venv", ".git"}  # .git: a file, in a second work tree


def files():
    """Return the files that belong to the project."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in (*ROOT.iterdir(), *inside):
        if path.is_file() and not NOT_OURS & set(path.parts) and path.stat().st_size < 1_000_000:
            yield path


def test_no_module_has_an_empty_name():
    named = [path for path in files() if path.suffix == ".py" and EMPTY_WORDS.search(path.stem)]
    assert named == []


@pytest.mark.parametrize("name", ["utils", "run_manager", "helper", "store_helpers"])
def test_empty_names_are_recognised(name):
    assert EMPTY_WORDS.search(name)


@pytest.mark.parametrize("name", ["futile", "manage", "utilisation"])
def test_other_names_are_let_be(name):
    assert not EMPTY_WORDS.search(name)


def test_no_file_names_the_machine_of_its_author():
    named = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a golden file of stored bytes
        named += [f"{path}: {found.group()}" for found in MACHINE_PATH.finditer(text)]
    assert named == []
