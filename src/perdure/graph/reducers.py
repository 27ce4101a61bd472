"""The reducers that a state field can name: how a node's value enters the state.

A reducer is (old, new) -> merged and changes neither argument. The values of parallel nodes come in
one fixed order whichever node was faster, so a reducer need not commute.
"""

from collections.abc import Mapping
from typing import Any


def append(old: list[Any], new: list[Any]) -> list[Any]:
    """Return the old list extended by the new items. Only what is new is stored."""
    return [*old, *new]


def add(old: Any, new: Any) -> Any:
    """Return `old + new`."""
    return old + new


def merge(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return both mappings in one; where both have a key the new value wins. Not recursive."""
    return {**old, **new}


def replace(old: Any, new: Any) -> Any:  # noqa: ARG001 - a reducer takes both
    """Return the new value; the same as naming no reducer."""
    return new
