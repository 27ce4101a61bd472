"""The error catalogue is complete and documented, and every error survives a journey."""

import json
import pickle
import re
from pathlib import Path

import pytest

from perdure import errors
from perdure.errors import CATALOGUE, PerdureError
from tools import errors_doc

ROOT = Path(__file__).resolve().parents[2]


def whole_tree(root=PerdureError):
    """Return every class of the tree that Perdure itself defines."""
    below = [cls for child in root.__subclasses__() for cls in whole_tree(child)]
    return [cls for cls in (root, *below) if cls.__module__.startswith("perdure.")]


CLASSES = whole_tree()


def test_every_class_has_a_row_and_every_row_a_class():
    assert set(CLASSES) == set(CATALOGUE)


def test_every_class_is_exported():
    assert {cls.__name__ for cls in CLASSES} <= set(errors.__all__)


def test_every_class_is_drawn_in_the_tree():
    drawn = set(re.findall(r"\b[A-Z][A-Za-z]+\b", errors.__doc__))
    assert {cls.__name__ for cls in CLASSES} <= drawn


def test_codes_are_unique_and_well_formed():
    codes = [entry.code for entry in CATALOGUE.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"PD\d{3}", code) for code in codes)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_row_is_complete(cls):
    entry = CATALOGUE[cls]
    assert 400 <= entry.http_status <= 599
    assert 1 <= entry.exit_code <= 125  # 126 and above belong to shells and signals
    assert isinstance(entry.retryable, bool)
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_page_has_the_anchor_of(cls):
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    entry = CATALOGUE[cls]
    assert f'<a id="{entry.anchor}"></a>\n\n## {entry.code} {cls.__name__}\n' in page


def test_page_is_what_the_catalogue_says():
    assert errors_doc.main(["--check"]) == 0


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_survives_pickling(cls, protocol):
    error = cls("what failed", run="r_1", token=12)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert (str(again), again.fields) == (str(error), error.fields)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("message", ["what failed", ""])
def test_survives_json(cls, message):
    error = cls(message, run="r_1", token=12)
    again = PerdureError.from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is cls
    assert (str(again), again.fields) == (str(error), error.fields)
