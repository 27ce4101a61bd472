"""Errors carry fields, round-trip, and have an entry each."""

import pytest

from perdure.errors import (
    CATALOGUE,
    DecodeFailed,
    LeaseLost,
    NotFound,
    PerdureError,
    Rejected,
    TypeUnknown,
    entry_of,
)


def test_message_and_fields_are_kept():
    error = LeaseLost("run 'r_1' lost its lease", run="r_1", token=12)
    assert str(error) == "run 'r_1' lost its lease"
    assert error.fields == {"run": "r_1", "token": 12}


def test_without_message_the_class_speaks():
    assert str(NotFound()) == NotFound.__doc__


def test_field_names_never_clash_with_parameters():
    error = NotFound("gone", message="m", self="s")
    assert error.fields == {"message": "m", "self": "s"}


def test_to_json_has_class_text_and_fields():
    assert NotFound("no run 'r_1'", run="r_1").to_json() == {
        "error": "NotFound",
        "message": "no run 'r_1'",
        "fields": {"run": "r_1"},
    }


def test_from_json_finds_the_class_in_the_whole_tree():
    error = PerdureError.from_json(
        {"error": "TypeUnknown", "message": "m", "fields": {"type": "T"}}
    )
    assert type(error) is TypeUnknown
    assert error.fields == {"type": "T"}


@pytest.mark.parametrize("fields", [None, "text", ["list"]])
def test_from_json_survives_what_a_newer_version_may_send(fields):
    error = DecodeFailed.from_json({"error": "NotYetInvented", "message": "m", "fields": fields})
    assert type(error) is DecodeFailed
    assert error.fields == {}


def test_note_is_shown_and_returns_the_error():
    error = NotFound("gone")
    assert error.note("look elsewhere") is error
    assert error.__notes__ == ["look elsewhere"]


def test_rejected_says_when_to_try_again():
    assert Rejected("busy", retry_after_s=2.0).fields == {"retry_after_s": 2.0}
    assert Rejected("no").fields == {"retry_after_s": None}


def test_entry_of_takes_an_error_or_its_class():
    assert entry_of(NotFound("gone")) is entry_of(NotFound) is CATALOGUE[NotFound]


def test_a_users_own_subclass_has_the_entry_of_its_nearest_ancestor():
    class CardDeclined(Rejected):
        """The card was declined."""

    assert entry_of(CardDeclined("declined")) is CATALOGUE[Rejected]


def test_anchor_is_the_code_in_small_letters():
    assert CATALOGUE[NotFound].anchor == "pd200"
