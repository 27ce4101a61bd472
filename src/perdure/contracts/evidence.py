"""What is known of something, from where, and how surely.

A fact that readers of files hand to rules is a `Known`: its value, or the question whose answer
would be the value. Rules combine facts and never open files.
"""

from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

Value = TypeVar("Value")


class Confidence(StrEnum):
    """How surely something is known, weakest last."""

    PROVED = "proved"
    """Written in the files that are deployed."""
    DECLARED_DEFAULT = "declared_default"
    """What the project says applies where nobody sets it: `.env.example`, settings, `${A:-b}`."""
    INFERRED = "inferred"
    """Follows from what is usual; another reading is possible."""


def weakest(confidences: "list[Confidence]") -> Confidence:
    """Return how surely a conclusion from all of these is known; `PROVED` for none."""
    return max(confidences, key=_ORDER.__getitem__, default=Confidence.PROVED)


_ORDER = {confidence: at for at, confidence in enumerate(Confidence)}


class Evidence(Struct, frozen=True, kw_only=True):
    """One step of a story: a line of a file, and what it says.

    `file` is relative to the checked folder, with `/`. `line` counts from 1. `note` is one clause
    for people, without a full stop, with no secret of the file in it.
    """

    file: str
    line: int
    note: str


class Known(Struct, Generic[Value], frozen=True, kw_only=True):
    """A value with its evidence, or (`value is None`) a question in words.

    `is_default`: nobody set it, and the platform's or library's default is the value; then the
    evidence is the place where it would have been set.
    """

    value: Value | None
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = Confidence.PROVED
    is_default: bool = False
    question: str | None = None
    assumed: tuple[str, ...] = ()
    """The `KEY=VALUE`s that the value depends on and that nobody but `--assume` says."""
