"""Words of the command line that name contracts and settings."""

from collections.abc import Iterable

from perdure.contracts.findings import Contract
from perdure.errors import UsageError


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a value that must be one of several words.

    Raises:
        UsageError: it is none of them.
    """
    if value not in allowed:
        msg = f"{option} is one of {', '.join(allowed)}, not {value!r}"
        raise UsageError(msg)
    return value


def assumed(pairs: Iterable[str]) -> dict[str, str]:
    """Return `KEY=VALUE`s as a mapping.

    Raises:
        UsageError: one has no key, or no `=`, or a value that its key does not take; or a key is
            given two values.
    """
    from perdure.contracts._words import wrong_values  # noqa: PLC0415  # an explanation needs none

    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            msg = f"--assume takes KEY=VALUE, not {pair!r}"
            raise UsageError(msg)
        key = _named(key)
        if found.get(key, value) != value:
            msg = f"--assume says both {key}={found[key]} and {key}={value}"
            raise UsageError(msg)
        found[key] = value
    for wrong in wrong_values(found):
        msg = f"--assume {wrong}"
        raise UsageError(msg)
    return found


def _named(key: str) -> str:
    """Return a key with the contract that it may name in capitals: `api.r3` is `api.R3`."""
    service, dot, last = key.rpartition(".")
    return f"{service}{dot}{last.upper()}" if last.upper() in tuple(Contract) else key


def contracts(only: str | None) -> tuple[Contract, ...] | None:
    """Return the contracts that a list of ids names; `None` for all.

    Raises:
        UsageError: there is no such contract.
    """
    if only is None:
        return None
    named = tuple(contract_of("--only", each) for each in only.split(",") if each.strip())
    if not named:
        msg = f"--only names no contract: {only!r}; leave it out to judge all"
        raise UsageError(msg)
    return named


def contract_of(option: str, name: str) -> Contract:
    """Return the contract with an id.

    Raises:
        UsageError: there is none.
    """
    return Contract(one_of(option, name.strip().upper(), tuple(Contract)))
