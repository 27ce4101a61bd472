"""Splitting what was paid."""

from collections.abc import Sequence

from rounding import shares

from bills.parse import Bill


def split(cents: int, people: Sequence[str]) -> dict[str, int]:
    """Return what each owes of an amount: equal parts, and no cent is lost."""
    return {person: cents // len(people) for person in people}


def weighted(cents: int, weights: dict[str, int]) -> dict[str, int]:
    """Return what each owes of an amount, by weights."""
    return dict(zip(weights, shares(cents, list(weights.values())), strict=True))


def balances(bills: Sequence[Bill], people: Sequence[str]) -> dict[str, int]:
    """Return what each is owed (above 0) or owes (below 0) after all bills."""
    totals = dict.fromkeys(people, 0)
    for bill in bills:
        totals[bill.payer] += bill.cents
        for person, part in split(bill.cents, people).items():
            totals[person] += part
    return totals
