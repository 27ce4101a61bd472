"""What probes read of the JSON that an application answers; what isn't there fails the probe."""

from typing import NoReturn

from perdure.contracts.inject._failed import ProbeFailed
from perdure.contracts.inject._http import OK, REDIRECT
from perdure.contracts.inject.probes import Target

SHOWN = 200
"""Characters of an answer that an error shows."""


def url_of(target: Target) -> str:
    """Return where an instance is reached."""
    if target.url is None:
        msg = f"{target.name} publishes no port"
        raise ProbeFailed(msg)
    return target.url


def fields(status: int, answer: object, what: str) -> dict[str, object]:
    """Return the fields of an answer to `what` that is good."""
    if not OK <= status < REDIRECT or not isinstance(answer, dict):
        fail(what, status, answer)
    return answer


def fail(what: str, status: int, answer: object) -> NoReturn:
    """Say what was answered instead."""
    msg = f"{what}: status {status}, {str(answer)[:SHOWN]!r}"
    raise ProbeFailed(msg)


def text(answer: dict[str, object], name: str) -> str:
    """Return a field that is a text."""
    value = answer.get(name)
    if not isinstance(value, str):
        msg = f"an answer without a text {name!r}: {str(answer)[:SHOWN]!r}"
        raise ProbeFailed(msg)
    return value


def count(answer: dict[str, object], name: str) -> int:
    """Return a field that is a number."""
    value = answer.get(name)
    if not isinstance(value, int):
        msg = f"an answer without a number {name!r}: {str(answer)[:SHOWN]!r}"
        raise ProbeFailed(msg)
    return value
